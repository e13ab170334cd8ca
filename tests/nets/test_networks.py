"""Torsos, and networks by name."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import thorough

from seedbed.errors import ConfigError, SpecError
from seedbed.nets import torsos
from seedbed.nets.build import NETWORKS, build_torso
from seedbed.nets.cpu import library
from seedbed.nets.network import Network
from seedbed.testing.agents import SPECS, observations
from seedbed.types import ArraySpec

ATARI = ArraySpec((84, 84, 4), "uint8")


@pytest.mark.parametrize(
    ("name", "dense", "count"),
    # Their weights with 4 stacked frames, counted by hand.
    [
        ("nature", 512, 8224 + 32832 + 36928 + 3136 * 512 + 512),
        ("small", 256, 4112 + 8224 + 2592 * 256 + 256),
        ("pooled", 128, 1040 + 4112 + 1296 * 128 + 3 * 128),
        ("shallow", 256, 4112 + 8224 + 3872 * 256 + 256),
        ("deep", 256, 592 + 4 * 2320 + 4640 + 4 * 9248 + 9248 + 4 * 9248 + 3872 * 256 + 256),
    ],
)
def test_sizes_of_networks(name, dense, count):
    torso = build_torso(Network(name), ATARI)
    shapes = jax.eval_shape(lambda: torso.init(jax.random.key(0), jnp.zeros((1, 84, 84, 4), jnp.uint8)))
    assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == count
    out = jax.eval_shape(torso.apply, shapes, jax.ShapeDtypeStruct((7, 84, 84, 4), jnp.uint8))
    assert out.shape == (7, dense)
    assert out.dtype == jnp.float32


def conv(params, images, stride, padding):
    """A convolution of images [N, H, W, C] and its bias, as JAX itself has it."""
    strides, order = (stride, stride), ("NHWC", "HWIO", "NHWC")
    made = jax.lax.conv_general_dilated(
        images, params["kernel"], strides, padding, dimension_numbers=order, precision="highest"
    )
    return made + params["bias"]


def pool(images):
    """The largest of 3x3 at every second place; beyond the edge there is nothing."""
    return jax.lax.reduce_window(images, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def stacked(layers, padding, params, images):
    """Figure 3, left, of Espeholt et al. 2018, and its relatives: rectified layers one after the other."""
    for number, stride in enumerate(layers):
        images = jax.nn.relu(conv(params[f"Conv_{number}"], images, stride, padding))
    return images


def residual(params, images):
    """Figure 3, right: three sections of a convolution, a pool and two residual blocks of two convolutions each."""
    number = iter(range(15))

    def next_conv(images):
        return conv(params[f"Conv_{next(number)}"], images, 1, "SAME")

    for _ in range(3):
        images = pool(next_conv(images))
        for _ in range(2):
            images = images + next_conv(jax.nn.relu(next_conv(jax.nn.relu(images))))
    return jax.nn.relu(images)


@pytest.mark.parametrize(
    ("torso", "body"),
    [
        (torsos.nature(), partial(stacked, (4, 2, 1), "VALID")),
        (torsos.small(), partial(stacked, (4, 2), "VALID")),
        (torsos.shallow(), partial(stacked, (4, 2), "SAME")),
        (torsos.Deep(), residual),
    ],
    ids=["nature", "small", "shallow", "deep"],
)
def test_networks_compute_what_their_papers_draw(torso, body):
    random = np.random.default_rng(0)
    images = random.random((3, 44, 40, 2), np.float32)
    params = torso.init(jax.random.key(0), images)["params"]
    # Biases begin at zero, where one that is left out would not be seen.
    params = jax.tree.map(lambda leaf: leaf + random.normal(0, 0.1, leaf.shape).astype(np.float32), params)
    dense = params["Dense_0"]
    flat = body(params, images).reshape(3, -1)
    expected = jax.nn.relu(jnp.dot(flat, dense["kernel"], precision="highest") + dense["bias"])
    # Fifteen layers of weights like these come to thousands, of which float32 keeps seven digits.
    smallest = max(1e-4, 1e-6 * float(np.max(expected)))
    np.testing.assert_allclose(torso.apply({"params": params}, images), expected, rtol=1e-4, atol=smallest)
    assert (np.asarray(expected) > 0).any()


def layer_norm(params, features):
    """Ba et al. 2016: over the last axis, in float64."""
    features = np.asarray(features, np.float64)
    centred = features - features.mean(-1, keepdims=True)
    return centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-6) * params["scale"] + params["bias"]


def shaken(torso, seen):
    """Weights that are nowhere 0 or 1, so that each of them is seen in the outputs."""
    random = np.random.default_rng(0)
    params = torso.init(jax.random.key(0), seen)["params"]
    return jax.tree.map(lambda leaf: leaf + random.normal(0, 0.1, leaf.shape).astype(np.float32), params)


def test_a_normalized_mlp_has_a_layer_norm_before_each_activation():
    rows = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    torso = torsos.MLP((6, 3), nn.relu, normalized=True)
    params = shaken(torso, rows)
    features = rows
    for layer in range(2):
        dense = params[f"Dense_{layer}"]
        features = layer_norm(params[f"LayerNorm_{layer}"], features @ dense["kernel"] + dense["bias"])
        features = np.maximum(features, 0)
    np.testing.assert_allclose(torso.apply({"params": params}, rows), features, atol=1e-4)


def test_a_normalized_convolution_has_one_over_the_channels_of_each_pixel():
    images = np.random.default_rng(1).random((3, 10, 10, 2), np.float32)
    torso = torsos.tiny(normalized=True)
    params = shaken(torso, images)
    body = np.maximum(layer_norm(params["LayerNorm_0"], conv(params["Conv_0"], images, 1, "VALID")), 0)
    dense = params["Dense_0"]
    flat = body.reshape(3, -1) @ dense["kernel"] + dense["bias"]
    expected = np.maximum(layer_norm(params["LayerNorm_1"], flat), 0)
    np.testing.assert_allclose(torso.apply({"params": params}, images), expected, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "rectifiers"), [("nature", 4), ("small", 3), ("shallow", 3), ("pooled", 3), ("deep", 14)]
)
def test_every_rectifier_of_a_normalized_network_has_a_layer_norm(name, rectifiers):
    torso = build_torso(Network(name, normalization="layer"), ATARI)
    seen = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 4), np.uint8)
    (params,) = jax.eval_shape(torso.init, jax.random.key(0), seen)["params"].values()
    assert sum(layer.startswith("LayerNorm") for layer in params) == rectifiers
    plain = build_torso(Network(name, normalization="none"), ATARI)
    (params,) = jax.eval_shape(plain.init, jax.random.key(0), seen)["params"].values()
    assert sum(layer.startswith("LayerNorm") for layer in params) == (name == "pooled")


@pytest.mark.parametrize("name", ["mlp", "auto"])
@pytest.mark.parametrize("spec", SPECS)
def test_any_observation_becomes_features(name, spec):
    seen = observations(SPECS[spec], (6,), seed=0)
    torso = build_torso(Network(name), SPECS[spec].observation)
    features, _ = torso.init_with_output(jax.random.key(0), seen)
    assert features.ndim == 2
    assert features.shape[0] == 6
    assert features.dtype == jnp.float32


def test_what_the_encoder_makes_of_leaves():
    spec = {"a": ArraySpec((2,), "uint8"), "b": ArraySpec((2,), "int32", (2, 3)), "c": ArraySpec((), "bool")}
    seen = {"a": np.uint8([[0, 255]]), "b": np.int32([[1, 2]]), "c": np.array([True])}
    features = torsos.Encoder(spec, None).apply({}, seen)
    np.testing.assert_allclose(features, [[0, 1, 0, 1, 0, 0, 1, 1]])


def test_pixels_are_scaled():
    white = np.full((1, 12, 12, 2), 255, np.uint8)
    torso = torsos.Encoder(ArraySpec((12, 12, 2), "uint8"), torsos.tiny)
    features, params = torso.init_with_output(jax.random.key(0), white)
    inner = params["params"][next(iter(params["params"]))]
    np.testing.assert_allclose(
        features, torsos.tiny().apply({"params": inner}, np.ones(white.shape)), rtol=1e-5
    )


def test_auto_looks_at_the_image():
    assert build_torso(Network("auto"), ATARI).image_torso.func is torsos.small
    assert build_torso(Network("auto"), ArraySpec((10, 10, 4), "bool")).image_torso.func is torsos.tiny
    assert build_torso(Network("auto"), ArraySpec((4,), "float32")).image_torso is None
    build_torso(Network("small"), ArraySpec((36, 36, 1), "uint8")).init(
        jax.random.key(0), np.zeros((1, 36, 36, 1), np.uint8)
    )


class Sum(nn.Module):
    """A user's network."""

    @nn.compact
    def __call__(self, observation):
        return nn.Dense(3)(observation["x"].astype(jnp.float32))


def test_a_network_of_the_user():
    torso = build_torso(Network(f"{__name__}:Sum"), {"x": ArraySpec((2,), "float32")})
    features, _ = torso.init_with_output(jax.random.key(0), {"x": np.ones((5, 2), np.float32)})
    assert features.shape == (5, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("natur", "did you mean nature"),
        ("nature", "needs an image"),
        ("no_such_module:Net", "cannot be imported"),
        (f"{__name__}:Nothing", "unknown name"),
        (f"{__name__}:SPECS", "must be a function or a class"),
        (f"{__name__}:build_torso", "needed is a subclass"),
    ],
)
def test_wrong_names_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        build_torso(Network(name), ArraySpec((4,), "float32"))


def test_an_image_too_small_for_its_network():
    torso = build_torso(Network("nature"), ArraySpec((10, 10, 1), "uint8"))
    with pytest.raises(SpecError, match="tiny"):
        torso.init(jax.random.key(0), np.zeros((1, 10, 10, 1), np.uint8))


def test_pooled_looks_at_contrast_and_not_at_brightness():
    torso = build_torso(Network("pooled"), ATARI)
    images = np.random.default_rng(0).integers(0, 100, (3, 84, 84, 4), dtype=np.uint8)
    params = torso.init(jax.random.key(0), images)
    features = torso.apply(params, images)
    np.testing.assert_allclose(torso.apply(params, images * 2 + 50), features, atol=1e-2)
    assert np.abs(torso.apply(params, np.flip(images, 1)) - features).max() > 0.1


def test_pooled_bears_an_image_of_one_colour():
    torso = build_torso(Network("pooled"), ATARI)
    images = np.full((2, 84, 84, 4), 87, np.uint8)
    params = torso.init(jax.random.key(0), images)
    gradients = jax.grad(lambda params: jnp.sum(torso.apply(params, images)))(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


def test_names():
    assert set(NETWORKS) == {"auto", "mlp", "tiny", "small", "pooled", "nature", "shallow", "deep"}


@pytest.mark.parametrize("name", ["nature", *thorough("deep", "pooled", "shallow", "tiny")])
def test_images_in_bfloat16_and_all_else_in_float32(name):
    spec = ATARI if name != "tiny" else ArraySpec((10, 10, 4), "uint8")
    images = np.random.default_rng(0).integers(0, 256, (17, *spec.shape), dtype=np.uint8)
    wide, narrow = (
        build_torso(Network(name, compute_dtype=dtype), spec) for dtype in ("float32", "bfloat16")
    )
    params = wide.init(jax.random.key(0), images[:1])

    def loss(torso, params):
        return (torso.apply(params, images) ** 2).mean()

    program = str(jax.make_jaxpr(partial(loss, narrow))(params))
    assert "bf16[17" in program and "bf16" not in str(jax.make_jaxpr(partial(loss, wide))(params))
    assert {leaf.dtype for leaf in jax.tree.leaves(narrow.init(jax.random.key(0), images[:1]))} == {
        jnp.dtype("float32")
    }
    expected, found = (jax.grad(partial(loss, torso))(params) for torso in (wide, narrow))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        assert other.dtype == jnp.float32
        # Where a rectifier is nearly at 0 it may fall on the other side.
        assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(one)


def test_auto_is_bfloat16_where_the_processor_has_it(monkeypatch):
    for dtypes, expected in (
        ((), "float32"),
        (("float32",), "float32"),
        (("float32", "bfloat16"), "bfloat16"),
    ):
        monkeypatch.setattr(library, "find", lambda dtypes=dtypes: library.Found("3.2.0", dtypes))
        assert build_torso(Network("nature", compute_dtype="auto"), ATARI).image_torso().dtype == expected
    with pytest.raises(ConfigError, match="compute_dtype 'float16'"):
        build_torso(Network("nature", compute_dtype="float16"), ATARI)


def test_an_mlp_has_the_activation_that_is_chosen():
    spec, rows = ArraySpec((4,), "float32"), jnp.ones((1, 4))
    lowest = {}
    for activation in ("auto", "tanh", "relu", "silu"):
        torso = build_torso(Network("mlp", activation=activation), spec)
        lowest[activation] = np.asarray(torso.apply(torso.init(jax.random.key(0), rows), -rows)).min()
    assert lowest["auto"] == lowest["tanh"] < lowest["silu"] < lowest["relu"] == 0
    with pytest.raises(ConfigError, match="activation is relu, and is of an MLP's layers"):
        build_torso(Network("nature", activation="relu"), ATARI)
