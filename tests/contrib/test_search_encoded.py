"""BeamSearch around an encoder and a decoder, as onnxruntime's tools write T5 and Whisper."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

import tercet

from .test_search import (
    HEADS,
    HIDDEN,
    LAYERS,
    PAD,
    SIZE,
    WORDS,
    Rng,
    assert_same_scores,
    by_onnxruntime,
    model_of,
)

START = 7
STATES = [f"{kind}_{{}}_{layer}" for layer in range(LAYERS) for kind in ("key", "value")]
#: What the encoder computes: its keys and values; the first step as well; and hidden states, which
#: the decoder reads.
FORMS = ("cross", "init", "hidden")
#: Of Whisper, which reads features.
SOUND = "sound"


class Writer:
    """Writes nodes and weights of one body, those of an equal name with equal numbers."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.nodes: list[Any] = []
        self.weights, self.used = weights, dict[str, np.ndarray]()

    def constant(self, data: Any) -> str:
        name = f"c{len(self.used)}"
        self.used[name] = np.array(data)
        return name

    def weight(self, name: str) -> str:
        self.used[name] = self.weights[name]
        return name

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def heads(self, x: str, name: str, output: str = "") -> str:
        """Return [rows, heads, length, size] of a product."""
        shape = self.constant(np.array([0, 0, HEADS, SIZE]))
        flat = self.add("Reshape", self.add("MatMul", x, self.weight(name)), shape)
        return self.add("Transpose", flat, perm=[0, 2, 1, 3], output=output)

    def attended(self, x: str, query: str, keys: str, values: str, mask: str = "") -> str:
        """Return x and what it attends to; positions where the mask is 0 are left out."""
        scores = self.add("MatMul", query, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        if mask:
            seen = self.add("Cast", mask, to=1)
            seen = self.add("Unsqueeze", seen, self.constant(np.array([1, 2])))
            out = self.add("Sub", seen, self.constant(np.float32(1)))
            scores = self.add("Add", scores, self.add("Mul", out, self.constant(np.float32(1e4))))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), values)
        flat = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        return self.add(
            "Add", x, self.add("Reshape", flat, self.constant(np.array([0, 0, HIDDEN])))
        )

    def encoder(self, mask: str) -> str:
        if mask:
            x = self.add("Gather", self.weight("source"), "encoder_input_ids")
        else:
            columns = self.add("Transpose", "encoder_input_ids", perm=[0, 2, 1])
            x = self.add("MatMul", columns, self.weight("encoder_q"))
        query, keys, values = (self.heads(x, f"encoder_{name}") for name in "qkv")
        output = "encoder_hidden_states"
        mixed = self.attended(x, query, keys, values, mask)
        self.add("Tanh", mixed, output=output)
        for layer in range(LAYERS):
            for kind in ("key", "value"):
                name = f"{kind}_cross_{layer}"
                self.heads(output, name, f"present_{name}")
        return output

    def decoder(self, ids: str, past: str, cross: str, mask: str, hidden: str = "") -> None:
        x = self.add("Gather", self.weight("target"), ids)
        if hidden:
            mean = self.add("ReduceMean", hidden, axes=[1], keepdims=1)
            x = self.add("Add", x, mean)
        for layer in range(LAYERS):
            new = [self.heads(x, f"{kind}_self_{layer}") for kind in ("key", "value")]
            names = [f"{kind}_self_{layer}" for kind in ("key", "value")]
            both = [
                self.add("Concat", past.format(name), each, axis=2, output=f"present_{name}")
                if past
                else self.add("Identity", each, output=f"present_{name}")
                for name, each in zip(names, new, strict=True)
            ]
            x = self.attended(x, self.heads(x, f"query_self_{layer}"), *both)
            given = [cross.format(f"{kind}_cross_{layer}") for kind in ("key", "value")]
            query = self.heads(x, f"query_cross_{layer}")
            x = self.attended(x, query, *given, mask=mask)
        self.add("MatMul", x, self.weight("words"), output="logits")

    def graph(self, name: str, inputs: list[Any], outputs: list[str]) -> GraphProto:
        weights = [numpy_helper.from_array(x, key) for key, x in self.used.items()]
        results = [helper.make_tensor_value_info(each, 1, _shape(each)) for each in outputs]
        return helper.make_graph(self.nodes, name, inputs, results, weights)


def _shape(name: str) -> list[Any]:
    """Return the shape of an output; each axis of its own length has a name of its own."""
    match name:
        case "logits":
            return ["rows", "length", WORDS]
        case "encoder_hidden_states":
            return ["rows", "source", HIDDEN]
        case _:
            return ["rows", HEADS, "source" if "cross" in name else "kept", SIZE]


def ids(name: str, length: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.INT32, ["rows", length])


def bodies(rng: Rng, form: str) -> dict[str, GraphProto]:
    """Return an encoder and a decoder that share their weights, in one of the forms."""
    names = [f"{kind}_{of}_{layer}" for kind in ("query", "key", "value")
             for of in ("self", "cross") for layer in range(LAYERS)]  # fmt: skip
    names += [f"encoder_{name}" for name in "qkv"]
    weights = {
        name: 0.7 * rng.standard_normal((HIDDEN, HIDDEN)).astype(np.float32) for name in names
    }
    for name in ("source", "target"):
        weights[name] = rng.standard_normal((WORDS, HIDDEN)).astype(np.float32)
    weights["words"] = rng.standard_normal((HIDDEN, WORDS)).astype(np.float32)
    mask = "" if form == SOUND else "encoder_attention_mask"
    source = [ids("encoder_input_ids", "source"), ids("encoder_attention_mask", "source")]
    if form == SOUND:
        shape = ["rows", HIDDEN, "source"]
        source = [helper.make_tensor_value_info("encoder_input_ids", 1, shape)]
    own = [f"present_{each.format('self')}" for each in STATES]
    cross = [f"present_{each.format('cross')}" for each in STATES]
    first = Writer(weights)
    hidden = first.encoder(mask)
    outputs = cross
    if form != "cross":
        source.append(ids("decoder_input_ids", "start"))
        read = hidden if form == "hidden" else ""
        first.decoder("decoder_input_ids", "", "present_{}", mask, read)
        outputs = ["logits", hidden, *own, *cross]
    later = Writer(weights)
    takes = [ids("input_ids", 1), *([ids(mask, "source")] if mask else [])]
    if form == "hidden":
        takes.append(helper.make_tensor_value_info(hidden, 1, _shape(hidden)))
    for of in ("self", "cross"):
        for each in STATES:
            shape = ["rows", HEADS, f"{of}_length", SIZE]
            takes.append(helper.make_tensor_value_info(f"past_{each.format(of)}", 1, shape))
    later.decoder("input_ids", "past_{}", "past_{}", mask, hidden if form == "hidden" else "")
    return {
        "encoder": first.graph("encoder", source, outputs),
        "decoder": later.graph("decoder", takes, ["logits", *own]),
    }


def drawn(seed: int, form: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a search with attributes and inputs by chance, and what is fed to it."""
    rng = np.random.default_rng(seed)
    batch, length, beams = int(rng.integers(1, 4)), int(rng.integers(2, 7)), int(rng.integers(1, 5))
    given = rng.integers(6, WORDS, (batch, length)).astype(np.int32)
    given[0, : int(rng.integers(0, length))] = PAD
    given[-1, length - int(rng.integers(0, length)) :] = PAD
    kept = int(rng.integers(1, beams + 1))
    feeds: dict[str, Any] = {
        "input_ids": given,
        "max_length": np.array([int(rng.integers(2, 9))], np.int32),
        "min_length": np.array([int(rng.integers(0, 5))], np.int32),
        "num_beams": np.array([beams], np.int32),
        "num_return_sequences": np.array([kept], np.int32),
        "length_penalty": np.array([rng.choice([0.5, 1.0, 2.0])], np.float32),
        "repetition_penalty": np.array([rng.choice([1.0, 1.5])], np.float32),
        "vocab_mask": None,
        "prefix_vocab_mask": None,
        "attention_mask": (given != PAD).astype(np.int32) if rng.random() < 0.5 else None,
    }
    if feeds["attention_mask"] is None:
        for name in ("attention_mask", "prefix_vocab_mask", "vocab_mask"):
            del feeds[name]
    attributes: dict[str, Any] = {"model_type": 1, "decoder_start_token_id": START}
    attributes |= {"early_stopping": int(rng.integers(0, 2)), **bodies(rng, form)}
    attributes["no_repeat_ngram_size"] = int(rng.choice([0, 2]))
    proto = model_of("BeamSearch", feeds, int(rng.integers(1, 4)), attributes)
    return proto, {name: x for name, x in feeds.items() if x is not None}


def drawn_for_sound(seed: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a WhisperBeamSearch with inputs by chance, and what is fed to it."""
    rng = np.random.default_rng(seed)
    batch, beams, first = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    features = rng.standard_normal((batch, HIDDEN, int(rng.integers(2, 9)))).astype(np.float32)
    allowed = np.ones(WORDS, np.int32)
    allowed[10] = 0
    feeds: dict[str, Any] = {
        "input_ids": features,
        "max_length": np.array([first + int(rng.integers(2, 8))], np.int32),
        "min_length": np.array([int(rng.integers(0, 5))], np.int32),
        "num_beams": np.array([beams], np.int32),
        "num_return_sequences": np.array([int(rng.integers(1, beams + 1))], np.int32),
        "length_penalty": np.array([rng.choice([0.5, 1.0, 2.0])], np.float32),
        "repetition_penalty": np.array([rng.choice([1.0, 1.5])], np.float32),
        "vocab_mask": allowed if rng.random() < 0.5 else None,
        "prefix_vocab_mask": None,
        "attention_mask": None,
        "decoder_input_ids": rng.integers(6, WORDS, (batch, first)).astype(np.int32),
        "logits_processor": None,
        "cross_qk_layer_head": None,
        "extra_decoding_ids": None,
        "temperature": np.array([rng.choice([0.5, 1.0, 1.5])], np.float32),
    }
    attributes: dict[str, Any] = {"model_type": 2, "decoder_start_token_id": START}
    attributes |= {"early_stopping": 1, **bodies(rng, SOUND)}
    attributes["translate_token_id"] = 6
    proto = model_of("WhisperBeamSearch", feeds, int(rng.integers(1, 4)), attributes)
    return proto, {name: x for name, x in feeds.items() if x is not None}


@pytest.mark.parametrize(
    ("form", "seed"),
    [(form, seed) for form in (*FORMS, SOUND) for seed in range(32 if form == SOUND else 12)],
)
def test_texts_are_those_of_onnxruntime(form: str, seed: int) -> None:
    proto, feeds = drawn_for_sound(seed) if form == SOUND else drawn(seed, form)
    wanted = by_onnxruntime(proto, feeds)
    with tercet.load(proto) as model:
        found = list(model.run(feeds).values())
    np.testing.assert_array_equal(found[0], wanted[0])
    first = feeds["decoder_input_ids"][:, :1] if form == SOUND else START
    assert (found[0][..., 0] == first).all()
    assert_same_scores(found[1:], wanted[1:])


def spoilt(form: str, **attributes: Any) -> onnx.ModelProto:
    """Return a search with other attributes; None removes one."""
    proto, _ = drawn(0, form)
    (node,) = proto.graph.node
    kept = [each for each in node.attribute if each.name not in attributes]
    more = [helper.make_attribute(n, x) for n, x in attributes.items() if x is not None]
    del node.attribute[:]
    node.attribute.extend([*kept, *more])
    return proto


def other(form: str, body: str) -> GraphProto:
    return bodies(np.random.default_rng(0), form)[body]


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (spoilt("cross", decoder_start_token_id=None), "decoder_start_token_id is not there"),
        (spoilt("cross", encoder=None), "model_type=1: a search around an encoder"),
        (spoilt("cross", model_type=3), "model_type=3: a search around an encoder"),
        (spoilt("cross", model_type=2), "input_ids must be of rank 3"),
        (spoilt("cross", decoder=other("init", "encoder")), "body 'encoder' has 3 inputs and 10"),
        (spoilt("cross", encoder=other("init", "decoder")), "body 'decoder' has 10 inputs and 5"),
        (spoilt("cross", decoder=other("hidden", "decoder")), "takes hidden states, which"),
    ],
)
def test_bodies_that_do_not_fit(proto: onnx.ModelProto, text: str) -> None:
    with pytest.raises(tercet.ModelError, match=text):
        tercet.load(proto).close()


def test_whisper_has_no_masks() -> None:
    proto, _ = drawn_for_sound(1)
    (node,) = proto.graph.node
    (decoder,) = (each.g for each in node.attribute if each.name == "decoder")
    decoder.input.insert(1, ids("encoder_attention_mask", "source"))
    with pytest.raises(tercet.ModelError, match="body 'decoder' has 10 inputs and 5 outputs"):
        tercet.load(proto).close()


def test_a_text_needs_more_than_its_first_token() -> None:
    proto, feeds = drawn(1, "cross")
    feeds["max_length"][0] = 1
    with tercet.load(proto) as model, pytest.raises(tercet.TercetError, match="max_length 1"):
        model.run(feeds)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cross_qk_layer_head", "convert the model without --collect_cross_qk"),
        ("logits_processor", "is not supported"),
    ],
)
def test_what_is_not_supported_of_speech(name: str, text: str) -> None:
    proto, feeds = drawn_for_sound(1)
    (node,) = proto.graph.node
    place = {"logits_processor": 11, "cross_qk_layer_head": 12}[name]
    node.input[place] = name
    feeds[name] = np.ones((1, 2) if place == 12 else 1, np.int32)
    shape = feeds[name].shape
    proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT32, shape))
    with pytest.raises(tercet.TercetError, match=text), tercet.load(proto) as model:
        model.run(feeds)


def test_a_temperature_is_positive() -> None:
    proto, feeds = drawn_for_sound(1)
    feeds["temperature"][:] = 0
    with tercet.load(proto) as model, pytest.raises(tercet.TercetError, match="temperature 0"):
        model.run(feeds)
