"""Decoders of published sizes with random weights, in the format of onnxruntime-genai's builder.

The graph is that of the builder for Llama: GroupQueryAttention with rotary embedding on caches that
past and present share, skip connections inside the normalizations, weights in float16 or packed for
MatMulNBits. With experts it is that for gpt-oss: a mixture of them (MoE, QMoE) instead of gated
layers, attention sinks, and windows in every other layer. With normalized heads it is that for
Qwen3: queries, keys and values are products of their own. Random weights generate nonsense, but at
the same speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...runtime.ir.types import Array

OPSET = 21
#: Weights are taken from a pool of this many random numbers, each from another offset on.
POOL = 1 << 22


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """The sizes of a decoder.

    Attributes:
        hidden: width of a position.
        inner: width of the gated layers.
        layers: number of blocks.
        heads: of the queries.
        groups: heads of keys and values.
        vocabulary: number of tokens.
        positions: that rotations are known for.
        head: elements of a head; 0 for the width by the number of heads.
        experts: number of experts per block; 0 for gated layers.
        chosen: experts per position.
        normed: whether heads of queries and keys are normalized.
    """

    hidden: int
    inner: int
    layers: int
    heads: int
    groups: int
    vocabulary: int
    positions: int = 32768
    head: int = 0
    experts: int = 0
    chosen: int = 4
    normed: bool = False

    @property
    def size(self) -> int:
        """Elements of a head."""
        return self.head or self.hidden // self.heads


SHAPES = {
    "llama-3.2-1b": DecoderSizes(2048, 8192, 16, 32, 8, 128256),
    "llama-3-8b": DecoderSizes(4096, 14336, 32, 32, 8, 128256),
    "qwen2.5-0.5b": DecoderSizes(896, 4864, 24, 14, 2, 151936),
    "qwen3-0.6b": DecoderSizes(1024, 3072, 28, 16, 8, 151936, 40960, head=128, normed=True),
    "gpt-oss-20b": DecoderSizes(2880, 2880, 24, 64, 8, 201088, head=64, experts=32),
}


@dataclass(frozen=True, slots=True)
class Packing:
    """How the weights of products are held.

    Attributes:
        bits: 16 for float16, else those of MatMulNBits.
        block: rows of a weight that share a scale.
    """

    bits: int = 16
    block: int = 32


class _DecoderWriter:
    """Writes a graph, its weights into a file next to it."""

    def __init__(self, path: Path, packing: Packing) -> None:
        self.path, self.packing = path, packing
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._data = (path.parent / f"{path.name}.data").open("wb")
        self._random = np.random.default_rng(0)
        self._pool = self._random.standard_normal(POOL).astype(np.float16)
        self._bytes = _packed_numbers(self._random, packing.bits)
        self._pools: dict[tuple[float, float], Array] = {}

    def close(self) -> None:
        self._data.close()

    def node(self, kind: str, *inputs: str, outputs: Sequence[str] = (), **given: Any) -> str:
        names = list(outputs) or [f"v{len(self.nodes)}"]
        domain = "com.microsoft" if kind in _CONTRIB else ""
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **given))
        return names[0]

    def constant(self, name: str, data: Array) -> str:
        self.weights.append(onnx.numpy_helper.from_array(data, name))
        return name

    def _stored(self, name: str, dtype: int, dims: Sequence[int], parts: Iterator[Array]) -> str:
        tensor = TensorProto(name=name, data_type=dtype, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        self._data.seek(-(-self._data.tell() // 4096) * 4096)
        offset = self._data.tell()
        for part in parts:
            self._data.write(part.view(np.uint8).data)
        entries = {"location": f"{self.path.name}.data", "offset": offset}
        entries["length"] = self._data.tell() - offset
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        self.weights.append(tensor)
        return name

    def _stretches(self, pool: Array, count: int) -> Iterator[Array]:
        while count:
            start = int(self._random.integers(0, POOL // 2))
            part = pool[start : start + min(count, POOL // 2)]
            yield part
            count -= len(part)

    def _numbers(self, scale: float, least: float = 0.0) -> Array:
        """Return random float16, computed once: of a standard deviation, or from `least` on.

        Those from `least` on are `least` plus absolute values of numbers of this deviation.
        """
        key = scale, least
        if key not in self._pools:
            found = self._pool * np.float16(scale)
            self._pools[key] = np.abs(found) + np.float16(least) if least else found
        return self._pools[key]

    def floats(self, name: str, dims: Sequence[int], scale: float) -> str:
        """Store random float16 of a standard deviation."""
        count = int(np.prod(dims))
        parts = self._stretches(self._numbers(scale), count)
        return self._stored(name, TensorProto.FLOAT16, dims, parts)

    def product(self, x: str, name: str, inner: int, outer: int, **given: Any) -> str:
        """Multiply by random weights [inner, outer]."""
        scale = inner**-0.5
        if self.packing.bits == 16:
            return self.node("MatMul", x, self.floats(name, (inner, outer), scale), **given)
        bits, block = self.packing.bits, self.packing.block
        blocks = -(-inner // block)
        dims = (outer, blocks, block * bits // 8)
        packed, scales = self._packed(name, dims, (outer * blocks,), scale)
        sizes = {"K": inner, "N": outer, "bits": bits, "block_size": block}
        return self.node("MatMulNBits", x, packed, scales, **sizes, **given)

    def _packed(
        self, name: str, dims: Sequence[int], of_scales: Sequence[int], scale: float
    ) -> tuple[str, str]:
        """Store random packed weights of a standard deviation, and their scales."""
        parts = self._stretches(self._bytes, int(np.prod(dims)))
        packed = self._stored(f"{name}.packed", TensorProto.UINT8, dims, parts)
        spread = scale / (2 ** (self.packing.bits - 1)) * 1.7
        count = int(np.prod(of_scales))
        factors = self._stretches(self._numbers(0.2 * spread, spread), count)
        return packed, self._stored(f"{name}.scales", TensorProto.FLOAT16, of_scales, factors)

    def experts(self, x: str, router: str, name: str, shape: DecoderSizes) -> str:
        """Add a mixture of experts with SwiGLU, as gpt-oss has it."""
        count, hidden, inner = shape.experts, shape.hidden, shape.inner
        bits, block = self.packing.bits, self.packing.block
        inputs = [x, router]
        for layer, columns, rows in (("fc1", 2 * inner, hidden), ("fc2", hidden, inner)):
            own, scale = f"{name}.{layer}", rows**-0.5
            if bits == 16:
                inputs.append(self.floats(own, (count, columns, rows), scale))
            else:
                dims = (count, columns, rows * bits // 8)
                inputs += self._packed(own, dims, (count, columns, -(-rows // block)), scale)
            inputs.append(self.floats(f"{own}.bias", (count, columns), 0.1))
        given: dict[str, Any] = {"k": shape.chosen, "normalize_routing_weights": 1}
        given |= {"activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": 7.0}
        given |= {"activation_alpha": 1.702, "activation_beta": 1.0}
        if bits == 16:
            return self.node("MoE", *inputs, **given)
        return self.node("QMoE", *inputs, expert_weight_bits=bits, block_size=block, **given)


def _packed_numbers(random: np.random.Generator, bits: int) -> Array:
    """Return packed numbers that are symmetric about the default zero point, 2^(bits - 1).

    With a mean, a product of random weights is mostly that of the sum of its input, and a decoder
    amplifies every rounding error.
    """
    if bits == 16:
        return np.empty(0, np.uint8)
    count = 8 // bits
    numbers = random.integers(1, 2**bits, (POOL, count), np.uint8)
    return np.bitwise_or.reduce(numbers << (bits * np.arange(count, dtype=np.uint8)), axis=1)


_CONTRIB = (
    *("GroupQueryAttention", "SkipSimplifiedLayerNormalization", "MatMulNBits", "MoE", "QMoE"),
)
#: Keys that attention of every other layer sees, of decoders with experts.
WINDOW = 128


def write(path: Path, shape: DecoderSizes, packing: Packing) -> None:
    """Write a decoder; its weights are in a file with `.data` after its name."""
    w = _DecoderWriter(path, packing)
    try:
        graph = _graph(w, shape)
    finally:
        w.close()
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, path)


def _graph(w: _DecoderWriter, s: DecoderSizes) -> onnx.GraphProto:
    one = w.constant("one", np.array([1], np.int64))
    total = w.node("ReduceSum", "attention_mask", one, keepdims=0)
    last_key = w.node("Cast", w.node("Sub", total, one), to=TensorProto.INT32)
    length = w.node("Gather", w.node("Shape", "attention_mask"), one, axis=0)
    length = w.node("Squeeze", w.node("Cast", length, to=TensorProto.INT32))
    angles = np.outer(np.arange(s.positions), 5e5 ** (-np.arange(0, s.size, 2) / s.size))
    rotations = [w.constant(n, f(angles).astype(np.float16)) for n, f in _ANGLES.items()]
    rows = w.constant("rows", np.array([-1, s.experts], np.int64)) if s.experts else ""
    embedding = w.floats("embed_tokens", (s.vocabulary, s.hidden), 1.0)
    x = w.node("Gather", embedding, "input_ids")
    skip, hidden = "", x
    for i in range(s.layers):
        x, skip = _normalized(w, hidden, skip, f"layers.{i}.input_layernorm", s.hidden)
        qkv = _normed_heads(w, s, x, i) if s.normed else (_joined_heads(w, s, x, i), "", "")
        pasts = [f"past_key_values.{i}.{kind}" for kind in _KINDS]
        presents = [f"present.{i}.{kind}" for kind in _KINDS]
        more: dict[str, Any] = {}
        inputs = [*qkv, *pasts, last_key, length, *rotations]
        if s.experts:
            inputs += ["", "", w.floats(f"layers.{i}.sinks", (s.heads,), 1.0)]
            more = {"local_window_size": WINDOW if i % 2 == 0 else -1}
        attended = w.node(
            "GroupQueryAttention",
            *inputs,
            outputs=[f"layers.{i}.attention", *presents],
            num_heads=s.heads,
            kv_num_heads=s.groups,
            do_rotary=1,
            scale=s.size**-0.5,
            **more,
        )
        hidden = w.product(attended, f"layers.{i}.o_proj", s.heads * s.size, s.hidden)
        x, skip = _normalized(w, hidden, skip, f"layers.{i}.post_attention_layernorm", s.hidden)
        if s.experts:
            weights = w.floats(f"layers.{i}.router", (s.hidden, s.experts), s.hidden**-0.5)
            router = w.node("Reshape", w.node("MatMul", x, weights), rows)
            hidden = w.experts(x, router, f"layers.{i}.experts", s)
            continue
        gate = w.product(x, f"layers.{i}.gate_proj", s.hidden, s.inner)
        up = w.product(x, f"layers.{i}.up_proj", s.hidden, s.inner)
        gate = w.node("Mul", gate, w.node("Sigmoid", gate))
        hidden = w.product(w.node("Mul", gate, up), f"layers.{i}.down_proj", s.inner, s.hidden)
    x, _ = _normalized(w, hidden, skip, "norm", s.hidden)
    if w.packing.bits != 16:
        w.packing = Packing()  # the head stays as it is
    w.product(x, "lm_head", s.hidden, s.vocabulary, outputs=["logits"])
    return helper.make_graph(w.nodes, "decoder", *_ends(s), w.weights)


def _ends(s: DecoderSizes) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """Return the inputs and the outputs, caches among them."""
    half, integers, info = TensorProto.FLOAT16, TensorProto.INT64, helper.make_tensor_value_info
    inputs = [
        info("input_ids", integers, ["batch_size", "sequence_length"]),
        info("attention_mask", integers, ["batch_size", "total_sequence_length"]),
    ]
    outputs = [info("logits", half, ["batch_size", "sequence_length", s.vocabulary])]
    for side, length, infos in (
        ("past_key_values", "past_sequence_length", inputs),
        ("present", "total_sequence_length", outputs),
    ):
        dims = ["batch_size", s.groups, length, s.size]
        names = (f"{side}.{i}.{kind}" for i in range(s.layers) for kind in _KINDS)
        infos += [info(name, half, dims) for name in names]
    return inputs, outputs


def _joined_heads(w: _DecoderWriter, s: DecoderSizes, x: str, layer: int) -> str:
    """Add the product whose rows are queries, keys and values."""
    wide = (s.heads + 2 * s.groups) * s.size
    return w.product(x, f"layers.{layer}.qkv_proj", s.hidden, wide)


def _normed_heads(w: _DecoderWriter, s: DecoderSizes, x: str, layer: int) -> tuple[str, str, str]:
    """Add queries, keys and values, the heads of the former two normalized."""
    own = {"q": s.heads, "k": s.groups, "v": s.groups}
    rows = [
        w.product(x, f"layers.{layer}.{name}_proj", s.hidden, count * s.size)
        for name, count in own.items()
    ]
    for i, name in enumerate("qk"):
        at, count = f"layers.{layer}.{name}_norm", own[name]
        heads = w.constant(f"{at}.heads", np.array([0, -1, count, s.size], np.int64))
        joined = w.constant(f"{at}.joined", np.array([0, -1, count * s.size], np.int64))
        y, _ = _normalized(w, w.node("Reshape", rows[i], heads), "", at, s.size)
        rows[i] = w.node("Reshape", y, joined)
    q, k, v = rows
    return q, k, v


_KINDS = ("key", "value")
_ANGLES = {"cos_cache": np.cos, "sin_cache": np.sin}


def _normalized(w: _DecoderWriter, x: str, skip: str, name: str, size: int) -> tuple[str, str]:
    """Add a layer's result to what was before, and normalize; return both."""
    scale = w.constant(f"{name}.weight", np.ones(size, np.float16))
    if not skip:
        return w.node(
            "SimplifiedLayerNormalization", x, scale, epsilon=1e-5, axis=-1, stash_type=1
        ), x
    outputs = [f"{name}.y", "", "", f"{name}.sum"]
    w.node("SkipSimplifiedLayerNormalization", skip, x, scale, outputs=outputs, epsilon=1e-5)
    return outputs[0], outputs[3]
