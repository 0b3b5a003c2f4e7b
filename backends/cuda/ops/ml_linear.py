"""Linear models and support vector machines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....runtime.ir.dtypes import DType, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.ml import LinearClassifier, LinearRegressor, SVMClassifier, SVMRegressor
from ..algorithms.registry import Answer, kernel, need_dtypes
from ..recipe.launch import Launch
from ..recipe.operands import Arguments, Scratch, Tensor, ceil_div
from .ml import NUMBERS, SIGN, Sums, attribute, scores

#: Warps of a block.
WARPS = 4
#: Maximum number of classes for pairwise coupling in one thread.
COUPLED = 32
KINDS = ("LINEAR", "POLY", "RBF", "SIGMOID", "SQUARES", "DISTANCE")


def _compute(x: Tensor) -> DType:
    """Return the compute type of products and sums."""
    return float64 if x.dtype == float64 else float32


def _shape(x: Tensor) -> tuple[int, int]:
    rows, columns = (1, *x.dims)[-2:]
    return rows, columns


def _launch(
    entry: str,
    x: Tensor,
    blocks: int,
    args: Arguments,
    scratch: int,
    kind: str = "LINEAR",
    classes: int = 2,
) -> Launch:
    return Launch(
        "ml/linear.cu",
        entry,
        grid=(blocks, 1, 1),
        block=32 * WARPS,
        args=args,
        types=(("X", x.dtype), ("A", _compute(x))),
        constants=(("WARPS", WARPS), ("KERNEL", KINDS.index(kind)), ("CLASSES", classes)),
        scratch=scratch,
        note=kind.lower() if entry == "kernels" else "",
    )


def _products(
    x: Tensor,
    vectors: Array,
    y: Scratch,
    scratch: int,
    kind: str = "LINEAR",
    parameters: tuple[float, ...] | None = None,
) -> Launch:
    """Return the launch that evaluates the kernel function of all rows and vectors."""
    rows, columns = _shape(x)
    gamma, offset, degree = parameters or (0.0, 0.0, 0.0)
    args: Arguments = {
        **{"x": x, "vectors": attribute(vectors), "y": y, "rows": rows, "columns": columns},
        **{"count": len(vectors), "gamma": gamma, "offset": offset, "degree": degree},
    }
    return _launch("kernels", x, ceil_div(rows, WARPS), args, scratch, kind)


def _regressed(transform: str, targets: int) -> str:
    """Return the transform to apply: single scores support PROBIT only."""
    return "NONE" if targets == 1 and transform != "PROBIT" else transform


# ── linear models ────────────────────────────────────────────────────────────────────────────────


@kernel(LinearRegressor)
def linear_regressor(op: LinearRegressor, y: Tensor, x: Tensor) -> Answer:
    """Return x @ coefficients.T + intercepts."""
    if refused := need_dtypes(NUMBERS, x):
        return refused
    sums = _linear_sums(x, op.targets)
    vectors = np.array(op.coefficients or (), sums.dtype).reshape(op.targets, -1)
    base = np.array(op.intercepts or ())
    transform = _regressed(op.post_transform, op.targets)
    products = _products(x, vectors, sums.at, sums.nbytes)
    return products, scores(sums, y, None, None, base, transform)


def _linear_sums(x: Tensor, targets: int, offset: int = 0) -> Sums:
    rows, dtype = _shape(x)[0], _compute(x)
    nbytes = offset + rows * targets * dtype.itemsize
    return Sums(Scratch(offset), nbytes, rows, targets, dtype)


@kernel(LinearClassifier, outputs=2)
def linear_classifier(
    op: LinearClassifier,
    label: Tensor | None,
    x: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Return the labels of the largest scores, and the scores."""
    if refused := need_dtypes(NUMBERS, x):
        return refused
    labels = np.array(op.classlabels_ints, np.int64)
    vectors = np.array(op.coefficients, _compute(x)).reshape(-1, _shape(x)[1])
    sums = _linear_sums(x, len(vectors))
    pair = int(len(vectors) == 1 and len(labels) == 2)
    base, y = np.array(op.intercepts or ()), more[0] if more else None
    made = scores(sums, y, label, labels, base, op.post_transform, pair)
    return _products(x, vectors, sums.at, sums.nbytes), made


# ── support vector machines ──────────────────────────────────────────────────────────────────────


@kernel(SVMRegressor)
def svm_regressor(op: SVMRegressor, y: Tensor, x: Tensor) -> Answer:
    """Return the weighted kernel values with the support vectors, plus rho."""
    if refused := need_dtypes(NUMBERS, x):
        return refused
    rows, dtype, base = _shape(x)[0], _compute(x), np.array((op.rho or (0.0,))[:1])
    weights = np.array(op.coefficients or (), dtype)
    transform = SIGN if op.one_class else _regressed(op.post_transform, 1)
    if not op.n_supports:
        sums = _linear_sums(x, 1)
        products = _products(x, weights.reshape(1, -1), sums.at, sums.nbytes)
        return products, scores(sums, y, None, None, base, transform)
    vectors = np.array(op.support_vectors or (), dtype).reshape(op.n_supports, -1)
    kernels = ceil_div(rows * len(vectors) * dtype.itemsize, 256) * 256
    sums = _linear_sums(x, 1, kernels)
    args: Arguments = {
        **{"kernels": Scratch(0), "weights": attribute(weights), "y": sums.at, "rows": rows},
        "count": len(vectors),
    }
    return (
        _products(x, vectors, Scratch(0), sums.nbytes, op.kernel_type, op.kernel_params),
        _launch("weighted", x, ceil_div(rows, 32 * WARPS), args, sums.nbytes),
        scores(sums, y, None, None, base, transform),
    )


@kernel(SVMClassifier, outputs=2)
def svm_classifier(
    op: SVMClassifier,
    label: Tensor | None,
    x: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
) -> Answer:
    """Return the labels that win most pairs, and the scores."""
    if refused := need_dtypes(NUMBERS, x):
        return refused
    rows, dtype, y = _shape(x)[0], _compute(x), more[0] if more else None
    labels, rho = np.array(op.classlabels_ints, np.int64), np.array(op.rho or (0.0,))
    classes, counts = len(labels), op.vectors_per_class or ()
    if op.prob_a and classes > COUPLED:
        return f"probabilities of {classes} classes; {COUPLED} at most"
    if not sum(counts):
        vectors = np.array(op.coefficients or (), dtype).reshape(classes, -1)
        sums = _linear_sums(x, classes)
        made = scores(sums, y, label, labels, rho[:1], op.post_transform)
        return _products(x, vectors, sums.at, sums.nbytes), made
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    vectors = np.array(op.support_vectors or (), dtype).reshape(begins[-1], -1)
    weights = np.array(op.coefficients or (), dtype).reshape(-1, begins[-1])
    pairs = classes * (classes - 1) // 2
    kernels = ceil_div(rows * len(vectors) * dtype.itemsize, 256) * 256
    sums, blocks = _linear_sums(x, pairs, kernels), ceil_div(rows, 32 * WARPS)
    paired: Arguments = {
        **{"kernels": Scratch(0), "weights": attribute(weights), "begins": attribute(begins)},
        **{"y": sums.at, "rows": rows, "count": len(vectors), "classes": classes},
    }
    base = np.broadcast_to(rho, pairs)
    voted: Arguments = {
        **{"scores": sums.at, "rho": attribute(base.astype(dtype))},
        **{"labels": attribute(labels), "label": label, "rows": rows, "classes": classes},
    }
    found = [
        _products(x, vectors, Scratch(0), sums.nbytes, op.kernel_type, op.kernel_params),
        _launch("pairs", x, blocks, paired, sums.nbytes),
        *([] if label is None else [_launch("vote", x, blocks, voted, sums.nbytes)]),
    ]
    pair = int(classes == 2)
    if op.prob_a:
        chances = _linear_sums(x, classes, ceil_div(sums.nbytes, 256) * 256)
        coupled: Arguments = {
            **{"scores": sums.at, "rho": attribute(base.astype(dtype)), "y": chances.at},
            **{"slopes": attribute(np.array(op.prob_a, dtype)), "rows": rows},
            "offsets": attribute(np.array(op.prob_b, dtype)),
        }
        found.append(_launch("couple", x, blocks, coupled, chances.nbytes, classes=classes))
        sums, base, pair = chances, np.zeros(0), 0
    found.append(scores(sums, y, None, None, base, op.post_transform, pair))
    return tuple(replace(each, scratch=sums.nbytes) for each in found)
