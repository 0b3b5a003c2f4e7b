"""Classical machine learning: feature transforms, scores and classes."""

from __future__ import annotations

from functools import partial
from hashlib import sha256

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, INTEGERS, DType, bool_, float32
from ....runtime.ir.types import Array
from ....runtime.ops.ml import (
    TRANSFORMS,
    Binarizer,
    FeatureVectorizer,
    Imputer,
    LabelEncoder,
    Normalizer,
    OneHotEncoder,
    Scaler,
)
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch, each
from ..recipe.operands import Arguments, Given, Packed, Scratch, Tensor, as_it_is, ceil_div
from ..recipe.source import arithmetic

NUMBERS = FLOATS | INTEGERS | {bool_}
#: The transform of outlier detectors: 1 above 0, else -1.
SIGN = "SIGN"
#: Threads per block of the scores kernel, one per row.
THREADS = 128
#: The mode of unconditional sums; see `ml/sums.cuh`.
ADDED = (("HOW", 1), ("COVERED", True))


def attribute(data: Array | None) -> Packed | None:
    """Return an attribute as an operand; None if it is empty."""
    if data is None or not data.size:
        return None
    name = sha256(data.tobytes()).hexdigest()
    return Packed((), ("attribute", str(data.dtype), name), partial(as_it_is, data))


# ── scores ───────────────────────────────────────────────────────────────────────────────────────


@record
class Sums:
    """Partial sums that the scores are computed from, in the workspace: [slices, targets, rows].

    Attributes:
        at: their address.
        nbytes: bytes of workspace.
        rows: of features.
        targets: sums per row.
        dtype: of the sums.
        slices: parts to be added.
        how: the mode of aggregation.
        trees: the divisor of averages.
    """

    at: Scratch
    nbytes: int
    rows: int
    targets: int
    dtype: DType
    slices: int = 1
    how: tuple[tuple[str, int | bool], ...] = ADDED
    trees: int = 1


def scores(
    sums: Sums,
    y: Tensor | None,
    label: Tensor | None,
    labels: Array | None,
    base: Array,
    transform: str,
    pair: int = 0,
    rounded: DType | None = None,
    *,
    first: float | None = None,
) -> Launch:
    """Return a launch that computes scores and classes from sums.

    Args:
        sums: the partial sums.
        y: the scores, if read.
        label: the class of every row, if read.
        labels: the class labels.
        base: added to the sums: nothing, one number, or one per target.
        transform: the `post_transform`, or `SIGN`.
        pair: 1 if two classes have one sum, whose scores are a margin and its negative; 2 if they
            are a probability and its complement.
        rounded: the dtype to which sums are rounded first; theirs if None.
        first: with `pair`, the score of the first class, if it does not follow from the sum.
    """
    return Launch(
        "ml/scores.cu",
        "scores",
        grid=(ceil_div(sums.rows, THREADS), 1, 1),
        block=THREADS,
        args={
            **{"sums": sums.at, "base": attribute(base.astype(sums.dtype))},
            **{"labels": attribute(labels), "y": y, "label": label, "rows": sums.rows},
            **{"targets": sums.targets, "slices": sums.slices, "over": sums.trees},
            "first": 0.0 if first is None else first,
        },
        types=(
            *(("A", sums.dtype), ("R", rounded or sums.dtype)),
            ("T", float32 if y is None else y.dtype),
        ),
        constants=(
            *(("THREADS", THREADS), ("BASES", base.size)),
            *(("TRANSFORM", (*TRANSFORMS, SIGN).index(transform)), ("PAIR", pair)),
            ("FIRST", first is not None),
            *sums.how,
        ),
        scratch=sums.nbytes,
    )


# ── features ─────────────────────────────────────────────────────────────────────────────────────


def _each(entry: str, y: Tensor, x: Tensor, count: int, **more: Given) -> Launch:
    """Return the launch of an entry of `features.cu` with one thread per result."""
    args: Arguments = {"x": x, "y": y, "count": count, **more}
    return each(
        "ml/features.cu",
        entry,
        count,
        args,
        types=(("X", x.dtype), ("A", arithmetic(x.dtype)), ("Y", y.dtype)),
        constants=(("WARPS", 8), ("NORM", 0)),
    )


@kernel(Scaler)
def scaler(op: Scaler, y: Tensor, x: Tensor) -> Answer:
    """Subtract an offset and multiply by a scale."""
    offset = np.array(op.offset or (0.0,), np.float32)
    scale = np.array(op.scale or (1.0,), np.float32)
    return need_dtypes(NUMBERS, x) or _each(
        "scale",
        y,
        x,
        y.size,
        offsets=attribute(offset),
        scales=attribute(scale),
        columns=x.dims[-1] if x.dims else 1,
        shifts=len(offset),
        factors=len(scale),
    )


@kernel(Imputer)
def imputer(op: Imputer, y: Tensor, x: Tensor) -> Answer:
    """Replace one value, which may be NaN."""
    if refused := need_dtypes(NUMBERS, x):
        return refused
    values = op.imputed_value_floats or op.imputed_value_int64s
    replaced = op.replaced_value_float if op.imputed_value_floats else op.replaced_value_int64
    if np.isnan(replaced) and x.dtype not in FLOATS:
        replaced = op.replaced_value_int64
    given = np.array(values).astype(x.dtype)
    return _each(
        "impute",
        y,
        x,
        y.size,
        values=attribute(given),
        missing=attribute(np.array([replaced]).astype(x.dtype)),
        columns=len(given),
    )


@kernel(Binarizer)
def binarizer(op: Binarizer, y: Tensor, x: Tensor) -> Answer:
    """Compare with a threshold."""
    refused = need_dtypes(NUMBERS, x)
    return refused or _each("binarize", y, x, y.size, threshold=op.threshold)


@kernel(OneHotEncoder)
def one_hot_encoder(op: OneHotEncoder, y: Tensor, x: Tensor) -> Answer:
    """Write 1 at the category of each element."""
    if not op.zeros:
        return "an unknown category is an error, which a device cannot raise (zeros=0)"
    categories = np.array(op.cats_int64s or (), np.int64)
    if len(set(op.cats_int64s or ())) < len(categories):
        return "equal categories, of which the last counts"
    return need_dtypes(NUMBERS, x) or _each(
        "encode", y, x, y.size, categories=attribute(categories), kinds=len(categories)
    )


@kernel(FeatureVectorizer)
def feature_vectorizer(op: FeatureVectorizer, y: Tensor, *inputs: Tensor) -> Answer:
    """Concatenate features."""
    if refused := need_dtypes(NUMBERS, *inputs):
        return refused
    found: list[Launch] = []
    first, whole = 0, y.dims[-1]
    for x in inputs:
        columns = x.dims[-1]
        found.append(_each("put_columns", y, x, x.size, columns=columns, first=first, all=whole))
        first += columns
    return tuple(found)


@kernel(LabelEncoder)
def label_encoder(op: LabelEncoder, y: Tensor, x: Tensor) -> Answer:
    """Look up each element among the keys."""
    keys, values = op.pairs
    if refused := need_dtypes(NUMBERS, x, y):
        return refused
    order = np.argsort(keys)
    return _each(
        "look_up",
        y,
        x,
        y.size,
        keys=attribute(keys[order].astype(x.dtype)),
        values=attribute(values[order].astype(y.dtype)),
        fallback=attribute(op.default.astype(y.dtype).reshape(1)),
        size=len(order),
    )


@kernel(Normalizer)
def normalizer(op: Normalizer, y: Tensor, x: Tensor) -> Answer:
    """Divide rows by their norm."""
    rows, columns = (1, *x.dims)[-2:]
    return need_dtypes(NUMBERS, x) or Launch(
        "ml/features.cu",
        "normalize",
        grid=(ceil_div(rows, 8), 1, 1),
        block=256,
        args={"x": x, "y": y, "rows": rows, "columns": columns},
        types=(("X", x.dtype), ("A", arithmetic(x.dtype)), ("Y", y.dtype)),
        constants=(("WARPS", 8), ("NORM", ("MAX", "L1", "L2").index(op.norm))),
    )
