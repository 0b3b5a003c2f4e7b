"""Samples of layers whose weights are bytes."""

import numpy as np

from .draws_attention import masks
from .draws_quantized import Array, Rng, bytes_of, constants, kind, perhaps, point, scale
from .samples import TOLERANCE, Draw, Sample


def attention(rng: Rng) -> Sample:
    wide = kind(rng)
    b, s, n, size, width = (int(rng.integers(1, 5)) for _ in range(5))
    past = int(rng.integers(1, 4)) if rng.random() < 0.4 else None
    columns = 3 * n * size
    each = (columns,) if rng.random() < 0.4 else ()
    unidirectional = int(rng.integers(2))
    state = None
    if past is not None:
        state = rng.standard_normal((2, b, n, past, size)).astype(np.float32)
    inputs: dict[str, Array | None] = {
        "input": bytes_of(rng, np.uint8, b, s, width),
        "weight": bytes_of(rng, wide, width, columns),
        "bias": rng.standard_normal(columns).astype(np.float32),
        "input_scale": scale(rng) / 10,
        "weight_scale": scale(rng, *each) / 10,
        "mask_index": masks(rng, b, s, s + (past or 0), forms="none ends flat"),
        "input_zero_point": point(rng, np.uint8),
        "weight_zero_point": point(rng, wide, *each),
        "past": state,
    }
    attributes: dict[str, object] = {"num_heads": n, "unidirectional": unidirectional}
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    if rng.random() < 0.3:
        attributes["mask_filter_value"] = -5.0
    outputs = (True,) if state is None else (True, True)
    names = constants(inputs, "input", "mask_index", "past")
    return Sample("QAttention", inputs, attributes, outputs, names, loose=3)


def embedding(rng: Rng) -> Sample:
    dtype, hidden = kind(rng), 4 * int(rng.integers(1, 4))
    b, s = (int(n) for n in rng.integers(1, 6, 2))
    has_segments = rng.random() < 0.6
    inputs: dict[str, Array | None] = {
        "ids": rng.integers(0, 7, (b, s)).astype(np.int32),
        "segments": rng.integers(0, 2, (b, s)).astype(np.int32) if has_segments else None,
        "words": bytes_of(rng, dtype, 7, hidden),
        "places": bytes_of(rng, dtype, 9, hidden),
        "kinds": bytes_of(rng, dtype, 2, hidden) if has_segments else None,
        "gamma": bytes_of(rng, dtype, hidden),
        "beta": bytes_of(rng, dtype, hidden),
        "mask": perhaps(rng, rng.integers(0, 2, (b, s)).astype(np.int32)),
    }
    names = ("words", "places", "kinds", "gamma", "beta")
    for suffix in ("scale", "zero"):
        for name in names:
            made = scale(rng) if suffix == "scale" else point(rng, dtype)
            inputs[f"{name}_{suffix}"] = made if inputs[name] is not None else None
    held = constants(inputs, "ids", "segments", "mask")
    return Sample(
        "QEmbedLayerNormalization", inputs, {"epsilon": 1e-5}, (True, True), held, loose=5
    )


def lstm(rng: Rng) -> Sample:
    """onnxruntime quantizes X and the states by their ranges, too, which tercet does not.

    Results differ by at most what half a step of each of these adds to a gate.
    """
    wide = kind(rng)
    steps, batch, width, hidden = (int(n) for n in rng.integers(1, 6, 4))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    each = (count, 4 * hidden) if rng.random() < 0.5 else (count,)

    def states(*shape: int) -> Array:
        return (rng.standard_normal(shape) / 2).astype(np.float32)

    zero = np.zeros(each, wide) if wide is np.int8 else np.full(each, 128, wide)
    inputs: dict[str, Array | None] = {
        "X": states(steps, batch, width),
        "W": bytes_of(rng, wide, count, width, 4 * hidden),
        "R": bytes_of(rng, wide, count, hidden, 4 * hidden),
        "B": perhaps(rng, states(count, 8 * hidden)),
        "lens": None,
        "h": perhaps(rng, states(count, batch, hidden), 0.4),
        "c": perhaps(rng, states(count, batch, hidden), 0.4),
        "P": perhaps(rng, states(count, 3 * hidden), 0.3),
        "W_scale": scale(rng, *each) / 10,
        "W_zero": zero,
        "R_scale": scale(rng, *each) / 10,
        "R_zero": zero,
    }
    attributes = {"direction": direction, "hidden_size": hidden}
    names = constants(inputs, "X", "h", "c")
    gates = _half_steps(inputs, "X", "W", zero) + _half_steps(inputs, "h", "R", zero)
    loose = gates / TOLERANCE[np.dtype("float32")]
    return Sample("DynamicQuantizeLSTM", inputs, attributes, (True,) * 3, names, loose=loose)


def _half_steps(inputs: dict[str, Array | None], x: str, w: str, zero: Array) -> float:
    """Return what half a step of 8 bits of x adds to x @ w; x is an operand, or states within 1."""
    given, weights, factor = inputs[x], inputs[w], inputs[f"{w}_scale"]
    assert weights is not None
    assert factor is not None
    spread = np.ptp(np.append(0 if given is None else given, (-1, 1) if x == "h" else 0))
    columns = np.abs(weights.astype(np.float64) - float(zero.flat[0])).sum(1)
    return float((columns * factor.reshape(len(weights), -1)).max() * spread / 255 / 2)


def transposed_convolution(rng: Rng) -> Sample:
    group = int(rng.integers(1, 3))
    strides = [int(n) for n in rng.integers(1, 3, 2)]
    inputs: dict[str, Array | None] = {
        "X": rng.standard_normal((2, 2 * group, 4, 5)).astype(np.float32),
        "W": rng.standard_normal((2 * group, 3, 3, 2)).astype(np.float32),
        "Pads": rng.integers(0, 2, 4),
        "B": perhaps(rng, rng.standard_normal(3 * group).astype(np.float32)),
    }
    attributes: dict[str, object] = {"group": group, "strides": strides}
    if rng.random() < 0.4:
        attributes["output_padding"] = [s - 1 for s in strides]
    names = ("W", "B", "Pads") if rng.random() < 0.5 else ("W", "B")
    return Sample("ConvTransposeWithDynamicPads", inputs, attributes, constants=names, loose=2)


DRAWS: dict[str, Draw] = {
    "QAttention": attention,
    "QEmbedLayerNormalization": embedding,
    "DynamicQuantizeLSTM": lstm,
    "ConvTransposeWithDynamicPads": transposed_convolution,
}
