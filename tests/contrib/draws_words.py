"""Samples of words of characters, of aggressive decoding, and of hashes of packed sequences."""

from typing import Any

import numpy as np

from .draws_simple import Rng, floats, perhaps
from .samples import Draw, Sample

Inputs = dict[str, np.ndarray | None]


def words(rng: Rng) -> Sample:
    count, width, columns, filters = (int(rng.integers(1, 5)) for _ in range(4))
    length, letters = width + int(rng.integers(0, 4)), 9
    lengths = rng.integers(1, length + 1, (count, 1))
    sequence = np.where(np.arange(length) < lengths, rng.integers(1, letters, (count, length)), 0)
    inputs: Inputs = {
        "sequence": sequence.astype(np.int32),
        "w": floats(rng, filters, 1, width, columns),
        "b": floats(rng, filters),
        "c": floats(rng, letters, columns),
    }
    sizes = {"embedding_size": filters, "conv_window_size": width, "char_embedding_size": columns}
    given = sizes if rng.random() < 0.5 else {}
    return Sample("WordConvEmbedding", inputs, given, constants=("w",))


def bifurcation(rng: Rng) -> Sample:
    source = rng.integers(0, 4, int(rng.integers(1, 9)))
    at = int(rng.integers(0, len(source) + 1))
    predicted = np.append(source[at:], 1)
    predicted = np.where(rng.random(len(predicted)) < 0.2, 3, predicted)
    inputs: Inputs = {
        "src_tokens": source,
        "cur_tokens": rng.integers(0, 4, int(rng.integers(1, 5))),
        "prev_suffix_match_idx": np.array([at]),
        "pred_tokens": perhaps(rng, predicted),
    }
    least = int(rng.integers(1, 3))
    attributes = {"min_ngram_size": least, "max_ngram_size": least + int(rng.integers(0, 4))}
    return Sample("BifurcationDetector", inputs, attributes, outputs=(True, True))


def packed_hashes(rng: Rng) -> Sample:
    dtype = str(rng.choice(["int32", "int64"]))
    lengths = rng.integers(1, 6, int(rng.integers(1, 4)))
    total, batch = int(lengths.sum()), len(lengths)
    grams, heads = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    count, eos, has_segments = (grams - 1) * heads, bool(rng.integers(2)), bool(rng.integers(2))
    capacity = int(rng.integers(0, 4))
    past_segments = rng.integers(0, 3, (batch, grams - 1)).astype(np.int32)
    inputs: Inputs = {
        "input_ids": rng.integers(0, 5, total).astype(dtype),
        "multipliers": (2 * rng.integers(0, 10**9, grams + 1) + 1).astype(dtype),
        "vocab_sizes": rng.integers(1, 100, count).astype(dtype),
        "cumulative_sequence_length": np.append(0, np.cumsum(lengths)).astype(np.int32),
        "past_ids": perhaps(rng, rng.integers(0, 5, (batch, grams - 1)).astype(dtype)),
        "head_offsets": perhaps(rng, rng.integers(0, 1000, count).astype(dtype)),
        "eos_token_id": np.array(2, dtype) if eos else None,
        "segment_ids": rng.integers(0, 2, total).astype(np.int32) if has_segments else None,
        "past_segment_ids": perhaps(rng, past_segments) if has_segments else None,
        "capture_count": rng.integers(0, 5, batch).astype(np.int32) if capacity else None,
    }
    attributes: dict[str, Any] = {
        **{"max_ngram_size": grams, "n_head_per_ngram": heads, "pad_id": int(rng.integers(5))},
        **{"reset_on_eos": int(rng.integers(2)), "state_update_capacity": capacity},
    }
    outputs = (True, bool(rng.integers(2)), has_segments, capacity > 0)
    return Sample("VarlenNGramHashMapping", inputs, attributes, outputs=outputs)


DRAWS: dict[str, Draw] = {
    "WordConvEmbedding": words,
    "BifurcationDetector": bifurcation,
    "VarlenNGramHashMapping": packed_hashes,
}
