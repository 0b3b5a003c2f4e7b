"""Copies through tiles in shared memory: which elements neighbours are, and that none is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.codegen import tiled_copies
from tercet.backends.cuda.codegen.tiled_copies import tiling
from tercet.backends.cuda.recipe.operands import strides
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32, float64, int8
from tercet.runtime.ops.movement import Expand, Slice
from tercet.runtime.plan.format import Format

from .cubins import all_compile
from .dry import DryCompiler, DryDevice, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare
from .test_moves import Chain

COMPILES = {"move/copy_tiles.cu"}

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend


def transposed(dims: tuple[int, ...], *perm: int) -> Callable[[DType], Chain]:
    return lambda dtype: Chain(*dims, dtype=dtype).transpose(*perm)


def repeated(dtype: DType) -> Chain:
    """Each row several times, among axes of other sizes."""
    return Chain(3, 1, 33, 40, dtype=dtype).add(Expand(), [3, 5, 33, 40])


def backwards(dtype: DType) -> Chain:
    """Every second row from the last one on, without the first columns."""
    starts, ends, axes, steps = [-1, 8], [-38, 64], [1, 2], [-2, 1]
    return Chain(3, 37, 64, dtype=dtype).add(Slice(), starts, ends, axes, steps)


#: Whole tiles or not, short and long axes, few and many of them.
TILED = {
    "square": transposed((3, 64, 128), 0, 2, 1),
    "ragged": transposed((2, 99, 67), 0, 2, 1),
    "short rows": transposed((2, 33, 21, 19), 0, 2, 1, 3),
    "shuffled pixels": transposed((2, 8, 9, 16, 2, 2), 0, 1, 4, 2, 5, 3),
    "reversed": transposed((5, 6, 7, 8, 9), 4, 3, 2, 1, 0),
    "repeated": repeated,
    "backwards": backwards,
}
#: What other kernels are for.
OTHERS = {
    "three channels": transposed((2, 3, 50, 41), 0, 2, 3, 1),
    "pixels of few channels": transposed((2, 45, 40, 3), 0, 3, 1, 2),
    "no neighbours": lambda dtype: Chain(4, 5, 70, dtype=dtype).slice(-1, -71, 2, -1),
}


@needs_compiler
@pytest.mark.parametrize("dtype", [int8, float16, float32, float64], ids=lambda each: each.name)
@pytest.mark.parametrize("name", [*TILED, *OTHERS])
def test_results(
    name: str, dtype: DType, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled_copies, "LARGE", 0)
    monkeypatch.setattr(tiled_copies, "SLOWER", 0)
    chain = (TILED | OTHERS)[name](dtype)
    chain.graph.set_outputs({"y": chain.value})
    (launch,) = launches(planned(chain.graph))
    assert (launch.entry == "copy_tiles") == (name in TILED)
    x = (100 * normal(*chain.graph.inputs[0].tensor.dims)).astype(dtype)
    compare(Sample(chain.graph, {"x": x}), emulated)


def test_every_element_has_one_place() -> None:
    """Runs are adjacent on both sides, words are aligned, and tiles cover all."""
    rng, found = np.random.default_rng(7), 0
    for _ in range(400):
        rank = int(rng.integers(2, 6))
        dims = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 8, 16, 19, 40, 64, 100], rank))
        axes = rng.permutation(rank)
        from_ = strides(dims, Format.CONTIGUOUS)
        sizes, moves = tuple(dims[i] for i in axes), tuple(from_[i] for i in axes)
        to = strides(sizes, Format.CONTIGUOUS)
        how = tiling(sizes, moves, to, 0, 2)
        if how is None:
            continue
        found += 1
        assert sorted(how.order) == list(range(rank))
        for order, steps, run, word in zip(
            (how.order, tuple(reversed(range(rank)))), (moves, to), how.runs, how.words, strict=True
        ):
            numbers = np.arange(run)
            places = np.zeros(run, int)
            inside = np.ones(run, bool)
            for axis in order:
                at = numbers % how.tile[axis]
                places += at * steps[axis]
                inside &= at < sizes[axis]
                numbers //= how.tile[axis]
            np.testing.assert_array_equal(places[inside], np.arange(inside.sum()))
            assert not numbers.any()
            assert run % word == inside.sum() % word == 0
    assert found > 100


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_large_copies_compile(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target))
    for dtype in (int8, float16, float32):
        chain = Chain(16, 99, 19, 2, 24, dtype=dtype).transpose(0, 4, 2, 1, 3)
        chain.graph.set_outputs({"y": chain.value})
        assert [each.entry for each in launches(planned(chain.graph, device))] == ["copy_tiles"]
    all_compile(device.compiler.sources, target, cache, COMPILES)
