"""Convolutions and max-pools by the extension, against XLA; without it they test what stands in for it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from seedbed.errors import SpecError
from seedbed.nets.convolutions import convolve, max_pool
from seedbed.nets.cpu import library

DTYPES = ("float32", "bfloat16")
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
"""Of the largest number."""


def plain(images, kernel, bias, stride, padding):
    return bias + lax.conv_general_dilated(
        images, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def plain_pool(images, window, stride):
    return lax.reduce_window(
        images, -jnp.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), "SAME"
    )


def normal(seed, *shape, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype("float32")).astype(dtype)


def require_close(found, wanted, tolerance):
    found, wanted = np.asarray(found, "float64"), np.asarray(wanted, "float64")
    assert found.shape == wanted.shape
    if wanted.size:
        assert np.abs(found - wanted).max() <= tolerance * max(1.0, np.abs(wanted).max())


def check(image, kernel, features, stride, padding, dtype, n, *, rectified=False, of_bytes=False):
    """Result and gradients, with the oracle in float32 on inputs that were rounded as ours are."""
    images, weights = normal(0, n, *image, dtype=dtype), normal(1, *kernel, image[-1], features)
    numbers = images.astype("float32")
    if of_bytes:
        images = jnp.asarray(np.random.default_rng(0).integers(0, 256, images.shape), "uint8")
        numbers = (images.astype("float32") / 255).astype(dtype).astype("float32")
    bias = normal(2, features)

    def ours(images, weights, bias):
        return convolve(images, weights, bias, stride, padding, rectified=rectified, dtype=dtype)

    def oracle(numbers, weights, bias):
        out = plain(numbers, weights.astype(dtype).astype("float32"), bias, stride, padding)
        return jnp.maximum(out, 0) if rectified else out

    wanted, pull_oracle = jax.vjp(oracle, numbers, weights, bias)
    arguments = (1, 2) if of_bytes else (0, 1, 2)
    out, pull = jax.vjp(
        lambda *some: ours(*(() if len(some) == 3 else (images,)), *some),
        *(images, weights, bias)[3 - len(arguments) :],
    )
    assert out.dtype == dtype
    require_close(out, wanted, TOLERANCE[dtype])
    towards = normal(3, *out.shape, dtype=dtype)
    if rectified:  # as near 0 as rounding may put it on either side, no gradient is asked for
        towards = jnp.where(jnp.abs(wanted) < 0.05, 0, towards)
    gradients, expected = pull(towards), pull_oracle(towards.astype("float32"))
    assert [x.dtype for x in gradients] == [dtype, "float32", "float32"][3 - len(arguments) :]
    for found, one in zip(gradients, expected[3 - len(arguments) :], strict=True):
        require_close(found, one, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("image", "kernel", "features", "stride", "padding"),
    [
        ((84, 84, 4), (8, 8), 32, 4, "VALID"),  # nature
        ((20, 20, 32), (4, 4), 64, 2, "VALID"),
        ((9, 9, 64), (3, 3), 64, 1, "VALID"),
        ((84, 84, 4), (8, 8), 16, 4, "SAME"),  # shallow
        ((21, 21, 16), (4, 4), 32, 2, "SAME"),
        ((84, 84, 4), (8, 8), 16, 4, "VALID"),  # small
        ((42, 42, 4), (4, 4), 16, 2, "VALID"),  # pooled
        ((72, 96, 3), (3, 3), 16, 1, "SAME"),  # deep
        ((42, 42, 16), (3, 3), 16, 1, "SAME"),
        ((21, 21, 16), (3, 3), 32, 1, "SAME"),
        ((11, 11, 32), (3, 3), 32, 1, "SAME"),
        ((10, 10, 4), (3, 3), 16, 1, "VALID"),  # tiny
    ],
)
@pytest.mark.parametrize("rectified", [True, *thorough(False)])
def test_layers_of_the_networks(image, kernel, features, stride, padding, rectified, dtype):
    of_bytes = rectified and image[-1] == 4
    check(image, kernel, features, stride, padding, dtype, n=19, rectified=rectified, of_bytes=of_bytes)


@settings(max_examples=10)
@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.integers(1, 9),
    st.integers(1, 5),
    st.sampled_from(["SAME", "VALID"]),
    st.sampled_from(DTYPES),
    st.integers(1, 50),
    st.booleans(),
    st.booleans(),
)
def test_odd_layers(image, kernel, features, stride, padding, dtype, n, rectified, of_bytes):
    if padding == "VALID":
        kernel = tuple(min(side, size) for side, size in zip(kernel, image, strict=False))
    check(image, kernel, features, stride, padding, dtype, n, rectified=rectified, of_bytes=of_bytes)


@settings(max_examples=12)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(1, 9)),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from((*DTYPES, "uint8")),
)
def test_max_pools(shape, window, stride, dtype):
    # No number is twice in a window, and bfloat16 has them all.
    pixels = np.arange(shape[1] * shape[2]).reshape(1, *shape[1:3], 1)
    numbers = (pixels + np.arange(shape[0]).reshape(-1, 1, 1, 1) + np.arange(shape[3])) * 37 % 97
    images = jnp.asarray(numbers - (0 if dtype == "uint8" else 48), dtype)
    oracle, pull_oracle = jax.vjp(lambda x: plain_pool(x, window, stride), images.astype("float32"))
    if dtype == "uint8":
        out = max_pool(images, window, stride)
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, oracle)
        np.testing.assert_array_equal(jax.vjp(lambda x: max_pool(x, window, stride), images)[0], oracle)
        return
    out, pull = jax.vjp(lambda x: max_pool(x, window, stride), images)
    assert out.dtype == dtype
    np.testing.assert_array_equal(np.asarray(out, "float32"), oracle)
    np.testing.assert_array_equal(
        np.asarray(jax.jit(max_pool, static_argnums=(1, 2))(images, window, stride)), out
    )
    towards = normal(1, *out.shape, dtype=dtype)
    (of_images,), (wanted,) = pull(towards), pull_oracle(towards.astype("float32"))
    require_close(of_images, wanted, TOLERANCE[dtype])


def test_a_pool_of_nothing_finite_stays_so():
    """What has diverged must be seen at the end of the network."""
    images = np.array(normal(0, 16, 8, 8, 3))
    images[3, 4, 4, 1], images[:, :, :, 2] = np.nan, -np.inf
    np.testing.assert_array_equal(max_pool(jnp.asarray(images), 3, 2), plain_pool(images, 3, 2))
    for dtype in DTYPES:
        out = convolve(images, normal(1, 3, 3, 3, 4), jnp.zeros(4), 1, "SAME", rectified=True, dtype=dtype)
        assert jnp.isnan(out).any()


def test_a_sum_over_more_pieces_than_are_kept_apart():
    check((5, 5, 3), (2, 2), 5, 1, "VALID", "float32", n=610)


def test_nothing_comes_back_through_a_rectifier_from_what_is_no_number():
    images = jnp.asarray([[-1.0], [1.0], [jnp.nan], [-jnp.nan]]).reshape(4, 1, 1, 1)
    one = jnp.ones((1, 1, 1, 1))

    def rectified(images, dtype):
        out = convolve(images, one, jnp.zeros(1), 1, "SAME", rectified=True, dtype=dtype)
        return out.astype("float32").sum()

    for dtype in DTYPES:
        of_images = jax.grad(rectified)(images, dtype)
        np.testing.assert_array_equal(of_images.reshape(-1), [0, 1, 0, 0])


@pytest.mark.parametrize("shape", [(0, 8, 8, 3), (2, 8, 8, 0)])
def test_batches_and_images_of_nothing(shape):
    images, kernel, bias = jnp.zeros(shape), jnp.zeros((3, 3, shape[-1], 4)), jnp.ones(4)
    out, pull = jax.vjp(lambda *x: convolve(*x, 2, "SAME"), images, kernel, bias)
    assert out.shape == (shape[0], 4, 4, 4)
    gradients = pull(jnp.ones_like(out))
    assert [x.shape for x in gradients] == [images.shape, kernel.shape, (4,)]
    assert max_pool(images, 3, 2).shape == (shape[0], 4, 4, shape[-1])


IMAGES, KERNEL, BIAS = normal(0, 37, 12, 10, 3), normal(1, 3, 3, 3, 8), normal(2, 8)


def loss(kernel, images=IMAGES):
    return (max_pool(convolve(images, kernel, BIAS, 1, "SAME"), 3, 2) ** 2).sum()


def plain_loss(kernel, images=IMAGES):
    return (plain_pool(plain(images, kernel, BIAS, 1, "SAME"), 3, 2) ** 2).sum()


def test_twice_the_same_is_bit_identical_also_in_several_threads():
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    first = jax.tree.map(np.array, compiled(KERNEL, IMAGES))

    def again(_):
        return jax.tree.map(np.array, compiled(KERNEL, IMAGES))

    with ThreadPoolExecutor(4) as threads:
        for other in threads.map(again, range(40)):
            jax.tree.map(np.testing.assert_array_equal, first, other)


def test_acting_and_training_at_once_change_no_bit_of_each_other():
    train = jax.jit(jax.value_and_grad(loss))
    act = jax.jit(lambda kernel, images: convolve(images, kernel, BIAS, 1, "SAME", rectified=True))
    tasks = [(train, KERNEL, IMAGES), (act, KERNEL, IMAGES[:9]), (act, 2 * KERNEL, IMAGES[:16])]
    alone = [jax.tree.map(np.array, task(*inputs)) for task, *inputs in tasks]

    def again(index):
        task, *inputs = tasks[index % len(tasks)]
        return jax.tree.map(np.array, task(*inputs))

    with ThreadPoolExecutor(4) as threads:
        for index, found in enumerate(threads.map(again, range(60))):
            jax.tree.map(np.testing.assert_array_equal, alone[index % len(tasks)], found)


DIGEST = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])
import hashlib, jax, numpy as np
from seedbed.nets.convolutions import convolve, max_pool
random = np.random.default_rng(0)
images, kernel = (random.normal(size=shape).astype("float32") for shape in ((150, 20, 20, 4), (3, 3, 4, 8)))
def loss(kernel, images):
    return (max_pool(convolve(images, kernel, np.ones(8, "float32"), 1, "SAME"), 3, 2) ** 2)
out, pull = jax.vjp(jax.jit(loss), kernel, images)
print([hashlib.sha256(np.array(x).tobytes()).hexdigest() for x in (out, *pull(out))])
"""


@pytest.mark.skipif(not library.find().dtypes, reason="promised of the extension only")
def test_the_number_of_cores_changes_no_bit():
    said = [
        subprocess.run(
            [sys.executable, "-c", DIGEST, cores], capture_output=True, text=True, check=True
        ).stdout
        for cores in ("1", "64")
    ]
    assert said[0] == said[1]


def test_inside_of_other_transformations():
    gradient = jax.jit(jax.grad(loss))(KERNEL)
    require_close(gradient, jax.grad(plain_loss)(KERNEL), 1e-5)
    require_close(jax.grad(jax.checkpoint(loss))(KERNEL), gradient, 1e-6)

    def steps(kernel):
        return lax.scan(lambda k, _: (k - 1e-4 * jax.grad(loss)(k), None), kernel, None, length=3)[0]

    by_hand = KERNEL
    for _ in range(3):
        by_hand = by_hand - 1e-4 * jax.grad(loss)(by_hand)
    require_close(jax.jit(steps)(KERNEL), by_hand, 1e-5)


def test_vmap_over_images_and_over_kernels():
    batches, kernels = normal(3, 3, 18, 12, 10, 3), normal(4, 3, 3, 3, 3, 8)

    def each(function, *arrays):
        return jnp.stack([function(*x) for x in zip(*arrays, strict=True)])

    convolved = jax.vmap(lambda x: convolve(x, KERNEL, BIAS, 1, "SAME"))(batches)
    require_close(convolved, each(lambda x: plain(x, KERNEL, BIAS, 1, "SAME"), batches), 1e-5)
    none = jax.vmap(lambda x: convolve(x, KERNEL, BIAS, 1, "SAME"))(batches[:0])
    assert none.shape == (0, *convolved.shape[1:])
    of_kernels = jax.vmap(jax.grad(loss))(kernels)
    require_close(of_kernels, each(jax.grad(plain_loss), kernels), 1e-5)
    both = jax.vmap(jax.grad(loss))(kernels, batches)
    require_close(both, each(jax.grad(plain_loss), kernels, batches), 1e-5)
    of_images = jax.vmap(jax.grad(loss, argnums=1), in_axes=(None, 0))(KERNEL, batches)
    require_close(of_images, each(lambda x: jax.grad(plain_loss, argnums=1)(KERNEL, x), batches), 1e-5)


@pytest.mark.parametrize("twice", [jax.grad(lambda k: jax.grad(loss)(k).sum()), jax.hessian(loss)])
def test_second_derivatives_are_refused_in_a_line(twice):
    with pytest.raises(SpecError, match=r"twice.*write the network with jax\.lax's own"):
        twice(KERNEL)


def test_layers_that_onednn_is_not_trusted_with_stay_with_xla():
    """Strides over pixels that no kernel sees, and kernels that are larger than the image."""
    for image, kernel, stride in (((9, 3), 3, 4), ((9, 2), 3, 1), ((8, 8), 1, 2)):
        images, weights = jnp.ones((16, *image, 3)), jnp.ones((kernel, kernel, 3, 8))
        program = jax.make_jaxpr(lambda x, w, s=stride: convolve(x, w, BIAS, s, "SAME"))(images, weights)
        assert "seedbed_" not in str(program)


SHARED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from seedbed.nets.convolutions import convolve, max_pool
random = np.random.default_rng(0)
images, kernel = (random.normal(size=shape).astype("float32") for shape in ((64, 12, 10, 3), (3, 3, 3, 8)))
def gradient(kernel, images):
    return jax.grad(lambda k: (max_pool(convolve(images, k, jnp.ones(8), 1, "SAME"), 3, 2) ** 2).mean())(kernel)
mesh = Mesh(np.array(jax.devices()), ("d",))
shared = jax.shard_map(
    lambda k, x: jax.lax.pmean(gradient(k, x), "d"), mesh=mesh, in_specs=(P(), P("d")), out_specs=P(), check_vma=False
)
assert len(jax.devices()) == 2
np.testing.assert_allclose(jax.jit(shared)(kernel, images), gradient(kernel, images), rtol=1e-5, atol=1e-5)
"""


def test_two_devices_average_to_one(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_accelerators_keep_xlas_convolutions():
    compiled = jax.jit(jax.grad(loss)).trace(KERNEL)
    for platform in ("cuda", "tpu"):
        text = compiled.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.convolution" in text and "seedbed_" not in text


@pytest.mark.skipif(not library.find().dtypes, reason="promised of the extension only")
@pytest.mark.parametrize(("switch", "extension"), [("auto", True), ("xla", False)])
def test_who_convolves_is_decided_when_it_is_lowered(switch, extension, monkeypatch):
    monkeypatch.setenv(library.SWITCH, switch)
    text = jax.jit(jax.grad(loss)).lower(KERNEL, IMAGES).compile().as_text()
    assert ("seedbed_" in text) == extension
    assert (" convolution(" in text) != extension
    assert "conditional(" not in text


@pytest.mark.skipif(not library.find().dtypes, reason="promised of the extension only")
def test_a_batch_of_batches_is_one_call():
    batches = normal(3, 3, 18, 12, 10, 3)
    text = (
        jax.jit(jax.vmap(lambda x: convolve(x, KERNEL, BIAS, 1, "SAME"))).lower(batches).compile().as_text()
    )
    assert text.count("custom-call(") == 1 and "while(" not in text
