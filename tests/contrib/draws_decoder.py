"""Samples of attention of one token to what lies in a buffer."""

from typing import Any

import numpy as np

from .draws_simple import Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]


def _seen(rng: Rng, rows: int, keys: int) -> np.ndarray:
    """Return a mask whose rows see a key each; see `draws_attention.masks`."""
    seen = rng.random((rows, keys)) < 0.7
    seen[:, 0] = True
    return seen.astype(np.int32)


def masked(rng: Rng) -> Sample:
    batch, beams, heads = (int(rng.integers(1, 4)) for _ in range(3))
    size, past = 4 * int(rng.integers(1, 4)), int(rng.integers(0, 5))
    rows, hidden = batch * beams, heads * size
    cross = rng.random() < 0.3
    total = past + 1
    attributes: dict[str, Any] = {"num_heads": heads}
    if rng.random() < 0.4:
        attributes["scale"] = 0.3
    if rng.random() < 0.4:
        attributes["mask_filter_value"] = -50.0
    inputs: Inputs = {"query": floats(rng, rows, 1, hidden)}
    if cross:
        length = int(rng.integers(1, 6))
        for name in ("key", "value"):
            inputs[name] = floats(rng, rows, heads, length, size)
        inputs["mask_index"] = perhaps(rng, _seen(rng, rows, length))
        inputs["attention_bias"] = None
        states: tuple[str, ...] = ()
    else:
        inputs |= {name: floats(rng, rows, 1, hidden) for name in ("key", "value")}
        inputs["mask_index"] = perhaps(rng, _seen(rng, rows, total))
        bias = floats(rng, 1, heads, 1, total)
        inputs["attention_bias"] = perhaps(rng, bias, 0.3)
        room = past + int(rng.integers(1, 4))
        states = ("past_key", "past_value")
        attributes["past_present_share_buffer"] = 1  # onnxruntime's CPU has no other form
        for name in states:
            inputs[name] = floats(rng, rows, heads, room, size)
        inputs["past_sequence_length"] = np.array([past], np.int32)
        if beams > 1 and rng.random() < 0.7:
            inputs["beam_width"] = np.array([beams], np.int32)
            chosen = rng.integers(0, beams, (batch, beams, room))
            inputs["cache_indirection"] = chosen.astype(np.int32)
    for name in ("past_key", "past_value", "past_sequence_length", "beam_width"):
        inputs.setdefault(name, None)
    inputs.setdefault("cache_indirection", None)
    inputs["bias"] = perhaps(rng, floats(rng, 3 * hidden), 0.3)
    outputs = (True, bool(states), bool(states))
    return Sample("DecoderMaskedMultiHeadAttention", inputs, attributes, outputs)


DRAWS: dict[str, Draw] = {"DecoderMaskedMultiHeadAttention": masked}
