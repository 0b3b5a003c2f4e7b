"""Recurrent layers whose steps are a product of all states and a kernel for all cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.ops import recurrent
from tercet.backends.cuda.recipe.operands import Scratch
from tercet.backends.cuda.recipe.targets import A100, H200

from ..ops.case import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Case
from ..ops.cases_recurrent import layer
from .cubins import assert_plans_compile
from .emulator import needs_compiler
from .test_recurrent import check, graph_of, only, plan

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"sequence/recurrent_cells.cu"}
BOTH = "bidirectional"
SOME = {
    "lstm": layer("LSTM", batch=5, hidden=16, direction=BOTH, lengths=(5, 2, 0, 1, 4)),
    "lstm states": layer("LSTM", batch=4, hidden=16, states=True, direction="reverse"),
    "gru": layer("GRU", batch=9, hidden=8, linear_before_reset=1, direction=BOTH, states=True),
    "rnn": layer("RNN", batch=4, hidden=24, activations=["Relu"], bias=False),
    "float16": layer("LSTM", batch=4, hidden=16, states=True, dtype=FLOAT16),
    "bfloat16": layer("GRU", batch=5, hidden=16, linear_before_reset=1, dtype=BFLOAT16),
}


@needs_compiler
@pytest.mark.parametrize("case", SOME.values(), ids=SOME)
def test_emulated(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.setattr(recurrent, "_sequence", lambda *_: None)
    assert "recurrent_cells" in {launch.entry for launch in plan(case, H200)}
    check(case, emulated)


def test_usual_cells_of_known_weights_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    only("", monkeypatch)
    many: dict[str, Any] = {"hidden": 1024, "time": 2, "size": 8}
    one, *others = (
        layer("LSTM", batch=4, **many),
        replace(layer("LSTM", batch=4, **many), constants=(1,)),
        layer("LSTM", batch=4, peepholes=True, **many),
        layer("GRU", batch=4, **many),
        layer("LSTM", batch=4, dtype=FLOAT64, **many),
    )
    assert "recurrent_cells" in {launch.entry for launch in plan(one, H200)}
    for case in others:
        assert "recurrent_cells" not in {launch.entry for launch in plan(case, H200)}


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
def test_what_is_multiplied_does_not_overlap(monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    """The products of states leave those of the inputs, which all steps read, in the workspace."""
    only("", monkeypatch)
    case = layer("LSTM", time=2, batch=32, size=8, hidden=1024, direction=BOTH, dtype=dtype)
    found = plan(case, H200)
    cells = next(launch for launch in found if launch.entry == "recurrent_cells")
    product = found[[launch.entry for launch in found].index("recurrent_cells") + 1]
    assert product.entry != "recurrent_cells"
    places = [each for each in product.arguments.values() if isinstance(each, Scratch)]
    shares = cells.arguments["shares"]
    assert isinstance(shares, Scratch)
    ends = shares.offset + 4 * 2 * 32 * 2 * 4 * 1024
    assert all(each.offset < shares.offset or each.offset >= ends for each in places)


def test_every_kind_compiles(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only("", monkeypatch)
    cases = [
        layer("LSTM", batch=4, hidden=1024, time=2),
        layer("GRU", batch=4, hidden=1024, time=2, linear_before_reset=1, dtype=FLOAT16),
    ]
    for target in (A100, H200):
        assert_plans_compile(map(graph_of, cases), target, cache, COMPILES)
