"""Random numbers: runtimes draw others, so a difference behind them proves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tercet
from tercet.runtime.options import Options
from tercet.tools.runners.replay import BackendPlayer
from tercet.tools.verdict.drawn import draws_of
from tercet.tools.workshop.onnxruntime_process import run_onnxruntime

from ..faults.faulty import FaultyBackend

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

HEAD = '<ir_version: 8, opset_import: ["" : 21]>'


def model(body: str, outputs: str = "float[40] y") -> onnx.ModelProto:
    """Return a model that reads x, whose nodes are given."""
    return onnx.parser.parse_model(f"{HEAD} g (float[40] x) => ({outputs}) {{ {body} }}")


FREE = "n = RandomNormalLike (x) y = Add (x, n)"
NOISE = "n = RandomNormalLike <seed = 1.0> (x)"


@pytest.mark.parametrize(
    "body",
    [
        f"{NOISE} y = Add (x, n)",
        FREE,
        "p = Sigmoid (x) y = Bernoulli <seed = 2.0> (p)",
        "t = Constant <value_int = 1> () b = Cast <to = 9> (t) "
        "r = Constant <value_float = 0.5> () y = Dropout <seed = 3> (x, r, b)",
        "l = Constant <value_int = 1> () b = Cast <to = 9> (l) "
        "y = If (b) <then_branch = t () => (float[40] u) "
        "{ n = RandomNormalLike <seed = 1.0> (x) u = Add (x, n) }, "
        "else_branch = e () => (float[40] v) { v = Identity (x) }>",
    ],
)
def test_a_difference_behind_random_numbers_proves_nothing(body: str) -> None:
    found = tercet.compare(model(body), runners=("numpy", "onnxruntime"))
    (*_, other) = found.results
    (agreement,) = other.agreements
    assert agreement.verdict == found.verdict == "inconclusive"
    assert "random numbers" in agreement.reason


def test_nor_does_one_from_saved_outputs(tmp_path: Path) -> None:
    made, feeds = model(f"{NOISE} y = Add (x, n)"), {"x": np.ones(40, np.float32)}
    saved = tmp_path / "onnxruntime.npz"
    np.savez(saved, allow_pickle=False, y=run_onnxruntime(made, feeds)["y"])
    assert tercet.compare(made, ["numpy", str(saved)], feeds, repeat=0).verdict == "inconclusive"


def test_how_many_results_there_are_may_depend_on_random_numbers() -> None:
    """As durations of speech (VITS): the noise is positive at other places."""
    body = "n = RandomNormalLike (x) z = Sub (n, n) c = Less (z, n) y = Compress (x, c)"
    found = tercet.compare(model(body, "float[k] y"), runners=("numpy", "onnxruntime"))
    assert found.verdict == "inconclusive"


def test_other_outputs_are_judged() -> None:
    made = model(f"{NOISE} y = Add (x, n) z = Exp (x)", "float[40] y, float[40] z")
    found = tercet.compare(made, runners=("numpy", "onnxruntime"))
    verdicts = {each.output: each.verdict for each in found.results[-1].agreements}
    assert verdicts == {"y": "inconclusive", "z": "ok"}


def test_a_tolerance_of_the_user_counts() -> None:
    made = model(f"{NOISE} y = Add (x, n)")
    assert tercet.compare(made, runners=("numpy", "onnxruntime"), atol=1e-3).verdict == "MISMATCH"
    assert tercet.compare(made, runners=("numpy", "onnxruntime"), atol=100).verdict == "ok"


def test_a_dropout_outside_training_draws_nothing() -> None:
    with tercet.load(model("y = Dropout <seed = 3> (x)"), stop_at=0) as plain:
        assert not draws_of(plain.imported)
    with tercet.load(model(f"{NOISE} y = Add (x, n)"), stop_at=0) as plain:
        assert [node.kind for node in draws_of(plain.imported)["y"]] == ["RandomNormalLike"]


ALWAYS = (
    "l = Constant <value_int = 1> () b = Cast <to = 9> (l) "
    "y = If (b) <then_branch = t () => (float[40] u) "
    "{ n = RandomNormalLike <seed = 1.0> (x) u = Add (x, n) }, "
    "else_branch = e () => (float[40] v) { v = Identity (x) }>"
)


@pytest.mark.parametrize("body", [f"{NOISE} z = Add (x, n) y = Exp (z)", FREE, ALWAYS])
@pytest.mark.parametrize("runners", [("numpy", "onnxruntime"), ("onnxruntime", "numpy")])
def test_no_node_is_blamed_for_random_numbers(body: str, runners: tuple[str, str]) -> None:
    found = tercet.bisect(model(body), runners)
    assert (found.fault, found.verdict, found.nodes) == ("none", "inconclusive", ())
    ways: list[dict[str, Any]] = [{}, {"optimise": False}, {"cumulative": True}]
    for how in ways:
        assert tercet.compare_layers(model(body), runners, **how).first is None


def test_a_wrong_node_behind_random_numbers_is_found() -> None:
    made = model(f"{NOISE} z = Add (x, n) y = Exp (z)")

    def damage(data: np.ndarray) -> None:
        data += 1

    wrong = BackendPlayer("faulty", (FaultyBackend({"y"}, damage),), Options())
    found = tercet.bisect(made, ["onnxruntime", wrong])
    assert found.fault == "nodes"
    assert "y" in found.nodes
