"""Mixtures of experts in forms that onnxruntime's CPU lacks, against the formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tercet

from .samples import Sample, feeds_of, model_of

ROWS, HIDDEN, INNER, COUNT = 3, 4, 6, 3
Array = np.ndarray


def floats(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def run(inputs: dict[str, Array | None], **attributes: Any) -> Array:
    sample = Sample("MoE", inputs, attributes)
    with tercet.load(model_of(sample)) as model:
        (found,) = model.run(feeds_of(sample)).values()
    return found


def gated(gate: Array, linear: Array, alpha: float, beta: float, limits: list[float]) -> Array:
    gate, linear = np.minimum(gate, limits[0]), np.clip(linear, -limits[2], limits[2])
    return np.minimum(gate / (1 + np.exp(-alpha * gate)), limits[1]) * (linear + beta)


@pytest.mark.parametrize("fusion", [0, 1, 2])
@pytest.mark.parametrize(("limit", "is_late"), [(None, False), (0.5, False), (0.2, True)])
def test_swiglu(fusion: int, limit: float | None, is_late: bool) -> None:
    """Gate and linear part from two products, from one in turns, and from one behind the other."""
    x, router, fc2 = floats(ROWS, HIDDEN), floats(ROWS, COUNT), floats(COUNT, HIDDEN, INNER)
    gate, linear = floats(COUNT, INNER, HIDDEN), 2 * floats(COUNT, INNER, HIDDEN)[:, ::-1]
    both = {
        0: gate,
        1: np.stack([gate, linear], 2).reshape(COUNT, 2 * INNER, HIDDEN),
        2: np.concatenate([gate, linear], 1),
    }[fusion]
    inputs = {"x": x, "router": router, "fc1": both, "b1": None, "fc2": fc2, "b2": None}
    inputs["fc3"] = np.ascontiguousarray(linear) if fusion == 0 else None
    attributes: dict[str, Any] = {"activation_alpha": 1.5, "activation_beta": 0.5, "k": COUNT}
    if limit is not None:
        attributes |= {"swiglu_limit": limit, "swiglu_limit_after_activation": int(is_late)}
    most = limit or np.inf
    limits = [np.inf, most, most] if is_late else [most, np.inf, most]
    found = run(inputs, activation_type="swiglu", swiglu_fusion=fusion, **attributes)
    exponents = np.exp(router)
    weights = exponents / exponents.sum(1, keepdims=True)
    wanted = sum(
        weights[:, e : e + 1] * (gated(x @ gate[e].T, x @ linear[e].T, 1.5, 0.5, limits) @ fc2[e].T)
        for e in range(COUNT)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def softmax_of(gates: Array, at: Array) -> Array:
    exponents = np.exp(gates - gates.max(1, keepdims=True))
    return np.take_along_axis(exponents / exponents.sum(1, keepdims=True), at, 1)


def sparse_mixer(scores: Array, margin: float = 0.01) -> tuple[Array, Array]:
    """Return experts and weights as `sparsemixer` of transformers' PhiMoE, at inference."""
    chosen, weights, left = [], [], scores.copy()
    for _ in range(2):
        most, at = left.max(1, keepdims=True), left.argmax(1)[:, None]
        far = (most - scores) / np.maximum(np.abs(scores), most) > 2 * margin
        weights.append(softmax_of(np.where(far, -np.inf, left), at))
        chosen.append(at)
        np.put_along_axis(left, at, -np.inf, 1)
    return np.concatenate(chosen, 1), np.concatenate(weights, 1)


def test_a_sparse_mixer() -> None:
    """Logits of which some are close to the greatest, others far below it."""
    rows, count = 40, 6
    draw = np.random.default_rng(0)
    router = (3 + draw.choice([0.0, 0.03, 1.0], (rows, count))).astype(np.float32)
    router += (0.01 * draw.random((rows, count))).astype(np.float32)
    x, fc1 = floats(rows, HIDDEN), floats(count, INNER, HIDDEN)
    fc2 = floats(count, HIDDEN, INNER)
    inputs = {"x": x, "router": router, "fc1": fc1, "b1": None, "fc2": fc2}
    found = run(inputs, activation_type="identity", k=2, use_sparse_mixer=1)
    wanted = np.zeros_like(x)
    for row, experts, weights in zip(range(rows), *sparse_mixer(router), strict=True):
        for expert, weight in zip(experts, weights, strict=True):
            wanted[row] += weight * (fc2[expert] @ (fc1[expert] @ x[row]))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


REFUSED = {
    "a sparse mixer of one": ({"use_sparse_mixer": 1}, tercet.ModelError, "defined for k=2"),
    "too many experts": ({"k": COUNT + 1}, tercet.ModelError, "k=4 of 3 experts"),
    "an unknown activation": ({"activation_type": "tanh"}, tercet.ModelError, "expected relu"),
    "no second half": ({"activation_type": "swiglu"}, tercet.ModelError, "swiglu_fusion=0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    attributes, kind, said = REFUSED[name]
    inputs = {"x": floats(ROWS, HIDDEN), "router": floats(ROWS, COUNT)}
    inputs |= {"fc1": floats(COUNT, INNER, HIDDEN), "b1": None, "fc2": floats(COUNT, HIDDEN, INNER)}
    with pytest.raises(kind, match=said):
        run(inputs, **attributes)


def test_other_formats_of_weights_are_refused_with_a_recipe() -> None:
    bytes_ = np.zeros((COUNT, HIDDEN, HIDDEN // 2), np.uint8)
    inputs = {"x": floats(ROWS, HIDDEN), "router": floats(ROWS, COUNT), "fc1": bytes_}
    inputs |= {"s1": floats(COUNT, HIDDEN), "b1": None, "fc2": bytes_, "s2": floats(COUNT, HIDDEN)}
    sample = Sample("QMoE", inputs, {"quant_type": "fp4"}, constants=("fc1", "fc2"))
    with pytest.raises(tercet.UnsupportedError, match="quant_type='int'"):
        tercet.load(model_of(sample)).run(feeds_of(sample))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize(("hidden", "inner"), [(192, 320), (184, 320), (184, 296)])
def test_rows_of_packed_experts(hidden: int, inner: int, rows: int, bits: int) -> None:
    """Against float64: sums are scaled for few rows of whole blocks, weights for others."""
    rng, count, block = np.random.default_rng(rows), 3, 64
    x, router = floats(rows, hidden), floats(rows, count)
    shifts = np.arange(8 // bits) * bits

    def packed(integers: Array) -> Array:
        parts = integers.reshape(*integers.shape[:2], -1, 8 // bits)
        return (parts << shifts).sum(-1).astype(np.uint8)

    def layer(columns: int, terms: int) -> tuple[Array, Array, Array, Array]:
        codes = rng.integers(0, 1 << bits, (count, columns, terms))
        zeros = rng.integers(0, 1 << bits, (count, columns, -(-terms // block)))
        zeros = np.pad(zeros, ((0, 0), (0, 0), (0, -zeros.shape[2] % (8 // bits))))
        scales = (rng.random((count, columns, -(-terms // block))) / 1000).astype(np.float32)
        shift = np.repeat(zeros, block, 2)[:, :, :terms]
        exact = (codes - shift) * np.repeat(scales.astype(float), block, 2)[:, :, :terms]
        return exact, packed(codes), scales, packed(zeros)

    first, w1, s1, z1 = layer(inner, hidden)
    second, w2, s2, z2 = layer(hidden, inner)
    inputs: dict[str, Array | None] = {
        **{"x": x, "router": router, "w1": w1, "s1": s1, "b1": floats(count, inner)},
        **{"w2": w2, "s2": s2, "b2": floats(count, hidden), "w3": None, "s3": None, "b3": None},
        **{"z1": z1, "z2": z2},
    }
    attributes: dict[str, Any] = {"expert_weight_bits": bits, "block_size": block, "k": count}
    sample = Sample("QMoE", inputs, {**attributes, "activation_type": "relu"})
    with tercet.load(model_of(sample)) as model:
        (found,) = model.run(feeds_of(sample)).values()
    weights = np.exp(router.astype(float))
    weights /= weights.sum(1, keepdims=True)
    b1, b2 = inputs["b1"], inputs["b2"]
    assert b1 is not None
    assert b2 is not None
    exact = sum(
        weights[:, e : e + 1] * (np.maximum(x @ first[e].T + b1[e], 0) @ second[e].T + b2[e])
        for e in range(count)
    )
    assert np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max()


def test_logits_of_other_rows_are_refused() -> None:
    inputs = {"x": floats(ROWS, HIDDEN), "router": floats(1, COUNT)}
    inputs |= {"fc1": floats(COUNT, INNER, HIDDEN), "b1": None, "fc2": floats(COUNT, HIDDEN, INNER)}
    with pytest.raises(tercet.ModelError, match="rows of router_probs"):
        run(inputs)
