"""Kernels on slices of larger tensors give what they give elsewhere, and nothing is copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.op import Op
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Mul, Relu, Sigmoid
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat, Pad, Slice, Split, Transpose
from tercet.runtime.ops.norm import BatchNormalization
from tercet.runtime.ops.pool import AveragePool, MaxPool
from tercet.runtime.ops.reduce import CumSum, ReduceSum
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options, Precision
from tercet.runtime.plan.rows import Layout
from tercet.runtime.session.model import Model
from tercet.tools.workshop.light_models import light_model

from ..passes import test_convolve_rows as rows_of_pixels
from ..passes.graphs import Build, make, run
from ..passes.test_pad_channels import attended, focal, gated, grown, scales, weighed
from ..plan.nets import Net
from .dry import DryDevice, launches, normal, planned_model
from .emulator import needs_compiler


def through(net: Net, kind: str, x: Value) -> Value:
    """Return what a kernel of this kind makes of 16 channels: 8, 16 or 32 of the same extents."""
    channels = x.tensor.dims[1]
    window = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    simple: dict[str, Op] = {
        "max": MaxPool(**window),
        "mean": AveragePool(**window),
        "relu": Relu(),
    }
    if kind in simple:
        return net.add(simple[kind], x)
    if kind == "sum":
        return net.add(Add(), x, net.add(Sigmoid(), x))
    if kind == "norm":
        arrays = (np.abs(normal(channels)) + np.float32(0.5) for _ in range(4))
        values = [net.graph.constant(a.astype(x.tensor.dtype), "") for a in arrays]
        return net.add(Relu(), net.add(BatchNormalization(), x, *values))
    group = channels if kind == "depthwise" else 1
    shape = (channels, 1, 3, 3) if group > 1 else (8, channels, *((1, 1), (3, 3))[kind == "wide"])
    weights = net.graph.constant((normal(*shape) / 4).astype(x.tensor.dtype), "")
    pads = (shape[-1] // 2,) * 4
    return net.add(Conv(group=group, pads=pads), x, weights)


KINDS = ("narrow", "wide", "depthwise", "max", "mean", "relu", "sum", "norm")


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_on_slices(kind: str, dtype: DType, emulated: CudaBackend) -> None:
    net = Net(2, 16, 5, 6, dtype=dtype)
    first = through(net, "narrow", net.x)
    inner = net.join(through(net, kind, net.x), first, name="inner")
    again = through(net, kind, inner)
    whole = net.join(inner, again, name="outer")
    check(net, emulated, dtype, through(net, "narrow", whole))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("batch", [1, 2])
def test_parts_are_read_where_they_are(batch: int, emulated: CudaBackend) -> None:
    net = Net(batch, 16, 5, 6)
    wide = through(net, "norm", through(net, "depthwise", net.x))
    a, b = net.add(Split(axis=1, num_outputs=2), wide, outputs=2, name="split")
    bounds = [net.graph.constant(np.array([n]), "") for n in (4, 12, 1)]
    c = net.add(Slice(), wide, *bounds, name="slice")
    y = net.add(Add(), through(net, "wide", a), through(net, "relu", b))
    check(net, emulated, float32, net.add(Add(), y, through(net, "max", c)))
    layout = planned_model(Model(net.graph, [NumpyBackend()], Options(), evaluate), DryDevice())
    assert not {each.entry for each in launches(layout)} & {"concat", "copy_strided"}


@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
def test_rows_are_joined_from_where_they_are(dtype: DType, emulated: CudaBackend) -> None:
    """Columns of a product's rows are parts of longer sequences (values of joint attention)."""

    net = Net(2, 5, 40, dtype=dtype)
    rows = net.add(Sigmoid(), net.x)

    def columns(start: int) -> Value:
        bounds = [net.graph.constant(np.array([n]), "") for n in (start, start + 16, 2)]
        return net.add(Slice(), rows, *bounds)

    weights = net.graph.constant(normal(40, 16).astype(dtype), "")
    dense = net.add(MatMul(), rows, weights)
    model = net.model(emulated, y=net.join(columns(8), dense, columns(24)))
    steps = [row.kernel.split()[0] for row in model.placement() if row.kind == "step"]
    assert "concat" in steps
    assert "copy_strided" not in steps
    compare(net, model, dtype)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("apart", [True, False])
def test_sums_behind_convolutions(apart: bool, dtype: DType, emulated: CudaBackend) -> None:
    """A sum is computed in the slice, wherever what it adds to is; the convolution may read it."""
    net = Net(2, 16, 5, 6, dtype=dtype)
    y = through(net, "wide", net.x)
    for _ in range(2):
        y = net.add(Add(), through(net, "wide", through(net, "relu", y) if apart else y), y)
    whole = net.join(y, through(net, "narrow", net.x), name="cat")
    options = Options(skip=("fold_constants", "fold_affine", "merge_branches", "merge_linear"))
    net.graph.set_outputs({"y": through(net, "narrow", whole)})
    model = Model(net.graph, [emulated], options, evaluate)
    assert model.placement()["cat"].kind == "view"
    compare(net, model, dtype)


def compare(net: Net, model: Model, dtype: DType) -> None:
    x = normal(*net.x.tensor.dims).astype(dtype)
    want = Model(net.graph, [NumpyBackend()], model.options, evaluate).run({"x": x})["y"]
    got = model.run({"x": x})["y"]
    tolerance = 1e-5 if dtype == float32 else 5e-3
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


def check(net: Net, backend: CudaBackend, dtype: DType, y: Value) -> dict[str, str]:
    """Compare with numpy; all Concats must be views. Return the kind of row by operator."""
    net.graph.set_outputs({"y": y})
    options = Options(skip=("fold_constants", "fold_affine", "merge_linear"))
    model = Model(net.graph, [backend], options, evaluate)
    compare(net, model, dtype)
    found = {row.operators: row.kind for row in model.placement()}
    assert found.get("Concat", "view") == "view"
    return found


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize(
    ("name", "concats"), [("inception_v1", 9), ("squeezenet", 8), ("densenet121", 58)]
)
def test_networks_without_a_concat(name: str, concats: int, precision: Precision) -> None:
    with tercet.load(light_model(name)) as loaded:
        imported = loaded.imported
    options = Options(precision=precision)
    layout: Layout = planned_model(
        Model(imported, [NumpyBackend()], options, evaluate), DryDevice()
    )
    joined = [row for row in layout.rows if row.nodes and isinstance(row.nodes[0].op, Concat)]
    assert Counter(row.kind for row in joined) == {"view": concats}
    assert not any(launch.entry == "concat" for launch in launches(layout))


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
def test_views_with_the_same_rows_are_placed_with_what_they_show(
    dtype: DType, emulated: CudaBackend
) -> None:
    """As in MambaOut: a convolution of some columns of a layer, which others wait for."""
    rng = np.random.default_rng(0)
    net = Net(1, 5, 6, 16, dtype=dtype)
    weights = [rng.standard_normal(s) / 4 for s in ((16, 56), (24, 1, 3, 3), (40, 16))]
    w, taps, v = (net.graph.constant(a.astype(dtype), "") for a in weights)
    sizes = net.graph.constant(np.array([16, 16, 24]), "")
    parts = net.add(
        Split(axis=-1, num_outputs=3), net.add(MatMul(), net.x, w), sizes, outputs=3, name="split"
    )
    image = net.add(Transpose(perm=(0, 3, 1, 2)), parts[2])
    image = net.add(Conv(group=24, pads=(1, 1, 1, 1)), image, taps)
    rows = net.join(parts[1], net.add(Transpose(perm=(0, 2, 3, 1)), image), axis=3)
    gate = net.add(Relu(), parts[0])
    net.graph.set_outputs({"y": net.add(Mul(), net.add(MatMul(), rows, v), gate)})
    model = Model(net.graph, [emulated], Options(skip=("fold_constants",)), evaluate)
    compare(net, model, dtype)
    found = [row.kind for row in model.placement() if row.operators in ("Slice", "Concat")]
    assert sorted(found) == ["step", "view", "view", "view"]


@needs_compiler
@pytest.mark.parametrize("taps", [3, 11])
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
def test_a_depthwise_convolution_reads_its_gate_in_a_slice(
    taps: int, dtype: DType, emulated: CudaBackend
) -> None:
    """As in LFM2: a layer computes the signal and two gates, one before the convolution."""
    net = Net(2, 9, 16, dtype=dtype)
    sizes = (16, 48), (16, 1, taps), (16, 8)
    w, kernel, v = (net.graph.constant((normal(*n) / 4).astype(dtype), "") for n in sizes)
    columns = net.add(Transpose(perm=(0, 2, 1)), net.add(MatMul(), net.x, w))
    before, behind, x = net.add(Split(axis=1, num_outputs=3), columns, outputs=3)
    signal = net.add(Mul(), before, x)
    y = net.add(Conv(group=16, pads=(taps - 1, 0)), signal, kernel)
    rows = net.add(Transpose(perm=(0, 2, 1)), net.add(Mul(), y, behind))
    check(net, emulated, dtype, net.add(MatMul(), rows, v))
    layout = planned_model(
        Model(net.graph, [NumpyBackend()], Options(skip=("fold_constants",)), evaluate), DryDevice()
    )
    assert not {each.entry for each in launches(layout)} & {"transpose", "copy_strided"}


def scanned(net: Net, a: Value, b: Value) -> Value:
    """Sum gated rows over the rows before each."""
    axis = net.graph.constant(np.array(1), "")
    total = net.add(CumSum(), net.add(Mul(), net.add(Sigmoid(), a), b), axis)
    return net.add(Mul(), total, b)


def reduced(net: Net, a: Value, b: Value) -> Value:
    """Scale each row by its product with another."""
    axes = net.graph.constant(np.array([1]), "")
    return net.add(Mul(), a, net.add(ReduceSum(), net.add(Mul(), a, b), axes))


def shifted(net: Net, a: Value, b: Value) -> Value:
    """Move rows down by one: the last one is dropped, and zeros come first (a token shift)."""
    bounds = [net.graph.constant(np.array([n]), "") for n in (0, -1, 1)]
    pads = net.graph.constant(np.array([0, 1, 0, 0, 0, 0]), "")
    return net.add(Pad(), net.add(Slice(), net.add(Add(), a, b), *bounds), pads)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=["float32", "float16"])
@pytest.mark.parametrize("build", [scanned, reduced, shifted])
def test_generated_kernels_on_parts_of_rows(
    build: Callable[[Net, Value, Value], Value], dtype: DType, emulated: CudaBackend
) -> None:
    """They read columns of a layer, and write where a Concat joins columns."""
    net = Net(2, 5, 16, dtype=dtype)
    w = net.graph.constant((normal(16, 48) / 4).astype(dtype), "")
    parts = net.add(Split(axis=-1, num_outputs=3), net.add(MatMul(), net.x, w), outputs=3)
    y = net.join(build(net, *parts[:2]), net.add(Sigmoid(), parts[2]), axis=2)
    v = net.graph.constant((normal(32, 8) / 4).astype(dtype), "")
    check(net, emulated, dtype, net.add(MatMul(), y, v))
    layout = planned_model(
        Model(net.graph, [NumpyBackend()], Options(skip=("fold_constants",)), evaluate), DryDevice()
    )
    assert not {each.entry for each in launches(layout)} & {"concat", "copy_strided"}


def test_a_reshape_into_other_rows_is_not() -> None:
    net = Net(1, 5, 6, 16)
    w = net.graph.constant(normal(16, 64), "")
    parts = net.add(Split(axis=-1, num_outputs=2), net.add(MatMul(), net.x, w), outputs=2)
    shape = net.graph.constant(np.array([60, 16]), "")
    halves = net.add(Relu(), net.add(Reshape(), parts[0], shape))
    net.graph.set_outputs({"y": halves, "z": net.add(Relu(), parts[1])})
    layout = planned_model(Model(net.graph, [NumpyBackend()], Options(), evaluate), DryDevice())
    kinds = [row.kind for row in layout.rows if row.nodes and isinstance(row.nodes[0].op, Slice)]
    assert sorted(kinds) == ["step", "view"]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("build", [scales, grown, gated, attended, focal, weighed])
def test_parts_of_padded_channels(build: Build, hopper: CudaBackend) -> None:
    """In half precision, and float64 for comparison; kernels read and write slices in words."""
    graph = make(build, (1, 8, 6, 5))
    x = normal(1, 8, 6, 5)
    with Model(graph, [hopper], Options(precision="float16"), evaluate) as model:
        found = model.run({"x": x})["y"].astype(np.float64)
        copies = [r for r in model.placement() if r.operators in ("Split", "Concat")]
    assert all(row.kind == "view" for row in copies)
    wanted = run(graph, x, np.float64)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=6e-3 * np.abs(wanted).max())


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(
    ("build", "shape"),
    [(weighed, (2, 8, 6, 5)), (rows_of_pixels.focal, rows_of_pixels.SHAPE)],
    ids=["weighed", "rows_of_pixels"],
)
def test_single_channels_are_read_in_place(
    build: Build, shape: tuple[int, ...], hopper: CudaBackend
) -> None:
    graph, x = make(build, shape), normal(*shape)
    with Model(graph, [hopper], Options(precision="float16"), evaluate) as model:
        found = model.run({"x": x})["y"].astype(np.float64)
        parts = [row for row in model.placement() if row.operators == "Slice"]
    assert parts
    assert all(row.kind == "view" for row in parts)
    wanted = run(graph, x, np.float64)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=6e-3 * np.abs(wanted).max())
