"""What rounding between the steps of ONNX's definitions explains, in half floats, and what not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser

import tercet as api
from tercet.tools.verdict.agreement import Agreement
from tercet.tools.verdict.error_bounds import Judge

Arrays = list[np.ndarray]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """In float32 where x is a half float, up to scale and bias."""
    wide = x.astype(np.float64 if x.dtype == np.float64 else np.float32)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    return ((wide - mean) / np.sqrt(variance + 1e-5)).astype(x.dtype) * scale + bias


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    cos, sin = cos[:, None], sin[:, None]
    left, right = np.split(x, 2, -1)
    return np.concatenate([left * cos - right * sin, left * sin + right * cos], -1)


def leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, x * x.dtype.type(0.0107), x)


CASES: dict[str, tuple[Callable[..., np.ndarray], list[tuple[int, ...]], dict[str, Any]]] = {
    "Softmax": (softmax, [(6, 40)], {}),
    "LayerNormalization": (layer_norm, [(6, 40), (40,), (40,)], {"epsilon": 1e-5}),
    "RotaryEmbedding": (rotated, [(1, 2, 3, 40), (1, 3, 20), (1, 3, 20)], {}),
    "Sum": (lambda x, y, z: x + y + z, [(6, 40)] * 3, {}),
    "LeakyRelu": (leaky_relu, [(60, 40)], {"alpha": 0.0107}),
}


def judged(name: str, factor: float) -> tuple[Judge, np.ndarray, np.ndarray]:
    """Return a judge of one node of half floats, its result rounded once, and after each step."""
    compute, shapes, attributes = CASES[name]
    rng = np.random.default_rng(0)
    inputs = [(rng.standard_normal(shape) * factor).astype(np.float16) for shape in shapes]
    names = [f"x{i}" for i in range(len(inputs))]
    half = TensorProto.FLOAT16
    graph = helper.make_graph(
        [helper.make_node(name, names, ["y"], **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, half, x.shape)
            for n, x in zip(names, inputs, strict=True)
        ],
        [helper.make_tensor_value_info("y", half, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    with api.load(model, stop_at=0) as loaded:
        judge = Judge(loaded.imported, dict(zip(names, inputs, strict=True)))
    exact = compute(*(x.astype(np.float64) for x in inputs))
    return judge, exact.astype(np.float16), compute(*inputs)


def word(judge: Judge, right: np.ndarray, found: np.ndarray) -> str:
    result: Agreement = judge.agreement("y", right, found)
    return result.verdict


@pytest.mark.parametrize("factor", [1.0, 4.0, 12.0])
@pytest.mark.parametrize("name", CASES)
def test_rounding_after_each_step_is_no_mismatch(name: str, factor: float) -> None:
    """A few units in the last place in softmax; a hundred where terms cancel."""
    judge, once, steps = judged(name, factor)
    assert not np.array_equal(once, steps)
    assert word(judge, once, steps) != "MISMATCH"
    assert word(judge, steps, once) != "MISMATCH"


@pytest.mark.parametrize("name", CASES)
def test_an_error_is_found_beside_it(name: str) -> None:
    """One element off by 2 % of the greatest; a row off by 4 %."""
    judge, once, steps = judged(name, 4.0)
    for right in (once, steps):
        wrong = right.copy()
        wrong.flat[int(np.abs(wrong).argmax())] *= np.float16(1.02)
        assert word(judge, once, wrong) == "MISMATCH"
        wrong = right.copy()
        wrong[-1] *= np.float16(1.04)
        assert word(judge, once, wrong) == "MISMATCH"


@pytest.mark.parametrize(("spread", "mean", "wanted"), [(1e-4, 33.3, 8), (1.0, 0.0, 0)])
def test_groups_that_are_nearly_constant(spread: float, mean: float, wanted: int) -> None:
    """As ONNX defines it, the variance is a difference of squares, which may be negative."""
    made = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[1,4,64] x, float[4] s) => (float[1,4,64] y)
        { y = GroupNormalization <num_groups = 2> (x, s, s) }""")
    x = mean + spread * np.random.default_rng(1).standard_normal((1, 4, 64))
    feeds: dict[str, np.ndarray] = {"x": x.astype(np.float32), "s": np.ones(4, np.float32)}
    found = api.compare(made, ["numpy", "onnxruntime"], feeds, repeat=0)
    assert found.exit_code == wanted
