"""Random graphs of many operators give the same however they are run; see the workshop's fuzzer."""

import json
import shutil
import warnings
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

import tercet
from tercet.tools.common.nested import flat
from tercet.tools.common.onnxruntime_errors import onnxruntime_errors
from tercet.tools.workshop.fuzz.differential import Case, emulated, findings, in_other_dtype, main
from tercet.tools.workshop.fuzz.emulation import Emulator
from tercet.tools.workshop.fuzz.graphs import MOTIFS_OF_ALL_KINDS, random_model
from tercet.tools.workshop.fuzz.graphs_page import Tally, markdown, summary
from tercet.tools.workshop.fuzz.growing import RandomGraph
from tercet.tools.workshop.fuzz.respelling import respelled
from tercet.tools.workshop.fuzz.variants import with_functions
from tercet.tools.workshop.fuzz.whole_biases import with_whole_biases
from tercet.tools.workshop.onnxruntime_process import (
    Onnxruntime,
    OnnxruntimeEnded,
    run_onnxruntime,
)

from .. import onnxruntime_programs


@pytest.mark.parametrize("seed", range(7_000_000, 7_000_006))
def test_random_graphs(seed: int) -> None:
    proto, feeds = random_model(seed, 12)
    onnx.checker.check_model(proto, full_check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of onnxruntime's, about opsets
        assert list(findings(proto, feeds)) == []


def test_a_seed_is_a_graph() -> None:
    (one, feeds), (other, again) = random_model(5), random_model(5)
    assert one.SerializeToString() == other.SerializeToString()
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
    assert random_model(6)[0].SerializeToString() != one.SerializeToString()


def test_one_graph_can_be_had(tmp_path: Path) -> None:
    file = tmp_path / "graph.onnx"
    assert main(["--only", "3", "--seed", "1", "--nodes", "8", "--save", str(file)]) == 0
    assert len(onnx.load(file).graph.node) >= 8


def test_a_campaign_has_a_page(tmp_path: Path) -> None:
    given = ["--graphs", "2", "--seed", "24", "--nodes", "6", "--target", "sm_90a"]
    assert main([*given, "--output", str(tmp_path)]) == 0
    text = (tmp_path / "random_graphs.md").read_text(encoding="utf-8")
    assert "--seed 24 --nodes 6 --target sm_90a --output FOLDER`" in text
    assert "2 graphs of" in text
    assert "0 are findings, and of 0 rounding may explain" in text
    assert "| planned in bfloat16 | 2 |" in text
    found = json.loads((tmp_path / "random_graphs.json").read_text(encoding="utf-8"))
    assert found["counts"]["graphs"] == 2
    assert found["ways"]["numpy without passes"] == 2
    assert not found["findings"]


def test_doubts_are_no_findings() -> None:
    said = {
        "3": ["onnxruntime all: inconclusive: y: why", "emulated: MISMATCH: y: far"],
        "5": ["onnxruntime all: inconclusive: y: why"],
    }
    tally = Tally(Counter(graphs=9), Counter(), Counter(Add=2), said)
    found = summary(tally, {}, "command")
    assert (list(found["findings"]), list(found["doubts"])) == (["3"], ["5"])
    text = markdown(found)
    assert "1 are findings, and of 1 rounding may explain" in text
    assert text.index("## Findings") < text.index("- 3: emulated") < text.index("## Doubts")


def test_layers_of_integers_are_held_against_those_of_floats() -> None:
    graph = RandomGraph(Random(1), (4,))
    graph.input((2, 4, 3, 3))
    graph.grow(1, {MOTIFS_OF_ALL_KINDS["motifs_pixels.quantized_layers"]: 1})
    feeds = {"x0": np.random.default_rng(2).standard_normal((2, 4, 3, 3), np.float32)}
    tried: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that rewrites change
        assert list(findings(graph.model(), feeds, count=tried)) == []
    assert tried["on integers"] == 1


def test_biases_are_rounded_before_layers_of_integers_are_compared() -> None:
    """Half a step of the sums more is another integer; onnxruntime rounds it likewise."""
    proto = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    layer (float[2,2] x) => (uint8[2,2] y)
    <float s = {0.5}, uint8 z = {128}, int8[2,2] w = {3,-5,7,2}, float t = {0.25}, int8 o = {0},
     float[2] b = {0.99,-1.05}, float u = {0.04}> {
      q = QuantizeLinear (x, s, z)
      d = DequantizeLinear (q, s, z)
      f = DequantizeLinear (w, t, o)
      m = MatMul (d, f)
      a = Add (m, b)
      y = QuantizeLinear (a, u, z)
    }""")
    feeds = {"x": np.array([[0.5, 1], [-1.5, 0.5]], np.float32)}
    whole = with_whole_biases(proto)
    (bias,) = (each for each in whole.graph.initializer if list(each.dims) == [2])
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(bias), [1, -1])
    with tercet.load(proto, integers=True) as held, tercet.load(whole, stop_at=0) as plain:
        expected = run_onnxruntime(proto, feeds)["y"]
        np.testing.assert_array_equal(held.run(feeds)["y"], expected)
        np.testing.assert_array_equal(plain.run(feeds)["y"], expected)
    with tercet.load(proto, stop_at=0) as floats:
        assert (floats.run(feeds)["y"] != expected).any()


def test_calls_of_functions_give_what_their_nodes_gave() -> None:
    proto, feeds = random_model(9)
    calls = with_functions(proto, Random(2))
    assert calls.functions
    onnx.checker.check_model(calls)
    expected, found = run_onnxruntime(proto, feeds), run_onnxruntime(calls, feeds)
    for one, other in zip(expected.values(), found.values(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: install g++")
def test_kernels_are_emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    proto, feeds = random_model(11, 2)
    with tercet.load(proto) as model:
        reference = flat(model.run(feeds))
    emulator = Emulator(tmp_path, monkeypatch.setattr)
    assert list(emulated(Case(proto, feeds, reference), emulator)) == []
    name, data = next(iter(reference.items()))
    wrong = Case(proto, feeds, {**reference, name: data + data.dtype.type(1)})
    assert any(name in line for line in emulated(wrong, emulator))


@pytest.mark.parametrize("seed", range(8_000_001, 8_000_005))
def test_other_words_compute_the_same(seed: int) -> None:
    """Of onnxruntime, so that a finding of the campaign is one of tercet's."""
    proto, feeds = random_model(seed, 8)
    other = respelled(proto, Random(seed), 0.7)
    onnx.checker.check_model(other)
    assert [n.op_type for n in other.graph.node] != [n.op_type for n in proto.graph.node]
    expected, found = (run_onnxruntime(one, feeds, "ORT_DISABLE_ALL") for one in (proto, other))
    for name, data in expected.items():
        np.testing.assert_allclose(found[name], data, 1e-4, 1e-4)


def test_other_words_are_for_the_type() -> None:
    """ONNX has no Slice of codes of 4 bits."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[2, 8] x) => (float[2, 8] y) <float s = {0.25}>
      { q = QuantizeLinear <output_dtype = 21> (x, s)  y = DequantizeLinear (q, s) }"""
    proto = onnx.parser.parse_model(text)
    for seed in range(250):
        tercet.load(respelled(proto, Random(seed), 1.0)).close()


def test_a_wrong_optimisation_of_onnxruntime_is_no_finding() -> None:
    """It moves the codes in front of an output that is read before them."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[1, 1, 8] x) => (float[a, b, c, d] y, float[e, f, g, h] z)
      <int64[2, 2] i = {0, 0, -1, 0}, float s = {0.06}, uint8 o = {3}>
      { y = Gather <axis = 0> (x, i)  t = Transpose <perm = [3, 1, 2, 0]> (y)
        q = QuantizeLinear (t, s, o)  z = DequantizeLinear (q, s, o) }"""
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 1, 8)
    assert list(findings(onnx.parser.parse_model(text), {"x": x})) == []


def test_a_rewrite_may_avoid_an_overflow_of_float16() -> None:
    """Scores of attention that float16 does not have; as one operator they are float32."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[1, 2, 3, 4] q, float[1, 2, 3, 4] k, float[1, 2, 3, 4] v) => (float[a, b, c, d] y)
      <float h = {0.5}>
      { t = Transpose <perm = [0, 1, 3, 2]> (k)  w = MatMul (q, t)  s = Mul (w, h)
        p = Softmax <axis = -1> (s)  y = MatMul (p, v) }"""
    rng = np.random.default_rng(0)
    feeds = {name: 4000 * rng.random((1, 2, 3, 4), np.float32) for name in "qk"}
    feeds["v"] = rng.random((1, 2, 3, 4), np.float32)
    proto = onnx.parser.parse_model(text)
    assert list(in_other_dtype(Case(proto, feeds, run_onnxruntime(proto, feeds)), "float16")) == []


def test_a_crash_of_onnxruntime_is_no_end_of_the_campaign(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is said which input ended it."""
    onnxruntime_programs.use(monkeypatch, tmp_path, onnxruntime_programs.DYING)
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[a, b, c] x) => (float[d, e, f] y)
      { y = Einsum <equation = "abc,azc->abz"> (x, x) }"""
    process = Onnxruntime()
    empty, full = np.zeros((0, 3, 4), np.float32), np.ones((1, 3, 4), np.float32)
    model = onnx.parser.parse_model(text)
    with pytest.raises(OnnxruntimeEnded, match=r"SIG.*x: float32\[0, 3, 4\]"):
        process.run(model, {"x": empty})
    np.testing.assert_array_equal(process.run(model, {"x": full})["y"], np.full((1, 3, 3), 4))
    assert len(process.ended) == 1
    with pytest.raises(onnxruntime_errors(), match="x"):
        process.run(model, {})
