"""What Seedbed makes of XLA's convolutions and max-pools, against them as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from seedbed.nets import convolutions
from seedbed.nets.convolutions import Conv, convolve, max_pool
from seedbed.nets.cpu import library


@pytest.fixture(autouse=True)
def without_extension(monkeypatch):
    """What is tested here stands in where there is none."""
    monkeypatch.setenv(library.SWITCH, "xla")


@pytest.mark.parametrize("size", [(84, 84), (21, 21), (7, 10), (1, 2)])
def test_max_pool_is_reduce_window(size):
    images = jax.random.normal(jax.random.key(0), (2, *size, 3))
    expected = lax.reduce_window(images, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    np.testing.assert_array_equal(max_pool(images, 3, 2), expected)


def test_a_convolution_is_a_sum_of_products():
    images = np.random.default_rng(0).normal(size=(1, 5, 5, 2)).astype(np.float32)
    conv = Conv(3, kernel=3, stride=2, padding="VALID")
    params = conv.init(jax.random.key(0), images)
    kernel = np.asarray(params["params"]["kernel"])
    out = conv.apply(params, images)
    assert out.shape == (1, 2, 2, 3)
    np.testing.assert_allclose(out[0, 1, 1], np.einsum("hwc,hwcf->f", images[0, 2:, 2:], kernel), rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((16, 12), (4, 4), 2, "VALID"),  # blocks
        ((12, 12), (8, 4), 4, "VALID"),
        ((13, 12), (4, 4), 2, "VALID"),  # a row that no block holds
        ((12, 12), (3, 3), 2, "VALID"),  # a kernel that no block holds
        ((12, 10), (3, 3), 1, "SAME"),
        ((11, 12), (4, 4), 2, "SAME"),
        ((5, 5), (5, 5), 1, "VALID"),  # small ones: products of matrices
        ((10, 8), (3, 2), 1, "VALID"),
        ((13, 12), (3, 3), 1, "VALID"),  # not small
    ],
)
@pytest.mark.parametrize(
    ("backend", "images_in_a_piece", "most_pieces"),
    [("cpu", 3, 64), ("cpu", 100, 64), ("cpu", 1, 2), ("gpu", 100, 64)],
)
def test_gradients_are_those_of_the_plain_convolution(
    size, kernel, stride, padding, backend, images_in_a_piece, most_pieces, monkeypatch
):
    keys = jax.random.split(jax.random.key(0), 4)
    images = jax.random.normal(keys[0], (7, *size, 3))
    weights = jax.random.normal(keys[1], (*kernel, 3, 5))

    def plain(images, weights):
        return lax.conv_general_dilated(
            images, weights, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    monkeypatch.setattr(convolutions, "_CACHE_BYTES", images_in_a_piece * images[0].nbytes)
    monkeypatch.setattr(convolutions, "_MOST_PIECES", most_pieces)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    bias = jax.random.normal(keys[3], (5,))
    out, pull = jax.vjp(lambda *inputs: convolve(*inputs, stride, padding), images, weights, bias)
    expected, pull_plain = jax.vjp(lambda i, w, b: plain(i, w) + b, images, weights, bias)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    towards = jax.random.normal(keys[2], out.shape)
    for gradient, oracle in zip(pull(towards), pull_plain(towards), strict=True):
        np.testing.assert_allclose(gradient, oracle, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "small"),
    [((10, 10, 4), (3, 3), 1, True), ((10, 10, 4), (3, 3), 2, False), ((9, 9, 64), (3, 3), 1, False)],
)
def test_small_convolutions_are_none_to_xla(shape, kernel, stride, small):
    images, weights = jnp.zeros((2, *shape)), jnp.zeros((*kernel, shape[-1], 16))
    program = str(
        jax.make_jaxpr(lambda x, k: convolve(x, k, jnp.zeros(16), stride, "VALID"))(images, weights)
    )
    assert ("conv_general_dilated" in program) != small


def test_gradients_for_several_kernels_at_once():
    images = jax.random.normal(jax.random.key(0), (4, 8, 8, 2))
    kernels = jax.random.normal(jax.random.key(1), (3, 4, 4, 2, 5))

    def total(kernel):
        return (convolve(images, kernel, jnp.ones(5), 2, "VALID") ** 2).sum()

    together = jax.vmap(jax.grad(total))(kernels)
    alone = [jax.grad(total)(kernel) for kernel in kernels]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-4)
