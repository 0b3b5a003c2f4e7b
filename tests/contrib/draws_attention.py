"""Samples of attention and of rotary embeddings."""

from dataclasses import replace
from typing import Any

import numpy as np

from .draws_simple import DTYPES, Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def rotary(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, s, n, pairs = (int(rng.integers(1, 5)) for _ in range(4))
    partial = rng.random() < 0.4
    size = 2 * pairs + (2 * int(rng.integers(1, 3)) if partial else 0)
    shape = (b, n, s, size) if rng.random() < 0.4 else (b, s, n * size)
    where = (
        np.array([int(rng.integers(0, 8))]) if rng.random() < 0.5 else rng.integers(0, 12, (b, s))
    )
    inputs: Inputs = {
        "x": floats(rng, *shape, dtype=dtype),
        "position_ids": where.astype(np.int64),
        "cos_cache": floats(rng, 12, pairs, dtype=dtype),
        "sin_cache": floats(rng, 12, pairs, dtype=dtype),
    }
    attributes = {"interleaved": int(rng.integers(2))}
    if partial:
        attributes |= {"num_heads": n, "rotary_embedding_dim": 2 * pairs}
    elif rng.random() < 0.3:
        attributes |= {"num_heads": n}
    if rng.random() < 0.2:
        attributes |= {"is_packed_batching": 1}
    return Sample("RotaryEmbedding", inputs, attributes)


def masks(rng: Rng, b: int, s: int, total: int, *, forms: str) -> np.ndarray | None:
    """Return a mask of one of these forms; each row sees a key.

    Where none is seen, scores are sums with -10000, and what they differ by is rounded to 1e-3.
    """
    form = str(rng.choice(forms.split()))
    ends = rng.integers(1, total + 1, b)
    match form:
        case "none":
            return None
        case "ends":
            return ints(*ends)
        case "both":
            return ints(*ends, *(rng.integers(0, end) for end in ends))
        case "sums":
            sums = np.arange(b + 1)
            return ints(*ends, *(sums * s), *(sums * total))
        case "dummy":
            return np.ones((rng.choice([1, b]), 1), np.int32)
        case "rows":
            shape = (b, s, total)
        case _:
            shape = (b, total)
    seen = rng.integers(0, 2, shape).astype(np.int32)
    seen[..., 0] = 1
    return seen


def scores(rng: Rng, b: int, n: int, s: int, total: int, dtype: str) -> np.ndarray | None:
    shape = (int(rng.choice([1, b])), int(rng.choice([1, n])), s, total)
    return perhaps(rng, floats(rng, *shape, dtype=dtype), 0.3)


def multi_head(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, s, n, size, inner = (int(rng.integers(1, 5)) for _ in range(5))
    kind = str(rng.choice(["self", "self", "cross", "split", "past"]))
    new = s if kind == "self" else int(rng.integers(1, 6))
    if kind in ("split", "past"):
        inner = size
    past = int(rng.integers(0, 4)) if kind == "past" else 0
    keys = [(b, new, n * size), (b, new, n * inner)]
    if kind == "split":
        keys = [(b, n, new, size)] * 2
    total = past + new
    state = (b, n, past, size) if kind == "past" else None
    inputs: Inputs = {
        "query": floats(rng, b, s, n * size, dtype=dtype),
        "key": floats(rng, *keys[0], dtype=dtype),
        "value": floats(rng, *keys[1], dtype=dtype),
        "bias": perhaps(rng, floats(rng, n * (2 * size + inner), dtype=dtype)),
        "mask": masks(rng, b, s, total, forms="none none ends sums flat rows"),
        "attention_bias": scores(rng, b, n, s, total, dtype),
        "past_key": floats(rng, *state, dtype=dtype) if state else None,
        "past_value": floats(rng, *state, dtype=dtype) if state else None,
    }
    attributes: dict[str, Any] = {"num_heads": n}
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    if rng.random() < 0.3:
        attributes["mask_filter_value"] = -5.0
    # Of several queries onnxruntime's CPU has all but the last one in front: see docs/rulings.md.
    if rng.random() < 0.4 and (new <= s or s == 1):
        attributes["unidirectional"] = 1
    choices = [(True,), (True, True, True), (True, False, False, True), (True, False, True)]
    # Without both states as outputs, onnxruntime reads uninitialized memory.
    outputs = choices[rng.integers(4) if kind != "past" else 1]
    return Sample(
        "MultiHeadAttention",
        inputs,
        attributes,
        outputs,
        wide=dtype == "float16",
        typed={3: dtype},
    )


def self_attention(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, s, n, size, inner, width = (int(rng.integers(1, 5)) for _ in range(6))
    past = int(rng.integers(0, 4)) if rng.random() < 0.4 else None
    if past is not None or rng.random() < 0.6:
        inner = size
    total = s + (past or 0)
    columns = n * (2 * size + inner)
    state = None if past is None else floats(rng, 2, b, n, past, size, dtype=dtype)
    is_causal = int(rng.integers(2))
    # Starts behind a row would leave a causal one without a key.
    forms = f"none ends {'ends' if is_causal else 'both'} sums flat flat rows dummy"
    inputs: Inputs = {
        "x": floats(rng, b, s, width, dtype=dtype),
        "weights": floats(rng, width, columns, dtype=dtype),
        "bias": floats(rng, columns, dtype=dtype),
        "mask_index": masks(rng, b, s, total, forms=forms),
        "past": state,
        "attention_bias": None if state is not None else scores(rng, b, n, s, total, dtype),
    }
    attributes: dict[str, Any] = {"num_heads": n, "unidirectional": is_causal}
    if inner != size or rng.random() < 0.2:
        attributes["qkv_hidden_sizes"] = [n * size, n * size, n * inner]
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    if rng.random() < 0.3:
        attributes["mask_filter_value"] = -5.0
    two = past is not None or (inner == size and rng.random() < 0.4)
    outputs = (True, True) if two else (True,)
    constants = ("weights", "bias") if rng.random() < 0.7 else ()
    return Sample(
        "Attention", inputs, attributes, outputs, constants, wide=dtype == "float16", loose=2
    )


def grouped(rng: Rng) -> Sample:
    dtype = str(rng.choice(DTYPES))
    b, groups = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    heads, size = groups * int(rng.integers(1, 4)), int(rng.choice([8, 16, 32]))
    kind = str(rng.choice(["prompt", "prompt with room", "step", "step with room", "chunk"]))
    s = 1 if "step" in kind else int(rng.integers(1, 6))
    before = 0 if "prompt" in kind else int(rng.integers(1, 6))
    b = 1 if kind == "chunk" else b
    total = before + s
    room = total + 3 if "room" in kind else before
    lens = rng.integers(max(1, s if before else 1), total + 1, b)
    lens[0] = total
    state = (b, groups, room, size) if room else None
    packed = rng.random() < 0.4
    inputs: Inputs = {
        "query": floats(rng, b, s, (heads + 2 * groups * packed) * size, dtype=dtype),
        "key": None if packed else floats(rng, b, s, groups * size, dtype=dtype),
        "value": None if packed else floats(rng, b, s, groups * size, dtype=dtype),
        "past_key": floats(rng, *state, dtype=dtype) if state else None,
        "past_value": floats(rng, *state, dtype=dtype) if state else None,
        "seqlens_k": (lens - 1).astype(np.int32),
        "total_sequence_length": np.array(total, np.int32),
        "cos_cache": None,
        "sin_cache": None,
        "position_ids": None,
        "attention_bias": scores(rng, b, heads, s, total, dtype),
        "head_sink": perhaps(rng, floats(rng, heads, dtype=dtype), 0.25),
    }
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    if size > 8 and rng.random() < 0.7:
        pairs = int(rng.choice([8, size // 2]))
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        for name in ("cos_cache", "sin_cache"):
            inputs[name] = floats(rng, 16, pairs, dtype=dtype)
        ids = np.clip(lens[:, np.newaxis] - s + np.arange(s), 0, None) + 1
        inputs["position_ids"] = perhaps(rng, ids.astype(np.int64), 0.4)
    choices = {"softcap": 2.0, "scale": 0.3, "smooth_softmax": 1}
    attributes |= {n: v for n, v in choices.items() if rng.random() < 0.2}
    if rng.random() < 0.4:
        attributes["local_window_size"] = int(rng.integers(1, 5))
    elif rng.random() < 0.2:
        attributes["causal"] = 0
    outputs = (True, True, True)
    if rng.random() < 0.3:
        attributes["qk_output"] = int(rng.integers(1, 3))
        outputs = (True, True, True, True)
    rows = lens - (lens - s if before else 0)
    asked = np.arange(s) < rows[:, np.newaxis]
    kept = (np.arange(max(room, total)) < lens[:, np.newaxis])[:, np.newaxis, :, np.newaxis]
    shown = asked[:, np.newaxis, :, np.newaxis] & kept[:, :, :total].swapaxes(2, 3)
    counts = {0: asked[:, :, np.newaxis], 1: kept, 2: kept, 3: shown}
    return Sample("GroupQueryAttention", inputs, attributes, outputs, counts=counts)


def windowed(rng: Rng) -> Sample:
    """Caches that hold a window of the past."""
    dtype = str(rng.choice(DTYPES))
    b, groups, size = int(rng.integers(1, 4)), int(rng.integers(1, 3)), 16
    heads, window = groups * int(rng.integers(1, 3)), int(rng.integers(1, 5))
    room = window + int(rng.integers(0, 4))
    kind = str(rng.choice(["prompt", "step", "chunk"]))
    s = 1 if kind == "step" else int(rng.integers(1, 8))
    before = 0 if kind == "prompt" else int(rng.integers(1, 12))
    b = 1 if kind == "chunk" else b
    total = before + s
    lens = rng.integers(max(1, s if before else 1), total + 1, b)
    lens = lens if kind == "step" else np.full(b, total)
    lens[0] = total
    state = (b, groups, room, size)
    inputs: Inputs = {
        "query": floats(rng, b, s, (heads + 2 * groups) * size, dtype=dtype),
        "key": None,
        "value": None,
        "past_key": floats(rng, *state, dtype=dtype),
        "past_value": floats(rng, *state, dtype=dtype),
        "seqlens_k": (lens - 1).astype(np.int32),
        "total_sequence_length": np.array(total, np.int32),
        "cos_cache": floats(rng, 24, 8, dtype=dtype),
        "sin_cache": floats(rng, 24, 8, dtype=dtype),
        "position_ids": None,
        "attention_bias": None,
        "head_sink": perhaps(rng, floats(rng, heads, dtype=dtype), 0.4),
    }
    attributes: dict[str, Any] = {
        "num_heads": heads,
        "kv_num_heads": groups,
        "do_rotary": 1,
        "local_window_size": window,
        "sliding_window_cache": 1,
    }
    over = np.maximum(lens - room, 0)
    step = room - window + 1
    kept = lens - step * -(-over // step)
    rows = (np.arange(room) < kept[:, np.newaxis])[:, np.newaxis, :, np.newaxis]
    asked = np.arange(s) < (lens if not before else np.full(b, s))[:, np.newaxis]
    counts = {0: asked[:, :, np.newaxis], 1: rows, 2: rows}
    return Sample("GroupQueryAttention", inputs, attributes, (True, True, True), counts=counts)


def layouts(rng: Rng, count: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Which blocks each row of blocks sees, its own among them: ends of rows, and columns."""
    shown = (rng.random((count, blocks, blocks)) < 0.5) | np.eye(blocks, dtype=bool)
    shown &= np.tri(blocks, dtype=bool)
    counts = shown.sum(2)
    ends = np.concatenate([np.zeros((count, 1), int), counts.cumsum(1)], 1)
    columns = np.full((count, ends.max()), -1)
    for at, each in enumerate(shown):
        columns[at, : ends[at, -1]] = np.nonzero(each)[1]
    return ends.astype(np.int32), columns.astype(np.int32)


def sparse(rng: Rng) -> Sample:
    """Blocks of the past, by head."""
    b, groups, size, block = int(rng.integers(1, 3)), int(rng.integers(1, 3)), 16, 16
    count = int(rng.integers(1, 3))
    heads, blocks = groups * count * int(rng.integers(1, 3)), int(rng.integers(2, 5))
    room = blocks * block
    is_prompt = rng.random() < 0.5
    total = int(rng.integers(1 if is_prompt else 2, room + 1))
    s = total if is_prompt else 1
    lens = np.full(b, total)  # of others onnxruntime's weights do not sum to 1
    packed = rng.random() < 0.5
    ends, columns = layouts(rng, count, blocks)
    inputs: Inputs = {
        "query": floats(rng, b, s, (heads + 2 * groups * packed) * size),
        "key": None if packed else floats(rng, b, s, groups * size),
        "value": None if packed else floats(rng, b, s, groups * size),
        "past_key": floats(rng, b, groups, room, size),
        "past_value": floats(rng, b, groups, room, size),
        "block_row_indices": ends,
        "block_col_indices": columns,
        "total_sequence_length": np.array(total, np.int32),
        "key_total_sequence_lengths": lens.astype(np.int32),
        "cos_cache": None,
        "sin_cache": None,
    }
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": groups}
    attributes["sparse_block_size"] = block
    if rng.random() < 0.5:
        attributes |= {"do_rotary": 1, "rotary_interleaved": int(rng.integers(2))}
        for name in ("cos_cache", "sin_cache"):
            inputs[name] = floats(rng, room, size // 2)
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    shared = {1: "past_key", 2: "past_value"}
    return Sample("SparseAttention", inputs, attributes, (True, True, True), shared=shared)


def relative(rng: Rng) -> Sample:
    """T5's buckets, by transformers' formula."""
    heads, is_both = int(rng.integers(1, 4)), int(rng.integers(2))
    buckets, most = int(rng.choice([8, 16, 32])), int(rng.choice([20, 128]))
    sizes = rng.integers(1, 40, 2)
    inputs: Inputs = {
        "bias_table": floats(rng, buckets, heads, dtype=str(rng.choice(["float32", "float16"]))),
        "query_length": sizes[:1].astype(np.int64),
        "key_length": sizes[1:].astype(np.int64),
    }

    def instead(table: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
        apart = np.arange(keys[0]) - np.arange(queries[0])[:, np.newaxis]
        count = buckets // 2 if is_both else buckets
        first = (apart > 0) * count if is_both else 0
        far = np.abs(apart) if is_both else -np.minimum(apart, 0)
        exact = count // 2
        with np.errstate(divide="ignore"):
            wide = np.log(far.astype(np.float32) / exact) / np.float32(np.log(most / exact))
        wide = np.where(far < exact, 0, wide * np.float32(count - exact))
        large = np.minimum(exact + wide.astype(int), count - 1)
        place = first + np.where(far < exact, far, large)
        return [table.reshape(heads, buckets)[:, place][np.newaxis]]

    attributes = {"max_distance": most, "is_bidirectional": is_both}
    names = ("bias_table", "query_length", "key_length")
    return Sample("RelativePositionBias", inputs, attributes, constants=names, instead=instead)


def quantized(rng: Rng) -> Sample:
    """Caches of eight and of four bits."""
    plain = grouped(rng)
    inputs, how = dict(plain.inputs), dict(plain.attributes)
    for name in ("attention_bias", "head_sink"):
        inputs[name] = None
    how = {n: v for n, v in how.items() if n not in ("smooth_softmax", "qk_output", "softcap")}
    past, groups = inputs["past_key"], how["kv_num_heads"]
    query = inputs["query"]
    assert query is not None
    packed = groups * 2 if inputs["key"] is None else 0
    size = query.shape[2] // (how["num_heads"] + packed)
    bits = int(rng.choice([4, 8]))
    kind = str(rng.choice(["PER_TENSOR", "PER_CHANNEL"]))
    if past is None:
        past = np.zeros((query.shape[0], groups, query.shape[1] + 2, size))
    shape = past.shape if bits == 8 else (*past.shape[:3], size // 2)
    low, dtype = (-128, np.int8) if bits == 8 else (0, np.uint8)
    for name in ("past_key", "past_value"):
        inputs[name] = rng.integers(low, low + 256, shape).astype(dtype)
    for name in ("k_scale", "v_scale"):
        scale = rng.random((1, groups, 1, size) if kind == "PER_CHANNEL" else (1,))
        inputs[name] = ((scale + 0.2) / (16 if bits == 8 else 2)).astype(np.float32)
    how |= {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    counts = {n: x for n, x in plain.counts.items() if n < 3}
    if past.shape[2] != counts[1].shape[2]:
        given = plain.given
        total, lens = int(given["total_sequence_length"]), given["seqlens_k"] + 1
        kept = np.arange(max(past.shape[2], total)) < lens[:, np.newaxis]
        counts[1] = counts[2] = kept[:, np.newaxis, :, np.newaxis]
    outputs = (True, True, True)
    return replace(plain, inputs=inputs, attributes=how, outputs=outputs, counts=counts, loose=2)


DRAWS: dict[str, Draw] = {
    "GroupQueryAttention, quantized": quantized,
    "GroupQueryAttention, windowed": windowed,
    "GroupQueryAttention": grouped,
    "SparseAttention": sparse,
    "RelativePositionBias": relative,
    "RotaryEmbedding": rotary,
    "MultiHeadAttention": multi_head,
    "Attention": self_attention,
}
