"""Reductions in which a thread has several elements: words of columns, words of a row."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.codegen import fold_kernel
from tercet.runtime.ir.dtypes import DType, bool_, float16, float32, int8, int64
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.reduce import ArgMax, ReduceMean

from ..plan.nets import Net
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend


@needs_compiler
@pytest.mark.parametrize("dtype", [int8, bool_, float16, float32], ids=lambda each: each.name)
@pytest.mark.parametrize(("threads", "inner"), [(8, 24), (96, 24), (8, 35)])
def test_columns_of_a_thread(
    threads: int,
    inner: int,
    dtype: DType,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold_kernel, "FEW_THREADS", threads)
    monkeypatch.setattr(fold_kernel, "LEAST", 1)
    x = (4 * normal(5, 20, inner)).astype(dtype)
    kinds = ("ReduceMax", "ReduceMin") if dtype in (bool_, int8) else ("ReduceMax", "ReduceMean")
    for kind in (*kinds, *(() if dtype == bool_ else ("ArgMax",))):
        if kind == "ArgMax":
            tested = sample(kind, [x], axis=1)
        else:
            tested = sample(kind, [x, np.array([1])], (1,))
        (launch,) = launches(planned(tested.graph))
        assert launch.entry == "reduce_few"
        compare(tested, emulated)


@pytest.mark.parametrize(
    ("columns", "dtype", "entry"),
    [
        (1024, float16, "reduce_columns"),  # each thread would read 2 bytes
        (2048, float16, "reduce_few"),
        (1024, float32, "reduce_few"),
        (512, float32, "reduce_columns"),
    ],
)
def test_threads_of_few_rows_read_words(columns: int, dtype: DType, entry: str) -> None:
    x = np.zeros((32, 49, columns), dtype)
    (launch,) = launches(planned(sample("ReduceMean", [x, np.array([1])], (1,)).graph))
    assert launch.entry == entry


@needs_compiler
@pytest.mark.parametrize(
    "dtype", [int8, bool_, float16, float32, int64], ids=lambda each: each.name
)
@pytest.mark.parametrize(("count", "inner"), [(9, 40), (196, 48), (300, 35), (1100, 24)])
def test_words_of_columns(count: int, inner: int, dtype: DType, emulated: CudaBackend) -> None:
    """Columns whose rows threads of a warp share, those of a block, and those of several blocks."""
    x = (4 * normal(2, count, inner)).astype(dtype)
    tested = [] if dtype == bool_ else [sample("ArgMax", [x], axis=1)]
    mean = "ReduceMean" if dtype in (float16, float32) else "ReduceMin"
    for each in (*tested, sample(mean, [x, np.array([1])], (1,))):
        first, *_ = launches(planned(each.graph))
        assert first.entry == "reduce_columns"
        assert dict(first.constants)["VECTOR"] == gcd(inner, 16 // dtype.itemsize)
        compare(each, emulated)


@needs_compiler
@pytest.mark.parametrize("dtype", [bool_, float16, float32, int64], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("dims", "elements"), [((3, 1000), 2), ((2, 4096), 16), ((2, 8200), 4), ((2, 4098), 2)]
)
def test_words_of_a_row(
    dims: tuple[int, int], elements: int, dtype: DType, emulated: CudaBackend
) -> None:
    """Rows of one part, and of parts of 1024 elements, the last of which are two or one words."""
    x = (4 * normal(*dims)).astype(dtype)
    tested = [] if dtype == bool_ else [sample("ArgMax", [x], axis=1)]
    for each in (*tested, sample("ReduceMax", [x, np.array([1])], (1,))):
        first, *_ = launches(planned(each.graph))
        assert first.entry == "reduce_rows"
        assert dict(first.constants)["VECTOR"] == min(elements, 16 // dtype.itemsize)
        compare(each, emulated)


@pytest.mark.parametrize(("rows", "entry"), [(2, "reduce_few"), (100, "reduce_columns")])
def test_more_columns_than_a_grid_has_blocks_for(rows: int, entry: str) -> None:
    """Along its second axis: embeddings of two coordinates, sums over samples."""
    net = Net(1, rows, 2304, 1152, dtype=float32)
    y = net.add(ReduceMean(keepdims=0), net.x, net.graph.constant(np.array([1]), ""))
    net.graph.set_outputs({"y": y})
    infer(net.graph)
    (launch,) = launches(planned(net.graph))
    assert launch.entry == entry


@needs_compiler
def test_blocks_of_columns_along_two_axes(
    emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold_kernel, "MAX_BLOCKS", 3)
    each = sample("ReduceSum", [normal(2, 70, 250), np.array([1])], (1,))
    (launch,) = launches(planned(each.graph))
    assert launch.grid == (2, 3, 3)
    compare(each, emulated)


LEFT: dict[str, tuple[type[ReduceMean | ArgMax], tuple[int, ...]]] = {
    **{f"mean {axes}": (ReduceMean, axes) for axes in [(0,), (0, 2), (0, 3), (1, 3), (2, 3)]},
    **{f"argmax {axis}": (ArgMax, (axis,)) for axis in range(3)},
}


@needs_compiler
@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("dims", [(4,), (4, 5)], ids=str)
def test_axes_that_are_left_of_an_image(
    name: str, dims: tuple[int, ...], emulated: CudaBackend
) -> None:
    """Convolutions store images with channels last; results of fewer axes have no format."""
    kind, given = LEFT[name]
    axes = tuple(axis for axis in given if axis < 2 + len(dims))
    net = Net(2, 3, *dims, dtype=float32)
    ones = (1,) * len(dims)
    image = net.add(Conv(), net.x, net.graph.constant(normal(8, 3, *ones), ""))
    if kind is ArgMax:
        y = net.add(ArgMax(axis=axes[0], keepdims=0), image)
    else:
        y = net.add(ReduceMean(keepdims=0), image, net.graph.constant(np.array(axes), ""))
    net.graph.set_outputs({"y": y})
    infer(net.graph)
    compare(Sample(net.graph, {"x": normal(2, 3, *dims)}), emulated)
