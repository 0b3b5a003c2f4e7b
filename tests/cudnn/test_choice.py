"""Which engine runs a task: under a limit, tried, measured, remembered."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tercet.runtime.base.cache import Cache
from tercet.runtime.errors import DeviceOutOfMemory
from tercet.runtime.ir.dtypes import float16, float32
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Div
from tercet.runtime.options import Options, Precision
from tercet.runtime.plan.format import Format
from tercet.tools.common.console import text_of
from tercet.tools.tune.cudnn_algorithms import EngineLists, show_engine_lists, task_row
from tercet.tools.workshop.convolution_cases import ConvolutionCase

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.backend import survey
from tercet.backends.cudnn.choice import Chooser, Division, EngineChoice, EngineTask
from tercet.backends.cudnn.conv import Convolution, describe
from tercet.backends.cudnn.graph import OperationGraph
from tercet.backends.cudnn.library import NoPlan
from tercet.backends.cudnn.registry import NodeGroup
from tercet.backends.cudnn.session import Session
from tercet.backends.cudnn.stages import FLOW, PointwiseStage, Tail

CASE = ConvolutionCase(
    Conv(pads=(1, 1, 1, 1)), (1, 64, 56, 56), (64, 64, 3, 3), bias=True, relu=True
)
CONTIGUOUS, CHANNELS_LAST = Format.CONTIGUOUS, Format.CHANNELS_LAST


class Judge:
    """Stands for the GPU: every engine runs, each faster than the one before it."""

    def __init__(self) -> None:
        self.tried = 0

    def trial(self, choice: EngineChoice) -> None:
        self.tried += 1

    def microseconds(self, choice: EngineChoice, minimum: float) -> float:
        self.tried += 1
        return 100.0 / self.tried


def task(precision: Precision = "float32", limit: int | None = None) -> EngineTask:
    options = Options(precision=precision, workspace=limit)
    graph = CASE.graph()
    (found,) = survey(graph, frozenset(graph.nodes), options)
    assert isinstance(found, NodeGroup)
    return found.task


# ── engines ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [None, 1 << 20, 0])
@pytest.mark.parametrize("tune", [False, True])
def test_no_engine_wants_more_than_is_allowed(
    session: Session, limit: int | None, tune: bool, tmp_path: Path
) -> None:
    chooser = Chooser(session, tmp_path)
    for precision in ("float32", "tf32"):
        choice = chooser.choose(task(precision, limit), Judge(), tune=tune)
        assert limit is None or choice.engine.scratch <= limit


@pytest.mark.parametrize("tune", [False, True])
def test_what_packs_the_image_counts_as_workspace(
    session: Session, tune: bool, tmp_path: Path
) -> None:
    case = ConvolutionCase(CASE.op, (32, 3, 56, 56), (64, 3, 3, 3), True, dtype=float16)
    graph = case.graph()
    (found,) = survey(graph, frozenset(graph.nodes), Options(workspace=1 << 20))
    assert isinstance(found, NodeGroup)
    assert found.task.divisions[0].front
    choice = Chooser(session, tmp_path).choose(found.task, Judge(), tune=tune)
    assert choice.engine.scratch < choice.scratch <= 1 << 20


@pytest.mark.parametrize(
    ("version", "target", "precision", "is_known"),
    [
        ("9.1", "sm_90a", "float32", True),
        ("9.2", "sm_90a", "float32", False),
        ("9.1", "sm_80", "float32", False),
        ("9.1", "sm_90a", "tf32", False),
    ],
)
def test_measurements_are_those_of_one_gpu_and_cudnn(
    version: str, target: str, precision: Precision, is_known: bool, tmp_path: Path
) -> None:
    def chooser(version: str, target: str) -> Chooser:
        session: Any = SimpleNamespace(vendor=SimpleNamespace(version=version), target=target)
        return Chooser(session, tmp_path)

    own = chooser("9.1", "sm_90a")
    own._records.store(own._key(task()), {"trials": [[0, "engine", 1.5]]})
    assert bool(chooser(version, target).trials(task(precision))) == is_known


class Listed(OperationGraph):
    """Engines by number, of which the odd ones are compiled."""

    def __init__(self) -> None:
        self.refused = {}

    @cached_property
    def _compiled(self) -> tuple[bool, ...]:
        return (False, True) * 4

    def _order(self) -> list[int]:
        return list(range(8))

    def _built(self, index: int) -> Any:
        return index


def test_the_tuner_has_few_engines_compiled() -> None:
    assert list(Listed().engines()) == list(range(8))
    assert list(Listed().engines(2)) == [0, 1, 2, 3, 4, 6]


class Full(Judge):
    """A GPU without room for anything."""

    def trial(self, choice: EngineChoice) -> None:
        raise DeviceOutOfMemory("full")

    def microseconds(self, choice: EngineChoice, minimum: float) -> float:
        raise DeviceOutOfMemory("full")


@pytest.mark.parametrize("tune", [False, True])
def test_on_a_full_gpu_cudnn_is_taken_at_its_word(
    session: Session, tune: bool, tmp_path: Path
) -> None:
    choice = Chooser(session, tmp_path).choose(task(), Full(), tune=tune)
    assert choice.engine.name == next(task().graph(task().divisions[0], session).engines()).name
    assert not list(tmp_path.iterdir())


def test_a_number_is_known_with_its_sign(session: Session, tmp_path: Path) -> None:
    """0.0 equals -0.0, and what is divided by them differs."""
    chooser, (way, *_) = Chooser(session, tmp_path), task().divisions
    for number in (0.0, -0.0):
        tail = Tail((PointwiseStage(Div(), (FLOW, number)),))
        choice = chooser.choose(EngineTask((replace(way, rest=tail),), None), Judge())
        assert str(choice.rest) == f"Div()({FLOW}, {number})"


def test_a_limit_leaves_fewer_engines(session: Session) -> None:
    operation = task("tf32").divisions[0].operation
    counts = [len(list(OperationGraph(session, operation, limit).engines())) for limit in (None, 0)]
    assert counts[0] > counts[1] > 0


SAME, TWO = Conv(pads=(1, 1, 1, 1)), Conv(pads=(1, 1, 1, 1), strides=(2, 2))


@pytest.mark.parametrize(
    ("op", "x", "w", "engine"),
    [
        (SAME, (32, 3, 224, 224), (64, 3, 3, 3), "conv+bias+relu eng44_k2=4_k18=0"),
        (Conv(), (32, 96, 54, 54), (16, 96, 1, 1), "conv+bias+relu eng44_k2=12_k18=0"),
        (Conv(), (32, 528, 14, 14), (128, 528, 1, 1), "conv+bias+relu eng44_k2=12_k18=0"),
        (SAME, (32, 256, 56, 56), (256, 256, 3, 3), "conv eng70_k2=4_k18=0, then bias+relu"),
        (TWO, (32, 512, 14, 14), (512, 512, 3, 3), "conv eng70_k2=2_k18=0, then bias+relu"),
        (SAME, (32, 64, 224, 224), (64, 64, 3, 3), "conv+bias+relu eng44_k2=4_k18=0"),
        (SAME, (32, 512, 28, 28), (512, 512, 3, 3), "conv eng70_k2=4_k18=0, then bias+relu"),
        (Conv(strides=(2, 2)), (1, 3, 224, 224), (64, 3, 7, 7), "conv+bias+relu eng11_k2=4_k3=0"),
    ],
    ids=[
        *("few channels", "few filters", "few tiles", "a small tile alone is fused"),
        *("half a tile is fused", "many tiles", "no fused engine", "as the heuristics say"),
    ],
)
def test_what_is_known_better_than_the_heuristics(
    op: Conv, x: tuple[int, ...], w: tuple[int, ...], engine: str, session: Session, tmp_path: Path
) -> None:
    graph = ConvolutionCase(op, x, w, bias=True, relu=True).graph()
    (found,) = survey(graph, frozenset(graph.nodes), Options())
    assert isinstance(found, NodeGroup)
    judge = Judge()
    assert str(Chooser(session, tmp_path).choose(found.task, judge)).startswith(engine)
    assert judge.tried == 1


def test_a_refusal_says_what_the_least_engine_needs(session: Session, tmp_path: Path) -> None:
    """Every engine but those without a workspace is refused; these fail."""

    class Fails(Judge):
        def trial(self, choice: EngineChoice) -> None:
            self.tried += 1
            raise NoPlan("fails here")

    judge, chooser = Fails(), Chooser(session, tmp_path)
    with pytest.raises(NoPlan, match=r"\d+ need more workspace than 0 bytes, \d+ at least"):
        chooser.choose(task("tf32", 0), judge)
    tried = judge.tried
    with pytest.raises(NoPlan, match="fails here"):
        chooser.choose(task("tf32", 0), judge)
    assert judge.tried == tried, "once is enough"


def test_what_was_measured_is_listed(session: Session, tmp_path: Path) -> None:
    chooser, wanted = Chooser(session, tmp_path), task()
    assert chooser.trials(wanted) == ()
    choice = chooser.choose(wanted, Judge(), tune=True)
    trials = chooser.trials(wanted)
    assert len(trials) == choice.among
    assert trials[0].microseconds == choice.first == 100
    assert trials[-1].engine == choice.engine.name
    assert choice.regret == pytest.approx(choice.among - 1)
    again = Chooser(session, tmp_path).choose(wanted, Judge(), tune=True)
    assert (again.first, again.regret) == (choice.first, choice.regret)
    (file,) = tmp_path.iterdir()
    cache = Cache(tmp_path)
    entry = json.loads(cache.read(file.name) or b"") | {"trials": [[0, "eng0"], 7]}
    cache.write(file.name, json.dumps(entry).encode())
    assert Chooser(session, tmp_path).trials(wanted) == ()


def test_a_choice_says_what_it_is(session: Session, tmp_path: Path) -> None:
    chooser = Chooser(session, tmp_path)
    text = str(chooser.choose(task(), Judge()))
    assert text.startswith("conv+bias+relu eng")
    assert text.endswith(", precompiled (heuristic)")
    assert str(chooser.choose(task(), Judge(), tune=True)).count(" us, best of ") == 1


def test_both_lists_and_the_regret(session: Session, tmp_path: Path) -> None:
    """What the heuristics propose beside what was measured."""
    chooser, wanted = Chooser(session, tmp_path), task()
    before = task_row(chooser, wanted, ["conv"])
    assert before.regret is None
    assert not before.measured
    choice = chooser.choose(wanted, Judge(), tune=True)
    row = task_row(chooser, wanted, ["conv"])
    assert [each.place for each in row.engines] == list(range(1, len(row.engines) + 1))
    assert len(row.measured) == choice.among
    assert row.measured[0].engine == choice.engine.name
    assert row.regret == choice.regret
    lists = EngineLists("model.onnx", "cuDNN on a GPU", (row,))
    text = text_of(show_engine_lists, lists)
    assert f"{choice.among} measured; regret of the heuristics" in text
    assert lists.to_dict()["tasks"][0]["regret"] == row.regret


# ── a planted mistake ────────────────────────────────────────────────────────────────────────────


def test_a_bad_descriptor_names_call_status_and_configuration(
    session: Session, tmp_path: Path
) -> None:
    """The result of a convolution is said to be one row shorter than it is."""
    from tercet.backends.cudnn.operation import Operand

    right = describe(CASE.graph().nodes[0])
    assert isinstance(right, Convolution)
    wrong = replace(right, y=Operand.of((1, 64, 55, 56), float32))
    with pytest.raises(NoPlan) as caught:
        Chooser(session, tmp_path).choose(EngineTask((Division(wrong),), None), Judge())
    text = str(caught.value)
    assert text.startswith("graph of conv x 1x64x56x56 float32 w 64x64x3x3 float32 y 1x64x55x56")
    assert "CUDNN_STATUS_BAD_PARAM" in text
