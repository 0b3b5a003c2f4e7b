"""Products of many matrices with few rows and terms."""

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
from tercet.runtime.ops.elementwise import Gelu
from tercet.runtime.ops.matmul import MatMul

from .cubins import assert_plans_compile
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare

COMPILES = {"gemm/short_stacks.cu"}
#: Rows, columns and terms, with products in a block that is not full.
SIZES = ((9, 32, 9), (16, 8, 16), (7, 24, 5), (2, 16, 13))
DTYPES = (float32, float16, bfloat16)


def products(
    m: int,
    n: int,
    k: int,
    dtype: DType = float16,
    stack: tuple[int, ...] = (3, 347),
    *,
    end: bool = False,
) -> Sample:
    """Return products of two stacks, with a Gelu behind them."""
    graph = Graph(f"{m}x{n}x{k} {dtype.name}")
    dims = {"a": (*stack, m, k), "b": (*stack, k, n)}
    feeds = {name: normal(*shape).astype(dtype) for name, shape in dims.items()}
    inputs = [graph.add_input(name, TensorType(dtype, shape)) for name, shape in dims.items()]
    y = graph.insert(MatMul(), inputs).output
    graph.set_outputs({"y": graph.insert(Gelu(), [y]).output if end else y})
    infer(graph)
    return Sample(graph, feeds)


def samples() -> list[Sample]:
    """Return what the kernel tells apart."""
    plain = [products(*sizes, dtype) for sizes in SIZES for dtype in DTYPES]
    return [*plain, products(9, 32, 9, end=True)]


@pytest.mark.parametrize(
    ("sample", "is_short"),
    [
        (products(9, 32, 9), True),
        (products(9, 32, 9, stack=(3, 300)), False),
        (products(17, 32, 9), False),
        (products(9, 32, 17), False),
        (products(9, 36, 9), False),
        (products(9, 72, 9), False),
    ],
    ids=lambda value: str(value) if isinstance(value, bool) else value.graph.name,
)
def test_short_stacks(sample: Sample, is_short: bool) -> None:
    (launch,) = launches(planned(sample.graph))
    assert (launch.entry == "multiply_short_stacks") is is_short


@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.graph.name)
def test_one_kernel(sample: Sample) -> None:
    (launch,) = launches(planned(sample.graph))
    assert launch.entry == "multiply_short_stacks"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compile(target: Target, cache: Path) -> None:
    assert_plans_compile((sample.graph for sample in samples()), target, cache, COMPILES)


@needs_compiler
@pytest.mark.parametrize("sample", samples(), ids=lambda sample: sample.graph.name)
def test_results(sample: Sample, emulated: CudaBackend) -> None:
    (x,) = {value.tensor.dtype for value in sample.graph.inputs}
    compare(sample, emulated, error=ERROR[x])


def test_stacks_that_are_broadcast_are_for_others() -> None:
    graph = Graph("broadcast")
    a = graph.add_input("a", TensorType(float16, (2000, 9, 9)))
    b = graph.add_input("b", TensorType(float16, (1, 9, 32)))
    graph.set_outputs({"y": graph.insert(MatMul(), [a, b]).output})
    infer(graph)
    assert "multiply_short_stacks" not in [x.entry for x in launches(planned(graph))]
