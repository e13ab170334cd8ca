"""How observations enter a network: by their declared bounds, or as in version 0.1 where that is asked for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from harness import TESTS

import seedbed
from seedbed.config.resolve import from_json, to_json
from seedbed.envs.make import spec_of
from seedbed.errors import ConfigError, DatasetError
from seedbed.launch.build import build_agent
from seedbed.nets import frame_stack, normalizer, torsos
from seedbed.nets.build import NETWORKS, build_torso
from seedbed.nets.network import Network
from seedbed.nets.observations import Values, described, entry_of, numbers
from seedbed.replay.dataset import Dataset, _as_kept
from seedbed.types import ArraySpec, EnvSpec

CHOICE = ArraySpec((), "int32", (3,))


def spec(shape, dtype="uint8", low=None, high=None, **more):
    bounds = {"low": () if low is None else (low,), "high": () if high is None else (high,)}
    return ArraySpec(shape, dtype, **{**bounds, **more})


@pytest.mark.parametrize(
    ("leaf", "values", "image"),
    [
        (spec((84, 84, 4)), Values.PIXELS, True),
        (spec((32, 32, 3)), Values.PIXELS, True),
        (spec((64, 64, 3), "float32", 0, 255), Values.PIXELS, True),
        (spec((64, 64, 3), "int32", 0, 255), Values.PIXELS, True),
        (spec((64, 64, 3), "float32", 0, 1), Values.NUMBERS, True),
        (spec((64, 64, 3), "float32"), Values.NUMBERS, True),
        (spec((31, 64, 3)), Values.WIDE, True),  # a grid of codes as well as a picture
        (spec((16, 16, 3)), Values.WIDE, True),
        (spec((64, 64, 1), "uint16", 0, 5000), Values.WIDE, True),
        (spec((8, 8, 12), low=0, high=1), Values.NUMBERS, True),
        (spec((84, 84, 1), low=0, high=1), Values.NUMBERS, True),
        (spec((10, 10, 4), "bool"), Values.NUMBERS, True),
        (spec((7, 7, 3)), Values.WIDE, False),
        (spec((2, 200, 3)), Values.WIDE, False),
        (spec((2, 3, 4), "float32", -1, 1), Values.NUMBERS, False),
        (spec((128,)), Values.WIDE, False),
        (spec((2835,), low=0, high=10), Values.NUMBERS, False),
        (spec((4,), "float32", 0, 1e6), Values.WIDE, False),
        (spec((4,), "float32", -3.4e38, 3.4e38), Values.NUMBERS, False),
        (spec((4,), "float32", 0), Values.NUMBERS, False),
        (spec((6,), "float32", -9 * np.pi, 9 * np.pi), Values.NUMBERS, False),
        (spec((4,), "int32"), Values.NUMBERS, False),
        (spec((2,), "int32", num_values=(300, 4)), Values.CHOICES, False),
        (spec((0, 3), "float32", -1, 1), Values.NUMBERS, False),
    ],
)
def test_the_rule(leaf, values, image):
    found = entry_of(leaf)
    assert (found.values, found.image) == (values, image)


def read(leaf, array, rule="auto"):
    return np.asarray(numbers(entry_of(leaf, rule), jnp.asarray(np.array(array, leaf.dtype))))


def test_pictures_are_read_by_255_whatever_their_dtype():
    for dtype in ("uint8", "float32", "int32"):
        shown = np.full((1, 32, 32, 1), 51, dtype)
        np.testing.assert_allclose(read(spec((32, 32, 1), dtype, 0, 255), shown), 0.2, rtol=1e-6)


def test_a_board_is_read_as_it_is():
    np.testing.assert_array_equal(read(spec((3,), low=0, high=1), [[0, 1, 1]]), [[0, 1, 1]])


def test_wide_numbers_are_read_in_two_scales():
    half_log = 0.5 * np.log1p([0.0, 10.0, 255.0])
    np.testing.assert_allclose(read(spec((3,)), [[0, 10, 255]]), [[0, 20 / 255, 2, *half_log]], rtol=1e-6)
    np.testing.assert_allclose(
        read(spec((2,), "float32", -1000, 500), [[-1000, 500]]),
        [[-2, 1, -0.5 * np.log1p(1000), 0.5 * np.log1p(500)]],
        rtol=1e-6,
    )


def test_numbers_far_from_0_are_counted_from_their_nearest_bound():
    start = 1_700_000_000
    leaf = spec((2,), "int32", start, start + 16)
    np.testing.assert_allclose(
        read(leaf, [[start + 1, start + 16]]), [[2 / 16, 2, 0.5 * np.log(2), 0.5 * np.log(17)]], rtol=1e-6
    )
    np.testing.assert_allclose(
        read(spec((1,), "float32", -300, -200), [[-300]]), [[-2, -0.5 * np.log(101)]], rtol=1e-6
    )


def test_elements_without_bounds_are_as_they_are_beside_wide_ones():
    leaf = ArraySpec((3,), "float32", low=(0.0, -np.inf, -1.0), high=(1000.0, np.inf, 1.0))
    np.testing.assert_allclose(read(leaf, [[500, 7, -0.5]])[:, :3], [[1, 7, -0.5]])


def test_a_scalar_has_two_scales_too():
    assert read(spec((), "int32", 0, 100), [50, 100]).shape == (2, 2)


def test_by_the_rule_of_0_1_all_bytes_are_read_by_255_and_nothing_else_is():
    np.testing.assert_allclose(read(spec((2,), low=0, high=1), [[0, 1]], "bytes"), [[0, 1 / 255]])
    np.testing.assert_allclose(read(spec((1,), "float32", 0, 1e6), [[1e6]], "bytes"), [[1e6]])
    assert entry_of(spec((2, 3, 4), "float32"), "bytes").image


def test_networks_of_0_1_read_pictures_channels_first():
    """As they were shown; the same weights give what they gave."""
    shown = np.random.default_rng(0).integers(0, 256, (2, 3, 16, 20), dtype=np.uint8)
    turned, plain = spec((16, 20, 3), channels_first=True), spec((3, 16, 20))
    config = from_json({"env": "odd:World", "preset": "none", "network": "mlp", "hidden": [8]})
    actions = ArraySpec((), "int32", (2,))
    ours, before = (build_agent(config, EnvSpec("odd", leaf, actions)) for leaf in (turned, plain))
    params = before.init(jax.random.key(0))
    never = np.zeros(2, bool)
    step = seedbed.types.TimeStep(None, np.zeros(2, np.float32), never, never, ~never)
    expected, _ = before.mode(params, step._replace(observation=shown), before.initial_state(2))
    keys = jax.random.split(jax.random.key(1), 2)
    outputs = [
        agent.act(params, keys, step._replace(observation=array), agent.initial_state(2))[0].record["policy"]
        for agent, array in ((before, shown), (ours, np.moveaxis(shown, 1, -1)))
    ]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-6)
    assert expected.shape == (2,)


def test_a_record_without_the_rule_is_one_of_0_1():
    config = seedbed.configure("CartPole-v1")
    record = to_json(config)
    assert record["observations"] == "auto"
    assert from_json(record).net.observations == "auto"
    del record["observations"]
    assert from_json(record).net.observations == "bytes"
    # An action mask was an input like any other.
    assert record["mask_as_input"] is False is from_json(record).net.mask_as_input
    del record["mask_as_input"]
    assert from_json(record).net.mask_as_input is True


@pytest.mark.parametrize(
    ("leaf", "torso", "small"),
    [
        ({"a": spec((84, 84, 1))}, torsos.small, None),
        ({"a": spec((36, 36, 1))}, torsos.small, None),
        ({"a": spec((35, 84, 1))}, torsos.tiny, None),
        ({"a": spec((84, 84, 1)), "b": spec((12, 12, 1))}, torsos.small, torsos.tiny),
        ({"a": spec((84, 84, 1)), "b": spec((7, 7, 3))}, torsos.small, None),
        ({"a": spec((2, 3, 4), "float32")}, None, None),
    ],
)
def test_auto_takes_each_image_by_its_size(leaf, torso, small):
    encoder = build_torso(Network("auto"), leaf)
    assert (encoder.image_torso and encoder.image_torso.func) is torso
    shown = {name: jnp.zeros((2, *each.shape), each.dtype) for name, each in leaf.items()}
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), shown))["params"]
    convolved = [name for name in shapes if name.startswith("ConvTorso")]
    assert len(convolved) == sum(each.is_image for each in leaf.values())
    if small is not None:
        assert any(len(shapes[name]) == 2 for name in convolved), "tiny has a convolution and a dense layer"


IMAGES = [(8, 8, 1), (2, 200, 3), (1, 1, 3), (7, 7, 3), (12, 12, 1), (20, 20, 1), (36, 36, 1), (3, 3, 3)]


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "mlp"])
def test_a_network_that_is_refused_names_one_that_works(network, shape):
    def tried(name):
        config = seedbed.configure("odd:World", preset="none", network=name)
        build_agent(config, EnvSpec("odd", spec(shape), CHOICE))

    try:
        tried(network)
    except ConfigError as refused:
        named = [name for name in ("tiny", "auto", "mlp") if name in str(refused).partition(": ")[2]]
        assert "auto" in named
        for name in named:
            tried(name)


def test_without_an_image_the_networks_that_are_named_work():
    leaf = spec((4,), "float32", -1, 1)
    with pytest.raises(ConfigError, match="use 'mlp' or 'auto'"):
        build_torso(Network("nature"), leaf)
    for name in ("mlp", "auto"):
        build_torso(Network(name), leaf).init(jax.random.key(0), np.zeros((1, 4), np.float32))


def test_pictures_of_bytes_reach_the_first_convolution_as_bytes():
    shown = jax.ShapeDtypeStruct((2, 84, 84, 4), np.uint8)
    for network in ("small", "nature", "deep"):
        torso = build_torso(Network(network), spec((84, 84, 4)))
        params = jax.eval_shape(torso.init, jax.random.key(0), shown)
        first = next(
            equation
            for equation in jax.make_jaxpr(torso.apply)(params, shown).eqns
            if shown.shape in [getattr(variable.aval, "shape", None) for variable in equation.invars]
        )
        assert first.primitive.name not in ("convert_element_type", "mul", "div", "copy"), first


def test_stacked_frames_keep_their_bounds():
    one = frame_stack.stacked_spec(spec((2, 1), "float32", 0, 5), 3)
    assert (one.shape, one.low, one.high) == ((2, 3), (0,), (5,))
    each = ArraySpec((2,), "float32", low=(0.0, -1.0), high=(1.0, 9.0))
    assert frame_stack.stacked_spec(each, 2).high == (1.0, 9.0, 1.0, 9.0)


def test_what_is_normalized_has_lost_its_bounds():
    tree = {"a": spec((2,), "float32", 0, 1e6), "b": spec((2,))}
    assert normalizer.normalized_spec(tree) == {"a": spec((2,), "float32"), "b": spec((2,))}


def test_lines_are_few_and_say_what_is_done():
    tree = {f"{i:02}": spec((2,), low=0, high=1) for i in range(30)}
    lines = [*described(EnvSpec("odd", tree, CHOICE))]
    assert lines[0] == "observation 00: uint8 (2,), 0 to 1, as numbers"
    assert len(lines) == 9
    assert lines[-1] == "and 22 more observations"
    one = EnvSpec("odd", spec((3,), "float32", 0, 1e6), CHOICE)
    assert next(described(one, normalized=True)).endswith("0 to 1e+06, brought to mean 0 and variance 1")
    assert next(described(one, Network("my:Net"))).endswith("as it is, to my:Net")
    picture = EnvSpec("odd", spec((84, 84, 1)), CHOICE)
    assert next(described(picture, Network(observations="bytes"))).endswith("0 to 255, by 255")


def test_a_data_set_of_0_1_has_no_bounds_and_is_of_the_same_environment():
    bare = EnvSpec("odd", {"a": spec((3,), "float32"), "b": spec((2,))}, CHOICE)
    now = dataclasses.replace(
        bare, observation={"a": spec((3,), "float32", -1, 1), "b": spec((2,), low=0, high=1)}
    )
    assert _as_kept(now, bare) == bare
    assert _as_kept(now, now) == now
    other = dataclasses.replace(bare, observation={"a": spec((4,), "float32"), "b": spec((2,))})
    assert _as_kept(now, other) != other


def test_the_data_set_that_0_1_wrote_is_of_the_world_that_it_was_collected_in(monkeypatch):
    monkeypatch.syspath_prepend(str(TESTS / "runs_of_0_1"))
    now = spec_of("pictures:Pictures")
    assert now.observation["board"].high == (1.0,)
    kept = Dataset.open(TESTS / "runs_of_0_1" / "pictures" / "dataset")
    kept.require(now)
    board = dataclasses.replace(now.observation["board"], shape=(4, 5))
    with pytest.raises(DatasetError, match="its observation is"):
        kept.require(dataclasses.replace(now, observation={**now.observation, "board": board}))


def _codes(random, rows, size):
    return random.integers(0, 11, (rows, size)), 5


def _bytes(random, rows, size):
    return random.integers(0, 256, (rows, size)), 127


def _wide(random, rows, size):
    return random.integers(0, 1_000_000, (rows, size)), 500_000


@pytest.mark.parametrize(
    ("draw", "leaf"),
    [(_codes, spec((24,))), (_bytes, spec((24,))), (_wide, spec((4,), "float32", 0, 1e6))],
    ids=["codes", "bytes", "wide"],
)
def test_one_number_among_many_is_learned_by_whatever_part_of_its_range_it_uses(draw, leaf):
    random = np.random.default_rng(0)
    torso = build_torso(Network("mlp"), leaf)
    head = jnp.asarray(random.normal(size=(64, 2)), jnp.float32) / 8
    optimizer = optax.adam(2e-3)

    def loss(params, shown, right):
        return optax.softmax_cross_entropy_with_integer_labels(
            torso.apply(params, shown) @ head, right
        ).mean()

    @jax.jit
    def update(params, state, shown, right):
        changes, state = optimizer.update(jax.grad(loss)(params, shown, right), state)
        return optax.apply_updates(params, changes), state

    def batch(rows):
        shown, threshold = draw(random, rows, leaf.shape[0])
        return shown.astype(leaf.dtype), (shown[:, 1] > threshold).astype(np.int32)

    params = torso.init(jax.random.key(0), batch(1)[0])
    state = optimizer.init(params)
    for _ in range(200):
        params, state = update(params, state, *batch(256))
    shown, right = batch(1000)
    assert (np.argmax(torso.apply(params, shown) @ head, -1) == right).mean() > 0.9
