"""Stacks of products by vectors, and of matrices of a few elements."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.matmul import MatMul

from .cubins import assert_plans_compile
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare

COMPILES = {"gemm/dots.cu"}
#: Shapes of both factors.
SHAPES = [
    ((2, 8, 50, 96), (2, 8, 96, 1)),
    ((2, 9, 1, 3, 3), (2, 9, 7, 3, 1)),
    ((5, 1, 6), (5, 6, 40)),
    ((40, 4, 5), (1, 5, 3)),
    ((30, 3, 3), (30, 3, 3)),
]


def product(shapes: tuple[tuple[int, ...], ...], dtype: DType, end: str = "") -> Sample:
    """Return a product of two inputs, with a Relu or an addend behind it."""
    graph = Graph(f"{shapes} {dtype.name} {end}")
    feeds = {name: normal(*dims).astype(dtype) for name, dims in zip("ab", shapes, strict=True)}
    inputs = [graph.add_input(name, TensorType(dtype, x.shape)) for name, x in feeds.items()]
    value = graph.insert(MatMul(), inputs).output
    infer(graph)
    if end == "relu":
        value = graph.insert(Relu(), [value]).output
    if end == "added":
        feeds["z"] = normal(*value.tensor.dims).astype(dtype)
        other = graph.add_input("z", TensorType(dtype, value.tensor.dims))
        value = graph.insert(Add(), [value, other]).output
    graph.set_outputs({"y": value})
    infer(graph)
    return Sample(graph, feeds)


def samples() -> list[Sample]:
    """Return what the kernel tells apart, for the GPU."""
    ends = ((float32, ""), (float16, "relu"), (bfloat16, "added"))
    return [product(s, d, e) for s in SHAPES for d, e in ends]


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.graph.name)
def test_one_kernel(sample: Sample) -> None:
    (launch,) = launches(planned(sample.graph))
    assert launch.entry == "dots"


@pytest.mark.parametrize("shapes", [((4, 9, 16), (4, 16, 9)), ((2, 1, 2048), (2, 2048, 2048))])
def test_larger_ones_are_for_others(shapes: tuple[tuple[int, ...], ...]) -> None:
    found = launches(planned(product(shapes, float32).graph))
    assert "dots" not in [launch.entry for launch in found]


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compile(target: Target, cache: Path) -> None:
    assert_plans_compile((sample.graph for sample in samples()), target, cache, COMPILES)


@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.graph.name)
def test_results(sample: Sample, emulated: CudaBackend) -> None:
    compare(sample, emulated, error=ERROR[sample.graph.inputs[0].tensor.dtype])
