"""Recurrent layers whose weights lie in the shared memory of many blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.ops import recurrent_splits, recurrent_ways
from tercet.backends.cuda.recipe.operands import ceil_div
from tercet.backends.cuda.recipe.targets import A100, H200, Target

from ..ops.case import BFLOAT16, FLOAT16, FLOAT32, Case
from ..ops.cases_recurrent import layer
from .cubins import assert_plans_compile
from .emulator import needs_compiler
from .test_recurrent import check, graph_of, only, plan, run
from .test_recurrent_tiled import scaled

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"sequence/recurrent_resident.cu"}
BOTH = "bidirectional"
#: GPUs of few multiprocessors.
ONE, SIX = (Target("sm_80", processors, A100.shared) for processors in (2, 6))


def case_of(op: str, batch: int, hidden: int, **more: Any) -> Case:
    if op == "GRU":
        more["linear_before_reset"] = 1
    return layer(op, batch=batch, hidden=hidden, **{"dtype": FLOAT16, **more})


SOME = {
    "lstm": case_of("LSTM", 5, 16, direction=BOTH, lengths=(5, 2, 0, 1, 4)),
    "lstm states": case_of("LSTM", 9, 37, states=True, direction="reverse"),
    "gru": case_of("GRU", 9, 40, direction=BOTH, states=True),
    "gru bfloat16": case_of("GRU", 3, 24, dtype=BFLOAT16, lengths=(1, 5, 3)),
    "rnn": case_of("RNN", 4, 70, activations=["Relu"], bias=False),
    "rows": case_of("LSTM", 20, 32, time=3, activations=["Sigmoid", "Softsign", "Tanh"]),
    "computed": replace(case_of("LSTM", 3, 16), constants=()),
    "float32": case_of("LSTM", 19, 21, direction=BOTH, states=True, dtype=FLOAT32),
    "float32 gru": case_of("GRU", 26, 72, time=3, dtype=FLOAT32),
    "tiny": scaled(case_of("LSTM", 9, 16, bias=False, dtype=FLOAT32), 1e-20, 0),
}


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> None:
    only("resident_split", monkeypatch)
    monkeypatch.setattr(recurrent_splits, "MIN_RESIDENT", 0)


@pytest.fixture(params=[None, 8], ids=["together", "chunks of 8"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give sequences of a block a number of steps at a time."""
    split, rows = recurrent_ways.resident_split, request.param

    def forced(*sizes: Any) -> Any:
        found = split(*sizes)
        if found is None or rows is None or rows > found.rows:
            return found
        return replace(found, rows=rows, chunks=ceil_div(found.rows * found.chunks, rows))

    monkeypatch.setattr(recurrent_ways, "resident_split", forced)


@needs_compiler
@pytest.mark.parametrize("target", [ONE, SIX], ids=["one block", "some"])
@pytest.mark.parametrize("case", SOME.values(), ids=SOME)
def test_emulated(
    emulated: CudaBackend,
    resident: None,
    chunks: None,
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    target: Target,
) -> None:
    monkeypatch.setattr(emulated.device.compiler, "target", target)
    monkeypatch.setattr(recurrent_splits, "OF_SHARED", 1)  # many blocks
    assert plan(case, target)[-1].entry == "recurrent_resident"
    check(case, emulated)


@needs_compiler
@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32], ids=str)
def test_a_nan_stays_in_its_sequence(
    emulated: CudaBackend, resident: None, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    """Also one that is what memory holds where a state is not there yet."""
    monkeypatch.setattr(emulated.device.compiler, "target", SIX)
    monkeypatch.setattr(recurrent_splits, "OF_SHARED", 1)  # many blocks
    case = case_of("GRU", 9, 16, states=True, dtype=dtype)
    x, *others, h = (each if each is None else each.copy() for each in case.inputs)
    assert x is not None
    assert h is not None
    x[1, 2], h[0, 1] = np.nan, np.frombuffer(b"\xff" * h.itemsize, h.dtype)[0]
    clean, got = (
        run(each, emulated)[0][:, 0] for each in (case, replace(case, inputs=(x, *others, h)))
    )
    rest = [n for n in range(9) if n not in (1, 2)]
    assert np.array_equal(got[:, rest], clean[:, rest])
    assert np.array_equal(got[0, 2], clean[0, 2])
    assert np.isnan(got[:, 1]).all()
    assert np.isnan(got[1:, 2]).all()


def test_every_kind_compiles(resident: None, cache: Path) -> None:
    cases = [
        case_of("LSTM", 32, 1024, time=2),
        case_of("LSTM", 1024, 256, time=2, direction=BOTH),
        case_of("GRU", 3, 512, time=2, dtype=BFLOAT16),
        case_of("RNN", 3, 501, time=2),
        case_of("LSTM", 32, 512, time=2, dtype=FLOAT32),
    ]
    for target in (A100, H200):
        assert_plans_compile(map(graph_of, cases), target, cache, COMPILES)
