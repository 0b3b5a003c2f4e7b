"""Nodes of com.microsoft that contradict their operator, and what is refused with a recipe."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tercet

from .draws_hyper import DRAWS as HYPER
from .samples import DOMAIN, Sample, model_of

X = np.ones((2, 3, 8), np.float32)
W = np.ones((8, 24), np.float32)
VECTOR = np.ones(8, np.float32)
LENGTHS = np.array([2, 2], np.int32)
TOTAL = np.array(3, np.int32)
CACHE = np.ones((2, 2, 4, 4), np.float32)
IDS = np.zeros((2, 3), np.int64)
ANGLES = np.ones((9, 2), np.float32)


def quantized_with_past(past: np.ndarray) -> dict[str, Any]:
    weight, scale = W.astype(np.int8), np.ones((), np.float32)
    inputs = {"x": X.astype(np.uint8), "w": weight, "b": W[0], "xs": scale, "ws": scale}
    return inputs | {"mask": None, "xz": None, "wz": None, "past": past}


def grouped(**changes: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {"q": X, "k": X, "v": X, "pk": CACHE, "pv": CACHE}
    return inputs | {"lens": LENGTHS, "total": TOTAL} | changes


def grouped_in_bytes(**changes: Any) -> dict[str, Any]:
    inputs = grouped(pk=CACHE.astype(np.int8), pv=CACHE.astype(np.int8))
    absent = dict.fromkeys(("cos", "sin", "ids", "bias", "sink"))
    return inputs | absent | {"ks": VECTOR[:1], "vs": VECTOR[:1]} | changes


IN_BYTES: dict[str, Any] = {"num_heads": 2, "kv_num_heads": 2, "kv_cache_bit_width": 8}
IN_BYTES |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
#: Operator, inputs, attributes, and what the message says.
WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("QuickGelu", {"x": X}, {"alph": 1.0}, r"unknown attribute 'alph'; did you mean 'alpha'"),
    ("QuickGelu", {"x": X}, {"alpha": 1}, r"'alpha' must be a float"),
    ("QuickGelu", {}, {}, r"leaves out input 0 \(x\)"),
    ("Gelu", {"x": X, "y": X}, {}, r"has 2 inputs; the operator takes 1"),
    ("Gelu", {"x": X.astype(np.int32)}, {}, r"is of int32; expected bfloat16 or float16"),
    ("BiasGelu", {"x": X, "b": VECTOR.astype(np.float16)}, {}, r"expected float32, as a is"),
    ("BiasGelu", {"x": X, "b": VECTOR[:7]}, {}, r"bias is float32\[7\]; expected \[8\]"),
    ("SkipLayerNormalization", {"x": X, "s": X, "g": VECTOR[:4]}, {}, r"gamma is float32\[4\]"),
    ("SkipLayerNormalization", {"x": X, "s": X[:, :2], "g": VECTOR}, {}, r"Add"),
    ("SkipLayerNormalization", {"x": X[:1], "s": X, "g": VECTOR}, {}, r"larger than the input"),
    ("MultiHeadAttention", {"q": X, "k": X, "v": X}, {}, r"lacks the attribute 'num_heads'"),
    ("MultiHeadAttention", {"q": X, "k": X, "v": X}, {"num_heads": 0}, r"expected 1 or more"),
    ("MultiHeadAttention", {"q": X, "k": X, "v": X}, {"num_heads": 3}, r"hidden size"),
    ("MultiHeadAttention", {"q": X}, {"num_heads": 2}, r"leaves out the key"),
    ("Attention", {"x": X, "w": W}, {"num_heads": 5}, r"not a multiple of 5 heads"),
    ("Attention", {"x": X, "w": W}, {"num_heads": 2, "qkv_hidden_sizes": [8, 4, 12]}, r"first two"),
    ("Attention", {"x": X, "w": W, "b": None, "mask": None, "past": np.ones((3, 2, 2, 4, 4), "f")},
     {"num_heads": 2}, r"past is float32\[3,2,2,4,4\]; expected \[2,2,2,4,4\]"),
    ("QAttention", quantized_with_past(np.ones((3, 2, 2, 4, 4), "f")),
     {"num_heads": 2}, r"past is float32\[3,2,2,4,4\]; expected \[2,2,2,4,4\]"),
    ("GroupQueryAttention", grouped(), {"num_heads": 3, "kv_num_heads": 2}, r"a multiple of kv"),
    ("GroupQueryAttention", grouped(v=None), {"num_heads": 2, "kv_num_heads": 2}, r"together"),
    ("GroupQueryAttention", grouped(pk=CACHE[:, :1]), {"num_heads": 2, "kv_num_heads": 2},
     r"past_key is float32\[2,1,4,4\]; expected \[2,2,4,4\]"),
    ("GroupQueryAttention", grouped(), {"num_heads": 2, "kv_num_heads": 2, "do_rotary": 1},
     r"needs cos_cache and sin_cache"),
    ("GroupQueryAttention", grouped(),
     {"num_heads": 2, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR"}, r"needs a scale"),
    ("GroupQueryAttention", grouped_in_bytes(), IN_BYTES | {"kv_cache_bit_width": 4},
     r"kv_cache_bit_width=4 needs a cache of uint8, not int8"),
    ("GroupQueryAttention", grouped_in_bytes(pk=CACHE, pv=CACHE), IN_BYTES,
     r"kv_cache_bit_width=8 needs a cache of int8 or float8_e4m3fn, not float32"),
    ("RotaryEmbedding", {"x": X, "ids": IDS, "c": ANGLES, "s": ANGLES},
     {"rotary_embedding_dim": 4}, r"needs num_heads"),
    ("RotaryEmbedding", {"x": X[..., :6], "ids": IDS, "c": ANGLES, "s": ANGLES}, {}, r"multiple"),
    ("GroupNorm", {"x": X[None], "g": VECTOR, "b": VECTOR}, {"groups": 2, "activation": 2},
     r"activation=2; expected 0, or 1"),
    ("EmbedLayerNormalization", {"ids": LENGTHS}, {}, r"leaves out input 2"),
    ("LinearAttention", {"q": X, "k": X, "v": X}, {"q_num_heads": 2, "kv_num_heads": 3},
     r"key is .*their number must divide kv_num_heads=3"),
]  # fmt: skip
#: The same of what is valid, and not served.
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("Attention", {"x": X, "w": W}, {"num_heads": 2, "do_rotary": 1}, r"RotaryEmbedding"),
    ("Attention", {"x": X, "w": W}, {"num_heads": 2, "past_present_share_buffer": 1}, r"apart"),
    ("GroupQueryAttention", grouped(),
     {"num_heads": 2, "kv_num_heads": 2, "k_quant_type": "PER_TENSOR", "local_window_size": 2,
      "sliding_window_cache": 1}, r"of floats"),
    ("FusedGemm", {"a": W, "b": W.T.copy()}, {"activation": "Relo"}, r"did you mean 'Relu'"),
    ("LinearAttention", {"q": X, "k": X, "v": X},
     {"q_num_heads": 2, "kv_num_heads": 2, "state_window": 2}, r"speculative"),
    ("GatherPacked", {"data": np.zeros((2, 66), np.uint8), "at": np.zeros(1, np.int64)},
     {"K": 256, "packed_type": 16}, r"packed_type=16: .* to MatMulNBits"),
    ("GatedDeltaNet", {"query": np.zeros((2, 1, 1), np.float32)}, {"state_update_capacity": 2},
     r"speculative"),
]  # fmt: skip


def attempt(op: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
    outputs = {"GroupQueryAttention": (True, True, True), "LinearAttention": (True, True)}.get(op)
    tercet.load(model_of(Sample(op, inputs, attributes, outputs or (True,)))).close()


@pytest.mark.parametrize(("op", "inputs", "attributes", "text"), WRONG)
def test_what_contradicts_the_operator(op: str, inputs: Any, attributes: Any, text: str) -> None:
    with pytest.raises(tercet.ModelError, match=text) as caught:
        attempt(op, inputs, attributes)
    assert f"node 'node' ({DOMAIN}::{op})" in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("op", "inputs", "attributes", "text"), REFUSED)
def test_what_is_refused(op: str, inputs: Any, attributes: Any, text: str) -> None:
    with pytest.raises(tercet.UnsupportedError, match=text) as caught:
        attempt(op, inputs, attributes)
    assert f"node 'node' ({DOMAIN}::{op})" in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("domain", "op", "text"),
    [
        (f"{DOMAIN}.nchwc", "Conv", "ORT_ENABLE_EXTENDED"),
        (DOMAIN, "ReorderInput", "ORT_ENABLE_EXTENDED"),
        (DOMAIN, "EPContext", "compiled for one device"),
        (DOMAIN, "SparseToDenseMatMul", "MatMul of a dense one"),
        (DOMAIN, "Solve", "no runtime has it; convert another classifier"),
        (DOMAIN, "PagedAttention", "GroupQueryAttention"),
        (DOMAIN, "Mamba2Verify", "speculative decoding"),
        ("ai.onnx.contrib", "AudioDecoder", "onnxruntime-extensions"),
        ("com.amd.quark", "ExtendedInstanceNormalization", "such as its A8W8"),
        ("qonnx.custom_op.general", "QuantLSTMCell", "leave this layer in floats"),
        ("qonnx.custom_op.general", "GenericPartition", "use the file of Brevitas"),
        ("finn.custom_op.fpgadataflow.hls", "MVAU_hls", "use the file of Brevitas"),
        ("org.openvinotoolkit", "PriorBox", "an operator of OpenVINO"),
        ("qonnx.custom_op.channels_last", "Resize", "use the file before that"),
        ("trt", "TRT_FP4QDQ", "TensorRT's plugins"),
    ],
)
def test_recipes_of_operators_that_nobody_knows(domain: str, op: str, text: str) -> None:
    node = helper.make_node(op, ["x"], ["y"], domain=domain)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    with pytest.raises(tercet.UnsupportedError, match=text):
        tercet.load(helper.make_model(graph, opset_imports=imports, ir_version=10))


def test_the_callers_own_operator_comes_first() -> None:
    proto = model_of(Sample("QuickGelu", {"x": X}))
    with tercet.load(proto, operators={(DOMAIN, "QuickGelu"): lambda x: x + 1}) as loaded:
        np.testing.assert_array_equal(loaded(X)[0], X + 1)


def test_nodes_tell_where_they_come_from() -> None:
    """Every node of what stands for one of the file's has its name."""
    inputs = {"x": X, "bias": VECTOR}
    with tercet.load(model_of([Sample("FastGelu", inputs)]), stop_at=0) as loaded:
        assert [(each.kind, each.origin) for each in loaded.graph.nodes] == [
            ("Add", ("s0_node",)),
            ("Gelu", ("s0_node",)),
        ]


def test_heads_are_normalized_before_they_are_rotated() -> None:
    """Queries and keys behind an RMSNormalization, which onnxruntime's CPU does not run inside."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 3, 2, 16)).astype(np.float32) for _ in range(3))
    weights = [rng.standard_normal(16).astype(np.float32) for _ in range(2)]
    angles = [rng.standard_normal((9, 8)).astype(np.float32) for _ in range(2)]

    def normal(x: Any, w: Any) -> Any:
        wide = x.astype(np.float64)
        return (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * w).astype(np.float32)

    def run(q: Any, k: Any, **more: Any) -> Any:
        rows: dict[str, Any] = {n: x.reshape(2, 3, 32) for n, x in (("q", q), ("k", k), ("v", v))}
        rows |= {"pk": None, "pv": None, "lens": LENGTHS, "total": TOTAL}
        rows |= {"cos": angles[0], "sin": angles[1], **dict.fromkeys(("ids", "bias", "sink"))}
        rows |= {**dict.fromkeys(("ks", "vs")), **more}
        how = {"num_heads": 2, "kv_num_heads": 2, "do_rotary": 1}
        sample = Sample("GroupQueryAttention", rows, how, (True, True, True))
        with tercet.load(model_of(sample)) as loaded:
            return loaded.run({n: x for n, x in rows.items() if x is not None})

    inside = run(q, k, qw=weights[0], kw=weights[1])
    outside = run(normal(q, weights[0]), normal(k, weights[1]))
    for name, wanted in outside.items():
        np.testing.assert_allclose(inside[name], wanted, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "kind", "text"),
    [
        ("UnfoldTensor", {"x": X}, {"size": 1 << 31}, tercet.LimitError, "2147483648 positions"),
        ("UnfoldTensor", {"x": X}, {"size": 1 << 62}, tercet.LimitError, "positions"),
        (
            "RelativePositionBias",
            {"t": X, "q": np.array([3]), "k": np.array([3])},
            {"max_distance": 1 << 40},
            tercet.LimitError,
            "buckets of 1099511627776 distances",
        ),
        (
            "GatherBlockQuantized",
            {
                "data": np.ones((4, 16), np.uint8),
                "indices": np.array([0]),
                "scales": np.ones((4, 1), np.float32),
            },
            {"quantize_axis": 1 << 31},
            tercet.ModelError,
            "quantize_axis|axis|sense",
        ),
    ],
)
def test_extreme_attributes(
    op: str, inputs: Any, attributes: Any, kind: type[tercet.TercetError], text: str
) -> None:
    proto = model_of(Sample(op, inputs, attributes))
    with pytest.raises(kind, match=text) as caught:
        tercet.load(proto, max_bytes=256 << 20)
    assert f"node 'node' ({DOMAIN}::{op})" in str(caught.value)


def test_what_a_definition_cannot_compute_names_the_node() -> None:
    """The net under all definitions: here a token that its dtype does not have."""
    drawn = (HYPER["NGramHashMapping"](np.random.default_rng(seed)) for seed in range(20))
    sample = next(each for each in drawn if next(iter(each.given.values())).dtype == np.int32)
    proto = model_of(replace(sample, attributes={**sample.attributes, "pad_id": 1 << 62}))
    with pytest.raises(tercet.ModelError, match=r"'node' \(com.microsoft::NGramHashMapping\)"):
        tercet.load(proto)
