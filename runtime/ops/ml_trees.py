"""Decision trees of the domain ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import ClassVar

from ..errors import ShapeError
from ..ir.op import Op, TensorAttribute, op, op_base
from ..ir.types import TensorType
from .ml import DOMAIN, Floats, Ints, Strings, classified, need_lengths, one_of, table_of
from .shapes import MAX_SIZE, dim, need_choice, need_rank, same_dtype


@op
class TreeEnsemble(Op):
    """Leaf weights of many decision trees, aggregated per target: [n, n_targets] (version 5).

    `nodes_*` are parallel lists of inner nodes, `leaf_*` of leaves; `aggregate_function` is 0 to
    3 (average, sum, min, max), a mode 0 to 6 (<=, <, >=, >, =, !=, member).
    """

    domain: ClassVar = DOMAIN
    aggregate_function: int = 1
    leaf_targetids: Ints
    leaf_weights: TensorAttribute
    membership_values: TensorAttribute | None = None
    n_targets: int | None = None
    nodes_falseleafs: Ints
    nodes_falsenodeids: Ints
    nodes_featureids: Ints
    nodes_hitrates: TensorAttribute | None = None
    nodes_missing_value_tracks_true: Ints | None = None
    nodes_modes: TensorAttribute
    nodes_splits: TensorAttribute
    nodes_trueleafs: Ints
    nodes_truenodeids: Ints
    post_transform: int = 0
    tree_roots: Ints

    def infer(self, x: TensorType) -> TensorType:
        need_rank(x, 2, "x")
        if not 0 <= self.aggregate_function <= 3 or not 0 <= self.post_transform <= 4:
            raise ShapeError(f"{self}: aggregate_function is 0 to 3, post_transform 0 to 4")
        same_dtype(x, TensorType(self.leaf_weights.array.dtype))
        same_dtype(x, TensorType(self.nodes_splits.array.dtype))
        self._need_parallel()
        need_features(self.nodes_featureids, x)
        targets = 1 if self.n_targets is None else self.n_targets
        if targets < 1:
            raise ShapeError(f"n_targets={targets}; it must be 1 or more")
        return x.with_shape((dim(x, 0), targets))

    def _need_parallel(self) -> None:
        need_lengths(
            "nodes_*",
            self.nodes_falseleafs,
            self.nodes_falsenodeids,
            self.nodes_featureids,
            self.nodes_trueleafs,
            self.nodes_truenodeids,
            self.nodes_missing_value_tracks_true or None,
            self.nodes_modes.array.ravel(),
            self.nodes_splits.array.ravel(),
        )
        need_lengths("leaf_*", self.leaf_targetids, self.leaf_weights.array.ravel())


def need_features(features: Iterable[int], x: TensorType) -> None:
    """Raise ShapeError if a node compares a column that `x` does not have."""
    columns = x.shape[-1] if x.shape else None
    maximum = columns if isinstance(columns, int) else MAX_SIZE
    wrong = next((feature for feature in features if not 0 <= feature < maximum), None)
    if wrong is not None:
        raise ShapeError(f"nodes_featureids has {wrong}; x has {columns or '?'} columns")


@op_base
class NodeLists(Op):
    """Decision trees as older models store them, with parallel lists of nodes.

    Nodes are identified by (tree id, node id).
    """

    domain: ClassVar = DOMAIN
    base_values: Floats | None = None
    base_values_as_tensor: TensorAttribute | None = None
    nodes_falsenodeids: Ints | None = None
    nodes_featureids: Ints | None = None
    nodes_hitrates: Floats | None = None
    nodes_hitrates_as_tensor: TensorAttribute | None = None
    nodes_missing_value_tracks_true: Ints | None = None
    nodes_modes: Strings | None = None
    nodes_nodeids: Ints | None = None
    nodes_treeids: Ints | None = None
    nodes_truenodeids: Ints | None = None
    nodes_values: Floats | None = None
    nodes_values_as_tensor: TensorAttribute | None = None
    post_transform: str = "NONE"

    @property
    def features(self) -> Iterator[int]:
        """The columns that inner nodes compare; the entries of leaves are ignored."""
        nodes = zip(self.nodes_modes or (), self.nodes_featureids or (), strict=False)
        return (feature for mode, feature in nodes if mode != "LEAF")

    @property
    def node_lists(self) -> tuple[Sized | None, ...]:
        """The parallel lists."""
        splits = self.nodes_values_as_tensor
        return (
            self.nodes_falsenodeids,
            self.nodes_featureids,
            self.nodes_missing_value_tracks_true or None,
            self.nodes_modes,
            self.nodes_nodeids,
            self.nodes_treeids,
            self.nodes_truenodeids,
            self.nodes_values if splits is None else splits.array.ravel(),
        )


@op
class TreeEnsembleClassifier(NodeLists):
    """Labels and scores, per class, of many decision trees (version 5; newer models: TreeEnsemble).

    Class weights are parallel lists, too.
    """

    outputs: ClassVar = (2, 2)
    class_ids: Ints | None = None
    class_nodeids: Ints | None = None
    class_treeids: Ints | None = None
    class_weights: Floats | None = None
    class_weights_as_tensor: TensorAttribute | None = None
    classlabels_int64s: Ints | None = None
    classlabels_strings: Strings | None = None

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        ints, strings = self.classlabels_int64s, self.classlabels_strings
        if not ints and not strings:
            raise ShapeError(
                "has no class labels (CatBoost writes models of several targets so: save a model "
                "for each target)"
            )
        classes = one_of(ints, strings, "classlabels_int64s and classlabels_strings")
        need_lengths("nodes_*", *self.node_lists)
        need_features(self.features, x)
        weights = self.class_weights_as_tensor
        need_lengths(
            "class_*",
            self.class_ids,
            self.class_nodeids,
            self.class_treeids,
            self.class_weights if weights is None else weights.array.ravel(),
        )
        return classified(x, ints, strings, classes, self.post_transform)


@op
class TreeEnsembleRegressor(NodeLists):
    """Target weights of many decision trees, aggregated: [n, n_targets], as float32 (version 5).

    Newer models have TreeEnsemble. `aggregate_function` is SUM, AVERAGE, MIN or MAX.
    """

    aggregate_function: str = "SUM"
    n_targets: int | None = None
    target_ids: Ints | None = None
    target_nodeids: Ints | None = None
    target_treeids: Ints | None = None
    target_weights: Floats | None = None
    target_weights_as_tensor: TensorAttribute | None = None

    def infer(self, x: TensorType) -> TensorType:
        need_choice(self.aggregate_function, "aggregate_function", "SUM", "AVERAGE", "MIN", "MAX")
        need_lengths("nodes_*", *self.node_lists)
        need_features(self.features, x)
        weights = self.target_weights_as_tensor
        need_lengths(
            "target_*",
            self.target_ids,
            self.target_nodeids,
            self.target_treeids,
            self.target_weights if weights is None else weights.array.ravel(),
        )
        return table_of(x, 1 if self.n_targets is None else self.n_targets, self.post_transform)
