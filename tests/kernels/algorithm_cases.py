"""Convolutions of odd shapes, and the algorithms that run each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tercet.backends import open_backends
from tercet.backends.cuda.algorithms.registry import RecipeContext, Setting
from tercet.backends.cuda.algorithms.selection import Candidate, Selector
from tercet.backends.cuda.gemm.convolution import ConvProblem
from tercet.backends.cuda.ops.conv import CONV, CONV_TRANSPOSE
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float16, float32, float64
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model

from .dry import normal, single


@dataclass(frozen=True)
class Case:
    """A convolution with constant weights and a bias."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    algorithms: tuple[str, ...]
    how: dict[str, Any] = field(default_factory=dict)
    operator: str = "Conv"
    dtype: Any = float32

    def __str__(self) -> str:
        sizes = ("x".join(map(str, dims)) for dims in (self.x, self.w))
        return f"{self.operator} {self.dtype} {' '.join(sizes)} {self.how}"

    @property
    def arrays(self) -> list[Array]:
        """Input, weights and bias."""
        filters = self.w[0]
        if self.operator == "ConvTranspose":
            filters = self.w[1] * self.how.get("group", 1)
        return [a.astype(self.dtype) for a in (normal(*self.x), normal(*self.w), normal(filters))]

    def run(self, backend: Backend, **options: Any) -> Array:
        """Return what a backend computes."""
        x, *constants = self.arrays
        return _run(self, [x, *constants], backend, options)

    def exact(self) -> Array:
        """Return the result in float64."""
        (numpy,) = open_backends("numpy", Options())
        return _run(self, [a.astype(float64) for a in self.arrays], numpy, {})


def _run(case: Case, arrays: list[Array], backend: Backend, options: dict[str, Any]) -> Array:
    graph = single(case.operator, arrays, (1, 2), **case.how)
    chosen = Options(skip=("fold_constants",), **options)
    with Model(graph, [backend], chosen, evaluate) as model:
        (result,) = model.run({"x0": arrays[0]}).values()
        return np.asarray(result)


GEMMS = ("implicit_precomp_gemm", "implicit_gemm", "explicit_gemm", "direct", "naive")
WINOGRAD = ("winograd_f2", "winograd_f4", "winograd_f2_nonfused", "winograd_f4_nonfused")
SAME = {"pads": (1, 1, 1, 1)}

CASES = (
    Case((2, 12, 9, 11), (20, 12, 3, 3), (*GEMMS, *WINOGRAD, "fft"), SAME),
    Case((1, 3, 13, 10), (5, 3, 3, 3), (*GEMMS, *WINOGRAD, "fft"), {"pads": (0, 1, 1, 0)}),
    Case((1, 33, 5, 3), (31, 33, 3, 3), (*WINOGRAD, "fft"), SAME),
    Case(
        (1, 16, 20, 21),
        (33, 16, 5, 3),
        (*GEMMS, "fft"),
        {"pads": (2, 1, 2, 1), "strides": (2, 1), "dilations": (1, 2)},
    ),
    Case((1, 8, 17), (6, 8, 5), GEMMS, {"pads": (2, 2), "strides": (2,)}),
    Case((1, 9, 7, 7), (10, 9, 1, 1), ("gemm_1x1", *GEMMS, "fft")),
    Case((2, 8, 9, 9), (6, 4, 3, 3), ("grouped", "implicit_gemm", "direct"), {"group": 2} | SAME),
    Case((1, 8, 9, 9), (8, 1, 3, 3), ("depthwise", "grouped", "direct"), {"group": 8} | SAME),
    Case((1, 4, 40, 37), (3, 4, 11, 11), (*GEMMS, "fft"), {"pads": (5, 5, 5, 5)}),
    Case((1, 2, 70, 40), (3, 2, 31, 31), ("fft",), {"pads": (15,) * 4, "strides": (2, 1)}),
    Case((1, 8, 9, 11), (12, 8, 3, 3), ("implicit_gemm", "direct"), SAME, dtype=float64),
    Case((1, 8, 9, 11), (12, 8, 3, 3), ("implicit_gemm", "direct"), SAME, dtype=float16),
)
TRANSPOSED = (
    Case(
        (2, 8, 5, 7),
        (8, 6, 3, 3),
        ("implicit_gemm", "explicit_gemm", "naive", "subpixel"),
        {"strides": (2, 2), "pads": (1, 0, 1, 1), "output_padding": (1, 0)},
        "ConvTranspose",
    ),
    Case(
        (1, 8, 5, 7),
        (8, 5, 3, 3),
        ("implicit_gemm", "explicit_gemm"),
        {"strides": (3, 1), "dilations": (2, 2)},
        "ConvTranspose",
    ),
    Case(
        (1, 8, 9),
        (8, 5, 4),
        ("implicit_gemm", "explicit_gemm", "subpixel"),
        {"strides": (2,)},
        "ConvTranspose",
    ),
    Case(
        (2, 8, 5, 7),
        (8, 3, 4, 4),
        ("implicit_gemm", "naive"),
        {"strides": (2, 2), "pads": (1,) * 4, "group": 2},
        "ConvTranspose",
    ),
    Case(
        (1, 5, 4, 4),
        (5, 3, 2, 1),
        ("implicit_gemm", "subpixel"),
        {"strides": (3, 2)},
        "ConvTranspose",
    ),
)
#: Greatest error of each way, as a share of the greatest result; 1e-6 where none is named.
ERRORS = {"winograd_f2": 2e-6, "winograd_f2_nonfused": 2e-6}
ERRORS |= {"winograd_f4": 5e-6, "winograd_f4_nonfused": 5e-6}


def limit(case: Case, way: str) -> float:
    """Return the error that a way may have."""
    if case.dtype != float32:
        return 2e-3 if case.dtype == float16 else 1e-14
    # One sum of all terms in order: its rounding grows with their number.
    in_order = 4e-6 if way in ("implicit_gemm", "direct", "naive", "naive_nhwc") else 1e-6
    return ERRORS.get(way, in_order)


def error(got: Array, want: Array) -> float:
    """Return the greatest difference, as a share of the greatest result."""
    return float(np.abs(got.astype(float64) - want).max() / np.abs(want).max())


def pairs() -> list[tuple[Case, str]]:
    """Return every case with each of its algorithms."""
    return [(case, way) for case in (*CASES, *TRANSPOSED) for way in case.algorithms]


BIG = {"x": (1, 128, 128, 128), "pads": (1, 1, 1, 1)}


def tasked(
    *w: int,
    x: tuple[int, ...],
    operator: str = "Conv",
    target: Target = H200,
    options: dict[str, Any] | None = None,
    dtype: type[np.floating[Any]] = np.float32,
    **how: Any,
) -> tuple[Selector[ConvProblem], ConvProblem]:
    """Return a selector and a task for it, of one node; its numbers take no room."""
    arrays = [np.broadcast_to(dtype(0.5), dims) for dims in (x, w)]
    (node,) = single(operator, arrays, (1,), **how).nodes
    selector = CONV if operator == "Conv" else CONV_TRANSPOSE
    setting = Setting(target, Options(**(options or {}))).for_node(node)
    operands = tuple(map(Tensor, node.distinct_reads))
    task = selector.task(RecipeContext(node.op, Tensor(node.output), operands, setting))
    assert isinstance(task, ConvProblem)
    return selector, task


def offered(algorithm: str, *w: int, **how: Any) -> Candidate:
    """Return what one algorithm has to say."""
    selector, task = tasked(*w, **how)
    found = selector.named(algorithm)
    assert not isinstance(found, str)
    return selector.candidate(task, found)
