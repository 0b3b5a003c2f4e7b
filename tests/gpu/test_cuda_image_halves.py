"""Convolutions of float32 images in halves, and what stores them so, against float64."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.gemm import image_halves
from tercet.backends.cuda.gemm.schedules import boxes, swap_f16x3
from tercet.backends.cuda.gemm.tables.f16x3 import IMAGE_HALVES
from tercet.backends.cuda.gemm.tile import CtaTile
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float64
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.types import Array
from tercet.runtime.session.model import Model

from ..kernels.dry import normal, single
from ..kernels.samples import OPTIONS
from ..kernels.test_f16x3 import powers
from ..kernels.test_image_halves import ASKED, FIRST, bottlenecks, evaluated, force, pooled

pytestmark = pytest.mark.gpu

#: Relative L2 distance that nothing here may exceed.
BOUND = 1e-6


def check(
    graph: Graph, wide: Graph, x: Array, *, kernel: str = "convolve_halves", **options: Any
) -> None:
    """Compare a network with float64, and with a second run, bit by bit."""
    given = replace(OPTIONS, **options)
    with Model(graph, open_backends("cuda", given), given, evaluate) as model:
        feeds = {model.inputs[0].name: x}
        (got,), (again,) = (tuple(model.run(feeds).values()) for _ in range(2))
        assert any(kernel in row.kernel for row in model.prepare().rows)
    want = evaluated(wide, x.astype(float64))
    np.testing.assert_array_equal(got.view(np.uint32), again.view(np.uint32))
    assert np.linalg.norm(got.astype(float64) - want) <= BOUND * np.linalg.norm(want)


@pytest.mark.parametrize("tile", IMAGE_HALVES, ids=str)
@pytest.mark.parametrize(
    ("size", "kernel", "how", "splits"),
    [
        ((3, 128, 30, 31), 1, {}, 1),
        ((2, 64, 23, 17), 3, {"pads": (1,) * 4, "strides": (2, 1)}, 1),
        ((1, 256, 9, 11), 3, {"pads": (2, 1, 0, 1), "dilations": (1, 2)}, 3),
    ],
)
def test_every_tile(
    tile: CtaTile,
    size: tuple[int, ...],
    kernel: int,
    how: dict[str, Any],
    splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force(monkeypatch, f"{tile} split {splits}" if splits > 1 else str(tile))
    arrays = normal(*size) * powers(-60, 60, size[0], 1, *size[2:]), normal(200, size[1], kernel, 1)
    wide = [a.astype(float64) for a in arrays]
    check(
        single("Conv", arrays, (1,), **how), single("Conv", wide, (1,), **how), arrays[0], **ASKED
    )


@pytest.mark.parametrize(
    ("size", "filters", "kernel", "how"),
    [
        ((1, 256, 14, 14), 256, 3, {"pads": (1,) * 4}),
        ((1, 512, 14, 14), 512, 3, {"pads": (1,) * 4, "strides": (2, 2)}),
        ((1, 64, 56, 56), 64, 3, {"pads": (1,) * 4}),
        ((3, 192, 15, 13), 200, 3, {"pads": (2, 1, 0, 1), "dilations": (1, 2)}),
        ((1, 128, 28, 28), 32, 5, {"pads": (2,) * 4}),
        ((1, 1024, 7, 7), 96, 1, {"strides": (2, 2)}),
    ],
)
def test_few_windows(
    size: tuple[int, ...],
    filters: int,
    kernel: int,
    how: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights are the left operand; see swap_f16x3.cu."""
    monkeypatch.setattr(image_halves, "compared", lambda *_: -inf)
    x = normal(*size) * powers(-60, 60, size[0], 1, *size[2:])
    arrays = x, normal(filters, size[1], kernel, kernel)
    wide = [a.astype(float64) for a in arrays]
    graph, exact = (single("Conv", list(each), (1,), **how) for each in (arrays, wide))
    check(graph, exact, x, kernel="swap_f16x3_windows", **ASKED)


@pytest.mark.parametrize("beside", [0.4, 1.0])
@pytest.mark.parametrize(
    ("size", "filters", "kernel", "how"),
    [
        ((1, 96, 28, 28), 128, 3, {"pads": (1,) * 4}),
        ((1, 24, 14, 14), 64, 3, {"pads": (1,) * 4}),
        ((1, 160, 7, 7), 320, 3, {"pads": (1,) * 4}),
        ((3, 112, 15, 13), 200, 3, {"pads": (2, 1, 0, 1), "dilations": (1, 2)}),
        ((1, 256, 14, 14), 256, 3, {"pads": (1,) * 4}),
        ((2, 64, 33, 29), 40, 5, {"pads": (2,) * 4}),
        ((1, 128, 56, 56), 128, 3, {"pads": (1,) * 4, "strides": (2, 2)}),
        ((2, 96, 14, 13), 512, 3, {"pads": (0, 1, 1, 1), "strides": (1, 2)}),
    ],
)
def test_windows_of_boxes(
    size: tuple[int, ...],
    filters: int,
    kernel: int,
    how: dict[str, Any],
    beside: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Images that are not in halves, whose pixels are cut once for all taps."""
    every = boxes.ways_of

    def some(shape: Any, patches: Any, target: Any, *, others: int) -> Any:
        best, *_ = every(shape, patches, target, others=2)
        return (replace(best, microseconds=-inf),)

    monkeypatch.setattr(boxes, "ways_of", some)
    monkeypatch.setattr(swap_f16x3, "BESIDE", beside)
    x = normal(*size) * powers(-60, 60, size[0], 1, *size[2:])
    arrays = x, normal(filters, size[1], kernel, kernel)
    wide = [a.astype(float64) for a in arrays]
    graph, exact = (single("Conv", list(each), (1,), **how) for each in (arrays, wide))
    check(graph, exact, x, kernel="swap_f16x3_boxes", conv="tensor_cores")


@pytest.mark.parametrize(("terms", "side"), [(36, 14), (96, 14), (160, 7), (672, 7), (1184, 4)])
def test_terms_that_fill_no_step(terms: int, side: int) -> None:
    """Pixels that blocks cut, of other numbers of channels than a step has; see swap_f16x3.cu."""
    x = normal(1, terms, side, side) * powers(-60, 60, 1, 1, side, side)
    arrays = x, normal(328, terms, 1, 1)
    wide = [a.astype(float64) for a in arrays]
    graph, exact = single("Conv", list(arrays), (1,)), single("Conv", wide, (1,))
    check(graph, exact, x, kernel="swap_f16x3", conv="tensor_cores")


@pytest.mark.parametrize("name", ["w64x64", "w64x128", "w128x128 split 2", "w192x128"])
@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 1e30])
def test_networks(name: str, magnitude: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals, which are stored in both formats, and pooling."""
    force(monkeypatch, name)
    for make, shape in ((bottlenecks, (3, 64, 25, 19)), (pooled, (2, 64, 28, 20))):
        x = normal(*shape) * np.float32(magnitude)
        check(make(shape, 128), make(shape, 128, float64), x, algorithms=FIRST)
