import threading

import jax
import numpy as np
from fakes import PATIENCE

from seedbed.weights.store import WeightStore


def store(keep: int = 2, devices: int = 1) -> WeightStore:
    return WeightStore(jax.devices()[:1] * devices, keep=keep)


def test_the_newest_and_exact_versions() -> None:
    weights = store(keep=2)
    assert weights.exactly(0) is None
    for version in range(4):
        weights.publish({"w": np.float32(version)}, version)
        newest = weights.newest()
        assert (newest.version, float(newest.params["w"])) == (version, version)
    assert [weights.exactly(version) is not None for version in range(5)] == [False, False, True, True, False]
    exact = weights.exactly(2)
    assert exact is not None
    assert (exact.version, float(exact.params["w"])) == (2, 2)


def test_a_snapshot_stays_what_it_was() -> None:
    weights = store(keep=1)
    weights.publish({"w": np.float32(0)}, 0)
    old = weights.newest()
    weights.publish({"w": np.float32(1)}, 1)
    assert (old.version, float(old.params["w"])) == (0, 0)
    assert "params" not in repr(old), "a repr of weights says the version, not a million numbers"


def test_every_device_has_its_copy() -> None:
    weights = store(devices=2)
    weights.publish({"w": np.float32(3)}, 0)
    for device in range(2):
        assert float(weights.newest(device).params["w"]) == 3
        exact = weights.exactly(0, device)
        assert exact is not None and exact.params["w"].devices() == {jax.devices()[0]}


def test_listeners_hear_of_what_can_already_be_read() -> None:
    weights = store()
    heard: list[int] = []
    for _ in range(2):
        weights.listen(lambda: heard.append(weights.newest().version))
    weights.publish({"w": np.float32(0)}, 5)
    assert heard == [5, 5]


def test_readers_never_see_a_mixture() -> None:
    weights = store(keep=1)
    weights.publish({"a": np.float32(0), "b": np.float32(0)}, 0)
    done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not done.is_set():
            seen = weights.newest()
            if not float(seen.params["a"]) == float(seen.params["b"]) == seen.version:
                wrong.append(seen)

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(1, 200):
        weights.publish({"a": np.float32(version), "b": np.float32(version)}, version)
    done.set()
    reader.join(PATIENCE)
    assert wrong == []
