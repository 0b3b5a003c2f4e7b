"""What cuDNN itself says to our graphs, for a GPU that is described by a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tercet.runtime.errors import BackendUnavailable, DeviceError
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.options import Precision

from .convolutions import Case, random_cases

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn.choice import Choice, Chooser, Task
from tercet.backends.cudnn.conv import Convolution, Epilogue, describe
from tercet.backends.cudnn.graph import ConvolutionGraph
from tercet.backends.cudnn.session import Session
from tercet.backends.cudnn.vendor import Library, NoPlan, load

PROPERTIES = (Path(__file__).parent / "h200.json").read_text("utf-8")
CASE = Case(Conv(pads=(1, 1, 1, 1)), (1, 64, 56, 56), (64, 64, 3, 3))
DEPTHWISE = Case(Conv(group=128, pads=(1, 1, 1, 1)), (1, 128, 28, 28), (128, 1, 3, 3))
UP = Case(ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1)), (1, 64, 28, 28), (64, 32, 4, 4))
ALL = Epilogue(residual=True, bias=True, relu=True)


@pytest.fixture(scope="module")
def library() -> Library:
    try:
        return load()
    except BackendUnavailable as error:
        pytest.skip(f"{error.missing}: {error.remedy}")


@pytest.fixture(scope="module")
def session(library: Library) -> Session:
    return Session.elsewhere(library, PROPERTIES)


def convolution_of(case: Case, precision: Precision = "float32") -> Convolution:
    found = describe(case.graph().nodes[0], precision)
    assert isinstance(found, Convolution), found
    return found


def task(
    case: Case, epilogue: Epilogue = ALL, limit: int | None = None, precision: Precision = "float32"
) -> Task:
    return Task(convolution_of(case, precision), epilogue, limit)


class Judge:
    """Stands for the GPU: the first engine fails, the others take less and less time."""

    def __init__(self, *, failing: int = 0) -> None:
        self.failing = failing
        self.tried: list[str] = []

    def trial(self, choice: Choice) -> None:
        self.tried.append(choice.engine.name)
        if len(self.tried) <= self.failing:
            raise NoPlan(f"{choice.engine.name} fails here")

    def microseconds(self, choice: Choice, least: float) -> float:
        self.trial(choice)
        return 100.0 / len(self.tried)


def choose(session: Session, wanted: Task, folder: Path) -> Choice:
    return Chooser(session, folder).choose(wanted, Judge())


def tune(session: Session, wanted: Task, folder: Path, judge: Judge | None = None) -> Choice:
    return Chooser(session, folder).choose(wanted, judge or Judge(), tune=True)


def test_the_library_says_what_it_is(library: Library) -> None:
    assert library.version.startswith("9.")
    assert Path(library.file).is_file()


def test_the_target_is_what_the_file_says(session: Session) -> None:
    assert session.target == "NVIDIA H200 sm_90"


@pytest.mark.parametrize(
    "epilogue",
    [
        Epilogue(),
        Epilogue(bias=True),
        Epilogue(relu=True),
        Epilogue(bias=True, relu=True),
        Epilogue(residual=True),
        ALL,
    ],
    ids=str,
)
def test_float32_has_engines_for_every_epilogue(
    session: Session, epilogue: Epilogue, tmp_path: Path
) -> None:
    choice = choose(session, task(CASE, epilogue), tmp_path)
    assert not choice.rest, "all of it is in cuDNN's graph"
    assert choice.engine.scratch == 0


def test_tf32_has_other_engines_and_more_of_them(session: Session) -> None:
    exact = convolution_of(CASE).with_epilogue(ALL)
    rounded = convolution_of(CASE, "tf32").with_epilogue(ALL)
    names = [
        {e.name for e in ConvolutionGraph(session, c, None).engines()} for c in (exact, rounded)
    ]
    assert names[0]
    assert names[1] - names[0]


def test_small_groups_leave_the_epilogue_to_a_kernel(session: Session, tmp_path: Path) -> None:
    choice = choose(session, task(DEPTHWISE), tmp_path)
    assert choice.rest == ALL
    assert str(choice).startswith("conv eng0")
    assert ", then add+bias+relu" in str(choice)


def test_a_transposed_convolution_leaves_its_bias_to_a_kernel(
    session: Session, tmp_path: Path
) -> None:
    choice = choose(session, task(UP, Epilogue(bias=True)), tmp_path)
    assert choice.rest == Epilogue(bias=True)
    assert str(choice).startswith("dgrad ")


def test_no_workspace_is_enough(session: Session, tmp_path: Path) -> None:
    for wanted in (task(CASE, limit=0), task(CASE, limit=0, precision="tf32")):
        assert choose(session, wanted, tmp_path).engine.scratch == 0


def test_a_refusal_says_what_was_tried(session: Session, tmp_path: Path) -> None:
    wrong = replace(convolution_of(CASE), y=(1, 64, 55, 56))
    with pytest.raises(NoPlan, match=r"conv x 1x64x56x56 w 64x64x3x3 y 1x64x55x56.*BAD_PARAM"):
        choose(session, Task(wrong, Epilogue(), None), tmp_path)


def test_shapes_are_those_that_cudnn_computes(session: Session) -> None:
    """CuDNN checks the result's shape against the parameters of the convolution."""
    refused = 0
    for case in random_cases(200):
        right = convolution_of(case)
        ConvolutionGraph(session, right, None)
        if case.transposed:
            continue
        wrong = replace(right, y=(*right.y[:-1], right.y[-1] + 1))
        with pytest.raises(NoPlan):
            ConvolutionGraph(session, wrong, None)
        refused += 1
    assert refused > 100


def test_random_convolutions_have_engines(session: Session, tmp_path: Path) -> None:
    chooser = Chooser(session, tmp_path)
    for case in random_cases(60, seed=1):
        epilogue = Epilogue(case.add, case.bias, case.relu)
        chooser.choose(task(case, epilogue), Judge())


def test_an_engine_that_fails_is_passed_over(session: Session, tmp_path: Path) -> None:
    judge = Judge(failing=2)
    choice = Chooser(session, tmp_path).choose(task(CASE), judge)
    assert len(judge.tried) == 3
    assert choice.engine.name == judge.tried[-1]


def test_a_convolution_of_which_all_engines_fail_is_refused(
    session: Session, tmp_path: Path
) -> None:
    with pytest.raises(NoPlan, match=r"fails here.*plans: \d+ use TF32, Winograd or FFT"):
        Chooser(session, tmp_path).choose(task(CASE), Judge(failing=99))


# ── what was measured ────────────────────────────────────────────────────────────────────────────


def test_tuning_takes_the_fastest_that_runs(session: Session, tmp_path: Path) -> None:
    judge = Judge(failing=1)
    choice = tune(session, task(CASE), tmp_path, judge)
    assert choice.engine.name == judge.tried[-1]
    assert choice.among == len(judge.tried) - 1 > 10
    assert str(choice).endswith(f" us, best of {choice.among})")


def test_the_heuristics_choice_is_not_kept(session: Session, tmp_path: Path) -> None:
    choose(session, task(CASE), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_measured_choice_is_kept(session: Session, tmp_path: Path) -> None:
    first = tune(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    key = json.loads(file.read_text())["key"]
    assert key.startswith(f"cuDNN {session.vendor.version} on NVIDIA H200 sm_90: conv x")
    judge = Judge()
    assert str(tune(session, task(CASE), tmp_path, judge)) == str(first)
    assert judge.tried == [first.engine.name], "tried once, not measured"


def test_every_engine_can_be_kept(session: Session) -> None:
    """The frontend has no name for some knobs, so names must do."""
    convolution = task(CASE, precision="tf32").divisions()[0][0]
    engines = list(ConvolutionGraph(session, convolution, None).engines())
    again = ConvolutionGraph(session, convolution, None)
    for engine in engines:
        assert again.engine(engine.name).scratch == engine.scratch


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"key": "another"}',
        '{"key": KEY}',
        '{"key": KEY, "fused": "", "engine": "eng99", "microseconds": 1, "among": 1}',
        '{"key": KEY, "fused": "?", "engine": "eng0", "microseconds": 1, "among": 1}',
        '{"key": KEY, "fused": [], "engine": 7, "microseconds": {}, "among": null}',
    ],
)
def test_a_damaged_file_is_replaced(session: Session, tmp_path: Path, text: str) -> None:
    first = tune(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_text()
    file.write_text(text.replace("KEY", json.dumps(json.loads(good)["key"])))
    assert str(tune(session, task(CASE), tmp_path)) == str(first)
    assert file.read_text() == good


def test_a_kept_engine_that_fails_is_replaced(session: Session, tmp_path: Path) -> None:
    first = tune(session, task(CASE), tmp_path)
    again = tune(session, task(CASE), tmp_path, Judge(failing=1))
    assert again.among == first.among


def test_a_file_cannot_bring_tensor_cores_in(session: Session, tmp_path: Path) -> None:
    rounded = convolution_of(CASE, "tf32").with_epilogue(ALL)
    exact = convolution_of(CASE).with_epilogue(ALL)
    names = [
        {e.name for e in ConvolutionGraph(session, c, None).engines()} for c in (rounded, exact)
    ]
    tune(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    wrong = min(names[0] - names[1])
    entry = json.loads(file.read_text()) | {"fused": str(ALL), "engine": wrong}
    file.write_text(json.dumps(entry))
    judge = Judge()
    tune(session, task(CASE), tmp_path, judge)
    assert wrong not in judge.tried


def test_a_folder_that_cannot_be_written_is_no_error(session: Session, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert tune(session, task(CASE), blocked).engine.scratch == 0


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def test_every_status_becomes_an_error_that_names_the_call(library: Library) -> None:
    with pytest.raises(DeviceError, match=r"^cuDNN 9\..*: cudnnCreate: "):
        Session.here(library, 99)
