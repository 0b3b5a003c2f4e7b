"""Kernels run on the host, as they are, against the numpy backend; needs a C++ compiler, no GPU."""

from __future__ import annotations

from dataclasses import replace
from math import erf

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.schedules import simt
from tercet.backends.cuda.ops import norm
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Cast, Less, Mul, Neg, Relu, Tanh, Where
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.norm import LRN, BatchNormalization, LayerNormalization, RMSNormalization
from tercet.runtime.ops.reduce import ReduceL2
from tercet.runtime.session.model import Model

from .dry import Net, compiled_files, entries_of, launches, normal, planned
from .edge_samples import edges
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS, Sample, compare, results_of, sample, samples

pytestmark = [
    pytest.mark.slow,
    needs_compiler,
]


@pytest.mark.parametrize("sample", samples(), ids=str)
def test_kernels(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated)


@pytest.mark.parametrize("n", [0, 1, 33])
def test_edges(n: int, emulated: CudaBackend) -> None:
    for edge in edges(n):
        compare(edge, emulated)


def chained(kind: str, dtype: DType) -> Sample:
    """Return tanh(relu(anchor * k + z)), the anchor being a kernel that takes a tail."""
    operators: dict[str, tuple[Op, list[Array], tuple[int, ...]]] = {
        "Conv": (Conv(), [normal(2, 4, 5, 6), normal(4, 4, 3, 3)], (2, 4, 3, 4)),
        "ConvTranspose": (ConvTranspose(), [normal(2, 4, 5, 6), normal(4, 4, 3, 3)], (2, 4, 7, 8)),
        "Gemm": (Gemm(), [normal(5, 7), normal(7, 4)], (5, 4)),
        "BatchNormalization": (
            BatchNormalization(),
            [normal(2, 4, 5, 6), *(np.abs(normal(4)) + np.float32(0.5) for _ in range(4))],
            (2, 4, 5, 6),
        ),
    }
    operator, arrays, shape = operators[kind]
    feeds = {f"x{i}": a.astype(dtype) for i, a in enumerate([*arrays, normal(*shape)])}
    graph = Graph(kind)
    *inputs, z = [graph.add_input(n, TensorType(a.dtype, a.shape)) for n, a in feeds.items()]
    k = graph.constant(normal(*(4, 1, 1)[: 3 if len(shape) > 2 else 1]).astype(dtype), "k")
    value = graph.insert(operator, inputs).output
    value = graph.insert(Add(), [graph.insert(Mul(), [value, k]).output, z]).output
    value = graph.insert(Tanh(), [graph.insert(Relu(), [value]).output]).output
    graph.set_outputs({"y": value})
    infer(graph)
    return Sample(graph, feeds)


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "BatchNormalization"])
def test_tails(kind: str, dtype: DType, emulated: CudaBackend) -> None:
    """What follows a kernel is computed in it, in the arithmetic of the type."""
    found = chained(kind, dtype)
    compare(found, emulated)
    with Model(found.graph.clone(), [emulated], OPTIONS, evaluate) as model:
        assert len([row for row in model.prepare().rows if row.kind == "step"]) == 1


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("size", [3, 6, 16])
def test_neighbouring_channels_in_halves(size: int, dtype: DType, emulated: CudaBackend) -> None:
    """Of an image whose channels are last: a thread has eight, and reads those beside them."""
    net = Net()
    image = net.apply(
        Conv(), net.input(2, 16, 5, 7, dtype=dtype), normal(24, 16, 1, 1).astype(dtype)
    )
    y = net.apply(LRN(size=size, alpha=0.5, beta=0.6, bias=1.5), image)
    sample = Sample(net.outputs(y), net.feeds)
    assert entries_of(sample.graph)[-1] == "lrn_words"
    compare(sample, emulated)


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rows", [(3,), (2, 35), (16,)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_layer_scale_and_residual_are_in_the_product(
    rows: tuple[int, ...], dtype: DType, transposed: bool, emulated: CudaBackend
) -> None:
    """z + scale * (x @ w + bias): what is added first is the product's bias."""
    k, n = (2048 if rows == (16,) else 64), 40
    graph = Graph("layer scale")
    feeds = {"x": normal(*rows, k).astype(dtype), "z": normal(*rows, n).astype(dtype)}
    x, z = (graph.add_input(name, TensorType(dtype, a.shape)) for name, a in feeds.items())
    w, bias, scale = (graph.constant(normal(*s).astype(dtype)) for s in ((k, n), (n,), (1, n)))
    value = graph.insert(MatMul(), [x, w]).output
    value = graph.insert(Add(), [bias, value] if transposed else [value, bias]).output
    value = graph.insert(Mul(), [value, scale]).output
    graph.set_outputs({"y": graph.insert(Add(), [value, z]).output})
    infer(graph)
    compare(Sample(graph, feeds), emulated)
    with Model(graph, [emulated], OPTIONS, evaluate) as model:
        assert len([row for row in model.prepare().rows if row.kind == "step"]) == 1


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
def test_what_scales_a_residual_is_in_the_epilogue(
    kind: str, dtype: DType, emulated: CudaBackend
) -> None:
    """scale * tanh(z) + x @ w: nothing else reads the scaled sum."""
    shapes = {"Conv": ((2, 16, 5, 6), (24, 16, 1, 1), (2, 24, 5, 6), (24, 1, 1))}
    shape, weight, sums, row = shapes.get(kind, ((3, 35, 64), (64, 40), (3, 35, 40), (40,)))
    graph = Graph("residual scale")
    feeds = {"x": normal(*shape).astype(dtype), "z": normal(*sums).astype(dtype)}
    x, z = (graph.add_input(name, TensorType(dtype, a.shape)) for name, a in feeds.items())
    w, scale = (graph.constant(normal(*s).astype(dtype)) for s in (weight, row))
    value = graph.insert(Conv() if kind == "Conv" else MatMul(), [x, w]).output
    along = graph.insert(Mul(), [graph.insert(Tanh(), [z]).output, scale]).output
    value = graph.insert(Add(), [along, value]).output
    graph.set_outputs({"y": graph.insert(Relu(), [value]).output})
    infer(graph)
    compare(Sample(graph, feeds), emulated)
    with Model(graph, [emulated], OPTIONS, evaluate) as model:
        assert len([row for row in model.prepare().rows if row.kind == "step"]) == 1


@pytest.mark.parametrize("added", [(7,), (1,)], ids=str)
@pytest.mark.parametrize("rows", [(7,), (3, 7)], ids=str)
def test_constants_behind_a_matrix_times_a_vector(
    rows: tuple[int, ...], added: tuple[int, ...], emulated: CudaBackend
) -> None:
    """The last axis of the result is one of rows: its constants are none of columns."""
    graph, feeds = Graph("vector"), {"x": normal(*rows, 24)}
    x = graph.add_input("x", TensorType(float32, feeds["x"].shape))
    value = graph.insert(MatMul(), [x, graph.constant(normal(24))]).output
    value = graph.insert(Add(), [value, graph.constant(normal(*added))]).output
    graph.set_outputs({"y": graph.insert(Mul(), [value, graph.constant(normal(*added))]).output})
    infer(graph)
    compare(Sample(graph, feeds), emulated)


@pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("operator", [LayerNormalization(), RMSNormalization()])
@pytest.mark.parametrize("shape", [(3, 5, 64), (3, 33), (2, 4096)], ids=str)
def test_what_follows_a_norm_is_in_its_kernel(
    operator: Op, dtype: DType, shape: tuple[int, ...], emulated: CudaBackend
) -> None:
    """z + relu(norm(x)) * k: the residual behind a norm (Swin v2, OLMo 2)."""
    graph = Graph("behind a norm")
    feeds = {name: normal(*shape).astype(dtype) for name in "xz"}
    x, z = (graph.add_input(name, TensorType(dtype, shape)) for name in feeds)
    scale, k = (graph.constant(normal(shape[-1]).astype(dtype)) for _ in range(2))
    value = graph.insert(Relu(), [graph.insert(operator, [x, scale]).output]).output
    value = graph.insert(Mul(), [value, k]).output
    graph.set_outputs({"y": graph.insert(Add(), [z, value]).output})
    infer(graph)
    compare(Sample(graph, feeds), emulated)
    with Model(graph, [emulated], OPTIONS, evaluate) as model:
        assert len([row for row in model.prepare().rows if row.kind == "step"]) == 1


#: Heads whose results are cast, and which file stores them in the other dtype; both of A100.
CAST = {
    "Conv": (Conv(pads=(1,) * 4), (2, 16, 9, 11), (24, 16, 3, 3), "gemm/multistage.cu"),
    "first layer": (Conv(), (1, 3, 20, 20), (16, 3, 3, 3), "gemm/multistage.cu"),
    "depthwise": (Conv(group=16), (1, 16, 96, 96), (16, 1, 3, 3), "conv/depthwise.cu"),
    "depthwise, few": (Conv(group=16), (2, 16, 9, 9), (16, 1, 3, 3), "conv/depthwise_rows.cu"),
    "few rows": (MatMul(), (3, 64), (64, 40), "gemm/gemv.cu"),
    "many rows": (MatMul(), (70, 64), (64, 45), "gemm/multistage.cu"),
    "many terms": (MatMul(), (16, 2048), (2048, 48), "gemm/reduce_splits_f16.cu"),
    "stack": (MatMul(), (3, 20, 64), (3, 64, 24), "gemm/multistage.cu"),
}


@pytest.mark.parametrize("given", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", CAST)
def test_sums_are_stored_in_the_dtype_that_they_are_cast_to(
    kind: str, given: DType, emulated: CudaBackend
) -> None:
    operator, *shapes, file = CAST[kind]
    assert_cast(operator, [normal(*shape) for shape in shapes], given, float32, emulated, file)


@pytest.mark.parametrize("sizes", [(5, 64), (3, 7, 33), (2, 4096)], ids=str)
@pytest.mark.parametrize("dtypes", [(float16, float32), (float32, float16), (bfloat16, float32)])
@pytest.mark.parametrize("operator", [LayerNormalization(), RMSNormalization()])
def test_rows_are_stored_in_the_dtype_that_they_are_cast_to(
    operator: Op, dtypes: tuple[DType, DType], sizes: tuple[int, ...], emulated: CudaBackend
) -> None:
    given, to = dtypes
    feeds = {"x": normal(*sizes).astype(given)}
    graph = Graph("norm")
    x, scale = graph.add_input("x", TensorType(given, sizes)), normal(sizes[-1]).astype(given)
    value = graph.insert(operator, [x, graph.constant(scale)]).output
    graph.set_outputs({"y": graph.insert(Cast(to=to), [value]).output})
    infer(graph)
    compare(Sample(graph, feeds), emulated, error=max(ERROR[given], ERROR[to]))
    with Model(graph, [emulated], OPTIONS, evaluate) as model:
        assert len([row for row in model.prepare().rows if row.kind == "step"]) == 1


@pytest.mark.parametrize("file", ["gemm/simt.cu", "gemm/reduce_splits.cu", "gemm/gemv.cu"])
def test_products_of_float32_are_stored_as_float16(file: str, emulated: CudaBackend) -> None:
    m, k = {"gemm/simt.cu": (70, 40), "gemm/reduce_splits.cu": (16, 2048)}.get(file, (3, 64))
    arrays = [normal(m, k), normal(k, 45)]
    assert_cast(MatMul(), arrays, float32, float16, emulated, file)


def assert_cast(
    operator: Op, arrays: list[Array], given: DType, to: DType, backend: CudaBackend, file: str
) -> None:
    """Check cast(relu(operator)), which is one step that `file` ends."""
    x, w = (array.astype(given) for array in arrays)
    graph = Graph("cast")
    shared = isinstance(operator, MatMul) and w.ndim > 2
    weights = graph.add_input("w", TensorType(given, w.shape)) if shared else graph.constant(w)
    value = graph.insert(operator, [graph.add_input("x", TensorType(given, x.shape)), weights])
    value = graph.insert(Relu(), [value.output])
    graph.set_outputs({"y": graph.insert(Cast(to=to), [value.output]).output})
    infer(graph)
    feeds = {"x": x, "w": w} if shared else {"x": x}
    compare(Sample(graph, feeds), backend, error=max(ERROR[given], ERROR[to]))
    with Model(graph, [backend], OPTIONS, evaluate) as model:
        assert len([row for row in model.prepare().rows if row.kind == "step"]) == 1
    assert file in compiled_files(backend)


def test_products_too_wide_for_a_grid(
    emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tiles lie along x then, in the order in which they were."""
    monkeypatch.setattr(simt, "MAX_BLOCKS", (1, 1, 1))
    graph = Graph("wide")
    a = graph.add_input("a", TensorType(float32, (70, 20)))
    b = graph.add_input("b", TensorType(float32, (20, 300)))
    graph.set_outputs({"y": graph.insert(MatMul(), [a, b]).output})
    infer(graph)
    given = normal(70, 20), normal(20, 300)
    options = replace(OPTIONS, algorithms={"MatMul": "gemm"})
    with Model(graph, [emulated], options, evaluate) as model:
        assert "gemm" in str(model.placement())
        (y,) = model(*given)
    np.testing.assert_allclose(y, given[0] @ given[1], 1e-4, 1e-4)


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(7, 24), (9, 6), (1, 5)], ids=str)
@pytest.mark.parametrize("is_fixed", [False, True])
def test_pixels_of_a_thread_that_scales(
    shape: tuple[int, int],
    is_fixed: bool,
    dtype: DType,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several pixels a thread, of which the last one has fewer."""
    monkeypatch.setattr(norm, "BUSY", 0)
    graph = Graph("scaled")
    statistics = [(np.abs(normal(shape[1])) + np.float32(0.5)).astype(dtype) for _ in range(4)]
    feeds = {"x": normal(*shape).astype(dtype)}
    values = [graph.add_input("x", TensorType(dtype, shape))]
    for i, data in enumerate(statistics):
        if is_fixed:
            values.append(graph.constant(data, f"s{i}"))
        else:
            values.append(graph.add_input(f"s{i}", TensorType(dtype, data.shape)))
            feeds[f"s{i}"] = data
    graph.set_outputs({"y": graph.insert(BatchNormalization(), values).output})
    infer(graph)
    compare(Sample(graph, feeds), emulated)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("is_read_twice", [False, True])
def test_reductions_read_16_bit_floats_and_compute_in_float32(
    dtype: DType, is_read_twice: bool, emulated: CudaBackend
) -> None:
    """The sums of a large square, as in the response normalization of ConvNeXt v2."""
    graph = Graph("norm")
    x = graph.add_input("x", TensorType(dtype, (2, 6, 5, 7)))
    wide = graph.insert(Cast(to=float32), [x]).output
    axes = graph.constant(np.array([2, 3]), "axes")
    outputs = {"y": graph.insert(ReduceL2(), [wide, axes]).output}
    if is_read_twice:
        outputs["z"] = graph.insert(Relu(), [wide]).output
    graph.set_outputs(outputs)
    infer(graph)
    entries = entries_of(graph)
    assert ("shared_chain" in entries) is is_read_twice
    assert "reduce_rows" in entries
    compare(Sample(graph, {"x": (normal(2, 6, 5, 7) * 500).astype(dtype)}), emulated)


def test_elements_with_fewer_axes_are_computed_where_they_are_read(emulated: CudaBackend) -> None:
    """As positions against a length, which mask the rows of a batch of one."""
    graph = Graph("mask")
    x = graph.add_input("x", TensorType(np.dtype(np.int64), (1, 70)))
    length = graph.add_input("length", TensorType(np.dtype(np.int64), (1,)))
    positions = graph.constant(np.arange(70), "positions")
    inside = graph.insert(Less(), [positions, length]).output
    zero = graph.constant(np.array(0), "zero")
    graph.set_outputs({"y": graph.insert(Where(), [inside, x, zero]).output})
    infer(graph)
    (launch,) = launches(planned(graph))
    assert launch.title == "elementwise Less+Where"
    compare(Sample(graph, {"x": np.arange(70)[None] + 5, "length": np.array([33])}), emulated)


def test_results_of_one_kernel_have_equal_sizes(emulated: CudaBackend) -> None:
    """What a chain reads, which is a result itself, has an axis of size 1 fewer than its end."""
    graph = Graph("ranks")
    x = graph.add_input("x", TensorType(float32, (6, 8)))
    first = value = graph.insert(Neg(), [x]).output
    for op in (Tanh(), Relu(), Neg(), Tanh(), Relu()):
        value = graph.insert(op, [value]).output
    lifted = graph.insert(Add(), [value, graph.constant(normal(1, 1, 8))]).output
    graph.set_outputs({"first": first, "y": lifted})
    infer(graph)
    assert len(launches(planned(graph))) == 2
    compare(Sample(graph, {"x": normal(6, 8)}), emulated)


def test_gelu_is_as_precise_as_by_erf(emulated: CudaBackend) -> None:
    """Its tail is 2 to the power of a polynomial; see `functions.cuh`."""
    x = np.concatenate([np.linspace(-12, 12, 2001), [-0.0, 1e-30, -1e30, 1e30]]).astype(np.float32)
    (found,) = results_of(sample("Gelu", [x]), (emulated,))
    wide = x.astype(np.float64)
    exact = np.array([wide_x * (1 + erf(wide_x / 2**0.5)) / 2 for wide_x in wide])
    assert (np.abs(found - exact) <= 2.5e-7 * np.abs(wide)).all()
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    (found,) = results_of(sample("Gelu", [halves]), (emulated,))
    exact = np.array([x * (1 + erf(x / 2**0.5)) / 2 for x in halves.astype(np.float64)])
    error, near = np.abs(found - exact), np.abs(halves) <= 4
    assert (error <= (2**-11 + 1.3e-4) * np.abs(exact) + 2**-25)[near].all()
    assert (error <= 2**-11 * np.abs(exact) + 2**-24)[~near].all()
    for dtype in (np.float32, np.float16):
        x = np.array([np.inf, -np.inf, np.nan], dtype)
        (odd,) = results_of(sample("Gelu", [x]), (emulated,))
        np.testing.assert_array_equal(odd, np.array([np.inf, np.nan, np.nan], dtype))
