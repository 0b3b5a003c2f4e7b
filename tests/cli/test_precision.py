"""Which nodes must stay float32: found, handed back, and no name too many."""

from __future__ import annotations

import signal
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

import tercet as api
from tercet.tools.bisect.precision import PrecisionResult, keep_float32

from . import models
from .conftest import Tercet


def error(file: str, found: PrecisionResult, keep: tuple[str, ...]) -> float:
    """The error with some nodes in float32, measured without the tool."""
    x = found.inputs.arrays
    with api.load(file, precision=found.precision, keep_float32=keep) as model:
        ours = model.run(x)
    with api.load(file) as model:
        right = model.run(x)
    return max(float(np.abs(ours[n] - right[n]).max() / np.abs(right[n]).max()) for n in right)


@pytest.fixture
def chained(folder: Path) -> str:
    """Three products, the second of which multiplies by eight and cancels again."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((16, 16)).astype(np.float32)
    large = (w * 8).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "large"], ["b"], name="huge"),
        helper.make_node("MatMul", ["a", "larger"], ["c"], name="huger"),
        helper.make_node("Sub", ["b", "c"], ["d"], name="less"),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="last"),
    ]
    held = {"w": w, "large": large, "larger": large + np.float32(0.05)}
    outputs = [models.tensor("y", [4, 16])]
    model = models.model_of(nodes, [models.tensor("x", [4, 16])], outputs, held)
    models.write(model, folder / "chained.onnx")
    return "chained.onnx"


def test_the_list_keeps_the_tolerance_and_none_can_be_spared(chained: str) -> None:
    found = keep_float32(chained, 1e-2, "float16")
    assert found.ok
    assert found.error_half > 1e-2 > found.error_float32
    assert {"huge", "huger"} <= set(found.keep) < set(found.candidates)
    assert error(chained, found, found.keep) == pytest.approx(found.error, rel=0.5)
    for name in found.keep:
        rest = tuple(n for n in found.keep if n != name)
        assert error(chained, found, rest) > 1e-2


def test_no_shorter_list_of_few_nodes(chained: str) -> None:
    found = keep_float32(chained, 1e-2, "float16")
    names = found.candidates
    shorter = chain.from_iterable(combinations(names, n) for n in range(len(found.keep)))
    assert all(error(chained, found, keep) > 1e-2 for keep in shorter)


def test_nothing_to_keep_and_nothing_that_helps(chained: str) -> None:
    easy = keep_float32(chained, 1e9)
    assert (easy.keep, easy.ok, easy.runs) == ((), True, 2)
    assert "all nodes meet the tolerance in float16" in str(easy)
    hopeless = keep_float32(chained, 1e-12)
    assert not hopeless.ok
    assert "float32 itself is further off" in str(hopeless)


def test_the_command_hands_its_list_to_others(tercet: Tercet, chained: str) -> None:
    half = "--precision", "float16"
    done = tercet("bisect", chained, *half, "--tolerance", 1e-2, "--save", "keep.txt")
    assert done.code == 0
    assert "--precision float16 --keep-float32 '" in done.out
    option = done.out.split("--keep-float32 '")[1].split("'")[0].replace("\n", "")
    assert option.split(",") == Path("keep.txt").read_text().split()
    for keep in (option, "@keep.txt"):
        placed = "inspect", chained, "--placement", "numpy", *half, "--keep-float32", keep
        rows = tercet(*placed, "--json").json["placement"]
        (row,) = (row for row in rows if "huge" in row["nodes"])
        assert "float16" not in row["outputs"][0]
    run = "run", chained, *half, "--repeat", 0
    assert tercet(*run, "--keep-float32", "@keep.txt").code == 0
    wrong = tercet(*run, "--keep-float32", "hugest")
    assert wrong.code == 2
    assert "did you mean 'huge'" in wrong.err
    assert tercet(*run, "--keep-float32", "@gone.txt").code == 2


def test_a_tolerance_that_float32_does_not_keep(tercet: Tercet, chained: str) -> None:
    half = "--precision", "bfloat16"
    done = tercet("bisect", chained, *half, "--tolerance", 1e-12, "--json")
    assert done.code == 1
    assert done.json["ok"] is False


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--tolerance 1e-3", "not one of float16, bfloat16"),
        ("--tolerance 1e-3 --precision tf32", "not one of float16, bfloat16"),
        ("--tolerance 0 --precision float16", "number > 0"),
        ("--tolerance 1 --precision float16 -b numpy -b onnxruntime", "one --backend"),
        ("--save keep.txt", "needs --tolerance"),
    ],
)
def test_options_that_make_no_sense(tercet: Tercet, options: str, words: str) -> None:
    done = tercet("bisect", "classifier.onnx", *options.split())
    assert done.code == 2
    assert words in done.err


def test_the_shortest_list_so_far_counts_when_time_is_up(
    chained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tercet.tools.bisect import precision

    def late(*arguments: object) -> int:
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        signal.pause()
        return 0

    monkeypatch.setattr(precision, "smallest", late)
    found = keep_float32(chained, 1e-2, timeout=100)
    assert found.stopped.startswith("stopped after 100 s")
    assert found.keep == found.candidates
    assert found.ok


def test_fused_nodes_are_kept_by_any_of_their_names(folder: Path) -> None:
    """The batch-norm is folded into the convolution, which has both names."""
    for keep in ("conv", "norm"):
        with api.load("classifier.onnx", precision="float16", keep_float32=[keep]) as model:
            (row,) = (r for r in model.placement({"image": (1, 3, 8, 8)}) if "conv" in r.nodes)
        assert "float16" not in row.inputs[0]


def test_nodes_in_bodies_of_control_flow_are_found(folder: Path) -> None:
    """Passes run on bodies when their sizes are known, and make halves of their nodes, too."""
    w = (np.random.default_rng(0).standard_normal((64, 64)) / 8).astype(np.float32)
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[4, 64] x, bool go, int64 count) => (float[4, 64] y) {
      y = Loop (count, go, x) <
        body = b (int64 i, bool on, float[4, 64] s) => (bool on, float[4, 64] t) {
          t = If (on) <
            then_branch = c () => (float[4, 64] p) {
              [product] m = MatMul (s, w)
              [tanh] p = Tanh (m)
            },
            else_branch = d () => (float[4, 64] q) { [other] q = MatMul (s, w) }
          >
        }
      >
    }""")
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    models.write(model, folder / "loop.onnx")
    given = {"go": np.array(True), "count": np.array(3)}
    given["x"] = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    found = keep_float32("loop.onnx", 1e-5, inputs=given)
    assert set(found.candidates) == {"product", "tanh"}  # nothing runs the other branch
    assert found.ok
    assert found.keep == ("product",)
    assert error("loop.onnx", found, ()) > 1e-5 > error("loop.onnx", found, found.keep)
    assert error("loop.onnx", found, ()) == pytest.approx(found.error_half, rel=0.5)
