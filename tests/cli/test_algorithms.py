"""`--algorithm`, `inspect --algorithms` and `tune`, as far as they need no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import available
from tercet.backends.cuda import ALGORITHMS
from tercet.backends.cuda.tuning.tuner import CandidateTime, GroupResult, NetworkResult
from tercet.tools.tune.algorithms_view import show_report, show_tuned
from tercet.tools.tune.tuning import Tuned

from .conftest import Tercet

HAS_GPU = any(one.name == "cuda" and not one.missing for one in available())


def test_selectors_are_listed_without_a_gpu(tercet: Tercet) -> None:
    done = tercet("inspect", "classifier.onnx", "--algorithms")
    assert done.code == 0
    for words in ("estimate us", "why not", "implicit_precomp_gemm", "one group", "* "):
        assert words in done.out


def test_selectors_as_json(tercet: Tercet) -> None:
    found = tercet("inspect", "classifier.onnx", "--algorithms", "--json").json
    assert found["nodes"]
    for node in found["nodes"]:
        assert [algorithm["chosen"] for algorithm in node["algorithms"]].count(True) == 1
        for algorithm in node["algorithms"]:
            assert algorithm["algorithm"] in ALGORITHMS
            assert (algorithm["estimate"] is None) == bool(algorithm["reason"])


def test_what_was_asked_for_is_chosen(tercet: Tercet) -> None:
    chosen = ("--algorithm", "Conv=direct", "--algorithm", "Gemm=gemm", "--json")
    found = tercet("inspect", "classifier.onnx", "--algorithms", *chosen).json
    taken = {
        n["operator"]: w["algorithm"]
        for n in found["nodes"]
        for w in n["algorithms"]
        if w["chosen"]
    }
    assert taken["Conv"] == "direct"


@pytest.mark.parametrize("other", [["--passes"], ["--graph", "g.svg"]])
def test_algorithms_are_shown_alone(tercet: Tercet, other: list[str]) -> None:
    done = tercet("inspect", "classifier.onnx", "--algorithms", *other)
    assert (done.code, "leave out --passes and --graph" in done.err) == (2, True)


def test_lists_of_another_backend(tercet: Tercet) -> None:
    done = tercet("inspect", "classifier.onnx", "--algorithms", "-b", "numpy")
    assert done.code == 2
    assert "needs --backend cuda or cudnn, not 'numpy'" in done.err
    done = tercet("inspect", "classifier.onnx", "--algorithms", "-b", "cudnn")
    assert done.code == (0 if HAS_GPU else 5)


def test_the_space_of_the_tuner(tercet: Tercet) -> None:
    done = tercet("tune", "classifier.onnx", "--show-space", "--workspace", "0")
    assert done.code == 0
    assert "to measure" in done.out
    assert "workspace over the limit" in " ".join(done.out.split())


@pytest.mark.skipif(HAS_GPU, reason="with a GPU it tunes: tests/gpu")
def test_tune_needs_a_gpu(tercet: Tercet) -> None:
    done = tercet("tune", "classifier.onnx")
    assert done.code == 5
    assert "backend 'cuda' cannot run here" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Conv=winograd_f3", "did you mean 'winograd_f"),
        ("convv=direct", "the model has no node 'convv'"),
        ("direct", "NODE=NAME"),
        ("=direct", "NODE=NAME"),
        ("Conv=", "NODE=NAME"),
    ],
)
def test_bad_texts(text: str, said: str, tercet: Tercet) -> None:
    done = tercet("run", "classifier.onnx", "--algorithm", text)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize("option", ["--conv-algorithm", "--conv"])
def test_a_former_name_of_an_option_still_works(option: str, tercet: Tercet) -> None:
    assert tercet("run", "classifier.onnx", option, "direct", "--repeat", "0").code == 0
    assert "--conv " not in tercet("run", "-h").out


def test_what_was_tuned_is_shown() -> None:
    """The network before and after each group; and every candidate, with `--report`."""
    timings = (
        CandidateTime("tensor_cores", "multistage w64x32, 6 stages", -3.0, 4.5),
        CandidateTime("naive", change=70.0, estimate=80.0, workspace=2048),
        CandidateTime("fft", reason="wrong by 5.0e-01"),
    )
    group = GroupResult("MatMul 128x768", 12, "mma 64x64", 300.0, 297.0, timings[0].title, timings)
    same = GroupResult("Conv 1x3x8x8", 1, "direct", 297.0, 297.0, "", ())
    found = Tuned("m.onnx", "a GPU", (NetworkResult(300.0, 297.0, (group, same), True),), 4.9)
    shown, report = (_printed(show, found) for show in (show_tuned, show_report))
    assert shown.split("\n")[2].split()[2:5] == ["12", "mma", "64x64"]
    assert "tensor_cores multistage w64x32, 6 stages" in shown
    assert "the same" in shown
    assert "2 groups of equal steps, 2 of them measured now in 4.9 s" in shown
    assert "the network takes 297.0 us, by estimates 300.0 us (1.0 % less)" in shown
    assert "wrong by 5.0e-01" in report
    assert "+70.0" in report
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (document["before_us"], document["after_us"]) == (300.0, 297.0)
    assert document["groups"][0]["candidates"][2]["change"] is None


def _printed(show: Callable[[Console, Tuned], None], found: Tuned) -> str:
    console = Console(width=140, record=True, file=StringIO())
    show(console, found)
    return console.export_text()
