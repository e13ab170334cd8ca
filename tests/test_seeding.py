"""Streams of random numbers by name."""

import itertools
import subprocess
import sys

import jax
import numpy as np

from seedbed import seeding

NAMES = list(itertools.product(range(8), ("environment", "actor", "learner", "environment1"), range(64)))


def test_no_two_streams_are_equal():
    assert len({seeding.integer(*name) for name in NAMES}) == len(NAMES)
    assert len({seeding.generator(*name).integers(2**62) for name in NAMES}) == len(NAMES)
    keys = {tuple(np.asarray(jax.random.key_data(seeding.key(*name))).tolist()) for name in NAMES[::7]}
    assert len(keys) == len(NAMES[::7])


def test_a_name_is_a_stream_on_every_machine():
    assert seeding.integer(0, "environment", 0) == seeding.integer(0, "environment")
    assert seeding.integer(1, "actor", 2) == 150383229018838290
    assert jax.random.uniform(seeding.key(1, "actor")) == jax.random.uniform(seeding.key(1, "actor"))


def test_small_seeds_are_small_and_distinct():
    small = [seeding.integer(0, "environment", i, bits=31) for i in range(1000)]
    assert max(small) < 2**31
    assert len(set(small)) == 1000


def test_actors_do_not_import_jax():
    code = "import sys; from seedbed import seeding; seeding.generator(0, 'actor'); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
