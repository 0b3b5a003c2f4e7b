"""Products of float32 rows that another one stores in halves with moments, normalized."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.cuda.gemm import normalized_halves
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Gelu
from tercet.runtime.ops.matmul import Gemm, MatMul
from tercet.runtime.ops.norm import LayerNormalization, RMSNormalization
from tercet.runtime.session.model import Model

from .cubins import assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: Relative L2 errors; those of separate kernels are as large.
ERROR = 4e-7


@dataclass(frozen=True)
class Case:
    """A normalization, a product, a normalization of its rows of this many terms, and a product.

    Attributes:
        rows: the axes of the rows.
        columns: of the product behind.
        terms: of a row.
        inner: terms of the product in front.
        centred: LayerNormalization, else RMSNormalization.
        shifted: whether it has a shift.
        gemm: Gemms with transposed weights and a factor, else MatMuls.
        ends: whether the rows as they are are a result as well.
        offset: of the rows' elements.
        scale: the exponents of two of the scale's elements, at most.
        is_read: whether something else reads the normalized rows.
        follows: whether a third product reads the result.
    """

    rows: tuple[int, ...]
    columns: int = 128
    terms: int = 768
    inner: int = 128
    centred: bool = True
    shifted: bool = True
    gemm: bool = False
    ends: bool = True
    offset: float = 0.0
    scale: float = 0.5
    is_read: bool = False
    follows: bool = False


CASES = {
    "plain": Case((1, 70)),
    "few rows": Case((1, 17), columns=192, ends=False, is_read=True, follows=True),
    "several samples": Case((3, 33), columns=192, follows=True),
    "far from zero": Case((1, 65), offset=4.0, shifted=False),
    "root mean square": Case((1, 72), centred=False, shifted=False, offset=1.0, follows=True),
    "factor, transposed": Case((130,), columns=64, gemm=True, ends=False),
    "scales of many sizes": Case((1, 70), scale=4.0, shifted=False),
    "sums of several blocks": Case((1, 80), columns=768, inner=3072, ends=False, follows=True),
    "normalized rows are read as well": Case((2, 40), columns=640, ends=False, is_read=True),
    "both are, without a shift": Case((1, 150), columns=1536, shifted=False, is_read=True),
}
OTHERS = {
    "few rows": Case((1, 16)),
    "many rows": Case((1, 257)),
    "terms that are no parts": Case((1, 70), terms=776),
    "columns that are none": Case((1, 70), columns=72),
    "scales that hide large terms": Case((1, 70), scale=30.0),
    "few blocks store all normalized rows": Case((1, 128), columns=64, terms=2048, is_read=True),
}


def graph_of(case: Case, dtype: DType) -> tuple[Graph, dict[str, Array]]:
    """Return the graph and its inputs."""
    graph, k, n = Graph(), case.terms, case.columns
    feeds = {
        "x": normal(*case.rows, case.inner),
        "z": normal(*case.rows, k) + np.float32(case.offset),
    }
    feeds = {name: data.astype(dtype) for name, data in feeds.items()}
    x, z = (graph.add_input(name, TensorType(dtype, d.shape)) for name, d in feeds.items())

    def constant(data: Array) -> Value:
        return graph.constant(data.astype(np.float32).astype(dtype))

    def product(value: Value, terms: int, columns: int) -> Value:
        w = normal(columns, terms) if case.gemm else normal(terms, columns)
        op = Gemm(alpha=0.5, transB=1) if case.gemm else MatMul()
        value = graph.insert(op, [value, constant(w / np.sqrt(terms))]).output
        return graph.insert(Add(), [value, constant(normal(columns))]).output

    cut = graph.insert(LayerNormalization(), [x, constant(np.ones(case.inner))]).output
    rows = graph.insert(Add(), [product(cut, case.inner, k), z]).output
    scale = constant(np.exp2(case.scale * np.sin(np.arange(k))))
    shift = constant(normal(k) / 2)
    kind = LayerNormalization if case.centred else RMSNormalization
    norm = graph.insert(kind(), [rows, scale, *([shift] if case.shifted else [])]).output
    value = graph.insert(Gelu(), [product(norm, k, n)]).output
    if case.follows:
        value = product(value, n, 64)
    ends = {"rows": rows} if case.ends else {}
    graph.set_outputs({"y": value, **ends, **({"norm": norm} if case.is_read else {})})
    infer(graph)
    return graph, feeds


def notes(case: Case, target: Target = H200) -> list[str]:
    device = DryDevice(compiler=DryCompiler(target))
    return [one.title for one in launches(planned(graph_of(case, float32)[0], device))]


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized_halves, "SAVED", 100.0)
    case = CASES[name]
    graph, feeds = graph_of(case, float32)
    with Model(graph, [h200], OPTIONS, evaluate) as model:
        assert any("after" in row.kernel for row in model.prepare().rows if row.kind == "step")
        found = model.run(feeds)
    wide, _ = graph_of(case, float64)
    with Model(wide, open_backends("numpy", OPTIONS), OPTIONS, evaluate) as model:
        exact = model.run({name: data.astype(float64) for name, data in feeds.items()})
    for result, want in exact.items():
        error = np.linalg.norm(found[result] - want) / np.linalg.norm(want)
        assert error < ERROR * (1 + abs(case.offset)), result


@pytest.mark.parametrize(
    "case",
    [
        Case((1, 197), columns=3072, inner=768),  # ViT-B's
        Case((1, 197), columns=2304, inner=3072),
        Case((1, 128), columns=3072, inner=768, ends=False, is_read=True),  # BERT-base's
    ],
)
def test_layers(case: Case) -> None:
    titles = notes(case)
    assert len(titles) == 3
    assert "moments" in titles[-2]
    assert "after LayerNormalization" in titles[-1]


@pytest.mark.parametrize("case", OTHERS.values(), ids=OTHERS)
def test_others_have_a_kernel_that_normalizes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized_halves, "SAVED", 100.0)
    assert not any("after" in note for note in notes(case))


def test_other_gpus_have_a_kernel_that_normalizes() -> None:
    assert not any("after" in note for note in notes(CASES["plain"], A100))


def test_what_is_not_made_is_planned_as_if_nothing_had_been_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products around it still read and store halves."""
    monkeypatch.setattr(normalized_halves, "SAVED", -100.0)
    titles = notes(replace(CASES["plain"], follows=True))
    assert len(titles) == 5
    assert all("in halves" in title for title in titles if "3xf16" in title)


def test_they_compile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized_halves, "SAVED", 100.0)
    graphs = (graph_of(case, float32)[0] for case in CASES.values())
    made = [launch for graph in graphs for launch in launches(planned(graph))]
    assert_arguments(made, H200, cache)
