"""What the rule says of arrays, and which nodes it takes to round."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tercet as api
from tercet.tools.verdict.error_bounds import Judge
from tercet.tools.verdict.rounding import Evidence, rule_floats


@pytest.mark.parametrize(
    ("times", "word"), [(1, "ok"), (15, "inconclusive"), (30, "MISMATCH")], ids=str
)
def test_only_ordinary_rounding_is_agreement(times: float, word: str) -> None:
    """An element may move as far as fair samples do; between them and rough ones nothing is ok."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, (4, 6, 50))
    fair = [exact + 1e-6 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    rough = [exact + 8e-6 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=False)
    wrong = exact.copy()
    wrong[1, 2, 3] += times * 1e-6
    assert rule_floats(exact, wrong, evidence).word == word


@pytest.mark.parametrize(
    ("farthest", "word"), [(3e-7, "ok"), (1e-7, "inconclusive"), (None, "inconclusive")], ids=str
)
def test_few_samples_may_all_be_small(farthest: float | None, word: str) -> None:
    """Where all samples of an element happen to lie near each other, more of them decide."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, 1200)
    fair = [exact + 1e-7 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    rough = [exact + 1e-6 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    more = None if farthest is None else lambda at: np.full(np.count_nonzero(at), farthest)
    evidence = Evidence(exact, rough, fair, "float32", 1e-38, jumps=False, more=more)
    other = exact.copy()
    other[3] += 2e-6
    ruling = rule_floats(exact, other, evidence)
    assert ruling.word == word, ruling
    other[:20] += 2e-6
    assert rule_floats(exact, other, evidence).word != "ok"


@pytest.mark.parametrize("arithmetic", ["tf32", "float16", "bfloat16"])
def test_a_bias_is_no_rounding(arithmetic: str) -> None:
    """No element differs by more than noise moves it, but all of them to one side."""
    rng = np.random.default_rng(0)
    exact = rng.uniform(0.5, 1, (40, 50))
    fair = [exact + 1e-4 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    rough = [exact + 4e-4 * rng.uniform(-1, 1, exact.shape) for _ in range(12)]
    evidence = Evidence(exact, rough, fair, arithmetic, 1e-38, jumps=False)
    noisy = exact + 1e-4 * rng.uniform(-1, 1, exact.shape)
    assert rule_floats(exact, noisy, evidence).word == "ok"
    assert rule_floats(exact, exact + 0.5e-4, evidence).word != "ok"


def test_an_operator_with_a_body_rounds_itself() -> None:
    """Attention with a score modifier that only selects: its own sums cost what others do."""
    kind, shape = TensorProto.FLOAT, (1, 2, 4, 8)
    scores = helper.make_tensor_value_info("s", kind, ["B", "H", "L", "S"])
    result = helper.make_tensor_value_info("r", kind, ["B", "H", "L", "S"])
    body = helper.make_graph([helper.make_node("Relu", ["s"], ["r"])], "m", [scores], [result])
    domain = "ai.onnx.preview"
    node = helper.make_node("FlexAttention", [*"qkv"], ["y"], domain=domain, score_mod=body)
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name in "qkv"]
    outputs = [helper.make_tensor_value_info("y", kind, shape)]
    graph = helper.make_graph([node], "g", inputs, outputs)
    domains = [helper.make_opsetid("", 24), helper.make_opsetid(domain, 1)]
    proto = helper.make_model(graph, opset_imports=domains, ir_version=10)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in "qkv"}
    with api.load(proto, stop_at=0) as loaded:
        judge, right = Judge(loaded.imported, feeds), loaded.run(feeds)["y"]
        rounded = judge.exact["y"].astype(np.float32)
        for away in (-np.inf, np.inf):
            assert judge.agreement("y", right, np.nextafter(rounded, np.float32(away))).ok
        assert not judge.agreement("y", right, right * np.float32(1.001)).ok
