"""Rows that are gathered, normalized, and read besides, or gathered at last, as one kernel."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.gather import Gather
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.propagate import MAX_ELEMENTS
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from ..plan.nets import Net
from .dry import DryDevice, launches, normal, planned_model
from .emulator import needs_compiler

ROWS, PLACES = 12, np.array([3, 0, 11, 7, 7, 2, 10, 5], np.int64)
UNIQUE = np.array([3, 0, 11, 7, 1, 2, 10], np.int64)
FLOAT64 = np.dtype(np.float64)
KINDS = {"layer": LayerNormalization, "rms": RMSNormalization}
READERS = ("norm", "sum", "view", "views")


def network(kind: str, readers: str, dtype: DType, width: int = 24) -> Net:
    """Return a network that gathers rows and normalizes them.

    Args:
        kind: of norm.
        readers: what reads the gathered rows: the norm alone; a sum as well; another result, of
            the same view, or of another one; or a "product" that is added to the normalized rows.
        dtype: of the rows.
        width: of a row.
    """
    net = Net(ROWS, width, dtype=dtype)

    def constant(*shape: int) -> Value:
        return net.graph.constant(normal(*shape).astype(dtype), "")

    def shaped(x: Value, *shape: int) -> Value:
        return net.add(Reshape(), x, net.graph.constant(np.array(shape, np.int64), "shape"))

    rows = net.add(Relu(), net.x)
    moved = net.add(Gather(axis=0), rows, net.graph.constant(PLACES, "places"))
    view = shaped(moved, 2, 4, width)
    given = [constant(width) for _ in range(2 if kind == "layer" else 1)]
    y = net.add(KINDS[kind](), view, *given)
    results = {"y": net.add(Add(), y, view) if readers == "sum" else y}
    if readers == "product":
        results["y"] = net.add(Add(), y, net.add(MatMul(), view, constant(width, width)))
    if readers in ("view", "views"):
        results["z"] = net.add(Relu(), view if readers == "view" else shaped(view, 4, 2, width))
    if readers == "views":
        results["moved"] = net.add(Relu(), moved)
    net.graph.set_outputs(results)
    return net


def launched(net: Net) -> list[Launch]:
    model = Model(net.graph, [NumpyBackend()], Options(stop_at=0), evaluate)
    return launches(planned_model(model, DryDevice()))


def files(net: Net) -> list[str]:
    return [launch.file for launch in launched(net)]


def normalized(kind: str, dtype: DType, places: Array, width: int = 24) -> Net:
    """Return a network that gathers normalized rows, to which others are added."""
    net = Net(ROWS, width, dtype=dtype)
    given = [
        net.graph.constant(normal(width).astype(dtype), "")
        for _ in range(2 if kind == "layer" else 1)
    ]
    rows = net.add(Relu(), net.x)
    y = net.add(Add(), net.add(KINDS[kind](), rows, *given), net.x)
    y = net.add(Gather(axis=0), y, net.graph.constant(places, "places"))
    net.graph.set_outputs({"y": net.add(Relu(), y)})
    return net


@pytest.mark.parametrize("kind", KINDS)
def test_one_kernel_normalizes_and_gathers(kind: str) -> None:
    found = files(normalized(kind, float16, UNIQUE))
    assert found.count("norm/normalize_rows.cu") == 1
    assert not any("gather" in file for file in found)


def test_rows_that_are_taken_twice_are_normalized_once() -> None:
    found = launched(normalized("layer", float16, PLACES))
    (norm,) = (launch for launch in found if launch.file == "norm/normalize_rows.cu")
    assert not dict(norm.constants)["GATHERED"]


#: More places than inference looks at, one of which no row has.
OUTSIDE = np.resize([*range(ROWS), ROWS], MAX_ELEMENTS + 1)


@pytest.mark.parametrize(
    "places",
    [UNIQUE.astype(np.int32), UNIQUE - ROWS, OUTSIDE],
    ids=["32 bits", "from the end", "outside"],
)
def test_other_places_are_gathered_apart(places: Array) -> None:
    net = Net(ROWS, 24, dtype=float16)
    scale, shift = (net.graph.constant(normal(24).astype(float16), "") for _ in range(2))
    rows = net.add(Gather(axis=0), net.add(Relu(), net.x), net.graph.constant(places, "places"))
    net.graph.set_outputs({"y": net.add(LayerNormalization(), rows, scale, shift)})
    (norm,) = (launch for launch in launched(net) if launch.file == "norm/normalize_rows.cu")
    assert not dict(norm.constants)["GATHERED"]


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_results_that_are_gathered(kind: str, dtype: DType, emulated: CudaBackend) -> None:
    compare(normalized(kind, dtype, UNIQUE), normalized(kind, FLOAT64, UNIQUE), dtype, emulated)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("readers", READERS[:-1])
def test_one_kernel_gathers_and_normalizes(kind: str, readers: str) -> None:
    found = files(network(kind, readers, float16))
    assert found.count("norm/normalize_rows.cu") == 1
    assert not any("gather" in file for file in found)


def test_rows_that_are_read_in_two_shapes_are_gathered_apart() -> None:
    assert any("gather" in file for file in files(network("layer", "views", float16)))


def test_rows_for_which_a_sum_waits_are_gathered_apart() -> None:
    """A kernel that gathers, normalizes and adds would wait for the product of its own rows."""
    relu, *others = files(network("layer", "product", float16))
    assert relu == "elementwise/elementwise.cu"
    assert others == ["move/gather.cu", "gemm/gemv.cu", "norm/normalize_rows.cu"]


def test_float32_rows_are_gathered_apart() -> None:
    """Products read what norms store in halves."""
    assert any("gather" in file for file in files(network("layer", "view", float32)))


@needs_compiler
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("readers", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_results(kind: str, readers: str, dtype: DType, emulated: CudaBackend) -> None:
    compare(network(kind, readers, dtype), network(kind, readers, FLOAT64), dtype, emulated)


def compare(net: Net, exact: Net, dtype: DType, emulated: CudaBackend) -> None:
    """Compare with numpy in float64, on the same rounded numbers."""
    model = Model(net.graph, [emulated], Options(stop_at=0), evaluate)
    x = normal(ROWS, 24).astype(dtype)
    wanted = Model(exact.graph, [NumpyBackend()], Options(stop_at=0), evaluate)
    found = model.run({"x": x})
    for name, array in wanted.run({"x": x.astype(FLOAT64)}).items():
        limit = {float16: 4e-3, bfloat16: 3e-2}[dtype] * np.abs(array).max()
        np.testing.assert_allclose(found[name].astype(FLOAT64), array, rtol=0, atol=limit)
