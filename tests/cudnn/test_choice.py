"""Who runs what, and why: engines under a limit, the cuda kernels as rivals, what the user says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tercet.runtime.backend import Claim, Decline, Format
from tercet.runtime.dtypes import float32
from tercet.runtime.errors import BackendUnavailable, UsageError
from tercet.runtime.infer import infer
from tercet.runtime.ir import Graph, Node
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.options import Options
from tercet.runtime.types import TensorType
from tercet.tools.console import text_of
from tercet.tools.convolution_cases import Case
from tercet.tools.cudnn_algorithms import EngineLists, show_engine_lists, task_row

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.backend import CudnnBackend, survey
from tercet.backends.cudnn.choice import Choice, Chooser, Division, Task
from tercet.backends.cudnn.conv import Convolution, describe
from tercet.backends.cudnn.graph import OperationGraph
from tercet.backends.cudnn.registry import Wanted
from tercet.backends.cudnn.rival import Arena, Duel, Rival, Timed
from tercet.backends.cudnn.session import Session
from tercet.backends.cudnn.vendor import NoPlan, load

PROPERTIES = (Path(__file__).parent / "h200.json").read_text("utf-8")
CASE = Case(Conv(pads=(1, 1, 1, 1)), (1, 64, 56, 56), (64, 64, 3, 3), bias=True, relu=True)
PLAIN, LAST = Format.PLAIN, Format.CHANNELS_LAST


@pytest.fixture(scope="module")
def session() -> Session:
    try:
        return Session.elsewhere(load(), PROPERTIES)
    except BackendUnavailable as error:
        pytest.skip(f"{error.missing}: {error.remedy}")


class Judge:
    """Stands for the GPU: every engine runs, each faster than the one before it."""

    def __init__(self) -> None:
        self.tried = 0

    def trial(self, choice: Choice) -> None:
        self.tried += 1

    def microseconds(self, choice: Choice, least: float) -> float:
        self.tried += 1
        return 100.0 / self.tried


def task(precision: str = "float32", limit: int | None = None) -> Task:
    options = Options(precision=precision, workspace=limit)  # type: ignore[arg-type]  # a text
    graph = CASE.graph()
    (found,) = survey(graph, frozenset(graph.nodes), options)
    assert isinstance(found, Wanted)
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


def test_a_limit_leaves_fewer_engines(session: Session) -> None:
    operation = task("tf32").ways[0].operation
    counts = [len(list(OperationGraph(session, operation, limit).engines())) for limit in (None, 0)]
    assert counts[0] > counts[1] > 0


SAME = Conv(pads=(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("op", "x", "w", "engine"),
    [
        (SAME, (32, 3, 224, 224), (64, 3, 3, 3), "conv+bias+relu eng44_k2=2_k18=0"),
        (Conv(), (32, 96, 54, 54), (16, 96, 1, 1), "conv+bias+relu eng44_k2=2_k18=0"),
        (SAME, (32, 512, 28, 28), (512, 512, 3, 3), "conv eng70_k2=4_k18=0, then bias+relu"),
        (Conv(strides=(2, 2)), (1, 3, 224, 224), (64, 3, 7, 7), "conv+bias+relu eng11_k2=4_k3=0"),
    ],
    ids=["few channels", "few filters", "no fused engine", "as the heuristics say"],
)
def test_what_is_known_better_than_the_heuristics(
    op: Conv, x: tuple[int, ...], w: tuple[int, ...], engine: str, session: Session, tmp_path: Path
) -> None:
    graph = Case(op, x, w, bias=True, relu=True).graph()
    (found,) = survey(graph, frozenset(graph.nodes), Options())
    assert isinstance(found, Wanted)
    judge = Judge()
    assert str(Chooser(session, tmp_path).choose(found.task, judge)).startswith(engine)
    assert judge.tried == 1


def test_a_refusal_says_what_the_least_engine_needs(session: Session, tmp_path: Path) -> None:
    """Every engine but those without a workspace is refused; these fail."""

    class Fails(Judge):
        def trial(self, choice: Choice) -> None:
            raise NoPlan("fails here")

    with pytest.raises(NoPlan, match=r"\d+ want more workspace than 0 bytes, \d+ at least"):
        Chooser(session, tmp_path).choose(task("tf32", 0), Fails())


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
    file.write_text(json.dumps(json.loads(file.read_text()) | {"trials": [[0, "eng0"], 7]}))
    assert Chooser(session, tmp_path).trials(wanted) == ()


def test_a_choice_says_what_it_is(session: Session, tmp_path: Path) -> None:
    chooser = Chooser(session, tmp_path)
    text = str(chooser.choose(task(), Judge()))
    assert text.startswith("conv+bias+relu eng")
    assert ", precompiled, built in " in text
    assert text.endswith(" ms (heuristic)")
    assert str(chooser.choose(task(), Judge(), tune=True)).count(" us, best of ") == 1


def test_both_lists_and_the_regret(session: Session, tmp_path: Path) -> None:
    """Row B13: what the heuristics propose beside what was measured."""
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


# ── the cuda kernels as rivals ───────────────────────────────────────────────────────────────────


class Fixed(Rival):
    """Cuda kernels whose times are known by the operators of the nodes."""

    def __init__(self, times: Mapping[str, float], format: Format = PLAIN, change: float = 0.0):
        self.times, self.format, self.cost = times, format, change

    def on(self, graph: Graph, free: Any, options: Options) -> Arena:
        return Arena(self, graph, options)

    def timed(self, graph: Graph, nodes: Sequence[Node], options: Options) -> Timed | None:
        time = self.times.get("+".join(node.kind for node in nodes))
        count = len(nodes[0].reads) + 1 - len([v for v in nodes[0].reads if v.is_constant])
        return None if time is None else Timed(time, (self.format,) * count)

    def change(self, type_: TensorType, before: Format, after: Format) -> float:
        return self.cost if before is not after else 0.0


def pooled() -> tuple[Graph, Wanted]:
    """A convolution in the middle of other nodes, so that neither end of it is the caller's."""
    graph = Graph()
    x = graph.add_input("x", TensorType(float32, (1, 64, 56, 56)))
    w, b = (graph.constant(data, name) for data, name in zip(CASE.constants(), "wb", strict=True))
    y = graph.insert(Relu(), [x], name="before").output
    y = graph.insert(Conv(pads=(1, 1, 1, 1)), [y, w, b], name="conv").output
    y = graph.insert(MaxPool(kernel_shape=(2, 2)), [y], name="pool").output
    graph.set_outputs({"y": graph.insert(Relu(), [y], name="behind").output})
    infer(graph)
    found = survey(graph, frozenset(graph.nodes), Options())
    (conv,) = [w for w in found if isinstance(w, Wanted) and w.nodes[0].kind == "Conv"]
    return graph, conv


def test_the_faster_one_gets_the_nodes() -> None:
    graph, wanted = pooled()
    arena = Fixed({"Conv": 20.0}).on(graph, frozenset(), Options())
    won, lost = arena.meet(wanted, 19.0), arena.meet(wanted, 21.0)
    assert won is not None
    assert lost is not None
    assert won.lost == ""
    assert lost.lost == "cuda kernels: 20.0 us, cuDNN: 21.0 us"
    assert Fixed({}).on(graph, frozenset(), Options()).meet(wanted, 99.0) is None


def test_changes_of_format_count_for_whoever_needs_them() -> None:
    graph, wanted = pooled()
    duel = Fixed({"Conv": 20.0}, LAST, 3.0).on(graph, frozenset(), Options()).meet(wanted, 16.0)
    assert duel is not None
    assert duel == Duel(22.0, 20.0, 6.0)
    assert duel.lost == ("cuda kernels: 20.0 us, cuDNN: 22.0 us, 6.0 us of them to change formats")


def test_what_the_caller_feeds_and_gets_is_plain() -> None:
    graph = CASE.graph()
    (wanted,) = survey(graph, frozenset(graph.nodes), Options())
    assert isinstance(wanted, Wanted)
    rival = Fixed({"Conv+Relu": 20.0}, LAST, 3.0)
    duel = rival.on(graph, frozenset(), Options()).meet(wanted, 16.0)
    assert duel == Duel(10.0, 20.0, -6.0), "the cuda kernels have to change both"


def test_what_the_cuda_kernels_take_along_counts_for_both() -> None:
    graph, wanted = pooled()
    conv, pool = wanted.nodes[0], graph.nodes[2]
    rival = Fixed({"Conv+MaxPool": 20.0, "MaxPool": 5.0})
    arena = Arena(rival, graph, Options(), dict.fromkeys((conv, pool), (conv, pool)))
    assert arena.meet(wanted, 14.0) == Duel(19.0, 20.0)
    assert arena.meet(wanted, 16.0) == Duel(21.0, 20.0)


class Device:
    """A GPU that is not asked for anything but to announce."""

    def __init__(self) -> None:
        self.compiler = self
        self.said: list[str] = []

    def announce(self, text: str) -> None:
        self.said.append(text)


class Known(CudnnBackend):
    """CuDNN that takes 25 us for everything."""

    def _chosen(self, task: Task, *, tune: bool) -> Choice:
        nothing: Any = None
        return Choice(nothing, microseconds=25.0 if tune else None)


def claims(options: Options) -> list[Claim | Decline]:
    graph = CASE.graph()
    device, chooser = Device(), None
    backend = Known(device, chooser, Fixed({"Conv+Relu": 20.0}))  # type: ignore[arg-type]  # doubles
    return list(backend.claim(graph, frozenset(graph.nodes), options))


def test_tuning_declines_what_the_cuda_kernels_are_faster_at() -> None:
    (untuned,) = claims(Options())
    assert isinstance(untuned, Claim)
    (declined,) = claims(Options(tune=True))
    assert isinstance(declined, Decline)
    assert declined.reason == "cuda kernels: 20.0 us, cuDNN: 25.0 us"


# ── what the user says ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{"algorithms": {"conv": "cudnn"}}, {"conv": "cudnn"}])
def test_cudnn_can_be_asked_for(options: dict[str, Any]) -> None:
    (forced,) = claims(Options(tune=True, **options))
    assert isinstance(forced, Claim), "also where the cuda kernels are faster"


@pytest.mark.parametrize("way", ["cuda", "fft", "fft,cudnn"])
def test_another_way_can_be_asked_for(way: str) -> None:
    declined, *others = claims(Options(algorithms={"Conv": way}))
    assert isinstance(declined, Decline)
    first = way.partition(",")[0]
    assert declined.reason == f"algorithm '{first}' is asked for, which is not cuDNN's"
    assert not [other for other in others if isinstance(other, Claim) and "Conv" in str(other)]


def test_a_wrong_name_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"'cudn' is none of .*did you mean 'cudnn'"):
        Options(algorithms={"Conv": "cudn"})


def test_the_cuda_backend_takes_its_own_choice() -> None:
    from tercet.backends.cuda.compile import H200
    from tercet.backends.cuda.registry import Setting

    node = CASE.graph().nodes[0]
    setting = Setting(H200, Options(algorithms={"Conv": "cuda"}))
    assert setting.for_node(node).asked == ()
    mixed = Setting(H200, Options(algorithms={"Conv": "cuda,fft"}))
    assert mixed.for_node(node).asked == ("fft",)


# ── a planted mistake ────────────────────────────────────────────────────────────────────────────


def test_a_bad_descriptor_names_call_status_and_configuration(
    session: Session, tmp_path: Path
) -> None:
    """Row A27: the result of a convolution is said to be one row shorter than it is."""
    from dataclasses import replace

    from tercet.backends.cudnn.operation import Operand

    right = describe(CASE.graph().nodes[0])
    assert isinstance(right, Convolution)
    wrong = replace(right, y=Operand.of((1, 64, 55, 56), float32))
    with pytest.raises(NoPlan) as caught:
        Chooser(session, tmp_path).choose(Task((Division(wrong),), None), Judge())
    text = str(caught.value)
    assert text.startswith("graph of conv x 1x64x56x56 float32 w 64x64x3x3 float32 y 1x64x55x56")
    assert "CUDNN_STATUS_BAD_PARAM" in text
