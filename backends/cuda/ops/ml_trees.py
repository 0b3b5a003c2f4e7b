"""Decision trees: every row traverses every tree, and leaf weights are added to scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, INTEGERS, DType, float32, float64
from ....runtime.ir.types import Array
from ....runtime.ops.forest import AGGREGATES, Ensemble, Forest, ensemble_of, in_breadth
from ....runtime.ops.ml_trees import TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor
from ..algorithms.registry import Answer, Setting, kernel, need_dtypes
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Scratch, Tensor, ceil_div
from .ml import Sums, attribute, scores

#: Threads per block, and trees that a thread traverses at a time.
THREADS, FLIGHT = 256, 4
#: Maximum shared memory for features, and for features and sums, in bytes per block.
STAGED = 128 * 1024
#: Minimum number of rows to stage in shared memory.
FEWEST = 4
#: Target threads per multiprocessor, for which trees are split among blocks.
BUSY = 1024
#: The mode of forests with mixed comparisons, after those of `forest.MODES`.
MIXED = 6


@kernel(TreeEnsemble, TreeEnsembleRegressor)
def tree_ensemble(
    op: TreeEnsemble | TreeEnsembleRegressor, y: Tensor, x: Tensor, *, setting: Setting
) -> Answer:
    """Aggregate leaf weights; single targets support PROBIT only."""
    ensemble = ensemble_of(op)
    if isinstance(ensemble, str):
        return ensemble
    is_plain = ensemble.forest.targets == 1 and ensemble.transform != "PROBIT"
    return _recipe(ensemble, "NONE" if is_plain else ensemble.transform, x, y, None, None, setting)


@kernel(TreeEnsembleClassifier, outputs=2)
def tree_ensemble_classifier(
    op: TreeEnsembleClassifier,
    label: Tensor | None,
    x: Tensor,
    *,
    more: tuple[Tensor | None, ...] = (),
    setting: Setting,
) -> Answer:
    """Add leaf weights and find the class with the largest sum."""
    ensemble = ensemble_of(op)
    if isinstance(ensemble, str):
        return ensemble
    labels = np.array(op.classlabels_int64s, np.int64)
    scores = more[0] if more else None
    return _recipe(ensemble, ensemble.transform, x, scores, label, labels, setting)


def _recipe(
    ensemble: Ensemble,
    transform: str,
    x: Tensor,
    y: Tensor | None,
    label: Tensor | None,
    labels: Array | None,
    setting: Setting,
) -> Answer:
    refused = need_dtypes(FLOATS | INTEGERS, x)
    if refused:
        return refused
    forest, dtype = ensemble.forest, _type_of(ensemble.forest, x.dtype)
    packed = _packed(forest, dtype)
    rows, columns = (1, *x.dims)[-2:]
    trees, targets = len(forest.roots), forest.targets
    most = min(STAGED, setting.target.shared)
    room = most // max(1, columns * dtype.itemsize)
    staged = room >= FEWEST
    across = min(THREADS, 1 << max(rows - 1, 0).bit_length())
    across = min(across, 1 << room.bit_length() - 1) if staged else across
    features = across * columns * dtype.itemsize
    memory = ceil_div(features * staged, 8) * 8
    kept = not packed.single and memory + THREADS * targets * 8 <= most
    slices = _slices(rows, trees, THREADS // across, setting.target.processors * BUSY)
    sums, nbytes = Scratch(0), slices * targets * rows * 8
    how = (("HOW", AGGREGATES.index(ensemble.aggregate)), ("COVERED", packed.covered))
    walk = Launch(
        "ml/trees.cu",
        "walk",
        grid=(ceil_div(rows, across), slices * across // THREADS, 1),
        block=THREADS,
        args={
            **{"x": x, "nodes": packed.nodes, "roots": packed.roots, "parts": packed.parts},
            **{"sums": sums, "rows": rows, "columns": columns, "trees": trees},
            **{"targets": targets, "share": ceil_div(trees, slices)},
        },
        types=(("X", x.dtype), ("V", dtype), ("A", float64)),
        constants=(
            *(("THREADS", THREADS), ("FLIGHT", FLIGHT), ("ROWS", across)),
            *(("STAGED", staged), ("KEPT", kept)),
            *packed.constants,
            *how,
        ),
        shared=memory + THREADS * targets * 8 * kept,
        scratch=nbytes,
        note=f"{trees} trees in {slices}",
    )
    sized = Sums(sums, nbytes, rows, targets, float64, slices, how, trees)
    pair = ensemble.is_binary + ensemble.is_probability
    rounded = ensemble.dtype if labels is not None else None
    return walk, scores(
        sized, y, label, labels, ensemble.base, transform, pair, rounded, first=ensemble.first
    )


def _slices(rows: int, trees: int, together: int, threads: int) -> int:
    """Return the number of parts into which trees are split, a multiple of those per block.

    With few rows, trees are split until there are enough threads, in whole waves.
    """
    wanted = min(ceil_div(threads, max(rows, 1)), ceil_div(trees, FLIGHT))
    return ceil_div(wanted, together) * together


# ── packing ──────────────────────────────────────────────────────────────────────────────────────


@record
class _Packing:
    """Trees in the format of `ml/trees.cu`; see `Nodes` there.

    Attributes:
        nodes: in breadth-first order, tree by tree.
        roots: start of each tree.
        parts: targets and weights of leaves, unless each has a single weight.
        constants: compile-time constants.
        single: whether every leaf has one weight for one target.
        covered: whether every target gets a weight in every row.
    """

    nodes: Packed | None
    roots: Packed | None
    parts: Packed | None
    constants: tuple[tuple[str, int | bool], ...]
    single: bool
    covered: bool


def _packed(forest: Forest, dtype: DType) -> _Packing:
    is_leaf, lengths = forest.is_leaf, np.diff(forest.first)
    single = forest.targets == 1 and bool((lengths[is_leaf] == 1).all())
    whole = np.int64 if dtype == float64 else np.int32
    value = forest.value.astype(dtype)
    begins = np.where(lengths > 0, forest.first[:-1], -1)
    if single:
        value[is_leaf] = forest.weight[forest.first[:-1][is_leaf]]
    else:
        value[is_leaf] = begins[is_leaf].astype(whole).view(dtype)
    modes = np.unique(forest.mode[~is_leaf])
    mode = MIXED if len(modes) > 1 else int(modes.max(initial=0))
    found = in_breadth(forest)
    narrow = None if found is None else _narrow(forest, *found, value, mode)
    if narrow is None:
        nodes, roots, bits = _wide(forest, value), forest.roots, 0
    else:
        assert found is not None
        (nodes, bits), roots = narrow, found[1].astype(np.int32)
    parts = np.zeros(len(forest.target), np.dtype([("w", dtype), ("t", np.int32)], align=True))
    parts["w"], parts["t"] = forest.weight, forest.target
    ends = forest.first[1:][lengths > 0] - 1
    parts["t"][ends] = ~parts["t"][ends]
    constants = (
        *(("WIDE", narrow is None), ("FEATURE_BITS", bits), ("MODE", mode), ("SINGLE", single)),
        ("MISSING", bool((forest.missing & ~is_leaf).any())),
    )
    given = None if single else attribute(parts)
    covered = _is_covered(forest, found)
    return _Packing(attribute(nodes), attribute(roots), given, constants, single, covered)


def _narrow(
    forest: Forest, order: Array, begins: Array, value: Array, mode: int
) -> tuple[Array, int] | None:
    """Return nodes of two words, and the bits of a feature; None if a tree is too large."""
    features = max(1, int(forest.feature.max(initial=0)).bit_length())
    modes = 3 if mode == MIXED else 0
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    root = np.repeat(begins, np.diff([*begins, len(order)]))
    child = np.where(forest.is_leaf[order], 0, place[forest.children[0][order]] - root)
    if int(child.max(initial=0)) >> (31 - modes - features):
        return None
    made: Any = np.zeros(len(order), _aligned(value.dtype, 2, "bits"))
    bits = forest.feature[order].astype(np.int64) | child << features
    bits = bits << modes | (forest.mode[order] if modes else 0)
    made["value"], made["bits"] = (
        value[order],
        (bits << 1 | forest.missing[order]).astype(np.uint32),
    )
    return made, features


def _wide(forest: Forest, value: Array) -> Array:
    """Return nodes with arbitrary children."""
    made: Any = np.zeros(len(value), _aligned(value.dtype, 4, "bits", "no", "yes"))
    bits = forest.feature.astype(np.int64) << 4 | forest.mode << 1 | forest.missing
    made["value"], made["bits"] = value, bits.astype(np.uint32)
    made["no"], made["yes"] = forest.children[0], np.where(forest.is_leaf, -1, forest.children[1])
    return made


def _aligned(dtype: DType, words: int, *names: str) -> Any:
    """Return the dtype of a node: a value and 32-bit words, in the space of `words` values."""
    fields: dict[str, Any] = {"value": (dtype, 0)}
    fields |= {name: (np.uint32, dtype.itemsize + 4 * i) for i, name in enumerate(names)}
    formats, offsets = zip(*fields.values(), strict=True)
    kind: Any = {"names": list(fields), "formats": formats, "offsets": offsets}
    kind["itemsize"] = words * dtype.itemsize
    return np.dtype(kind)


def _type_of(forest: Forest, features: DType) -> DType:
    """Return the types in which features are compared and weights are stored."""
    if features == float64:
        return float64
    with np.errstate(over="ignore"):
        exact = all(
            np.array_equal(a.astype(float32).astype(float64), a, equal_nan=True)
            for a in (forest.value, forest.weight)
        )
    return float32 if exact else float64


def _is_covered(forest: Forest, found: tuple[Array, Array] | None) -> bool:
    """Whether every target gets a weight in every row: some tree has one in all its leaves."""
    leaves, targets = int(forest.is_leaf.sum()), forest.targets
    if found is None:
        return len(forest.target) == leaves * targets
    order, begins = found
    trees = np.empty(len(order), np.int64)
    trees[order] = np.repeat(np.arange(len(begins)), np.diff([*begins, len(order)]))
    owner = np.repeat(trees, np.diff(forest.first) * forest.is_leaf)
    counts = np.zeros((len(begins), targets), np.int64)
    kept = np.repeat(forest.is_leaf, np.diff(forest.first))
    np.add.at(counts, (owner, forest.target[kept]), 1)
    own = np.bincount(trees[forest.is_leaf], minlength=len(begins))
    return bool((counts == own[:, np.newaxis]).any(0).all())
