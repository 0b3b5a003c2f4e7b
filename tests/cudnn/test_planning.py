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
from tercet.backends.cudnn.library import Library, NoPlan, load
from tercet.backends.cudnn.session import Session

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


def choose(session: Session, wanted: Task, folder: Path) -> Choice:
    return Chooser(session, folder).choose(wanted, None)


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
        chooser.choose(task(case, epilogue), None)


# ── the store ────────────────────────────────────────────────────────────────────────────────────


def test_a_choice_is_remembered(session: Session, tmp_path: Path) -> None:
    first = choose(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    entry = json.loads(file.read_text())
    assert entry["key"].startswith(f"cuDNN {session.library.version} on NVIDIA H200 sm_90: conv x")
    # Another engine in the file shows that it is read.
    graph = ConvolutionGraph(session, task(CASE).divisions()[0][0], None)
    other = list(graph.engines())[-1]
    assert other.name != first.engine.name
    number, knobs = other.recipe
    entry |= {"engine": number, "knobs": knobs, "microseconds": 12.5, "among": 7}
    file.write_text(json.dumps(entry))
    again = choose(session, task(CASE), tmp_path)
    assert str(again) == f"conv+add+bias+relu {other.name} (12.5 us, best of 7)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"key": "another"}',
        '{"key": KEY}',
        '{"key": KEY, "fused": "", "engine": 99, "knobs": {}, "microseconds": null, "among": 1}',
        '{"key": KEY, "fused": "?", "engine": 0, "knobs": {}, "microseconds": null, "among": 1}',
        '{"key": KEY, "fused": "", "engine": "x", "knobs": [], "microseconds": "", "among": 1}',
    ],
)
def test_a_damaged_file_is_replaced(session: Session, tmp_path: Path, text: str) -> None:
    first = choose(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_text()
    file.write_text(text.replace("KEY", json.dumps(json.loads(good)["key"])))
    assert str(choose(session, task(CASE), tmp_path)) == str(first)
    assert file.read_text() == good


def test_a_file_cannot_bring_tensor_cores_in(session: Session, tmp_path: Path) -> None:
    rounded = choose(session, task(CASE, precision="tf32"), tmp_path / "tf32")
    exact = choose(session, task(CASE), tmp_path)
    number, knobs = rounded.engine.recipe
    (file,) = (f for f in tmp_path.iterdir() if f.is_file())
    entry = json.loads(file.read_text()) | {"engine": number, "knobs": knobs}
    file.write_text(json.dumps(entry))
    assert choose(session, task(CASE), tmp_path).engine.name == exact.engine.name


def test_a_folder_that_cannot_be_written_is_no_error(session: Session, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert choose(session, task(CASE), blocked).engine.scratch == 0


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def test_every_status_becomes_an_error_that_names_the_call(library: Library) -> None:
    with pytest.raises(DeviceError, match=r"^cuDNN 9\..*: cudnnCreate: "):
        Session.here(library, 99)
