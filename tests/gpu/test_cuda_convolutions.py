"""Convolutions of the cuda backend, each algorithm of the selector, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tercet.runtime.ir.types import Array
from tercet.runtime.ops.conv import ConvTranspose
from tercet.runtime.ops.window import Window, transposed_window

from ..kernels.dry import normal
from .test_cuda_operators import check, run

pytestmark = pytest.mark.gpu


def random_case(seed: int) -> tuple[list[Any], dict[str, Any]]:
    """Draw inputs and attributes of a 2-D convolution that fits."""
    rng = np.random.default_rng(seed)
    group = int(rng.choice([1, 1, 1, 1, 2, 3, 4, 8]))
    c = int(rng.choice([1, 2, 3, 4, 5, 8, 12, 16, 17, 32, 64]))
    m = int(rng.choice([1, 3, 4, 8, 10, 16, 24, 33, 64, 100, 128]))
    if rng.random() < 0.15:  # depthwise
        group, c, m = c, 1, 1
    kernel = tuple(int(k) for k in rng.choice([1, 1, 2, 3, 3, 5, 7], 2))
    dilations = tuple(int(d) for d in rng.choice([1, 1, 2], 2))
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    spatial = tuple(int(v) + e for v, e in zip(rng.integers(0, 25, 2), extent, strict=True))
    attributes = {
        "group": group,
        "dilations": dilations,
        "strides": tuple(int(s) for s in rng.integers(1, 4, 2)),
        "pads": tuple(int(p) for p in rng.integers(0, 4, 4)),
    }
    inputs = [normal(int(rng.choice([1, 1, 2, 3])), group * c, *spatial)]
    inputs.append(normal(group * m, c, *kernel))
    if rng.random() < 0.7:
        inputs.append(normal(group * m))
    return inputs, attributes


@pytest.mark.parametrize("seed", range(200))
def test_random_configurations(seed: int) -> None:
    """Shapes follow from inference, results from the kernels."""
    inputs, attributes = random_case(seed)
    check("Conv", inputs, (1, 2), **attributes)


@pytest.mark.parametrize("seed", range(20))
def test_the_naive_kernel(seed: int) -> None:
    """The textbook's kernel agrees with the tuned one."""
    inputs, attributes = random_case(seed)
    check("Conv", inputs, (1, 2), options={"conv": "naive"}, **attributes)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((1, 3, 224, 224), (64, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
        ((1, 512, 7, 7), (512, 512, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 2048, 7, 7), (512, 2048, 1, 1), {}),
        ((1, 256, 56, 56), (512, 256, 1, 1), {"strides": (2, 2)}),
        ((2, 64, 56, 56), (64, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((1, 272, 14, 14), (272, 68, 1, 1), {"group": 4}),
        ((1, 96, 54, 54), (256, 48, 5, 5), {"group": 2, "pads": (2, 2, 2, 2)}),
    ],
)
def test_real_layers(x: tuple[int, ...], w: tuple[int, ...], attributes: dict[str, Any]) -> None:
    check("Conv", [normal(*x), normal(*w), normal(w[0])], (1, 2), **attributes)


def transposed(x: Array, w: Array, b: Array, window: Window, groups: int) -> Array:
    """Return the transposed convolution by its definition: every input adds to some outputs."""
    n, c = x.shape[:2]
    filters = w.shape[1]
    y = np.zeros((n, groups * filters, *window.output))
    for where in np.ndindex(*x.shape[2:]):
        for tap in np.ndindex(*window.kernel):
            at = tuple(
                i * s - p + k * d
                for i, k, s, p, d in zip(
                    where, tap, window.strides, window.pads_begin, window.dilations, strict=True
                )
            )
            if any(a < 0 or a >= size for a, size in zip(at, window.output, strict=True)):
                continue
            inputs = x[:, :, *where].reshape(n, groups, c // groups).astype(float)
            weights = w[:, :, *tap].reshape(groups, c // groups, filters).astype(float)
            y[:, :, *at] += np.einsum("ngc,gcf->ngf", inputs, weights).reshape(n, -1)
    return y + b.reshape(1, -1, *(1,) * (y.ndim - 2))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("rank", "attributes"),
    [
        (1, {"strides": (2,)}),
        (2, {"strides": (2, 2), "pads": (1, 0, 1, 1), "output_padding": (1, 0)}),
        (2, {"strides": (3, 1), "dilations": (2, 2)}),
        (2, {"strides": (2, 2), "output_shape": (11, 15)}),
        (3, {"strides": (2, 1, 2), "auto_pad": "SAME_UPPER"}),
    ],
)
def test_transposed(rank: int, attributes: dict[str, Any], groups: int) -> None:
    x, w, b = normal(2, 8, *(5, 7, 4)[:rank]), normal(8, 6, *(3, 3, 2)[:rank]), normal(6 * groups)
    (got,) = run("cuda", "ConvTranspose", [x, w, b], (1, 2), group=groups, **attributes)
    window = transposed_window(ConvTranspose(group=groups, **attributes), x.shape[2:], w.shape[2:])
    want = transposed(x, w, b, window, groups)
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_other_ranks(rank: int, groups: int) -> None:
    x, w = normal(2, 16, *(9, 8, 7)[:rank]), normal(12, 16 // groups, *(3, 2, 3)[:rank])
    check("Conv", [x, w, normal(12)], (1, 2), group=groups, pads=(1,) * 2 * rank)


def test_an_asymmetric_filter_is_not_flipped() -> None:
    """ONNX's Conv is a cross-correlation."""
    check("Conv", [normal(1, 8, 6, 6), np.arange(72, dtype=np.float32).reshape(1, 8, 3, 3)], (1,))
