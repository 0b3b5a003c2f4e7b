"""Variances of long rows: one reduction, and as precise as two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Cast, Mul, Pow, Sub
from tercet.runtime.ops.reduce import ReduceMean

from .cubins import all_compile
from .dry import apply, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, results_of

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend

FILE = "reduce/reduce.cu"


def variance(dims: tuple[int, ...], axes: tuple[int, ...], dtype: DType, wide: bool) -> Graph:
    """Return the mean of squares; of 16-bit differences, widened, if `wide`."""
    graph = Graph("variance")
    x = graph.add_input("x", TensorType(dtype, dims))
    apart = apply(graph, Sub(), x, apply(graph, ReduceMean(), x, np.array(axes)))
    if wide:
        apart = apply(graph, Cast(to=float32), apart)
        square = apply(graph, Pow(), apart, np.array(2, np.float32))
    else:
        square = apply(graph, Mul(), apart, apart)
    y = apply(graph, ReduceMean(keepdims=0), square, np.array(axes))
    graph.set_outputs({"y": y})
    infer(graph)
    return graph


@needs_compiler
@pytest.mark.parametrize("mean", [0.0, 100.0])
@pytest.mark.parametrize(
    ("dims", "axes", "dtype"),
    [
        *[((3, 2, 8, 400), (2, 3), dtype) for dtype in (float16, float32, float64)],
        *[((2, 9000), (1,), float32), ((1100, 2, 12), (0,), float32)],
        ((2, 40, 3, 40), (1, 3), float32),
    ],
)
def test_results(
    dims: tuple[int, ...], axes: tuple[int, ...], dtype: DType, mean: float, emulated: CudaBackend
) -> None:
    graph = variance(dims, axes, dtype, wide=dtype == float16)
    assert {launch.source.file for launch in launches(planned(graph))} == {FILE}
    x: Array = (normal(*dims) + np.float32(mean)).astype(dtype)
    (found,) = results_of(Sample(graph, {"x": x}), [emulated])
    error = {float16: 2e-5, float32: 2e-5, float64: 1e-11}[dtype]
    np.testing.assert_allclose(found, x.astype(float64).var(axis=axes), rtol=error)


def test_what_is_read_elsewhere_is_computed() -> None:
    graph = variance((4, 2048), (1,), float32, wide=False)
    (apart,) = (node for node in graph.nodes if isinstance(node.op, Sub))
    graph.set_outputs({"y": graph.outputs["y"], "apart": apart.output})
    assert "reduce/row_chain.cu" in {launch.source.file for launch in launches(planned(graph))}


def test_short_rows_are_read_once() -> None:
    (launch,) = launches(planned(variance((400, 80), (1,), float32, wide=False)))
    assert launch.entry == "row_chain"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    graphs = (variance((2, 9000), (1,), dtype, wide=False) for dtype in (float32, float64))
    sources = [launch.source for graph in graphs for launch in launches(planned(graph))]
    all_compile(sources, target, cache, {FILE})
