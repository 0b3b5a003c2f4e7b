"""What threads of normalizations keep in registers: constants, elements and their moments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.norm.norm_rows import MAX_EARLY
from tercet.backends.cuda.recipe.targets import H200, REGISTERS
from tercet.runtime.ir.dtypes import DType, float16, float32, float64
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.ops.norm import LayerNormalization

from .cubins import OptimizedPtxCompiler, registers
from .dry import Net, normal
from .emulator import needs_compiler
from .norm_samples import constant
from .samples import Sample, compare
from .test_norms import node, recipe, results


def test_constants_are_loaded_before_the_kernel_waits(cache: Path) -> None:
    """And are in registers when the row arrives, in words of 16 bytes."""
    (launch,) = recipe(constant(128, 768, float16).graph)
    ptx = OptimizedPtxCompiler(H200, cache).code(launch.source).decode()
    before, behind = ptx.split("griddepcontrol.wait")
    assert (before.count("ld.global.v4"), behind.count("ld.global.v4")) == (6, 3)


def test_what_may_change_is_loaded_when_the_kernel_has_waited(cache: Path) -> None:
    """The preceding kernel may compute scale and shift."""
    (launch,) = recipe(node("LayerNormalization", (128, 768), float16))
    ptx = OptimizedPtxCompiler(H200, cache).code(launch.source).decode()
    before, behind = ptx.split("griddepcontrol.wait")
    assert (before.count("ld.global"), behind.count("ld.global.v4")) == (0, 9)


@pytest.mark.parametrize(
    ("rows", "count", "ahead"), [(128, 1009, True), (4096, 1009, False), (4096, 1008, True)]
)
def test_narrow_constants_take_too_many_registers_for_many_blocks(
    rows: int, count: int, ahead: bool
) -> None:
    (launch,) = recipe(constant(rows, count, float16).graph)
    assert dict(launch.constants)["AHEAD"] is ahead


def added(rows: int, count: int, dtype: DType, terms: int = 1) -> Sample:
    """Return a LayerNormalization by constants, to which other rows are added."""
    net = Net()
    given = (normal(count).astype(dtype), normal(count, 2)[:, 0].astype(dtype))
    y = net.apply(LayerNormalization(), net.input(rows, count, dtype=dtype), *given)
    for _ in range(terms):
        y = net.apply(Add(), y, net.input(rows, count, dtype=dtype))
    return Sample(net.outputs(y), net.feeds)


@pytest.mark.parametrize(
    ("rows", "count", "dtype", "terms", "ahead", "early"),
    [
        (256, 16384, float32, 0, True, True),
        (256, 16384, float32, 1, True, False),
        (256, 16384, float16, 2, True, True),
        (4096, 16384, float32, 0, False, False),
        (4096, 16384, float16, 1, False, False),
        (4096, 8192, float32, 1, True, False),
    ],
)
def test_what_threads_keep_fits_their_registers(
    rows: int, count: int, dtype: DType, terms: int, ahead: bool, early: bool, cache: Path
) -> None:
    """Of many large blocks, two are on a multiprocessor, so that one loads meanwhile."""
    (launch,) = recipe(added(rows, count, dtype, terms).graph)
    assert [dict(launch.constants)[name] for name in ("AHEAD", "EARLY")] == [ahead, early]
    compiler = Compiler(H200, cache)
    compiler.submit(launch.source).result()
    each, stack = registers(compiler.code(launch.source))
    assert stack <= 40
    assert launch.block * each * (1 if rows <= MAX_EARLY else 2) <= REGISTERS


@needs_compiler
def test_operands_that_have_no_room_are_loaded_late(emulated: CudaBackend) -> None:
    compare(added(3, 16384, float32), emulated)


@needs_compiler
@pytest.mark.parametrize(("rows", "count"), [(6, 768), (9, 96), (50, 1536), (9, 152)])
@pytest.mark.parametrize("apart", [0.0, 1e3], ids=["even", "outlier"])
def test_moments_of_rows_in_registers(
    rows: int, count: int, apart: float, emulated: CudaBackend
) -> None:
    """Threads add up their own elements' moments; errors are those of rounding the mean."""
    sample = constant(rows, count, float32)
    x = sample.feeds["x0"] + np.float32(300)
    x[:, 0] += np.float32(apart)
    wide, scale, shift = (
        np.asarray(a, float64) for a in (x, *(v.data for v in sample.graph.nodes[0].operands[1:]))
    )
    deviation = np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    want = (wide - wide.mean(-1, keepdims=True)) / deviation * scale + shift
    (got,) = results(Sample(sample.graph, {"x0": x}), emulated)
    limit = 3e-7 * (1 + (300 + apart) / deviation.min())
    np.testing.assert_allclose(got, want, rtol=0, atol=limit * np.abs(scale).max())
