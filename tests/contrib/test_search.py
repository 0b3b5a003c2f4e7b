"""BeamSearch, GreedySearch and Sampling around a small decoder, against onnxruntime's CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

import tercet

HEADS, SIZE, WORDS, LAYERS = 2, 4, 17, 2
HIDDEN = HEADS * SIZE
EOS, PAD = 3, 5
Rng = np.random.Generator


def decoder(rng: Rng, name: str = "decoder") -> GraphProto:
    """Return a decoder of GPT-2's form; its queries see all keys that are not masked."""
    nodes: list[Any] = []
    weights: list[Any] = []

    def weight(*shape: int, scale: float = 1.0) -> str:
        data = (scale * rng.standard_normal(shape)).astype(np.float32)
        weights.append(numpy_helper.from_array(data, f"w{len(weights)}"))
        return weights[-1].name

    def constant(data: Any) -> str:
        weights.append(numpy_helper.from_array(np.array(data), f"w{len(weights)}"))
        return weights[-1].name

    def add(kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"t{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    words = add("Gather", weight(WORDS, HIDDEN), "input_ids")
    x = add("Add", words, add("Gather", weight(64, HIDDEN, scale=0.3), "position_ids"))
    seen = add("Unsqueeze", add("Cast", "attention_mask", to=1), constant(np.array([1, 2])))
    hidden = add("Mul", add("Sub", seen, constant(np.float32(1))), constant(np.float32(1e4)))
    shape = constant(np.array([0, 0, HEADS, SIZE]))
    for layer in range(LAYERS):
        parts = []
        for _ in range(3):
            flat = add("MatMul", x, weight(HIDDEN, HIDDEN, scale=0.5))
            heads = add("Transpose", add("Reshape", flat, shape), perm=[0, 2, 1, 3])
            parts.append(heads)
        new = [add("Unsqueeze", part, constant(np.array([0]))) for part in parts[1:]]
        both = add("Concat", *new, axis=0)
        present = add("Concat", f"past_{layer}", both, axis=3, output=f"present_{layer}")
        keys, values = (add("Gather", present, constant(np.array(i)), axis=0) for i in (0, 1))
        scores = add("MatMul", parts[0], add("Transpose", keys, perm=[0, 1, 3, 2]))
        shares = add("Softmax", add("Add", scores, hidden), axis=-1)
        mixed = add("Transpose", add("MatMul", shares, values), perm=[0, 2, 1, 3])
        x = add("Add", x, add("Reshape", mixed, constant(np.array([0, 0, HIDDEN]))))
    add("MatMul", x, weight(HIDDEN, WORDS), output="logits")

    def state(name: str) -> Any:
        return helper.make_tensor_value_info(name, 1, [2, "rows", HEADS, f"{name}_length", SIZE])

    ids = ("input_ids", "position_ids")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT32, ["rows", "length"]) for n in ids]
    inputs.append(
        helper.make_tensor_value_info("attention_mask", TensorProto.INT32, ["rows", "total"])
    )
    inputs += [state(f"past_{layer}") for layer in range(LAYERS)]
    outputs = [helper.make_tensor_value_info("logits", 1, ["rows", "length", WORDS])]
    outputs += [state(f"present_{layer}") for layer in range(LAYERS)]
    return helper.make_graph(nodes, name, inputs, outputs, weights)


def model_of(
    op: str, feeds: dict[str, Any], outputs: int, attributes: dict[str, Any]
) -> onnx.ModelProto:
    """Return a file of one search; inputs that are None are left out."""
    given = {name: x for name, x in feeds.items() if x is not None}
    names = ["sequences", "marks", "scores"][:outputs]
    node = helper.make_node(
        op,
        [name if x is not None else "" for name, x in feeds.items()],
        names,
        domain="com.microsoft",
        eos_token_id=EOS,
        pad_token_id=PAD,
        **attributes,
    )
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given.items()
    ]
    kinds = [TensorProto.INT32, TensorProto.FLOAT, TensorProto.FLOAT]
    results = [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in zip(names, kinds, strict=False)
    ]
    graph = helper.make_graph([node], op, infos, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def drawn(op: str, seed: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a search with attributes and inputs by chance, and what is fed to it."""
    rng = np.random.default_rng(seed)
    batch, length = int(rng.integers(1, 4)), int(rng.integers(2, 7))
    ids = rng.integers(6, WORDS, (batch, length)).astype(np.int32)
    if rng.random() < 0.4:
        ids[0, : int(rng.integers(1, length))] = PAD  # at the left, as generators have it

    def perhaps(x: Any, chance: float = 0.4) -> Any:
        return x if rng.random() < chance else None

    def number(value: Any, dtype: Any) -> Any:
        return np.array([value], dtype)

    limit = length + int(rng.integers(2, 9))
    beams = int(rng.integers(1, 5))
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "max_length": number(limit, np.int32),
        "min_length": number(length + 3, np.int32) if rng.random() < 0.5 else number(0, np.int32),
    }
    if op == "BeamSearch":
        feeds["num_beams"] = number(beams, np.int32)
        feeds["num_return_sequences"] = number(int(rng.integers(1, beams + 1)), np.int32)
        feeds["length_penalty"] = number(float(rng.choice([0.5, 1.0, 2.0])), np.float32)
    feeds["repetition_penalty"] = number(float(rng.choice([1.0, 1.5])), np.float32)
    allowed = (rng.random(WORDS) < 0.8).astype(np.int32)
    allowed[[EOS, 9]] = 1
    feeds["vocab_mask"] = perhaps(allowed)
    prefix = (rng.random((batch, WORDS)) < 0.7).astype(np.int32)
    prefix[:, 9] = 1
    feeds["prefix_vocab_mask"] = perhaps(prefix)
    feeds["attention_mask"] = perhaps((ids != PAD).astype(np.int32))
    attributes: dict[str, Any] = {"decoder": decoder(rng), "model_type": 0}
    if rng.random() < 0.3:
        attributes["init_decoder"] = decoder(rng, "init")
    if rng.random() < 0.5:
        attributes["no_repeat_ngram_size"] = int(rng.integers(1, 4))
    if op == "BeamSearch" and rng.random() < 0.5:
        attributes["early_stopping"] = 1
    if op == "Sampling":
        attributes |= {"top_p": 1e-6, "min_tokens_to_keep": 1}
        attributes["temperature"] = float(rng.choice([1.0, 0.5]))
    while feeds[next(reversed(feeds))] is None:
        feeds.popitem()
    outputs = int(rng.integers(1, 4)) if op == "BeamSearch" else 1
    proto = model_of(op, feeds, outputs, attributes)
    return proto, {name: x for name, x in feeds.items() if x is not None}


def by_onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return the results of a search, on one thread and without its warnings."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return [np.asarray(result) for result in session.run(None, feeds)]


def assert_same_scores(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Compare the scores of texts and of steps."""
    for mine, theirs in zip(found, wanted, strict=True):
        # onnxruntime goes on with texts that are done, and leaves out steps that have no effect.
        np.testing.assert_allclose(mine, np.where(mine == 0, 0, theirs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["GreedySearch", "BeamSearch", "Sampling"])
@pytest.mark.parametrize("seed", range(32))
def test_texts(op: str, seed: int) -> None:
    """Words and scores; with a `top_p` of nearly 0, samples are the likeliest words."""
    proto, feeds = drawn(op, seed)
    wanted = by_onnxruntime(proto, feeds)
    with tercet.load(proto) as model:
        found = list(model.run(feeds).values())
    end = np.flatnonzero((found[0] != PAD).reshape(-1, found[0].shape[-1]).any(0)).max() + 1
    if op == "BeamSearch":  # the others leave what is behind the last word as it was in memory
        end = found[0].shape[-1]
    np.testing.assert_array_equal(found[0][..., :end], wanted[0][..., :end])
    assert_same_scores(found[1:], wanted[1:])


def test_samples_are_drawn_by_their_probabilities() -> None:
    """Of words that are left, by chance, the same for one seed; not the likeliest one alone."""
    proto, feeds = drawn("Sampling", 1)
    (node,) = proto.graph.node
    for attribute in node.attribute:
        if attribute.name == "top_p":
            attribute.f = 0.95
    while len(node.input) < 9:
        node.input.append("")
    node.input[8] = "seed"
    info = helper.make_tensor_value_info("seed", TensorProto.INT32, [1])
    proto.graph.input.append(info)
    with tercet.load(proto) as model:
        texts = [
            model.run({**feeds, "seed": np.array([seed], np.int32)})["sequences"]
            for seed in (1, 1, 2, 3, 4)
        ]
    np.testing.assert_array_equal(texts[0], texts[1])
    assert any((texts[0] != other).any() for other in texts[2:])


def test_encoders_are_refused() -> None:
    proto, _ = drawn("BeamSearch", 0)
    for attribute in proto.graph.node[0].attribute:
        if attribute.name == "model_type":
            attribute.i = 1
    with pytest.raises(tercet.TercetError, match="export the two with optimum"):
        tercet.load(proto).close()
