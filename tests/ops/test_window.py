"""Window geometry against ONNX's shape inference, and by its definition against onnxruntime."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from tercet.runtime.errors import ShapeError
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Shape, TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.pool import AveragePool, LpPool, MaxPool, MaxUnpool
from tercet.runtime.ops.window import Window, transposed_window, window

Array = np.ndarray[Any, Any]
Attributes = dict[str, Any]
SEEDS = range(100)


def sliding(seed: int, *, pool: bool) -> tuple[Attributes, tuple[int, ...], tuple[int, ...]]:
    """Draw attributes, spatial sizes and a kernel that fits, of one to three axes."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel = draw(rng, 1, 5, rank)
    auto_pad = str(rng.choice(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    attributes: Attributes = {"auto_pad": auto_pad, "strides": draw(rng, 1, 4, rank)}
    attributes["dilations"] = draw(rng, 1, 3, rank)
    if auto_pad.startswith("SAME"):
        # onnxruntime has neither dilations here nor strides that leave elements out.
        attributes["dilations"] = (1,) * rank
        attributes["strides"] = tuple(map(min, attributes["strides"], kernel))
    if auto_pad == "NOTSET":
        attributes["pads"] = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel))
    if pool:
        attributes["ceil_mode"] = int(rng.integers(2))
    extents = ((k - 1) * d for k, d in zip(kernel, attributes["dilations"], strict=True))
    return attributes, tuple(int(rng.integers(1, 8)) + e for e in extents), kernel


def draw(rng: np.random.Generator, low: int, high: int, count: int) -> tuple[int, ...]:
    return tuple(rng.integers(low, high, count).tolist())


def model(kind: str, attributes: Attributes, *inputs: Array) -> onnx.ModelProto:
    names = ["x", "w"][: len(inputs)]
    types = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, data.shape)
        for name, data in zip(names, inputs, strict=True)
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    node = helper.make_node(kind, names, ["y"], **attributes)
    graph = helper.make_graph([node], "one", types, [result])
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def inferred(proto: onnx.ModelProto) -> tuple[int, ...]:
    found = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph.output[0]
    return tuple(d.dim_value for d in found.type.tensor_type.shape.dim)


def executed(proto: onnx.ModelProto, *inputs: Array) -> Array:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, dict(zip(["x", "w"], inputs, strict=False)))[0])


def positions(w: Window, axis: int) -> Array:
    """Return the input position of each element of each window: [output, kernel]."""
    starts = np.arange(w.output[axis]) * w.strides[axis] - w.pads_begin[axis]
    return starts[:, None] + np.arange(w.kernel[axis]) * w.dilations[axis]


def patches(w: Window, x: Array, fill: float) -> Array:
    """Return the elements under each window of [*spatial]: [*output, *kernel]."""
    rank = x.ndim
    for axis in range(rank):
        at, size = positions(w, axis), x.shape[2 * axis]
        x = np.pad(x, [(0, int(i == 2 * axis)) for i in range(x.ndim)], constant_values=fill)
        x = np.take(x, np.where((at >= 0) & (at < size), at, size), axis=2 * axis)
    return x.transpose(*range(0, 2 * rank, 2), *range(1, 2 * rank, 2))


def counted(w: Window, spatial: tuple[int, ...]) -> Array:
    """Return how many elements an average over each window counts, padding included."""
    counts = np.ones((), int)
    for axis, size in enumerate(spatial):
        inside = positions(w, axis) < size + w.pads_end[axis]
        counts = np.multiply.outer(counts, inside.sum(axis=1))
    return counts


def data(seed: int, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def last(rank: int) -> tuple[int, ...]:
    return tuple(range(rank, 2 * rank))


@pytest.mark.parametrize("seed", SEEDS)
def test_convolution(seed: int) -> None:
    attributes, spatial, kernel = sliding(seed, pool=False)
    x, weights = data(seed, (1, 1, *spatial)), data(seed + 1, (1, 1, *kernel))
    proto = model("Conv", attributes, x, weights)
    w = window(Conv(**attributes), spatial, kernel)
    assert (1, 1, *w.output) == inferred(proto)
    expected = (patches(w, x[0, 0], 0) * weights[0, 0]).sum(axis=last(len(kernel)))
    np.testing.assert_allclose(executed(proto, x, weights)[0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_same_with_dilations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel, spatial = draw(rng, 1, 5, rank), draw(rng, 1, 12, rank)
    attributes: Attributes = {"strides": draw(rng, 1, 4, rank), "dilations": draw(rng, 1, 4, rank)}
    attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER"]))
    w = window(Conv(**attributes), spatial, kernel)
    zeros = np.zeros((1, 1, *spatial), np.float32), np.zeros((1, 1, *kernel), np.float32)
    assert (1, 1, *w.output) == inferred(model("Conv", attributes, *zeros))
    for axis, size in enumerate(spatial):
        needed = (w.output[axis] - 1) * w.strides[axis] + w.extent[axis] - size
        small, large = sorted((w.pads_begin[axis], w.pads_end[axis]))
        assert (small, large) == (max(needed, 0) // 2, (max(needed, 0) + 1) // 2)
        assert w.pads_end[axis] == (large if attributes["auto_pad"] == "SAME_UPPER" else small)


@pytest.mark.parametrize("seed", SEEDS)
def test_pooling(seed: int) -> None:
    attributes, spatial, kernel = sliding(seed, pool=True)
    attributes["kernel_shape"] = kernel
    x = data(seed, (1, 1, *spatial))
    proto = model("MaxPool", attributes, x)
    w = window(MaxPool(**attributes), spatial, kernel)
    # ONNX's inference keeps windows that begin in the padding at the end, its specification not.
    if not attributes["ceil_mode"]:
        assert (1, 1, *w.output) == inferred(proto)
    maxima = executed(proto, x)[0, 0]
    assert w.output == maxima.shape
    expected = patches(w, x[0, 0], -np.inf).max(axis=last(len(kernel)))
    np.testing.assert_array_equal(maxima, expected)
    attributes["count_include_pad"] = 1
    assert window(AveragePool(**attributes), spatial, kernel) == w
    total = patches(w, x[0, 0], 0).sum(axis=last(len(kernel)))
    averages = executed(model("AveragePool", attributes, x), x)[0, 0]
    np.testing.assert_allclose(averages, total / counted(w, spatial), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_transposed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel, spatial = draw(rng, 1, 5, rank), draw(rng, 1, 6, rank)
    attributes: Attributes = {"strides": draw(rng, 1, 4, rank), "dilations": draw(rng, 1, 3, rank)}
    attributes["auto_pad"] = str(rng.choice(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, attributes["dilations"], strict=True)]
    if attributes["auto_pad"] == "NOTSET":
        attributes["pads"] = tuple(int(rng.integers(0, e) // 2) for e in (*extents, *extents))
    if rng.integers(2):
        attributes["output_padding"] = tuple(int(rng.integers(s)) for s in attributes["strides"])
    if rng.integers(2):
        full = zip(spatial, attributes["strides"], extents, strict=True)
        attributes["output_shape"] = tuple(
            (n - 1) * s + e + int(rng.integers(1 - e, min(s, 3))) for n, s, e in full
        )
    x, weights = data(seed, (1, 1, *spatial)), data(seed + 1, (1, 1, *kernel))
    proto = model("ConvTranspose", attributes, x, weights)
    w = transposed_window(ConvTranspose(**attributes), spatial, kernel)
    scattered = scatter(w, x[0, 0], weights[0, 0])
    result = executed(proto, x, weights)[0, 0]
    assert w.output == result.shape
    np.testing.assert_allclose(result, scattered, rtol=1e-4, atol=1e-5)
    # ONNX's inference adds output_padding to SAME_*, and so contradicts its own specification.
    if not (attributes["auto_pad"].startswith("SAME") and "output_padding" in attributes):
        assert (1, 1, *w.output) == inferred(proto)


def scatter(w: Window, x: Array, weights: Array) -> Array:
    result = np.zeros(w.output, np.float64)
    for i in np.ndindex(x.shape):
        for k in np.ndindex(weights.shape):
            rows = zip(i, w.strides, w.pads_begin, k, w.dilations, strict=True)
            at = tuple(p * s - begin + q * d for p, s, begin, q, d in rows)
            if all(0 <= a < size for a, size in zip(at, w.output, strict=True)):
                result[at] += x[i] * weights[k]
    return result


@pytest.mark.parametrize(
    ("op", "size", "kernel", "expected"),
    [
        (MaxPool(kernel_shape=(2,), strides=(2,), auto_pad="VALID", ceil_mode=1), 5, 2, 3),
        (MaxPool(kernel_shape=(1,), strides=(3,), auto_pad="SAME_UPPER"), 7, 1, 3),
        (MaxPool(kernel_shape=(3,), dilations=(2,), auto_pad="SAME_LOWER"), 6, 3, 6),
        (AveragePool(kernel_shape=(1,), strides=(2,), ceil_mode=1), 2, 1, 1),
        (AveragePool(kernel_shape=(2,), strides=(1,), pads=(0, 2), ceil_mode=1), 5, 2, 5),
        (LpPool(kernel_shape=(3,), strides=(2,), ceil_mode=1), 4, 3, 2),
    ],
    ids=str,
)
def test_corner_cases(op: Op, size: int, kernel: int, expected: int) -> None:
    assert window(op, (size,), (kernel,)).output == (expected,)


def test_pads_are_ignored_with_auto_pad() -> None:
    op = Conv(auto_pad="VALID", pads=(3, 3))
    assert window(op, (5,), (3,)).pads_begin == (0,)


def test_windows_larger_than_the_image() -> None:
    """Only `ceil_mode` makes one of them, where the stride is beyond what is missing."""
    pool = MaxPool(kernel_shape=(5,), strides=(3,), ceil_mode=1)
    assert window(pool, (3,), (5,)).output == (1,)
    for other in (replace(pool, ceil_mode=0), replace(pool, strides=(2,))):
        with pytest.raises(ShapeError, match="a window of 5 does not fit into 3 elements"):
            window(other, (3,), (5,))


def test_unpooling_undoes_pooling() -> None:
    x = TensorType(float32, (1, 2, 5, "w"))
    op = MaxUnpool(kernel_shape=(2, 2), strides=(2, 2), pads=(1, 0, 0, 0))
    assert op.infer(x, x.with_shape(x.shape)).shape == (1, 2, 9, None)


@pytest.mark.parametrize(
    ("op", "x", "w", "expected"),
    [
        (Conv(pads=(1, 1, 1, 1)), ("n", 3, "h", 224), (8, 3, 3, 3), ("n", 8, "h", 224)),
        (Conv(auto_pad="SAME_UPPER"), ("n", 3, "h", 7), (8, 3, None, 3), ("n", 8, "h", 7)),
        (Conv(strides=(2, 2)), ("n", 3, "h", 224), (8, 3, 3, 3), ("n", 8, None, 111)),
        (Conv(), None, ("m", 3, 3), (None, "m", None)),
        (Conv(kernel_shape=(3,)), (1, 3, 9), (None, 3, None), (1, None, 7)),
        (Conv(), None, None, None),
        (ConvTranspose(pads=(1, 1)), ("n", 4, "l"), (4, 6, 3), ("n", 6, "l")),
        (ConvTranspose(group=2, output_shape=(9,)), (1, 4, "l"), (4, 6, 3), (1, 12, 9)),
        (ConvTranspose(pads=(9, 9)), (1, 4, "l"), (4, 6, 3), (1, 6, None)),
    ],
    ids=str,
)
def test_symbols(op: Conv | ConvTranspose, x: Shape, w: Shape, expected: Shape) -> None:
    assert op.infer(TensorType(float32, x), TensorType(float32, w)).shape == expected


@pytest.mark.parametrize(
    ("op", "x", "w", "words"),
    [
        (Conv(strides=(0, 1)), (1, 3, 8, 8), (8, 3, 3, 3), r"strides=\(0, 1\)"),
        (Conv(dilations=(1, -1)), (1, 3, 8, 8), (8, 3, 3, 3), "dilations"),
        (Conv(pads=(-9, 0, 0, 0)), (1, 3, 8, 8), (8, 3, 3, 3), "pads"),
        (Conv(pads=(1, 1)), (1, 3, 8, 8), (8, 3, 3, 3), "2 elements; 4 are needed"),
        (Conv(auto_pad="SAME"), (1, 3, 8, 8), (8, 3, 3, 3), "auto_pad='SAME'"),
        (Conv(group=0), (1, 3, 8, 8), (8, 3, 3, 3), "group"),
        (Conv(group=-1), (1, None, 8, 8), (8, None, 3, 3), "group"),
        (Conv(group=3), (1, 3, 8, 8), (8, 1, 3, 3), "3 does not divide 8"),
        (Conv(group=2), (1, 3, 8, 8), (8, 3, 3, 3), "3 against 6"),
        (Conv(), (1, 3, 8, 8), (8, 3, 3), "same rank"),
        (Conv(), (1, 3), (8, 3), "no spatial axis"),
        (Conv(), (), (), "no spatial axis"),
        (Conv(kernel_shape=(5, 5)), (1, 3, 8, 8), (8, 3, 3, 3), "5 against 3"),
        (Conv(kernel_shape=(3,)), (1, 3, 8, 8), (8, 3, 3, 3), "kernel_shape"),
        (Conv(), (1, 3, 8, 8), (8, 3, 3, 9), "does not fit into 8"),
        (Conv(), (1, 3, 8, 0), (8, 3, 3, 1), "0 elements"),
        (Conv(), (1, 3, 8, 8), (8, 3, 3, 0), "1 or more"),
        (ConvTranspose(pads=(9, 9)), (1, 4, 1), (4, 6, 3), "would have -15 elements"),
        (ConvTranspose(output_shape=(0,)), (1, 4, 1), (4, 6, 3), "output_shape"),
        (ConvTranspose(output_padding=(-1,)), (1, 4, 1), (4, 6, 3), "output_padding"),
        (ConvTranspose(group=3), (1, 4, 1), (4, 6, 3), "3 does not divide 4"),
        (ConvTranspose(), (1, 4, 1), (5, 6, 3), "4 against 5"),
    ],
    ids=str,
)
def test_refusals(op: Conv | ConvTranspose, x: Shape, w: Shape, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        op.infer(TensorType(float32, x), TensorType(float32, w))


def test_bias_of_wrong_length() -> None:
    x, w, b = (TensorType(float32, s) for s in ((1, 3, 8), (4, 3, 3), (5,)))
    with pytest.raises(ShapeError, match=r"b float32\[5\] must have 4 elements"):
        Conv().infer(x, w, b)


def test_a_window_larger_than_the_input_has_the_elements_inside() -> None:
    """The last pooling of EfficientNet: as large as its channels are many."""
    op = AveragePool(kernel_shape=(2560, 9), strides=(2560, 5), pads=(0, 1, 0, 0), ceil_mode=1)
    view = window(op, (7, 4), op.kernel_shape)
    assert (view.kernel, view.output) == ((7, 5), (1, 1))
    with pytest.raises(ShapeError, match="a window of 2560 does not fit"):
        window(replace(op, ceil_mode=0), (7, 4), op.kernel_shape)
    with pytest.raises(ShapeError, match="a window of 9 does not fit"):
        window(replace(op, strides=(2560, 4)), (7, 4), op.kernel_shape)
