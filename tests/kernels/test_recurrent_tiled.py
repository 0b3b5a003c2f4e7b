"""Recurrent layers of many sequences on tensor cores, whose warps compute eight units each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.ops import recurrent_splits
from tercet.backends.cuda.recipe.targets import A100, H200, Target

from ..ops.case import BFLOAT16, FLOAT16, Case
from ..ops.cases_recurrent import layer
from .cubins import assert_plans_compile
from .emulator import needs_compiler
from .test_recurrent import CLUSTERS, check, graph_of, plan

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"sequence/recurrent_mma.cu"}
BOTH = "bidirectional"


def scaled(case: Case, by: float, *positions: int) -> Case:
    """Return a case with some of its inputs multiplied."""
    inputs = [
        x if x is None or i not in positions else (x * by).astype(x.dtype)
        for i, x in enumerate(case.inputs)
    ]
    return replace(case, inputs=tuple(inputs))


#: Cells, directions, lengths, layouts, odd sizes and more sequences than one tile has.
SOME = {
    "lstm": layer("LSTM", batch=11, hidden=13, direction=BOTH),
    "lstm lengths": layer("LSTM", batch=9, hidden=24, direction="reverse", lengths=(5, 2, 0) * 3),
    "lstm wide": layer("LSTM", batch=8, hidden=40),
    "gru": layer("GRU", batch=10, hidden=17, linear_before_reset=1, direction=BOTH),
    "gru lengths": layer("GRU", batch=9, hidden=8, linear_before_reset=1, lengths=(1, 4, 5) * 3),
    "no bias": layer("LSTM", batch=3, hidden=20, bias=False, activations=["HardSigmoid"] * 3),
    "many terms": layer("LSTM", batch=9, hidden=100, time=3),
    "tiny": scaled(layer("LSTM", batch=9, hidden=16, bias=False), 1e-20, 0),
    "tiny weights": scaled(layer("GRU", batch=9, hidden=16, linear_before_reset=1), 1e-30, 2),
    "large weights": scaled(layer("LSTM", batch=9, hidden=16, time=2), 1e30, 2),
}


@pytest.fixture(autouse=True)
def tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_splits, "FEWEST_TILED", 1)


@needs_compiler
@pytest.mark.parametrize("case", SOME.values(), ids=SOME)
def test_emulated(emulated: CudaBackend, case: Case) -> None:
    check(case, emulated)


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_16_bits(emulated: CudaBackend, op: str, dtype: Any) -> None:
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    check(layer(op, batch=9, hidden=24, direction=BOTH, dtype=dtype, **more), emulated)


@needs_compiler
@pytest.mark.parametrize("low_shared", [False, True], ids=["registers", "shared memory"])
@pytest.mark.parametrize("cluster", [False, True], ids=["block", "cluster"])
def test_splits(
    emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch, low_shared: bool, cluster: bool
) -> None:
    """Blocks tell one another their states; second halves of weights are where there is room."""
    monkeypatch.setattr(emulated.device.compiler, "target", CLUSTERS)
    if low_shared:
        monkeypatch.setattr(recurrent_splits, "MAX_REGISTERS", 99)
    if cluster:
        monkeypatch.setattr(recurrent_splits, "REGISTERS", 3 * 32 * 120)
    lengths = (5, 2, 3, 0, 1) * 3 + (4,) * 4
    case = layer("LSTM", batch=19, hidden=37, direction=BOTH, lengths=lengths)
    constants = dict(plan(case, CLUSTERS)[-1].constants)
    assert (constants["BLOCKS"] > 1, constants["LOW_SHARED"]) == (cluster, low_shared)
    check(case, emulated)


@needs_compiler
def test_known_initial_states(emulated: CudaBackend) -> None:
    """They may be beyond what a state can become."""
    case = scaled(layer("GRU", batch=9, hidden=16, linear_before_reset=1, states=True), 1e6, 5)
    case = replace(case, constants=(1, 2, 5))
    assert plan(case, H200)[-1].entry == "recurrent_mma"
    check(case, emulated)


@pytest.mark.parametrize(
    ("hidden", "batch", "target", "blocks", "rows"),
    [
        (48, 1024, H200, 1, 8),
        (96, 8192, H200, 1, 64),
        (128, 1024, H200, 2, 24),
        (256, 256, H200, 4, 16),
        (96, 1024, A100, 1, 16),
        (256, 1024, A100, 0, 0),
        (1024, 1024, H200, 0, 0),
    ],
)
def test_where_weights_have_room(
    monkeypatch: pytest.MonkeyPatch, hidden: int, batch: int, target: Target, blocks: int, rows: int
) -> None:
    monkeypatch.undo()
    found = plan(layer("LSTM", hidden=hidden, batch=batch, size=8), target)
    tiled = [dict(each.constants) for each in found if each.entry == "recurrent_mma"]
    assert [(each["BLOCKS"], each["ROWS"]) for each in tiled] == [(blocks, rows)] * (blocks > 0)


def test_unbounded_states_and_computed_weights_are_not_multiplied_there() -> None:
    usual = layer("LSTM", batch=64)
    assert plan(usual, H200)[-1].entry == "recurrent_mma"
    for case in (
        replace(usual, constants=()),
        layer("LSTM", batch=64, states=True),
        layer("LSTM", batch=64, activations=["Sigmoid", "Relu", "Tanh"]),
        layer("RNN", batch=64),
    ):
        assert plan(case, H200)[-1].entry == "recurrent_sequence"


def test_every_kind_compiles(cache: Path) -> None:
    cases = [
        layer("LSTM", hidden=96, batch=1024),
        layer("LSTM", hidden=256, batch=64, direction=BOTH),
        layer("GRU", hidden=128, batch=64, linear_before_reset=1, dtype=FLOAT16),
        layer("GRU", hidden=256, batch=64, linear_before_reset=1, dtype=BFLOAT16),
    ]
    found = assert_plans_compile(map(graph_of, cases), H200, cache, COMPILES)
    assert sum(each.entry == "recurrent_mma" for each in found) == len(cases)
