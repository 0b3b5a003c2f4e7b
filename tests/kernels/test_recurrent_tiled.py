"""Recurrent layers of many sequences on tensor cores, whose warps compute eight units each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe import targets
from tercet.backends.cuda.recipe.targets import A100, H200, Target

from ..ops.case import BFLOAT16, FLOAT16, Case
from ..ops.cases_recurrent import layer
from . import recurrent_samples
from .cubins import assert_plans_compile
from .dry import entries_of
from .emulator import needs_compiler
from .test_recurrent import CLUSTERS, check, graph_of, only, plan

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"sequence/recurrent_mma.cu"}
BOTH = "bidirectional"
#: Kernels by their samples.
KERNELS = {
    "tiled": "recurrent_mma",
    "multiplied": "recurrent_cells",
    "resident": "recurrent_resident",
}


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


@pytest.fixture
def tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    only("tiled_split", monkeypatch)


@needs_compiler
@pytest.mark.parametrize("case", SOME.values(), ids=SOME)
def test_emulated(emulated: CudaBackend, tiled: None, case: Case) -> None:
    check(case, emulated)


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_16_bits(emulated: CudaBackend, tiled: None, op: str, dtype: Any) -> None:
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    check(layer(op, batch=9, hidden=24, direction=BOTH, dtype=dtype, **more), emulated)


@needs_compiler
def test_blocks_tell_one_another_their_states(
    emulated: CudaBackend, tiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulated.device.compiler, "target", CLUSTERS)
    monkeypatch.setattr(targets, "REGISTERS", 3 * 32 * 120)
    lengths = (5, 2, 3, 0, 1) * 3 + (4,) * 4
    case = layer("LSTM", batch=19, hidden=37, direction=BOTH, lengths=lengths)
    assert dict(plan(case, CLUSTERS)[-1].constants)["BLOCKS"] == 2
    check(case, emulated)


@needs_compiler
def test_known_initial_states(emulated: CudaBackend, tiled: None) -> None:
    """They may be beyond what a state can become."""
    case = scaled(layer("GRU", batch=9, hidden=16, linear_before_reset=1, states=True), 1e6, 5)
    case = replace(case, constants=(1, 2, 5))
    assert plan(case, H200)[-1].entry == "recurrent_mma"
    check(case, emulated)


@pytest.mark.parametrize(
    ("op", "hidden", "batch", "target", "entry", "note"),
    [
        ("LSTM", 96, 448, H200, "recurrent_mma", "1 blocks for 8 rows"),
        ("LSTM", 96, 8192, H200, "recurrent_mma", "1 blocks for 64 rows"),
        ("LSTM", 128, 1024, H200, "recurrent_mma", "2 blocks for 24 rows"),
        ("GRU", 64, 2048, A100, "recurrent_mma", "1 blocks for 24 rows"),
        ("LSTM", 96, 64, H200, "recurrent_sequence", "2 blocks for 2 rows"),
        ("LSTM", 256, 8, H200, "recurrent_sequence", "8 blocks for 1 rows"),
        ("LSTM", 256, 1024, H200, "recurrent_cells", "lstm 256"),
        ("LSTM", 256, 1024, A100, "recurrent_cells", "lstm 256"),
        ("LSTM", 1024, 128, H200, "recurrent_cells", "lstm 1024"),
        ("LSTM", 1024, 1, H200, "recurrent_resident", "128 blocks for 1 x 8 rows"),
    ],
)
def test_the_fastest_is_chosen(
    op: str, hidden: int, batch: int, target: Target, entry: str, note: str
) -> None:
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    found = plan(layer(op, 3, batch, 8, hidden, **more), target)
    chosen = [each for each in found if each.entry.startswith("recurrent")]
    assert {each.entry for each in chosen} - {
        f"recurrent_{each}" for each in ("begin", "end", "resident_begin")
    } == {entry}
    assert {each.note.partition(", ")[2] or each.note for each in chosen if each.note} == {note}


@pytest.mark.parametrize("kernel", KERNELS)
def test_samples_are_of_their_kernels(kernel: str) -> None:
    """A GPU runs these."""
    found = [entries_of(each.graph) for each in getattr(recurrent_samples, kernel)()]
    assert all(KERNELS[kernel] in entries for entries in found)


def test_unbounded_states_and_computed_weights_are_not_multiplied_there(tiled: None) -> None:
    usual = layer("LSTM", batch=64)
    assert plan(usual, H200)[-1].entry == "recurrent_mma"
    for case in (
        replace(usual, constants=()),
        layer("LSTM", batch=64, states=True),
        layer("LSTM", batch=64, activations=["Sigmoid", "Relu", "Tanh"]),
        layer("RNN", batch=64),
    ):
        assert "recurrent_mma" not in {each.entry for each in plan(case, H200)}


def test_every_kind_compiles(tiled: None, cache: Path) -> None:
    cases = [
        layer("LSTM", hidden=96, batch=1024),
        layer("LSTM", hidden=128, batch=64, direction=BOTH),
        layer("GRU", hidden=128, batch=64, linear_before_reset=1, dtype=FLOAT16),
        layer("GRU", hidden=256, batch=64, linear_before_reset=1, dtype=BFLOAT16),
    ]
    found = assert_plans_compile(map(graph_of, cases), H200, cache, COMPILES)
    assert sum(each.entry == "recurrent_mma" for each in found) == len(cases)
