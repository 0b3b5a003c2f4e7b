"""Col2Im: an element of an image visits only the elements of blocks that may be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.infer import infer
from tercet.runtime.ops.conv import Col2Im
from tercet.runtime.ops.elementwise import Mul
from tercet.runtime.ops.movement import Transpose
from tercet.runtime.ops.shape import Reshape

from .cubins import all_compile, assert_arguments
from .dry import Net, launches, normal, planned, single
from .emulator import needs_compiler
from .samples import Sample, compare

#: The kernel that this module compiles.
COMPILES = {"conv/fold_columns.cu"}

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend

#: Columns, the image, a block, and attributes.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # the overlapping frames of a spectrogram's inverse
    "frames": ((2, 16, 7), (1, 40), (1, 16), {"strides": (1, 4)}),
    "uneven": ((1, 2 * 15, 16), (9, 11), (3, 5), {"strides": (2, 3), "pads": (0, 1, 0, 2)}),
    "dilated": ((1, 2 * 6, 9), (9, 11), (2, 3), {"strides": (2, 3), "dilations": (3, 2)}),
    "never there": ((1, 4, 9), (7, 7), (2, 2), {"strides": (2, 2), "dilations": (2, 2)}),
}


def sample_of(case: str) -> Sample:
    shape, image, block, how = CASES[case]
    x = normal(*shape)
    graph = single("Col2Im", [x, np.array(image), np.array(block)], (1, 2), **how)
    return Sample(graph, {graph.inputs[0].name: x})


@needs_compiler
@pytest.mark.parametrize("case", CASES)
def test_results(case: str, emulated: CudaBackend) -> None:
    compare(sample_of(case), emulated)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_every_case_compiles(target: Target, cache: Path) -> None:
    samples = (*map(sample_of, CASES), outlooked(float16, 3, 16, 2))
    plans = (launches(planned(sample.graph)) for sample in samples)
    found = [each for plan in plans for each in plan if each.entry != "elementwise"]
    assert {launch.entry for launch in found} == {"fold_columns"}
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)


def outlooked(dtype: DType, heads: int, size: int, images: int) -> Sample:
    """VOLO's attention: weighted windows of rows of heads, added up where they overlap."""
    net = Net()
    x = net.input(images * heads, 16, 9, size, dtype=dtype)
    x = net.apply(Mul(), x, x)
    turned = net.apply(
        Transpose(perm=(0, 1, 4, 3, 2)),
        net.apply(Reshape(), x, np.array([images, heads, 16, 9, size])),
    )
    columns = net.apply(Reshape(), turned, np.array([images, heads * size * 9, 16]))
    fold = Col2Im(strides=(2, 2), pads=(1, 1, 1, 1))
    image = net.apply(fold, columns, np.array([8, 8]), np.array([3, 3]))
    net.graph.set_outputs({"y": net.apply(Transpose(perm=(0, 2, 3, 1)), image)})
    infer(net.graph)
    return Sample(net.graph, net.feeds)


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "heads", "size", "images", "vector"),
    [(float16, 3, 16, 2, 8), (float32, 1, 12, 1, 4), (float32, 2, 3, 2, 1)],
)
def test_blocks_are_read_where_they_are(
    dtype: DType, heads: int, size: int, images: int, vector: int, emulated: CudaBackend
) -> None:
    """Neither what is folded nor the image is transposed."""
    sample = outlooked(dtype, heads, size, images)
    found = launches(planned(sample.graph))
    assert [launch.entry for launch in found][1:] == ["fold_columns"]
    assert dict(found[-1].constants)["VECTOR"] == vector
    compare(sample, emulated, error=2e-3 if dtype == float16 else 1e-6)
