"""Linear models and support vector machines."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ....runtime.ir.dtypes import DType, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.ml import LinearClassifier, LinearRegressor, SVMClassifier, SVMRegressor
from ....runtime.options import Options
from ....runtime.plan.backend import BuildContext
from ..engine.apply import left_to_kernel
from ..engine.attributes import attribute
from ..engine.chain import Chain
from ..engine.registry import builder, kernel
from ..engine.step import Bound, HostStep, ScratchLayout, Tape
from ..numerics.calls import direct, einsum
from ..numerics.distances import squared_distances
from ..numerics.products import multiply, recorded, sums
from .ml import both_classes, labels_of, rows_of, transformed


@kernel(LinearRegressor)
def linear_regressor(op: LinearRegressor, x: Array) -> Array:
    """Return x @ coefficients.T + intercepts."""
    rows = rows_of(x)
    products = multiply(rows, _matrix_of(op, rows))
    return _regressed(products + _intercepts_of(op, rows), op.post_transform)


def _regressed(scores: Array, transform: str) -> Array:
    """Return transformed scores; single scores support PROBIT only."""
    if scores.shape[1] == 1 and transform != "PROBIT":
        return scores.astype(float32)
    return transformed(scores, transform).astype(float32)


@kernel(LinearClassifier)
def linear_classifier(op: LinearClassifier, x: Array) -> tuple[Array, Array]:
    """Return the labels of the largest scores, and the scores."""
    rows = rows_of(x)
    products = multiply(rows, _matrix_of(op, rows))
    return _classified(op, products + _intercepts_of(op, rows))


def _classified(op: LinearClassifier, scores: Array) -> tuple[Array, Array]:
    classes = len(op.classlabels_ints or op.classlabels_strings or ())
    if scores.shape[1] == 1 and classes == 2:
        places = (scores[:, 0] > 0).astype(int)
        results = both_classes(scores, op.post_transform, probabilities=False)
    else:
        places = scores.argmax(1)
        results = transformed(scores, op.post_transform)
    labels = labels_of(places, op.classlabels_ints, op.classlabels_strings)
    return labels, results.astype(float32)


def _matrix_of(op: LinearClassifier | LinearRegressor, rows: Array) -> Array:
    """Return the coefficients with a column for each score."""
    coefficients = attribute(op, "coefficients", rows.dtype)
    if isinstance(op, LinearRegressor):
        return coefficients.reshape(op.targets, -1).T
    return coefficients.reshape(-1, rows.shape[1]).T


def _intercepts_of(op: LinearClassifier | LinearRegressor, rows: Array) -> Array:
    return attribute(op, "intercepts", rows.dtype, (0.0,))


@builder(LinearClassifier, LinearRegressor)
def linear_model(chain: Chain, site: BuildContext, options: Options) -> HostStep:
    """Prepare the product once, which takes most of the time of a few rows."""
    node = chain.head
    op, x = node.op, node.inputs[0]
    if x is None or not isinstance(op, LinearClassifier | LinearRegressor):
        return left_to_kernel(chain, site)
    dtype, size = x.tensor.dtype, x.tensor.size
    if dtype not in (float32, float64) or sums(dtype) != dtype or not size:
        return left_to_kernel(chain, site)
    features, scratch = x.tensor.dims[-1], ScratchLayout()
    piece = scratch.take(size // features * (len(op.coefficients or ()) // features), dtype)

    def record(bound: Bound) -> list[Tape]:
        rows = rows_of(bound[x])
        matrix, intercepts = _matrix_of(op, rows), _intercepts_of(op, rows)
        products = bound.scratch(piece, (len(rows), matrix.shape[1]))
        multiplied = direct(recorded(rows, matrix, products, is_fixed=True))
        targets = [bound.get(value) for value in node.outputs]

        def run() -> None:
            multiplied()
            scores = products + intercepts
            if isinstance(op, LinearClassifier):
                results = _classified(op, scores)
            else:
                results = (_regressed(scores, op.post_transform),)
            for target, result in zip(targets, results, strict=False):
                if target is not None:
                    np.copyto(target, result)

        return [[run]]

    return HostStep(node.kind, site, record, own=scratch.nbytes)


# ── support vector machines ──────────────────────────────────────────────────────────────────────


def kernel_values(op: SVMClassifier | SVMRegressor, rows: Array, vectors: Array) -> Array:
    """Return the kernel values of every row and vector: [rows, vectors]."""
    gamma, offset, degree = op.kernel_params or (0.0, 0.0, 0.0)
    if op.kernel_type == "RBF":
        return np.exp((-gamma * squared_distances(rows, vectors)).astype(rows.dtype))
    products = multiply(rows, vectors.T)
    if op.kernel_type == "LINEAR":
        return products
    bent = gamma * products + offset
    return np.tanh(bent) if op.kernel_type == "SIGMOID" else _power(bent, degree)


def _power(base: Array, degree: float) -> Array:
    """Return base ** degree; small degrees of polynomials as products, which is much faster."""
    if degree not in range(1, 9):
        return base**degree
    power = base
    for _ in range(int(degree) - 1):
        power = power * base
    return power


def _coefficients(op: SVMClassifier | SVMRegressor, dtype: DType, rows: int) -> Array:
    return attribute(op, "coefficients", dtype).reshape(rows, -1)


def _summed(features: Array, coefficients: Array) -> Array:
    """Return weighted sums of each row's kernel values: float64, as they may nearly cancel."""
    return multiply(features.astype(float64, copy=False), coefficients[:, np.newaxis])[:, 0]


@kernel(SVMRegressor)
def svm_regressor(op: SVMRegressor, x: Array) -> Array:
    """Return the weighted kernel values with the support vectors, plus rho."""
    rows = rows_of(x)
    features = rows
    if op.n_supports:
        vectors = attribute(op, "support_vectors", rows.dtype).reshape(op.n_supports, -1)
        features = kernel_values(op, rows, vectors)
    sums = _summed(features, attribute(op, "coefficients", float64))
    scores = (sums + attribute(op, "rho", float64, (0.0,))[:1])[:, np.newaxis]
    if op.one_class:
        return np.where(scores > 0, 1, -1).astype(float32)
    return _regressed(scores, op.post_transform)


@kernel(SVMClassifier)
def svm_classifier(op: SVMClassifier, x: Array) -> tuple[Array, Array]:
    """Return the labels that win most pairs, and the scores."""
    rows = rows_of(x)
    classes = len(op.classlabels_ints or op.classlabels_strings or ())
    if sum(op.vectors_per_class or ()):
        scores = _pairs(op, rows, classes)
        places = _votes(scores, classes).argmax(1)
        if op.prob_a:
            scores = _probabilities(op, scores, classes)
    else:
        coefficients = _coefficients(op, rows.dtype, classes)
        scores = multiply(rows, coefficients.T) + attribute(op, "rho", rows.dtype, (0.0,))[:1]
        places = scores.argmax(1)
    if scores.shape[1] == 1:
        results = both_classes(scores, op.post_transform, probabilities=False)
    else:
        results = transformed(scores, op.post_transform)
    labels = labels_of(places, op.classlabels_ints, op.classlabels_strings)
    return labels, results.astype(float32)


def _pairs(op: SVMClassifier, rows: Array, classes: int) -> Array:
    """Return the score of every pair of classes, positive if the first one wins."""
    counts = op.vectors_per_class or ()
    ends = np.cumsum(counts)
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    vectors = attribute(op, "support_vectors", rows.dtype).reshape(ends[-1], -1)
    coefficients = _coefficients(op, float64, classes - 1)
    features = kernel_values(op, rows, vectors)
    scores = [
        _summed(features[:, spans[i]], coefficients[j - 1, spans[i]])
        + _summed(features[:, spans[j]], coefficients[i, spans[j]])
        for i in range(classes)
        for j in range(i + 1, classes)
    ]
    return np.stack(scores, 1) + attribute(op, "rho", float64, (0.0,))


def _votes(scores: Array, classes: int) -> Array:
    """Return how many pairs each class wins."""
    votes = np.zeros((len(scores), classes), int)
    for pair, (i, j) in enumerate(zip(*_upper(classes), strict=True)):
        votes[:, i] += scores[:, pair] > 0
        votes[:, j] += scores[:, pair] <= 0
    return votes


@lru_cache(64)
def _upper(classes: int) -> tuple[Array, Array]:
    """Return the first and the second class of each pair."""
    return np.triu_indices(classes, 1)


def _probabilities(op: SVMClassifier, scores: Array, classes: int) -> Array:
    """Return the probability of each class by the method of libsvm (Wu, Lin and Weng, 2004)."""
    slope, offset = (attribute(op, name, scores.dtype) for name in ("prob_a", "prob_b"))
    pairwise = 0.5 - 0.5 * np.tanh(0.5 * (scores * slope + offset))
    pairwise = np.clip(pairwise, 1e-7, 1 - 1e-7)
    first, second = _upper(classes)
    won = np.zeros((len(scores), classes, classes), scores.dtype)
    won[:, first, second], won[:, second, first] = pairwise, 1 - pairwise
    return _coupled(won)


def _coupled(won: Array) -> Array:
    """Return the class probabilities that best fit the pairwise ones.

    Args:
        won: [rows, classes, classes], how probably each class beats each other one.

    Returns:
        [rows, classes]. A row whose gradients agree is not changed any more.
    """
    count, classes = won.shape[:2]
    matrix = -won.transpose(0, 2, 1) * won
    each = np.arange(classes)
    matrix[:, each, each] = np.square(won).sum(1)
    found = np.full((count, classes), 1 / classes, won.dtype)
    left = np.arange(count)
    p = found
    for _ in range(max(100, classes)):
        gradient = einsum("rij,rj->ri", matrix, p)
        value = einsum("ri,ri->r", p, gradient)
        goes_on = ~(np.abs(gradient - value[:, np.newaxis]).max(1) < 0.005 / classes)
        left, matrix, p = left[goes_on], matrix[goes_on], p[goes_on]
        gradient, value = gradient[goes_on], value[goes_on]
        if not len(left):
            break
        for t in each:
            row = matrix[:, t]
            step = (value - gradient[:, t]) / row[:, t]
            after = 1 + step
            p[:, t] += step
            value = (value + step * (step * row[:, t] + 2 * gradient[:, t])) / (after * after)
            gradient = (gradient + step[:, np.newaxis] * row) / after[:, np.newaxis]
            p = p / after[:, np.newaxis]
        found[left] = p
    return found
