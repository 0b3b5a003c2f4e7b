"""Stacks of matrix products of which one side is broadcast: read in place, or copied first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from .dry import entries_of, normal
from .emulator import needs_compiler
from .samples import Sample, compare, sample

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Shapes of the matrices, and what is copied first in float32: heads with a matrix each in every
#: sample (relative positions), keys shared by heads, both, a left matrix shared by heads, and one
#: matrix. 16-bit floats are read in place, unless strides differ along three axes.
STACKS = {
    "heads": ((2, 3, 16, 8), (3, 8, 24), ["copy_strided"]),
    "shared": ((2, 3, 16, 8), (2, 1, 8, 24), []),
    "both": ((2, 3, 4, 16, 8), (3, 1, 8, 24), ["copy_strided"]),
    "left": ((2, 1, 16, 8), (2, 3, 8, 24), ["copy_strided"]),
    "one": ((1, 16, 8), (3, 8, 24), []),
    "rows": ((2, 3, 16, 8), (1, 8, 24), []),
    "across": ((2, 1, 16, 8), (3, 8, 24), ["copy_strided", "copy_strided"]),
    "middle": ((2, 3, 4, 16, 8), (2, 1, 4, 8, 24), ["copy_strided"]),
}
DTYPES = (np.float16, np.float32)


def stack(a: tuple[int, ...], b: tuple[int, ...], dtype: type) -> Sample:
    return sample("MatMul", [normal(*a).astype(dtype), normal(*b).astype(dtype)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STACKS)
def test_no_stack_is_left_to_the_general_kernel(name: str, dtype: type) -> None:
    a, b, first = STACKS[name]
    if dtype is np.float16 and name != "middle":
        first = []
    entries = entries_of(stack(a, b, dtype).graph)
    assert entries[: len(first)] == first
    assert "product" not in entries
    assert entries.count("copy_strided") == len(first)


def test_single_rows_are_not_worth_a_copy() -> None:
    """Each matrix is read about once, whichever block reads it."""
    graph = stack((2, 3, 1, 8), (3, 8, 24), np.float32).graph
    assert entries_of(graph) == ["dots"]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", STACKS)
def test_stacks(name: str, dtype: type, emulated: CudaBackend) -> None:
    a, b, _ = STACKS[name]
    compare(stack(a, b, dtype), emulated)
