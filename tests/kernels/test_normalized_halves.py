"""Products of float32 rows that another one stores in halves with moments, normalized."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.gemm import normalized_halves
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.session.model import Model

from .cubins import assert_arguments
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .normalized_cases import Case, exact_of, graph_of
from .samples import OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.algorithms.registry import Answer
    from tercet.backends.cuda.backend import CudaBackend
    from tercet.backends.cuda.gemm.fused_products import InTurn
    from tercet.backends.cuda.recipe.operands import Tensor
    from tercet.backends.cuda.recipe.pattern import OperandOf
    from tercet.backends.cuda.recipe.setting import Setting, Stored

#: Relative L2 errors; those of separate kernels are as large.
ERROR = 4e-7
#: With a normalization in front, whose rows are stored in halves.
in_halves = partial(Case, leads=True, exponents=0.5)
CASES = {
    "plain": in_halves((1, 70)),
    "few rows": in_halves((1, 17), columns=192, ends=False, is_read=True, follows=True),
    "several samples": in_halves((3, 33), columns=192, follows=True),
    "far from zero": in_halves((1, 65), offset=4.0, shifted=False),
    "root mean square": in_halves((1, 72), centred=False, shifted=False, offset=1.0, follows=True),
    "factor, transposed": in_halves((130,), columns=64, gemm=True, ends=False),
    "scales of many sizes": in_halves((1, 70), exponents=4.0, shifted=False),
    "sums of several blocks": in_halves((1, 80), columns=768, inner=3072, ends=False, follows=True),
    "normalized rows are read as well": in_halves((2, 40), columns=640, ends=False, is_read=True),
    "few terms": in_halves((1, 19), terms=64, inner=256, centred=False, shifted=False),
    "both are, without a shift": in_halves((1, 150), columns=1536, shifted=False, is_read=True),
}
OTHERS = {
    "few rows": in_halves((1, 16)),
    "many rows": in_halves((1, 513)),
    "terms that are no parts": in_halves((1, 70), terms=776),
    "columns that are none": in_halves((1, 70), columns=72),
    "scales that hide large terms": in_halves((1, 70), exponents=30.0),
    "few blocks store all normalized rows": in_halves(
        (1, 128), columns=64, terms=2048, is_read=True
    ),
}


def notes(case: Case, target: Target = H200) -> list[str]:
    device = DryDevice(compiler=DryCompiler(target))
    return [one.title for one in launches(planned(graph_of(case, float32, float32)[0], device))]


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_results(name: str, h200: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalized_halves, "SAVED", 100.0)
    case = CASES[name]
    graph, feeds = graph_of(case, float32, float32)
    with Model(graph, [h200], OPTIONS, evaluate) as model:
        assert any("after" in row.kernel for row in model.prepare().rows if row.kind == "step")
        found = model.run(feeds)
    for result, want in exact_of(case, float32, feeds).items():
        error = np.linalg.norm(found[result] - want) / np.linalg.norm(want)
        assert error < ERROR * (1 + abs(case.offset)), result


@pytest.mark.parametrize(
    "case",
    [
        in_halves((1, 197), columns=3072, inner=768),  # ViT-B's
        in_halves((1, 197), columns=2304, inner=3072),
        in_halves((1, 128), columns=3072, inner=768, ends=False, is_read=True),  # BERT-base's
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
    graphs = (graph_of(case, float32, float32)[0] for case in CASES.values())
    made = [launch for graph in graphs for launch in launches(planned(graph))]
    assert_arguments(made, H200, cache)


def test_each_recipe_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the same formats, whether the kernel before, the plan or the step asks for it."""
    made, make = list[object](), normalized_halves.normalized_halves

    def noted(
        found: InTurn, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Answer:
        rows = operand(found.front.products[0].operands[0])
        made.append((found, y, rows, stored))
        return make(found, y, operand, setting, stored)

    monkeypatch.setattr(normalized_halves, "normalized_halves", noted)
    assert any("after" in note for note in notes(CASES["both are, without a shift"]))
    assert len(made) == len(set(made))
