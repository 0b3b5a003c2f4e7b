"""Graphs of one node, which together need every kernel, in every type that its code tells apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.backends import open_backends
from tercet.backends.cuda.recipe.source import SMALL
from tercet.backends.numpy import evaluate
from tercet.backends.numpy.numerics.convert import convert
from tercet.runtime.ir.dtypes import (
    INTEGERS,
    bfloat16,
    float8e4m3fn,
    float16,
    float32,
    float64,
    int4,
)
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model

from ..kept import keep
from .dry import Net, launches, normal, planned, single


@dataclass(frozen=True)
class Sample:
    """A graph of one node, and arrays for its inputs."""

    graph: Graph
    feeds: Mapping[str, Array]

    def __str__(self) -> str:
        (node,) = self.graph.nodes
        return f"{node.kind} {node.signature()}"


def sample_of(build: Callable[[Net], Value]) -> Sample:
    """Return a graph with one result, and arrays for its inputs."""
    net = Net()
    return Sample(net.outputs(build(net)), net.feeds)


def sample_of_graph(build: Callable[[Net], Graph]) -> Sample:
    """Return the graph that is built of a net with normal numbers, and arrays for its inputs."""
    net = Net(1)
    return Sample(build(net), net.feeds)


def sample(
    operator: str,
    inputs: Sequence[Any],
    constant: tuple[int, ...] = (),
    outputs: int = 1,
    domain: str = "",
    **attributes: Any,
) -> Sample:
    """Return a node applied to these arrays; see `single`."""
    graph = single(operator, inputs, constant, outputs, domain, **attributes)
    named = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in constant}
    return Sample(graph, named)


#: What results may be off by, as a share of the greatest element, by dtype.
ERROR = {float16: 2e-3, bfloat16: 2e-2, float32: 1e-5, float64: 1e-12}
OPTIONS = Options(skip=("fold_constants",))


def compare(
    sample: Sample, *backends: Backend, options: Options = OPTIONS, error: float | None = None
) -> None:
    """Run a sample, and compare what comes out with what numpy gives; see `ERROR`."""
    keep(sample.graph)
    found = results_of(sample, backends, options)
    for a, b in zip(found, results_of(sample, open_backends("numpy", OPTIONS)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype in ERROR:
            wide = b.astype(float64)
            limit = (error or ERROR[a.dtype]) * np.abs(wide).max(initial=0, where=np.isfinite(wide))
            np.testing.assert_allclose(a.astype(float64), wide, rtol=0, atol=limit)
        elif a.dtype.isbuiltin != 1:
            np.testing.assert_array_equal(a.astype(float32), b.astype(float32))
        else:
            np.testing.assert_array_equal(a, b)


def compare_one_kernel(
    build: Callable[[Net], Value], file: str, backend: Backend, error: float
) -> None:
    """Compare what a net is as one launch of a file with what numpy gives; see `compare`."""
    sample = sample_of(build)
    (launch,) = launches(planned(sample.graph))
    assert launch.file == file
    compare(sample, backend, error=error)


def results_of(
    sample: Sample, backends: Sequence[Backend], options: Options = OPTIONS
) -> list[Array]:
    """Return what backends compute of a sample."""
    with Model(sample.graph.clone(), backends, options, evaluate) as model:
        return [np.asarray(a) for a in model.run(sample.feeds).values()]


X, VOLUME = normal(2, 12, 9, 11), normal(1, 4, 6, 6, 6)
LINE = normal(3, 7)
WHOLE = np.arange(-12, 12).reshape(2, 3, 4)
INDICES = np.array([[0, -1, 2], [1, 1, 0]])
HOLES = np.where(normal(1, 3, 6, 7) > 1, np.float32("nan"), normal(1, 3, 6, 7))
BYTES = (np.arange(240) % 200).astype(np.uint8).reshape(1, 3, 8, 10)


def on_numpy(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return what numpy computes of inputs, which get the dtypes of the graph, such as float64."""
    given = {v.name: feeds[v.name].astype(v.tensor.dtype) for v in graph.inputs}
    with Model(graph, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        return {name: np.asarray(data) for name, data in model.run(given).items()}


def scalar(value: float, dtype: Any = np.float32) -> Array:
    """Return a tensor of no axes."""
    return np.array(value, dtype)


def samples() -> list[Sample]:
    """Return all of them, those of the elementwise table left out."""
    families = (_casts, _windows, _training, _reductions, _norms, _moves, _products, _sequences)
    return [found for family in families for found in family()]


def _casts() -> Iterator[Sample]:
    """Yield the types that only Cast has, forth and back."""
    numbers = np.array([-300.5, -2.75, -0.4, 0.0, 0.3, 1.0, 5.5, 250.0, np.inf, np.nan], np.float32)
    for dtype in SMALL:
        integer = dtype in INTEGERS
        data = numbers[2:8] if integer else numbers
        yield sample("Cast", [data], to=dtype)
        yield sample("Cast", [convert(data, dtype)], to=np.dtype(np.float32))
    yield sample("Cast", [numbers], to=float8e4m3fn, saturate=0)


def _windows() -> Iterator[Sample]:
    yield sample("MaxPool", [X], kernel_shape=(3, 3), strides=(2, 2), outputs=2)
    yield sample("MaxPool", [X], kernel_shape=(1, 1), pads=(1, 0, 1, 1), outputs=2)
    yield sample("MaxPool", [HOLES], kernel_shape=(3, 2), outputs=2)
    yield sample("MaxPool", [VOLUME], kernel_shape=(2, 2, 2))
    yield sample("MaxPool", [BYTES], kernel_shape=(2, 2))
    yield sample("AveragePool", [X], kernel_shape=(3, 3), count_include_pad=1)
    yield sample("AveragePool", [X.astype(float16)], kernel_shape=(9, 10))
    yield sample("LpPool", [X], kernel_shape=(3, 3), p=3)
    yield sample("GlobalMaxPool", [X])
    yield sample("GlobalLpPool", [X], p=3)
    places = np.array([[[[0, 5], [14, 19]]]])
    yield sample("MaxUnpool", [normal(1, 1, 2, 2), places], kernel_shape=(2, 2), strides=(2, 3))
    rois = np.array([[0, 0, 6, 5], [1, 2, 9, 7]], np.float32)
    yield sample("RoiAlign", [X, rois, np.array([0, 1])], output_height=2, output_width=3)
    yield sample("RoiAlign", [X, rois, np.array([0, 1])], mode="max")
    regions = np.concatenate([np.array([[0], [1]], np.float32), rois], 1)
    yield sample("MaxRoiPool", [X, regions], pooled_shape=(2, 2))
    yield sample("Conv", [X, normal(12, 1, 3, 3), normal(12)], (1, 2), group=12)
    for w, group in ((normal(24, 1, 3, 3), 12), (normal(20, 12, 3, 2), 1)):
        halves = [a.astype(float16) for a in (X, w, normal(len(w)))]
        yield sample("Conv", halves, (1, 2), group=group, strides=(2, 1), pads=(1,) * 4)
    yield sample("Conv", [VOLUME, normal(8, 4, 3, 3, 3)], (1,))
    yield sample("Conv", [normal(1, 512, 7, 7), normal(512, 512, 3, 3)], (1,))
    yield sample("Conv", [X.astype(np.float64), normal(4, 12, 3, 3).astype(np.float64)])
    yield sample("ConvTranspose", [X, normal(12, 5, 3, 3), normal(5)], (1, 2))
    transposed: list[tuple[tuple[int, ...], dict[str, Any]]] = [
        ((12, 5, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ((12, 6, 3, 5), {"strides": (2, 3), "dilations": (2, 1), "output_padding": (1, 2)}),
        ((12, 1, 4, 3), {"group": 12, "strides": (2, 3), "pads": (1, 1, 1, 1)}),
    ]
    for shape, how in transposed:
        inputs = [X, normal(*shape), normal(shape[1] * how.get("group", 1))]
        yield sample("ConvTranspose", [a.astype(float16) for a in inputs], (1, 2), **how)
        yield sample("ConvTranspose", inputs, (1, 2), **how)
    weights = np.arange(54, dtype=np.int8).reshape(2, 3, 3, 3)
    yield sample("ConvInteger", [BYTES, weights, scalar(100, np.uint8)])
    step, zero = scalar(0.1), scalar(3, np.uint8)
    quantized = [BYTES, step, zero, weights, np.array([0.1, 0.2], np.float32)]
    yield sample(
        "QLinearConv", [*quantized, np.array([1, 2], np.int8), scalar(9.0), scalar(7, np.uint8)]
    )
    yield sample("Col2Im", [normal(1, 8, 12), np.array([4, 5]), np.array([2, 2])], (1, 2))
    offset, mask = normal(1, 18, 4, 4), normal(1, 9, 4, 4)
    inputs = [normal(1, 2, 6, 6), normal(3, 2, 3, 3), offset, normal(3), mask]
    yield sample("DeformConv", inputs)
    past = normal(2, 4, 2)
    inputs = [normal(2, 4, 9), normal(4, 1, 3), normal(4), past]
    yield sample("CausalConvWithState", inputs, outputs=2, activation="silu")


def _reductions() -> Iterator[Sample]:
    for kind in ("Sum", "Mean", "Max", "Min", "Prod", "LogSumExp"):
        yield sample(f"Reduce{kind}", [X, np.array([2, 3])], (1,))
    for kind in ("L1", "L2", "LogSum", "SumSquare"):
        yield sample(f"Reduce{kind}", [np.abs(X), np.array([1])], (1,))
    yield sample("ReduceSum", [X, np.array([0, 2])], (1,))
    yield sample("ReduceMax", [WHOLE > 3, np.array([1])], (1,))
    yield sample("ReduceMean", [WHOLE, np.array([1])], (1,))
    yield sample("ReduceSum", [np.zeros((2, 0, 3), np.float32), np.array([1])], (1,))
    for count in (300, 1024, 1500):
        yield sample("ReduceMean", [normal(2, count, 40), np.array([1])], (1,))
    yield sample("ReduceMax", [normal(2, 900, 5).astype(float16), np.array([1])], (1,))
    for kind in ("ArgMax", "ArgMin"):
        yield sample(kind, [X], axis=1)
    yield sample("ArgMax", [normal(900, 3)], axis=0)
    yield sample("ArgMax", [normal(3, 900)], axis=1, select_last_index=1)
    odd = normal(3, 5001)  # in parts
    odd[0], odd[1, 7::2000] = -np.inf, np.nan
    yield sample("ArgMax", [odd], axis=1)
    yield sample("ArgMin", [-odd], axis=1, select_last_index=1)
    yield sample("TopK", [X, np.array([4])], (1,), 2, axis=2)
    yield sample("TopK", [WHOLE, np.array([2])], (1,), 2, axis=1, largest=0)
    tied = np.round(4 * normal(2, 1500, 2))
    yield sample("TopK", [tied, np.array([70])], (1,), 2, axis=1)
    few = tied[:1, :1000]
    for dtype in (float64, float16, np.dtype(np.int8), np.dtype(np.int64)):
        yield sample("TopK", [few.astype(dtype), np.array([70])], (1,), 2, axis=1)
    yield sample("TopK", [np.abs(few[:, :600]).astype(np.uint8), np.array([18])], (1,), 2, axis=1)
    yield sample("TopK", [few - few.max(), np.array([70])], (1,), 2, axis=1, largest=0)
    odd = normal(3, 3000)
    odd[:, ::7], odd[1, 1::7], odd[2, 5::7] = 0, -0.0, np.inf
    yield sample("TopK", [odd, np.array([1400])], (1,), 2)
    yield sample("TopK", [odd.astype(float16), np.array([3000])], (1,), 2)
    columns = np.round(9 * normal(1, 2500, 2))  # tiles are sorted and merged
    yield sample("TopK", [columns, np.array([2300])], (1,), 2, axis=1)
    yield sample("TopK", [columns.astype(float64), np.array([1100])], (1,), 2, axis=1, largest=0)
    many = np.round(4 * normal(4, 520, 16))
    yield sample("TopK", [many[:2, :, :2], np.array([26])], (1,), 2, axis=1)
    yield sample("TopK", [many.astype(float16), np.array([70])], (1,), 2, axis=1, largest=0)
    yield sample("CumSum", [X, scalar(2, np.int64)])
    yield sample("CumProd", [LINE, scalar(-1, np.int64)], (1,), exclusive=1, reverse=1)
    yield from _counted()
    for ends in range(4):
        how: dict[str, Any] = {"exclusive": ends % 2, "reverse": ends // 2}
        yield sample("CumSum", [normal(2, 5000), scalar(1, np.int64)], (1,), **how)
        yield sample("CumSum", [normal(2, 900, 3), scalar(1, np.int32)], (1,), **how)
        yield sample("CumSum", [normal(3, 40, 50), scalar(1, np.int32)], (1,), **how)
        yield sample("CumSum", [normal(2, 2100, 3), scalar(1, np.int32)], (1,), **how)
        yield sample("CumSum", [normal(3, 5, 75), scalar(2, np.int32)], (1,), **how)
    yield sample("CumSum", [np.arange(7000), scalar(0, np.int64)], (1,))
    yield sample("CumSum", [normal(40, 700).astype(float16), scalar(0, np.int64)], (1,))


def _counted() -> Iterator[Sample]:
    """Yield nodes whose results have sizes that the data decide."""
    sparse = np.round(normal(3, 50, 41) / 2)
    for dtype in (float32, float16, np.dtype(np.int8), np.dtype(np.bool_)):
        yield sample("NonZero", [sparse.astype(dtype)])
    yield sample("NonZero", [np.zeros((2, 100), np.float32)])
    condition = normal(50) > 0
    yield sample("Compress", [sparse, condition], axis=1)
    yield sample("Compress", [sparse, normal(2) > -9])
    yield sample("Compress", [sparse, condition], (1,), axis=-2)
    yield sample("Compress", [sparse.astype(np.int8).ravel(), normal(6000) > 1])
    orders: tuple[dict[str, Any], ...] = ({}, {"sorted": 0})
    for how in orders:
        yield sample("Unique", [sparse[0]], outputs=4, **how)
        yield sample("Unique", [np.round(normal(3, 60, 1) / 2)], outputs=4, axis=1, **how)
    yield sample("Unique", [(8 * sparse).astype(np.int8)], outputs=2)
    yield sample("Unique", [normal(2, 3).astype(bfloat16)])
    corners = np.cumsum(np.abs(normal(2, 300, 2, 2)), 2).reshape(2, 300, 4)
    scores = np.round(8 * normal(2, 3, 300)) / 8
    limits = [scalar(40, np.int64), np.array([0.4], np.float32), scalar(0.1, np.float32)]
    for centred in (0, 1):
        found: dict[str, Any] = {"center_point_box": centred}
        yield sample("NonMaxSuppression", [corners, scores, *limits], (2, 3, 4), **found)
        yield sample("NonMaxSuppression", [corners, scores, *limits[:1]], **found)
    yield sample("NonMaxSuppression", [corners, scores])


def _norms() -> Iterator[Sample]:
    yield sample("Softmax", [X], axis=1)
    yield sample("LogSoftmax", [normal(4, 1000)])
    yield sample("Softmax", [normal(2, 1100, 5)], axis=1)
    yield sample("LogSoftmax", [normal(3, 70, 21).astype(float16)], axis=1)
    yield sample("Softmax", [LINE.astype(bfloat16)])
    yield sample("Hardmax", [X], axis=1)
    yield sample("LRN", [X], size=5)
    statistics = [normal(12), normal(12), normal(12), np.abs(normal(12)) + np.float32(0.5)]
    yield sample("BatchNormalization", [X, *statistics], (1, 2, 3, 4))
    yield sample("BatchNormalization", [X, *statistics])
    yield sample("BatchNormalization", [X, *statistics], outputs=3, training_mode=1)
    yield sample("LayerNormalization", [X, normal(11), normal(11)], outputs=3)
    halves = [normal(2, 300).astype(float16), normal(300).astype(float16)]
    yield sample("LayerNormalization", halves)
    yield sample("RMSNormalization", [X, normal(11)])
    yield sample("InstanceNormalization", [X, normal(12), normal(12)])
    yield sample("GroupNormalization", [X, normal(12), normal(12)], num_groups=3)
    yield sample("MeanVarianceNormalization", [X])
    for p in (1, 2):
        yield sample("LpNormalization", [X], axis=1, p=p)
    scores, labels = normal(3, 5, 4), np.arange(12).reshape(3, 4) % 5
    for reduction in ("none", "mean", "sum"):
        yield sample(
            "SoftmaxCrossEntropyLoss",
            [scores, labels, np.abs(normal(5))],
            outputs=2,
            reduction=reduction,
            ignore_index=2,
        )
    yield sample("NegativeLogLikelihoodLoss", [scores, labels])


def _moves() -> Iterator[Sample]:
    yield sample("Concat", [X, normal(2, 5, 9, 11), normal(2, 1, 9, 11)], axis=1)
    yield sample("Concat", [normal(3, 1 + i % 4) for i in range(70)], axis=1)
    yield sample("Transpose", [X], perm=(0, 2, 3, 1))
    yield sample("Transpose", [normal(2, 4, 7, 5, 5)], perm=(0, 2, 1, 3, 4))
    yield sample("Slice", [X, np.array([1]), np.array([-1]), np.array([2])], (1, 2, 3))
    yield sample("Expand", [normal(3, 1), np.array([2, 3, 4])], (1,))
    yield sample("Tile", [LINE, np.array([2, 3])], (1,))
    yield sample("Split", [X, np.array([4, 3, 5])], (1,), 3, axis=1, num_outputs=3)
    yield sample("BitCast", [LINE], to=np.dtype(np.int32))
    for mode in ("DCR", "CRD"):
        yield sample("DepthToSpace", [X], blocksize=2, mode=mode)
    yield sample("SpaceToDepth", [normal(1, 2, 4, 6)], blocksize=2)
    pads = np.array([1, -2, 0, 3])
    for mode in ("constant", "edge", "reflect", "wrap"):
        yield sample("Pad", [LINE, pads], (1,), mode=mode)
    yield sample("CenterCropPad", [LINE, np.array([5, 4])], (1,))
    for upper in (0, 1):
        yield sample("Trilu", [X, scalar(1, np.int64)], upper=upper)
    yield sample("EyeLike", [LINE], k=1)
    lengths = np.array([3, 1, 2])
    yield sample("ReverseSequence", [LINE, lengths], batch_axis=0, time_axis=1)
    yield sample("Dropout", [LINE], outputs=2)
    yield sample("Gather", [X, INDICES], axis=1)
    yield sample("Gather", [WHOLE, np.array([1], np.int32)])
    yield sample("GatherElements", [LINE, INDICES], axis=1)
    yield sample("GatherND", [X, INDICES])
    yield sample("OneHot", [INDICES, scalar(4, np.int64), normal(2)], (1,))
    unique = np.array([[0, -1, 2], [1, 3, 0]])
    yield sample("ScatterElements", [LINE, unique, normal(2, 3)], axis=1)
    many = np.arange(40).reshape(2, 20) * 3 % 7  # more than a thread loads together
    yield sample("ScatterElements", [normal(2, 9), many, normal(2, 20)], axis=1, reduction="add")
    for reduction in ("add", "mul", "max", "min"):
        yield sample("ScatterElements", [LINE, INDICES, normal(2, 3)], axis=1, reduction=reduction)
        yield sample("ScatterND", [X, INDICES[:, :2], normal(2, 9, 11)], reduction=reduction)
    for dtype in (float16, np.int8, np.uint8, np.int64, np.float64):
        x, more = (np.clip(40 * normal(2, n), -99, 99).astype(np.int8) for n in (9, 20))
        arrays = [x.astype(dtype), many - 3, more.astype(dtype)]
        yield sample("ScatterElements", arrays, axis=1, reduction="min")
    yield sample("ScatterND", [LINE.astype(float16), INDICES[:, :1], normal(2, 7).astype(float16)])
    cache, first = normal(2, 3, 8, 4), np.array([7, 2])
    for mode in ("linear", "circular"):
        starts = first if mode == "circular" else first - 2
        yield sample("TensorScatter", [cache, normal(2, 3, 2, 4), starts], mode=mode)
    sizes = np.array([1.0, 1.0, 0.6, 2.3], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        yield sample("Resize", [X, None, sizes], (2,), mode=mode)
        grid = np.tanh(normal(2, 4, 5, 2)) * np.float32(1.2)
        yield sample("GridSample", [X, grid], mode=mode)
        for padding in ("border", "reflection"):
            yield sample("GridSample", [X, grid], mode=mode, padding_mode=padding)
    yield sample("Resize", [BYTES, None, sizes], (2,), mode="linear", antialias=1)
    yield from _resized()
    yield sample("GridSample", [VOLUME, np.tanh(normal(1, 3, 3, 3, 3))], padding_mode="border")
    yield sample("AffineGrid", [normal(2, 2, 3), np.array([2, 1, 4, 5])], (1,))
    yield sample("AffineGrid", [normal(1, 3, 4), np.array([1, 1, 2, 4, 5])], (1,), align_corners=1)


def _resized() -> Iterator[Sample]:
    """Yield what is resized along two axes by one launch: in words, cropped; or by more."""
    last = np.array([1, 2, 1.5, 1], np.float32)
    for data in (normal(2, 4, 5, 24).astype(float16), normal(1, 3, 4, 12)):
        for mode in ("nearest", "linear", "cubic"):
            yield sample("Resize", [data, None, last], (2,), mode=mode)
    yield sample("Resize", [(BYTES[0] // 2).astype(np.int8), None, last[:3]], (2,))
    less = np.array([1, 1, 0.25, 0.2], np.float32)
    yield sample("Resize", [normal(1, 2, 24, 30), None, less], (2,), mode="linear", antialias=1)
    yield sample("Resize", [VOLUME, None, np.array([1, 1, 2, 2, 2], np.float32)], (2,))
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.0}
    where, sizes = np.array([0, 0, 0.2, -0.1, 1, 1, 0.8, 1.2]), np.array([2, 12, 7, 8])
    for mode in ("nearest", "linear"):
        inputs = [X, where.astype(np.float32), None, sizes]
        yield sample("Resize", inputs, (1, 3), mode=mode, **crop)


def _products() -> Iterator[Sample]:
    for m in (1, 5, 8):
        yield sample("Gemm", [normal(m, 300), normal(300, 77)], (1,))
    yield sample("Gemm", [normal(5, 3), normal(7, 5), normal(3, 1)], transA=1, transB=1, beta=0.5)
    yield sample("Gemm", [normal(6, 5), normal(5, 1), normal(1)[0]], (1, 2))
    for dtype in (np.int64, np.int32, np.uint32):
        rows, columns = np.arange(15, dtype=dtype).reshape(5, 3), np.arange(6, dtype=dtype)
        inputs = [rows, columns.reshape(2, 3), np.array([9, 4], dtype)]
        yield sample("Gemm", inputs, transB=1, alpha=0.75, beta=2.5)
    yield sample("MatMul", [normal(3, 1, 3, 20), normal(1, 2, 20, 33)])
    yield sample("MatMul", [normal(5, 40).astype(bfloat16), normal(40, 33).astype(bfloat16)])
    yield sample("MatMul", [WHOLE, WHOLE[0].T.copy()])
    yield sample("MatMulInteger", [BYTES[0, 0], BYTES[0, 1].T.copy(), scalar(9, np.uint8)])
    step, zero = scalar(0.1), scalar(3, np.uint8)
    left, right = BYTES[0, 0], BYTES[0, 1].T.copy()
    yield sample("QLinearMatMul", [left, step, zero, right, step, zero, scalar(9.0), zero])
    yield sample("Einsum", [normal(2, 3, 4), normal(2, 4, 5)], equation="bij,bjk->bik")
    yield sample("Einsum", [normal(4, 4)], equation="ii->i")
    yield sample("Einsum", [normal(1, 2, 1), normal(5, 2, 0)], equation="abc,abc->b")
    three = [normal(3, 4, 5), normal(5, 4), normal(2, 3)]
    yield sample("Einsum", three, equation="abc,cb,da->d")
    yield sample("Det", [normal(3, 5, 5)])
    yield sample("Det", [normal(3, 0, 0)])
    yield sample("QuantizeLinear", [X, np.abs(normal(12)) + np.float32(0.1)], axis=1)
    odd = np.array([np.nan, np.inf, -np.inf, 1, -1] * 7, float32)
    for dtype in (np.int8, np.uint8, np.int16):
        yield sample("QuantizeLinear", [odd, scalar(0.5), np.array(5, dtype)])
    yield sample("QuantizeLinear", [LINE, scalar(0.5), np.zeros((), float8e4m3fn)])
    yield sample("QuantizeLinear", [LINE.astype(float16), scalar(0.5, float16), np.zeros((), int4)])
    yield sample("DequantizeLinear", [BYTES, scalar(0.5), scalar(128, np.uint8)])
    scales = np.abs(normal(2, 3, 2))
    yield sample("DequantizeLinear", [WHOLE.astype(int4), scales], axis=2, block_size=2)
    yield sample("DynamicQuantizeLinear", [X], outputs=3)
    yield sample("DFT", [normal(2, 10, 3, 1), None, scalar(1, np.int64)], (2,), onesided=1)
    yield sample("DFT", [normal(2, 6, 2), scalar(9, np.int64)], (1,), inverse=1)
    yield sample("DFT", [normal(2, 6, 2)], inverse=1, onesided=1)
    yield sample("STFT", [normal(1, 32, 1), scalar(8, np.int64), normal(16)], (1,))
    # lengths 84, 75, 64 and 66 have several factors; 37 is a single one
    yield sample("DFT", [normal(2, 84, 3, 1), None, scalar(1, np.int64)], (2,), onesided=1)
    yield sample("DFT", [normal(2, 40, 2), scalar(75, np.int64)], (1,), inverse=1)
    yield sample("DFT", [normal(2, 40, 2), scalar(64, np.int64)], (1,), inverse=1)
    yield sample("DFT", [normal(2, 34, 2), scalar(66, np.int64)], (1,), inverse=1, onesided=1)
    yield sample("DFT", [normal(2, 37, 2).astype(np.float64)])
    # many lines side by side, of which a block has several, more of short ones
    yield sample("DFT", [normal(2, 36, 259, 2), None, scalar(1, np.int64)], (2,), inverse=1)
    yield sample("DFT", [normal(5, 12, 131, 1), None, scalar(1, np.int64)], (2,), onesided=1)
    yield sample("STFT", [normal(2, 96, 1), scalar(16, np.int64), normal(48)], (1,))


def _sequences() -> Iterator[Sample]:
    pool = {"pool_int64s": (2, 3, 5, 4, 5, 6, 7, 8, 6, 7), "ngram_counts": (0, 4)}
    pool |= {"ngram_indexes": (0, 1, 2, 3, 4, 5, 6), "max_gram_length": 2, "min_gram_length": 1}
    items = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)
    for mode in ("TF", "IDF", "TFIDF"):
        weights = tuple(0.5 * i for i in range(7))
        yield sample(
            "TfIdfVectorizer", [items], mode=mode, max_skip_count=5, weights=weights, **pool
        )
    for dtype in (np.float32, np.float64):
        matrices = (normal(3, 7, 7) + 3 * np.eye(7)[::-1]).astype(dtype)
        yield sample("Inverse", [matrices], domain="com.microsoft")
    for metric in ("euclidean", "sqeuclidean"):
        points = [normal(9, 5), normal(7, 5)]
        yield sample("CDist", points, domain="com.microsoft", metric=metric)
    edges = scalar(0.0), scalar(4096.0)
    sizes = np.array(8), np.array(16), np.array(8192)
    yield sample("MelWeightMatrix", [*sizes, *edges], (0, 1))
    q, k, v = normal(2, 4, 3, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 6)
    yield sample("Attention", [q, k, v], is_causal=1, softcap=2.0)
    for mask in (normal(3, 5), normal(2, 1, 3, 5) > 0):
        yield sample("Attention", [q, k, v, mask], outputs=4, qk_matmul_output_mode=3)
    past = normal(2, 2, 4, 8), normal(2, 2, 4, 6)
    yield sample("Attention", [q, k, v, None, *past], outputs=3, left_window_size=3)
    flat = [normal(2, 3, 32), normal(2, 5, 16), normal(2, 5, 12)]
    seen = [None, None, None, np.array([4, 5])]
    yield sample("Attention", [*flat, *seen], q_num_heads=4, kv_num_heads=2)
    angles = np.arange(24).reshape(6, 4).astype(np.float32)
    caches = [np.cos(angles), np.sin(angles), np.array([[0, 2, 4], [1, 3, 5]])]
    for interleaved in (0, 1):
        yield sample("RotaryEmbedding", [q, *caches], interleaved=interleaved)
    yield sample("RotaryEmbedding", [q, *(cache[np.newaxis, :3] for cache in caches[:2])])
    flat = [normal(2, 3, 16), normal(2, 3, 8), normal(2, 3, 6), None, -np.abs(normal(2, 3, 8))]
    rates = np.abs(normal(2, 3, 2))
    yield sample("LinearAttention", [*flat, rates], outputs=2, q_num_heads=4, kv_num_heads=2)
    x, lengths = normal(4, 3, 5), np.array([4, 1, 3], np.int32)
    yield sample("RNN", [x, normal(1, 6, 5), normal(1, 6, 6)], outputs=2)
    for linear in (0, 1):
        inputs = [x, normal(2, 18, 5), normal(2, 18, 6), normal(2, 36), lengths]
        how = {"direction": "bidirectional", "linear_before_reset": linear}
        yield sample("GRU", inputs, outputs=2, **how)
    inputs = [x, normal(1, 24, 5), normal(1, 24, 6), normal(1, 48), lengths]
    states = [normal(1, 3, 6), normal(1, 3, 6) / 2, normal(1, 18)]
    yield sample("LSTM", [*inputs, *states], outputs=3, direction="reverse")


def _training() -> Iterator[Sample]:
    rate, step = scalar(0.1), scalar(3, np.int64)
    lists = [normal(5) + i for i in range(4)]
    yield sample("Dropout", [LINE, scalar(0.0), scalar(1, bool)], outputs=2)
    yield sample("RandomNormalLike", [LINE], seed=1.0, scale=0.0)
    optimizers: tuple[tuple[str, int, dict[str, Any]], ...] = (
        ("Adagrad", 3, {"decay_factor": 0.1}),
        ("Adam", 4, {"norm_coefficient_post": 0.1}),
        ("Momentum", 3, {"alpha": 0.9, "beta": 0.5, "mode": "nesterov", "norm_coefficient": 0.1}),
    )
    for operator, count, how in optimizers:
        inputs = [rate, step, *(np.abs(a) for a in lists[:count])]
        domain = "ai.onnx.preview.training"
        yield sample(operator, inputs, outputs=count - 1, domain=domain, **how)
