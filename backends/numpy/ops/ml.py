"""Classical machine learning: feature transforms and scores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....runtime.ir.dtypes import FLOATS, float32, float64, int64, string
from ....runtime.ir.types import Array
from ....runtime.ops.ml import (
    ArrayFeatureExtractor,
    Binarizer,
    FeatureVectorizer,
    Imputer,
    Normalizer,
    Scaler,
)
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import left_to_kernel, record_kernel
from ..engine.attributes import attribute
from ..engine.chain import Chain
from ..engine.registry import KERNELS, builder, kernel
from ..engine.step import Bound, HostStep, Tape
from .gather import taking

# ── scores ───────────────────────────────────────────────────────────────────────────────────────


def rows_of(x: Array) -> Array:
    """Return features [n, c] as floats; a vector is one row."""
    rows = x if x.dtype in FLOATS else x.astype(float32)
    return rows if rows.ndim > 1 else np.atleast_2d(rows)


def labels_of(places: Array, ints: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    """Return the class labels with these indices."""
    return np.array(strings, string)[places] if strings else np.array(ints, int64)[places]


def transformed(scores: Array, transform: str) -> Array:
    """Return scores [n, classes] after a `post_transform`."""
    if transform == "LOGISTIC":
        return 0.5 * np.tanh(0.5 * scores) + 0.5
    if transform == "PROBIT":
        return _probit(scores)
    if transform == "NONE":
        return scores
    exponentials = np.exp(scores - np.maximum.reduce(scores, 1, keepdims=True, initial=-np.inf))
    if transform == "SOFTMAX":
        return exponentials / np.add.reduce(exponentials, 1, keepdims=True)
    exponentials = np.where(np.abs(scores) <= 1e-7, 0, exponentials)
    total = exponentials.sum(1, keepdims=True)
    return np.where(total == 0, 0.5, exponentials / np.where(total == 0, 1, total))


def _probit(p: Array) -> Array:
    """Return the inverse normal distribution by Winitzki's formula, as in onnxruntime."""
    sign = np.where(p < 0.5, -1, 1)
    logarithm = np.log(4 * p * (1 - p))
    middle = 2 / (np.pi * 0.147) + 0.5 * logarithm
    return 2**0.5 * sign * np.sqrt(np.sqrt(middle * middle - logarithm / 0.147) - middle)


def both_classes(scores: Array, transform: str, probabilities: bool) -> Array:
    """Return the scores of two classes [n, 2] from those of the second one [n, 1].

    Args:
        scores: of the second class.
        transform: the `post_transform`.
        probabilities: whether the first class has 1 minus the score instead of its negative.
    """
    if transform == "PROBIT":
        return _probit(scores)
    if probabilities and transform == "NONE":
        return np.concatenate([1 - scores, scores], 1)
    return transformed(np.concatenate([-scores, scores], 1), transform)


# ── features ─────────────────────────────────────────────────────────────────────────────────────


@kernel(ArrayFeatureExtractor)
def array_feature_extractor(op: ArrayFeatureExtractor, x: Array, y: Array) -> Array:
    """Take columns of the last axis."""
    if y.size and not 0 <= y.min() <= y.max() < x.shape[-1]:
        raise ValueError(f"y has columns {y.min()} to {y.max()}; x has {x.shape[-1]}")
    found = np.take(x, y.reshape(-1), -1)
    return found[np.newaxis] if x.ndim == 1 else found


@builder(ArrayFeatureExtractor)
def columns_at_constant_places(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Take columns that are known before a run in one call."""
    node = chain.head
    x, y, _ = chain.operands

    def record(bound: Bound) -> list[Tape]:
        data, out = bound[x], bound[node.output]
        if y.is_constant and y.tensor.size:
            places = bound[y].reshape(-1)
            if places.min() >= 0 and places.max() < data.shape[-1]:
                found = out.reshape(*data.shape[:-1], places.size, copy=False)
                return [[taking(data, places, -1, found)]]
        return [record_kernel(node, KERNELS[ArrayFeatureExtractor], bound)]

    return HostStep(node.kind, site, record)


@kernel(Binarizer)
def binarizer(op: Binarizer, x: Array) -> Array:
    """Compare with a threshold."""
    return (x > op.threshold).astype(x.dtype)


@kernel(FeatureVectorizer)
def feature_vectorizer(op: FeatureVectorizer, *inputs: Array) -> Array:
    """Concatenate features."""
    return np.concatenate([np.atleast_2d(x).astype(float32) for x in inputs], 1)


@kernel(Imputer)
def imputer(op: Imputer, x: Array) -> Array:
    """Replace one value, which may be NaN."""
    values = op.imputed_value_floats or op.imputed_value_int64s
    replaced = op.replaced_value_float if op.imputed_value_floats else op.replaced_value_int64
    missing = np.isnan(x) if np.isnan(replaced) else x == replaced
    return np.where(missing, np.array(values).astype(x.dtype), x)


@kernel(Normalizer)
def normalizer(op: Normalizer, x: Array) -> Array:
    """Divide rows by their norm; zero rows are unchanged."""
    wide = x.astype(float64)
    if op.norm == "MAX":
        norm = np.maximum.reduce(wide, -1, keepdims=True, initial=-np.inf)
    elif op.norm == "L1":
        norm = np.add.reduce(np.abs(wide), -1, keepdims=True)
    else:
        norm = np.sqrt(np.add.reduce(np.square(wide), -1, keepdims=True))
    norm[norm == 0] = 1
    return np.divide(wide, norm, wide).astype(float32)


@kernel(Scaler)
def scaler(op: Scaler, x: Array) -> Array:
    """Subtract an offset and multiply by a scale, with the roundings of onnxruntime.

    Trees behind it decide at thresholds that many scaled elements are equal to.
    """
    offset = attribute(op, "offset", float32, (0.0,))
    scale = attribute(op, "scale", float32, (1.0,))
    wide = float64 if x.dtype == float64 else float32
    return ((x.astype(wide) - offset) * scale).astype(float32)


@builder(Scaler, in_place=True)
def scaler_of_floats(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Scale float32 in two calls."""
    node = chain.head
    op, x = node.op, node.inputs[0]
    if x is None or x.tensor.dtype != float32:
        return left_to_kernel(chain, site)
    offset = attribute(op, "offset", float32, (0.0,))
    scale = attribute(op, "scale", float32, (1.0,))

    def record(bound: Bound) -> list[Tape]:
        out = bound[node.output]
        return [
            [partial(np.subtract, bound[x], offset, out), partial(np.multiply, out, scale, out)]
        ]

    return HostStep(node.kind, site, record)
