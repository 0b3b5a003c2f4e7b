"""Linear models and support vector machines."""

from __future__ import annotations

import numpy as np

from ....runtime.ir.dtypes import DType, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.ml import LinearClassifier, LinearRegressor, SVMClassifier, SVMRegressor
from ..engine.prepared import attribute
from ..engine.registry import kernel
from ..numerics.distances import squared_distances
from ..numerics.products import multiply
from .ml import both_classes, labels_of, rows_of, transformed


@kernel(LinearRegressor)
def linear_regressor(op: LinearRegressor, x: Array) -> Array:
    """Return x @ coefficients.T + intercepts."""
    rows = rows_of(x)
    coefficients = attribute(op, "coefficients", rows.dtype).reshape(op.targets, -1)
    scores = multiply(rows, coefficients.T) + attribute(op, "intercepts", rows.dtype, (0.0,))
    return _regressed(scores, op.post_transform)


def _regressed(scores: Array, transform: str) -> Array:
    """Return transformed scores; single scores support PROBIT only."""
    if scores.shape[1] == 1 and transform != "PROBIT":
        return scores.astype(float32)
    return transformed(scores, transform).astype(float32)


@kernel(LinearClassifier)
def linear_classifier(op: LinearClassifier, x: Array) -> tuple[Array, Array]:
    """Return the labels of the largest scores, and the scores."""
    rows = rows_of(x)
    classes = len(op.classlabels_ints or op.classlabels_strings or ())
    coefficients = attribute(op, "coefficients", rows.dtype).reshape(-1, rows.shape[1])
    scores = multiply(rows, coefficients.T) + attribute(op, "intercepts", rows.dtype, (0.0,))
    if scores.shape[1] == 1 and classes == 2:
        places = (scores[:, 0] > 0).astype(int)
        results = both_classes(scores, op.post_transform, probabilities=False)
    else:
        places = scores.argmax(1)
        results = transformed(scores, op.post_transform)
    labels = labels_of(places, op.classlabels_ints, op.classlabels_strings)
    return labels, results.astype(float32)


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
    first, second = np.triu_indices(classes, 1)
    for pair, (i, j) in enumerate(zip(first, second, strict=True)):
        votes[:, i] += scores[:, pair] > 0
        votes[:, j] += scores[:, pair] <= 0
    return votes


def _probabilities(op: SVMClassifier, scores: Array, classes: int) -> Array:
    """Return the probability of each class by the method of libsvm (Wu, Lin and Weng, 2004)."""
    slope, offset = (attribute(op, name, scores.dtype) for name in ("prob_a", "prob_b"))
    pairwise = 0.5 - 0.5 * np.tanh(0.5 * (scores * slope + offset))
    pairwise = np.clip(pairwise, 1e-7, 1 - 1e-7)
    first, second = np.triu_indices(classes, 1)
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
        gradient = np.einsum("rij,rj->ri", matrix, p)
        value = np.einsum("ri,ri->r", p, gradient)
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
