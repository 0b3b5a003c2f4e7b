"""N-grams of integers; strings are on the host."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....runtime.ir.dtypes import int32, int64
from ....runtime.ops.ngrams import grams_of
from ....runtime.ops.text import TfIdfVectorizer
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch, each
from ..recipe.operands import Arguments, Scratch, Tensor
from .ml import attribute


@kernel(TfIdfVectorizer)
def tf_idf_vectorizer(op: TfIdfVectorizer, y: Tensor, x: Tensor) -> Answer:
    """Count n-grams, and weight the counts."""
    if refused := need_dtypes((int32, int64), x):
        return refused
    grams = grams_of(op)
    rows, length = (1, *x.dims)[-2:]
    count, places = len(op.ngram_indexes), y.dims[-1]
    items = np.array(list(grams.codes), np.int64)
    by_item = np.argsort(items)
    order = np.argsort(op.ngram_indexes, kind="stable")
    begins = np.searchsorted(np.array(op.ngram_indexes)[order], np.arange(places + 1))
    weights = np.array(op.weights, np.float32) if op.weights and op.mode != "TF" else None
    counts, nbytes = Scratch(0), 4 * rows * count

    def launch(entry: str, size: int, args: Arguments) -> Launch:
        made = each(
            "sequence/ngrams.cu",
            entry,
            size,
            {**args, "counts": counts, "size": size},
            types=(("X", x.dtype),),
            constants=(("BINARY", op.mode == "IDF"),),
        )
        return replace(made, scratch=nbytes)

    steps = {
        **{"codes": len(items), "steps": len(grams.keys), "shortest": op.min_gram_length},
        "longest": min(op.max_gram_length, len(op.ngram_counts)),
        "distances": min(op.max_skip_count + 1, max(1, length - 1)),
    }
    counted: Arguments = {
        **{"x": x, "items": attribute(items[by_item]), "codes": attribute(by_item)},
        **{"keys": attribute(grams.keys), "targets": attribute(grams.targets)},
        **{"ends": attribute(grams.ends), "length": length, "grams": count, "s": steps},
    }
    weighted: Arguments = {
        **{"weights": attribute(weights), "order": attribute(order.astype(np.int32)), "y": y},
        **{"begins": attribute(begins.astype(np.int32)), "places": places, "grams": count},
    }
    return (
        launch("clear", rows * count, {}),
        launch("count_grams", x.size, counted),
        launch("weigh", y.size, weighted),
    )
