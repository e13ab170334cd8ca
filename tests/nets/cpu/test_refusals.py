"""What the extension is handed may be anything: it refuses, and the process lives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.nets.cpu import library

pytestmark = pytest.mark.skipif(not library.find().dtypes, reason="needs the extension")

FLOATS = ("float32", "bfloat16", "uint8", "float16")
KINDS = {
    # Axes of what goes in, axes of what comes out; "k" is a kernel, "b" a bias, "i" images.
    "seedbed_convolve": ("ikb", "i"),
    "seedbed_convolution_by_images": ("ik", "i"),
    "seedbed_convolution_by_kernel": ("ii", "kb"),
    "seedbed_max_pool": ("i", "i"),
    "seedbed_max_pool_keeping": ("i", "ip"),
    "seedbed_max_pool_by_images": ("ip", "i"),
}


def call(target, arrays, results, **attributes):
    attributes = {name: np.int64(value) for name, value in attributes.items()}
    if "pool" not in target:
        attributes.pop("window", None)
    if target != "seedbed_convolve":
        attributes.pop("rectified", None)
    return jax.block_until_ready(jax.ffi.ffi_call(target, results)(*arrays, **attributes))


def fields(window=3, stride=1, top=1, bottom=1, left=1, right=1, rectified=0):
    sides = {"top": top, "bottom": bottom, "left": left, "right": right}
    return {"window": window, "stride": stride, "rectified": rectified, **sides}


IMAGES, KERNEL, BIAS = jnp.ones((2, 5, 5, 3)), jnp.ones((3, 3, 3, 4)), jnp.ones(4)
OUT = jax.ShapeDtypeStruct((2, 5, 5, 4), jnp.float32)


@pytest.mark.parametrize(
    ("arrays", "out", "changed", "said"),
    [
        ((IMAGES[0], KERNEL, BIAS), OUT, {}, "four axes"),
        ((IMAGES, KERNEL[:, :, :2], BIAS), OUT, {}, "those of the kernel"),
        ((IMAGES, KERNEL, BIAS[:2]), OUT, {}, "one number for each filter"),
        ((IMAGES, KERNEL.astype("bfloat16"), BIAS), OUT, {}, "float32"),
        ((IMAGES.astype("bfloat16"), KERNEL, BIAS), OUT, {}, "of the type of what comes out"),
        ((IMAGES.astype("int32"), KERNEL, BIAS), jax.ShapeDtypeStruct(OUT.shape, jnp.int32), {}, "bfloat16"),
        ((IMAGES[:1], KERNEL, BIAS), OUT, {}, "as many images"),
        ((IMAGES, KERNEL, BIAS), OUT, {"stride": 2}, "do not follow"),
        (
            (IMAGES[:, :2], KERNEL, BIAS),
            jax.ShapeDtypeStruct((2, 2, 5, 4), jnp.float32),
            {},
            "no larger than the image",
        ),
        (
            (jnp.ones((2, 6, 6, 3)), KERNEL, BIAS),
            jax.ShapeDtypeStruct((2, 2, 2, 4), jnp.float32),
            {"stride": 2, "top": 0, "bottom": 0, "left": 0, "right": 0},
            "see every pixel",
        ),
        ((IMAGES, KERNEL, BIAS), OUT, {"stride": 0}, "do not follow"),
        ((IMAGES, KERNEL, BIAS), OUT, {"top": -1, "bottom": 3}, "do not follow"),
        ((IMAGES, KERNEL, BIAS), OUT, {"left": 2**62, "right": 2**62}, "do not follow"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(arrays, out, changed, said):
    with pytest.raises(Exception, match=said):
        call("seedbed_convolve", arrays, out, **(fields() | changed))


def test_places_of_bytes_are_refused():
    pooled = [jax.ShapeDtypeStruct((2, 5, 5, 3), jnp.uint8)] * 2
    with pytest.raises(Exception, match="uint8 has no gradient"):
        call("seedbed_max_pool_keeping", (IMAGES.astype("uint8"),), pooled, **fields())


SIDES = st.integers(0, 6)
SHAPES = {
    "i": st.one_of(st.tuples(SIDES, SIDES, SIDES, SIDES), st.tuples(SIDES, SIDES)),
    "p": st.tuples(SIDES, SIDES, SIDES, SIDES),
    "k": st.tuples(SIDES, SIDES, SIDES, SIDES),
    "b": st.tuples(SIDES),
}


@settings(max_examples=150)
@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_nothing_ends_the_process(data, target):
    def some(kinds):
        for kind in kinds:
            dtype = (
                "uint8" if kind == "p" else data.draw(st.sampled_from(FLOATS if kind == "i" else FLOATS[:2]))
            )
            yield data.draw(SHAPES[kind]), dtype

    numbers = st.one_of(st.integers(-1, 4), st.sampled_from([2**31, 2**62, -(2**63)]))
    attributes = {name: data.draw(numbers) for name in fields()}
    ins, outs = KINDS[target]
    arrays = [jnp.ones(shape, dtype) for shape, dtype in some(ins)]
    results = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in some(outs)]
    try:
        call(target, arrays, results, **attributes)
    except Exception as error:
        assert "INVALID_ARGUMENT" in str(error) or "seedbed:" in str(error)


@settings(max_examples=25)
@given(
    st.tuples(st.integers(0, 20), st.integers(1, 6), st.integers(1, 6), st.integers(1, 5)),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.data(),
)
def test_whatever_fits_is_computed(shape, window, stride, features, data):
    """Also without images, and with padding that is not the same on all sides."""
    n, height, width, channels = shape
    window, stride = min(window, height, width), min(stride, window, height, width)
    pads = [data.draw(st.integers(0, window - 1)) for _ in range(4)]
    sides = [(size + sum(pad) - window) for size, pad in ((height, pads[:2]), (width, pads[2:]))]
    if min(sides) < 0:
        return
    pads[1] += -sides[0] % stride
    pads[3] += -sides[1] % stride
    if max(pads) >= window:
        return
    sides = [(size + sum(pad) - window) for size, pad in ((height, pads[:2]), (width, pads[2:]))]
    attributes = fields(window, stride, *pads)
    rows, columns = (side // stride + 1 for side in sides)
    images, kernel = jnp.ones(shape), jnp.ones((window, window, channels, features))
    out = jax.ShapeDtypeStruct((n, rows, columns, features), jnp.float32)
    y = call("seedbed_convolve", (images, kernel, jnp.zeros(features)), out, **attributes)
    assert np.isfinite(np.asarray(y)).all()
    results = (
        jax.ShapeDtypeStruct(kernel.shape, jnp.float32),
        jax.ShapeDtypeStruct((features,), jnp.float32),
    )
    _, of_bias = call("seedbed_convolution_by_kernel", (images, jnp.ones(out.shape)), results, **attributes)
    np.testing.assert_array_equal(of_bias, np.full(features, float(n * rows * columns)))
    of_images = call(
        "seedbed_convolution_by_images", (jnp.ones(out.shape), kernel), _like(images), **attributes
    )
    most = n * rows * columns * kernel.size
    assert (min(most, 1) if any(pads) else most) <= float(of_images.sum()) <= most
    for dtype in ("float32", "bfloat16", "uint8"):
        ones = images.astype(dtype)
        pooled = jax.ShapeDtypeStruct((n, rows, columns, channels), ones.dtype)
        np.testing.assert_array_equal(
            call("seedbed_max_pool", (ones,), pooled, **attributes), np.ones(pooled.shape)
        )
        places = jax.ShapeDtypeStruct(pooled.shape, jnp.uint8)
        if dtype == "uint8":  # test_places_of_bytes_are_refused
            continue
        _, kept = call("seedbed_max_pool_keeping", (ones,), (pooled, places), **attributes)
        towards = jnp.ones(pooled.shape, dtype)
        back = call("seedbed_max_pool_by_images", (towards, kept), _like(ones), **attributes)
        assert float(back.astype("float32").sum()) == towards.size


def _like(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
