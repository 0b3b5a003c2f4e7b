"""Images whose channels fill no words are padded where they lie, with channels innermost."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu

from ..passes.graphs import apply
from .cubins import assert_plans_compile
from .dry import DryCompiler, DryDevice, entries_of, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, sample

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"gemm/pad_channels.cu"}

DTYPES = pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=lambda d: d.name)


def samples() -> list[Sample]:
    """Convolutions of so few terms that no stage of shared memory is used twice: racecheck reports
    a second use (docs/debugging.md)."""
    data = normal(2, 21, 28, 26), normal(32, 21, 5, 5) / 30
    return [
        sample("Conv", [each.astype(dtype) for each in data], (1,), pads=(2, 2, 2, 2))
        for dtype in (float32, float16)
    ]


def pruned(dtype: DType, channels: int, sides: tuple[int, ...] = (56, 56)) -> Graph:
    """Two convolutions, of which the second one reads what the first one makes."""
    axes = len(sides)

    def weights(filters: int, read: int, size: int) -> Array:
        terms = read * size**axes
        return (normal(filters, read, *(size,) * axes) / np.sqrt(terms)).astype(dtype)

    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (2, 64, *sides)))
    made = apply(graph, Relu(), apply(graph, Conv(), x, weights(channels, 64, 1)))
    pads = (2,) * (2 * axes)
    graph.set_outputs({"y": apply(graph, Conv(pads=pads), made, weights(32, channels, 5))})
    infer(graph)
    return graph


@pytest.mark.parametrize(
    ("dtype", "target", "channels"),
    [
        *product((float16, bfloat16), (A100, H200), (21, 37, 101)),
        *product([float32], (A100, H200), [37]),
    ],
    ids=str,
)
def test_padding_is_all_that_lies_between(dtype: DType, target: Target, channels: int) -> None:
    graph = pruned(dtype, channels)
    found = [n.entry for n in launches(planned(graph, DryDevice(compiler=DryCompiler(target))))]
    assert found.count("pad_channels") == 1
    assert not {"transpose", "copy_tiles", "pack_image"} & {*found[1:]}


def test_channels_that_fill_words_stay_where_they_lie() -> None:
    for dtype, channels in ((float16, 38), (float32, 36)):
        entries = entries_of(pruned(dtype, channels))
        assert "pad_channels" not in entries


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    assert_plans_compile([sample.graph for sample in samples()], target, cache, COMPILES)


@needs_compiler
@DTYPES
@pytest.mark.parametrize("sides", [(28, 26), (900,)], ids=["image", "sound"])
def test_results(sides: tuple[int, ...], dtype: DType, emulated: CudaBackend) -> None:
    graph = pruned(dtype, 37, sides)
    x = normal(2, 64, *sides).astype(dtype)
    compare(Sample(graph, {"x": x}), emulated)
