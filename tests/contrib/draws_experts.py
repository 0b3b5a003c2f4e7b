"""Samples of mixtures of experts."""

import numpy as np

from .draws_quantized import Array, Rng, bytes_of, constants, perhaps
from .samples import Draw, Sample


def _common(rng: Rng) -> tuple[dict[str, object], dict[str, Array | None], int, int, int]:
    kind = str(rng.choice(["relu", "gelu", "silu", "identity", "swiglu"]))
    count = int(rng.integers(1, 5))
    k = int(rng.integers(1, count + 1))
    attributes: dict[str, object] = {"activation_type": kind, "k": k}
    attributes["normalize_routing_weights"] = int(rng.integers(2))
    if kind == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0}
        if rng.random() < 0.5:
            attributes["swiglu_limit"] = 1.5
    hidden, inner = (16 * int(n) for n in rng.integers(1, 3, 2))
    rows = int(rng.integers(1, 6))
    lead = (rows,) if rng.random() < 0.5 else (2, rows)
    inputs: dict[str, Array | None] = {
        "input": rng.standard_normal((*lead, hidden)).astype(np.float32),
        "router_probs": rng.standard_normal((int(np.prod(lead)), count)).astype(np.float32),
    }
    return attributes, inputs, count, hidden, inner


def moe(rng: Rng) -> Sample:
    attributes, inputs, count, hidden, inner = _common(rng)
    wide = inner * (2 if "swiglu_fusion" in attributes else 1)

    def floats(*shape: int) -> Array:
        return (rng.standard_normal(shape) / 4).astype(np.float32)

    inputs["fc1"], inputs["fc1_bias"] = (
        floats(count, wide, hidden),
        perhaps(rng, floats(count, wide)),
    )
    inputs["fc2"] = floats(count, hidden, inner)
    inputs["fc2_bias"] = perhaps(rng, floats(count, hidden))
    held = constants(inputs, "input", "router_probs")
    return Sample("MoE", inputs, attributes, constants=held, loose=3)


def q_moe(rng: Rng) -> Sample:
    attributes, inputs, count, hidden, inner = _common(rng)
    wide = inner * (2 if "swiglu_fusion" in attributes else 1)
    bits = int(rng.choice([4, 4, 8]))
    block = 16 if rng.random() < 0.5 else 0

    def layer(name: str, columns: int, rows: int) -> None:
        blocks = rows // block if block else 0
        shape = (count, columns, blocks) if block else (count, columns)
        inputs[name] = bytes_of(rng, np.uint8, count, columns, rows * bits // 8)
        inputs[f"{name}_scales"] = (rng.random(shape) / (1 << bits) / 2).astype(np.float32)
        bias = rng.standard_normal((count, columns)).astype(np.float32)
        inputs[f"{name}_bias"] = perhaps(rng, bias)

    # With zero points of one layer alone, onnxruntime's CPU computes columns of four bits roughly.
    given = rng.random() < 0.5

    def zeros(columns: int, rows: int) -> Array | None:
        shape = (count, columns, -(-rows // block * bits // 8)) if block else None
        found = bytes_of(rng, np.uint8, *(shape or (count, columns * bits // 8)))
        return found if given else None

    layer("fc1", wide, hidden)
    layer("fc2", hidden, inner)
    inputs |= {"fc3": None, "fc3_scales": None, "fc3_bias": None}
    inputs["fc1_zero_points"] = zeros(wide, hidden)
    inputs["fc2_zero_points"] = zeros(hidden, inner)
    attributes["expert_weight_bits"] = bits
    if block:
        attributes["block_size"] = block
    held = constants(inputs, "input", "router_probs")
    # onnxruntime's CPU rounds the rows to eight bits for weights of eight bits in blocks.
    return Sample("QMoE", inputs, attributes, constants=held, loose=1000 if bits == 8 else 3)


DRAWS: dict[str, Draw] = {"MoE": moe, "QMoE": q_moe}
