"""Depthwise convolutions: every patch of a thread, in every dtype that has a kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.conv.depthwise import (
    LARGE,
    LINES,
    SHARED,
    SINGLE,
    SMALL,
    TALL,
    Patch,
    Plane,
)
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import launches, normal, planned, single
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS

#: Kernels that this module compiles, in more variants than samples.py has.
COMPILES = {"conv/depthwise.cu", "conv/depthwise_lines.cu", "conv/depthwise_pixels.cu"}

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

DTYPES = (float32, float16, bfloat16)
PATCHES = (*LARGE.values(), SMALL, *SHARED, SINGLE)
#: Shape of the image, sides of the window, and attributes.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "same": ((2, 16, 9, 11), (3, 3), {"pads": (1, 1, 1, 1)}),
    "stride": ((1, 16, 13, 10), (3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "uneven": ((1, 8, 12, 17), (5, 3), {"strides": (1, 3), "pads": (0, 2, 3, 0)}),
    "dilation": ((1, 24, 12, 12), (3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    "large": ((1, 8, 12, 12), (7, 7), {"pads": (3, 3, 3, 3)}),
    "one pixel": ((3, 8, 3, 3), (3, 3), {}),
}
#: Likewise, with windows of one row.
ROWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 8, 40), (5,), {"pads": (2, 2)}),
    "many taps": ((2, 8, 70), (51,), {"pads": (25, 25)}),
    "causal": ((1, 12, 33), (16,), {"pads": (15, 0)}),
    "rows": ((2, 4, 5, 19), (1, 11), {"pads": (1, 5, 0, 5), "strides": (2, 1)}),
    "column": ((2, 8, 21, 1), (17, 1), {"pads": (8, 0, 8, 0)}),
    "columns": ((2, 8, 37, 6), (15, 1), {"pads": (7, 0, 7, 0)}),
    "padded columns": ((1, 4, 19, 5), (10, 1), {"pads": (3, 1, 6, 2), "strides": (1, 2)}),
    "strided row": ((1, 8, 44), (12,), {"pads": (3, 3), "strides": (3,)}),
}
#: Likewise, over three axes.
VOLUMES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "planes": ((2, 8, 4, 5, 9), (3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    "strided planes": (
        *((1, 12, 7, 6, 6), (3, 2, 3)),
        {"strides": (2, 3, 2), "pads": (2, 0, 1, 0, 1, 1), "dilations": (2, 1, 1)},
    ),
    "depth alone": ((1, 8, 6, 3, 5), (5, 1, 1), {"pads": (2, 0, 0, 2, 0, 0)}),
    "no depth": ((2, 8, 3, 6, 5), (1, 3, 3), {"pads": (0, 1, 1, 0, 1, 1)}),
    "padded depth": (
        (1, 8, 1, 5, 5),
        (1, 3, 3),
        {"strides": (3, 1, 1), "pads": (1, 0, 0, 1, 0, 0)},
    ),
    "large planes": ((1, 4, 5, 6, 7), (5, 5, 5), {"pads": (2, 2, 2, 2, 2, 2)}),
}
#: Likewise, with channels that fill no words.
NO_WORDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one channel": ((2, 1, 9, 7), (3, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}),
    "one line": ((3, 1, 40), (5,), {"pads": (2, 2)}),
    "odd": ((2, 6, 9, 7), (3, 3), {"strides": (2, 1), "pads": (1, 1, 1, 1)}),
    "odd planes": (
        *((2, 5, 6, 5, 4), (3, 3, 2)),
        {"strides": (2, 1, 1), "pads": (1, 2, 0, 2, 0, 1), "dilations": (1, 2, 1)},
    ),
}


#: Shape of the image, sides of the window, and attributes.
DepthwiseCase = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]


def layer_of(case: DepthwiseCase, dtype: DType, *, adds: bool = False) -> tuple[Graph, Array]:
    """Return a depthwise convolution with bias and Relu, and its image, of rounded numbers.

    Args:
        case: the sizes.
        dtype: of all numbers; float64 has those of float16.
        adds: whether the image is added to the result, too.
    """
    shape, kernel, how = case
    low = float16 if dtype == float64 else dtype
    x, w, b = (
        normal(*dims).astype(low).astype(dtype)
        for dims in (shape, (shape[1], 1, *kernel), shape[1:2])
    )
    graph = Graph()
    image = graph.add_input("x", TensorType(dtype, shape))
    inputs = [image, graph.constant(w), graph.constant(b)]
    y = graph.insert(Conv(group=shape[1], **how), inputs).output
    y = graph.insert(Add(), [y, image]).output if adds else y
    graph.set_outputs({"y": graph.insert(Relu(), [y]).output})
    infer(graph)
    return graph, x


def graph_of(case: str, dtype: DType) -> tuple[Graph, Array]:
    return layer_of((CASES | ROWS | VOLUMES | NO_WORDS)[case], dtype)


def always(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads compute this patch wherever it applies."""

    def chosen(plane: Plane, processors: int) -> Patch:
        found = plane.patches
        may = patch in found or (
            SMALL in found and not patch.shared and patch not in (*LINES, *TALL)
        )
        return patch if may else SINGLE

    monkeypatch.setattr(Plane, "patch", chosen)
    monkeypatch.setattr(Plane, "diagonal", lambda self, conv: None)


#: Every patch with every case; in bfloat16, whose kernels are those of float16 but for conversions,
#: every patch and every case, each with some of the others.
TAKEN = [
    (case, patch, dtype)
    for cases, patches in ((CASES, PATCHES), (ROWS, (*LINES, *TALL, SINGLE)))
    for (i, case), (j, patch) in product(enumerate(cases), enumerate(patches))
    for dtype in DTYPES
    if dtype != bfloat16 or (i + j) % 3 == 0
]


@needs_compiler
@pytest.mark.parametrize(("case", "patch", "dtype"), TAKEN, ids=str)
def test_every_patch(
    case: str,
    patch: Patch,
    dtype: DType,
    emulated: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of windows of one row."""
    always(patch, monkeypatch)
    check(case, dtype, emulated)


@needs_compiler
@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
def test_no_tap_reads_an_infinity_beside_its_window(dtype: DType, emulated: CudaBackend) -> None:
    graph, x = graph_of("many taps", dtype)
    x[0, :, 0] = np.inf
    with Model(graph, [emulated], replace(OPTIONS, conv="depthwise"), evaluate) as model:
        y = model.run({"x": x})["y"]
    assert not np.isfinite(y[0, :, :26]).all(axis=0).any()
    assert np.isfinite(y[0, :, 26:]).all()
    assert np.isfinite(y[1]).all()


@needs_compiler
@pytest.mark.parametrize("patch", PATCHES, ids=str)
@pytest.mark.parametrize("case", VOLUMES)
def test_every_patch_of_volumes(
    case: str, patch: Patch, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(patch, monkeypatch)
    check(case, float16, emulated)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", NO_WORDS)
def test_channels_that_fill_no_words(case: str, dtype: DType, emulated: CudaBackend) -> None:
    check(case, dtype, emulated)


@cache
def wanted(case: str, dtype: DType) -> Array:
    """What each patch has to compute."""
    graph, x = graph_of(case, dtype)
    with Model(graph, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        return model.run({"x": x})["y"].astype(float64)


def check(case: str, dtype: DType, emulated: CudaBackend) -> None:
    (graph, x), want = graph_of(case, dtype), wanted(case, dtype)
    with Model(graph, [emulated], replace(OPTIONS, conv="depthwise"), evaluate) as model:
        got = model.run({"x": x})["y"].astype(float64)
    np.testing.assert_allclose(got, want, rtol=0, atol=ERROR[dtype] * np.abs(want).max())


def test_patches_leave_enough_threads() -> None:
    def patch(*x: int, kernel: int = 3, dtype: DType = float32, **how: Any) -> str:
        arrays = [np.broadcast_to(dtype.type(1), dims) for dims in (x, (x[1], 1, kernel, kernel))]
        graph = single("Conv", arrays, (1,), group=x[1], pads=(kernel // 2,) * 4, **how)
        (launch,) = (found for found in launches(planned(graph)) if "depthwise" in found.entry)
        constants = dict(launch.constants)
        shared = launch.entry == "depthwise_rows"
        rows, columns = (int(constants.get(name, 1)) for name in ("ROWS", "COLUMNS"))
        return str(Patch(rows, columns, shared=shared))

    def line(*x: int, taps: int, dtype: DType = float16, **how: Any) -> str:
        rank = len(x) - 2
        dims, pads = (x[1], 1, taps, *(1,) * (rank - 1)), (taps // 2, *(0,) * (rank - 1)) * 2
        arrays = [np.broadcast_to(dtype.type(1), sizes) for sizes in (x, dims)]
        graph = single("Conv", arrays, (1,), group=x[1], pads=pads, **how)
        (launch,) = (found for found in launches(planned(graph)) if "depthwise" in found.entry)
        return f"{launch.entry} {dict(launch.constants)['COLUMNS']}"

    assert line(32, 12, 256, 64, taps=65) == "depthwise_lines 8"
    assert line(32, 256, 200, taps=51) == line(32, 256, 200, taps=33) == "depthwise_lines 8"
    assert line(8, 256, 200, taps=31) == "depthwise_lines 4"
    assert line(1, 256, 200, taps=51) == "depthwise 1"
    assert line(32, 256, 200, taps=3) == "depthwise 8"
    assert line(32, 256, 200, taps=31, strides=(2,)) == "depthwise 4"
    assert patch(32, 32, 112, 112) == "4x2"
    assert patch(32, 32, 112, 112, dtype=float16) == "2x4"
    assert patch(1, 32, 112, 112) == "2x2"
    for dtype in (float32, float16):
        assert patch(32, 64, 112, 112, dtype=dtype, strides=(2, 2)) == "2x2"
        assert patch(1, 512, 14, 14, dtype=dtype) == "1x2 shared"
        assert patch(32, 32, 112, 112, dtype=dtype, dilations=(2, 2)) == "1x1"
        assert patch(1, 96, 56, 56, kernel=7, dtype=dtype) == "1x4 shared"
        assert patch(1, 160, 14, 14, kernel=7, dtype=dtype) == "1x2 shared"
        assert patch(1, 320, 7, 7, kernel=7, dtype=dtype) == "1x1 shared"
    assert patch(32, 32, 112, 112, kernel=7) == str(LARGE[4])
    assert patch(32, 32, 112, 112, kernel=6, dtype=float16) == str(LARGE[2])
    assert patch(32, 32, 112, 112, kernel=9) == "1x4 shared"


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_every_patch_compiles(target: Target, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for patch in PATCHES:
        always(patch, monkeypatch)
        for dtype in DTYPES:
            for case in CASES:
                found += launches(planned(graph_of(case, dtype)[0], conv="depthwise"))
        found += launches(planned(graph_of("strided planes", float16)[0], conv="depthwise"))
    for patch in (*LINES, *TALL, SINGLE):
        always(patch, monkeypatch)
        for case, dtype in ((case, dtype) for case in ROWS for dtype in DTYPES):
            found += launches(planned(graph_of(case, dtype)[0], conv="depthwise"))
    for case in NO_WORDS:
        found += launches(planned(graph_of(case, float32)[0], conv="depthwise"))
    found = [launch for launch in found if "depthwise" in launch.entry]
    of_rows = (len(LINES) + len(TALL) + 1) * len(DTYPES) * len(ROWS)
    assert len(found) == len(PATCHES) * (len(DTYPES) * len(CASES) + 1) + of_rows + len(NO_WORDS)
    all_compile({launch.source: None for launch in found}, target, cache, COMPILES)
    assert_arguments(found, target, cache)
