"""Rows that are normalized, perhaps added to others, and normalized again, as one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import bfloat16, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Neg, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.ops.shape import Reshape

from .cubins import assert_plans_compile
from .dry import launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, Sample, compare

COMPILES = {"norm/normalize_rows.cu"}


@dataclass(frozen=True)
class Twice:
    """Rows of two normalizations, perhaps with a sum in between.

    Attributes:
        rows: number of rows.
        width: elements of a row.
        kinds: of both norms: "rms", "layer", or "shifted" for that with a shift.
        dtype: of the rows.
        reader: whether something else reads the sum.
        factor: whether it is multiplied by a number first.
        product: whether a product reads the results.
        cast: the type to which results are cast; None if they are not.
        added: whether there is a sum, or one normalization reads the other's result.
        view: whether the second one reads this in another shape, as does what else reads it.
    """

    rows: int
    width: int
    kinds: tuple[str, str] = ("rms", "rms")
    dtype: Any = float16
    reader: bool = True
    factor: bool = False
    product: bool = False
    cast: Any = None
    added: bool = True
    view: bool = False

    def __str__(self) -> str:
        parts = f"{self.rows}x{self.width} {' '.join(self.kinds)} {self.dtype.name}"
        parts += " alone" * (not self.added) + " view" * self.view + " reader" * self.reader
        parts += " factor" * self.factor + " product" * self.product
        return parts if self.cast is None else f"{parts} to {self.cast.name}"

    def sample(self) -> Sample:
        """Return it as a graph with feeds."""
        graph, feeds = Graph("twice"), dict[str, Any]()
        for number, name in enumerate("xr"):
            feeds[name] = normal(self.rows, self.width + number)[:, number:].astype(self.dtype)
        x, r = (graph.add_input(name, TensorType(a.dtype, a.shape)) for name, a in feeds.items())
        rows = self._norm(graph, graph.insert(Relu(), [x]).output, 0)
        if self.factor:
            factor = graph.constant(np.array(0.5, self.dtype))
            rows = graph.insert(Mul(), [rows, factor]).output
        if self.added:
            rows = graph.insert(Add(), [rows, r]).output
        if self.view:
            sizes = graph.constant(np.array([2, -1, self.width]))
            rows = graph.insert(Reshape(), [rows, sizes]).output
        infer(graph)
        y = self._norm(graph, rows, 1)
        if self.cast is not None:
            y = graph.insert(Cast(to=self.cast), [y]).output
        if self.product:
            weights = normal(self.width, 40).astype(self.cast or self.dtype)
            y = graph.insert(MatMul(), [y, graph.constant(weights)]).output
        outputs = {"y": y}
        if self.reader:
            outputs["z"] = graph.insert(Neg(), [rows]).output
        graph.set_outputs(outputs)
        infer(graph)
        return Sample(graph, feeds)

    def _norm(self, graph: Graph, x: Value, number: int) -> Value:
        kind = self.kinds[number]
        count = 2 if kind == "shifted" else 1
        given = [
            graph.constant(normal(self.width + number + i)[: self.width].astype(self.dtype))
            for i in range(count)
        ]
        op = RMSNormalization(epsilon=1e-5) if kind == "rms" else LayerNormalization(epsilon=1e-5)
        infer(graph)
        y = graph.insert(op, [x, *given]).output
        infer(graph)
        return y


#: Those that are one kernel.
TOGETHER = (
    Twice(8, 2304),
    Twice(3, 96, ("layer", "rms"), reader=False),
    Twice(70, 75, ("shifted", "shifted"), bfloat16),
    Twice(9, 4104, ("rms", "shifted"), factor=True),
    Twice(2, 640, ("rms", "layer"), bfloat16, reader=False),
    Twice(8, 256, product=True),
    Twice(33, 10),
    Twice(1, 1152, dtype=float32, product=True, cast=float16),
    Twice(9, 2304, ("layer", "shifted"), float32, cast=bfloat16),
    Twice(70, 75, dtype=float32, reader=False, factor=True, cast=float16),
    Twice(50, 64, ("shifted", "shifted"), added=False, view=True),  # patches of PVT
    Twice(24, 160, ("shifted", "layer"), bfloat16, reader=False, added=False),
    Twice(66, 96, ("layer", "rms"), view=True),
)
#: Those that are two: of float32, and of a single row.
APART = (Twice(8, 256, dtype=float32), Twice(1, 256, product=True))


def titles(twice: Twice) -> list[str]:
    return [launch.title for launch in launches(planned(twice.sample().graph))]


@pytest.mark.parametrize("twice", TOGETHER, ids=str)
def test_one_kernel_normalizes_twice(twice: Twice) -> None:
    (title,) = (title for title in titles(twice) if title.startswith("normalize_rows"))
    assert title.endswith(", twice")


@pytest.mark.parametrize("twice", APART, ids=str)
def test_others_are_normalized_apart(twice: Twice) -> None:
    assert not any("twice" in title for title in titles(twice))


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    assert_plans_compile([twice.sample().graph for twice in TOGETHER], target, cache, COMPILES)


@needs_compiler
@pytest.mark.parametrize("twice", [*TOGETHER, *APART], ids=str)
def test_kernels(twice: Twice, emulated: CudaBackend) -> None:
    compare(twice.sample(), emulated, error=None if twice.cast else ERROR[twice.dtype])
