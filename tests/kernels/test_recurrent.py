"""Recurrent layers as one kernel for all steps, whose blocks share the units of a state."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.ops import recurrent_splits, recurrent_ways
from tercet.backends.cuda.recipe.launch import Launch, base_of
from tercet.backends.cuda.recipe.operands import Tensor
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.types import Array
from tercet.runtime.session.model import Model

from ..ops.case import FLOAT16, FLOAT32, Case, compare, expected, feeds_of, model_of
from ..ops.cases_recurrent import GATES, layer
from .cubins import assert_plans_compile
from .dry import DryCompiler, DryDevice, launches, planned
from .emulator import needs_compiler
from .samples import OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"sequence/recurrent_sequence.cu"}
#: A GPU of four multiprocessors whose blocks form clusters, for the emulator.
CLUSTERS = Target("sm_90", 4, H200.shared)
#: Cases of every kind of cell, direction, length and state; tests/ops runs all of them on a GPU.
SOME = [
    *(layer(op, direction="bidirectional", lengths=(5, 2, 3), states=True) for op in GATES),
    layer("LSTM", direction="reverse", bias=False),
    layer("LSTM", peepholes=True, states=True),
    layer("GRU", linear_before_reset=1, direction="bidirectional", states=True),
    layer("RNN", batch=9, activations=["HardSigmoid"]),
]
#: Layers whose weights one block of 64 threads cannot keep.
LARGE = [
    layer("LSTM", hidden=37, direction="bidirectional", lengths=(5, 2, 3), states=True),
    layer("GRU", hidden=40, linear_before_reset=1, states=True, layout=0),
    layer("RNN", hidden=70, time=4, batch=9),
]


@pytest.fixture
def clusters(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", CLUSTERS)
    return emulated


def run(case: Case, backend: CudaBackend) -> list[Array]:
    """Return the results of an emulated GPU."""
    with tercet.load(model_of(case, case.inputs)) as loaded:
        graph = loaded.imported
    with Model(graph, (backend,), OPTIONS, evaluate) as model:
        return [np.asarray(each) for each in model.run(feeds_of(case, case.inputs)).values()]


def check(case: Case, backend: CudaBackend) -> None:
    """Compare the results of an emulated GPU with onnxruntime's."""
    for got, want in zip(run(case, backend), expected(case), strict=True):
        compare(got, np.asarray(want), case.error)


def only(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave one kernel for all steps, named by the function that splits it; none if it has none."""
    for other in {"sequence_split", "tiled_split", "resident_split"} - {split}:
        monkeypatch.setattr(recurrent_ways, other, lambda *_: None)
    if split:
        monkeypatch.setattr(recurrent_splits, "MULTIPLIED", inf)


def graph_of(case: Case) -> Graph:
    with tercet.load(model_of(case, case.inputs)) as loaded:
        return loaded.graph


def plan(case: Case, target: Target) -> list[Launch]:
    return launches(planned(graph_of(case), DryDevice(compiler=DryCompiler(target))))


@needs_compiler
@pytest.mark.parametrize("case", SOME, ids=str)
def test_emulated(emulated: CudaBackend, case: Case) -> None:
    check(case, emulated)


@needs_compiler
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_blocks_tell_one_another_their_states(
    clusters: CudaBackend, monkeypatch: pytest.MonkeyPatch, case: Case, rows: int
) -> None:
    only("sequence_split", monkeypatch)
    monkeypatch.setattr(recurrent_splits, "MAX_THREADS", 64)
    monkeypatch.setattr(recurrent_splits, "MAX_WORDS", 8)
    split = recurrent_ways.sequence_split

    def forced(*sizes: Any) -> Any:
        found = split(*sizes)
        assert found is not None
        assert found.blocks > 1
        return replace(found, rows=rows)

    monkeypatch.setattr(recurrent_ways, "sequence_split", forced)
    check(case, clusters)


@pytest.mark.parametrize(
    ("hidden", "batch", "target", "blocks", "rows"),
    [
        (48, 32, H200, 1, 1),
        (48, 1024, H200, 1, 8),
        (256, 1, H200, 8, 1),
        (256, 64, H200, 8, 5),
        (256, 1, A100, 0, 0),
        (1024, 1, H200, 0, 0),
    ],
)
def test_one_launch_where_registers_have_room(
    monkeypatch: pytest.MonkeyPatch, hidden: int, batch: int, target: Target, blocks: int, rows: int
) -> None:
    only("sequence_split", monkeypatch)
    case = layer("LSTM", hidden=hidden, batch=batch, size=8)
    found = plan(case, target)
    whole = [each for each in found if each.entry == "recurrent_sequence"]
    assert len(whole) == (blocks > 0)
    for each in whole:
        constants = dict(each.constants)
        assert (each.cluster[0], constants["BLOCKS"], constants["ROWS"]) == (blocks, blocks, rows)
        assert each.block * 4 * constants["CHUNKS"] >= hidden * constants["UNITS"]
    assert all(each.entry != "recurrent_cells" for each in found) == bool(blocks)


def test_every_kind_compiles(cache: Path) -> None:
    cases = (
        layer("LSTM", hidden=48, batch=150),
        layer("LSTM", hidden=256, batch=1, direction="bidirectional"),
        layer("GRU", hidden=128, linear_before_reset=1),
        layer("RNN", hidden=512),
    )
    found = assert_plans_compile(map(graph_of, cases), H200, cache, COMPILES)
    assert sum(each.entry == "recurrent_sequence" for each in found) == len(cases)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16], ids=str)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_inputs_are_multiplied_on_tensor_cores(direction: str, dtype: Any) -> None:
    """The product is in the workspace, whichever kernel computes it."""
    case = layer("GRU", 30, 1024, 64, 64, linear_before_reset=1, direction=direction, dtype=dtype)
    found = plan(case, H200)
    assert found[0].entry != "product"
    bases = [base_of(argument) for launch in found for argument in launch.arguments.values()]
    named = {base.value.name for base in bases if isinstance(base, Tensor)}
    assert "projected" not in named
