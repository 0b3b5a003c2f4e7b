"""Classical models against onnxruntime: forests, linear models, support vectors, features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tercet

from .case import Array, draw

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
FEATURES = 4


@dataclass
class Forest:
    """Random trees as the parallel lists of TreeEnsembleClassifier and TreeEnsembleRegressor."""

    modes: tuple[str, ...] = MODES[:1]
    lists: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    leaves: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def grow(self, rng: np.random.Generator, tree: int, depth: int, first: int = 0) -> int:
        """Add a tree whose root is node `first`; return the number after its last node."""
        is_leaf = depth == 0 or rng.random() < 0.2
        if is_leaf:
            self.leaves.append((tree, first))
        at = len(self.lists.get("nodes_nodeids", ()))
        self._add("nodes_treeids", tree)
        self._add("nodes_nodeids", first)
        self._add("nodes_modes", "LEAF" if is_leaf else str(rng.choice(self.modes)))
        self._add("nodes_featureids", 0 if is_leaf else int(rng.integers(FEATURES)))
        self._add("nodes_values", 0.0 if is_leaf else round(float(rng.normal()), 1))
        self._add("nodes_missing_value_tracks_true", int(rng.integers(2)))
        for side in ("true", "false"):
            self._add(f"nodes_{side}nodeids", 0)
        after = first + 1
        for side in () if is_leaf else ("true", "false"):
            self.lists[f"nodes_{side}nodeids"][at] = after
            after = self.grow(rng, tree, depth - 1, after)
        return after

    def _add(self, name: str, value: Any) -> None:
        self.lists.setdefault(name, []).append(value)

    def attributes(self, rng: np.random.Generator, kind: str, targets: range) -> dict[str, Any]:
        """Return all attributes, with a weight of every leaf for every target."""
        parts = [(tree, node, target) for tree, node in self.leaves for target in targets]
        names = (f"{kind}_treeids", f"{kind}_nodeids", f"{kind}_ids")
        lists = dict(zip(names, map(list, zip(*parts, strict=True)), strict=True))
        weights = rng.standard_normal(len(parts)).round(2).tolist()
        return {**self.lists, **lists, f"{kind}_weights": weights}


def forest(kind: str, targets: range, modes: tuple[str, ...] = MODES[:1]) -> dict[str, Any]:
    rng = np.random.default_rng(len(modes) + len(targets))
    made = Forest(modes)
    for tree in range(5):
        made.grow(rng, tree, 4)
    return made.attributes(rng, kind, targets)


def repeated(attributes: dict[str, Any], how: str) -> dict[str, Any]:
    """Return trees whose leaves have three weights for the only target, of which the first counts.

    So skl2onnx writes the number of a leaf: once for every class (`decision_leaf`).
    """
    lists = {name: three(v) for name, v in attributes.items() if name.startswith("target_")}
    return {**attributes, **lists, "n_targets": 1, "aggregate_function": how}


def positive(weights: list[float]) -> dict[str, Any]:
    return {"class_weights": [abs(weight) / 5 for weight in weights]}


def three(values: list[Any]) -> list[Any]:
    return [
        value + 0.5 * i if isinstance(value, float) else value for value in values for i in range(3)
    ]


def numbers(seed: int, count: int) -> list[float]:
    return draw(seed, (count,)).tolist()


def svm(classes: int, vectors: int, **more: Any) -> dict[str, Any]:
    total, pairs = classes * vectors, classes * (classes - 1) // 2
    return {
        "kernel_params": [0.5, 0.3, 3.0],
        "vectors_per_class": [vectors] * classes,
        "support_vectors": numbers(1, total * FEATURES),
        "coefficients": numbers(2, (classes - 1) * total),
        "rho": numbers(3, pairs),
        "classlabels_ints": list(range(5, 5 + classes)),
        **more,
    }


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    labels = [7, 3, 11]
    for modes in (MODES[:1], MODES):
        for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
            shared = {"post_transform": transform, "classlabels_int64s": labels}
            yield "TreeEnsembleClassifier", forest("class", range(3), modes) | shared
    for transform in ("NONE", "LOGISTIC"):
        shared = {"post_transform": transform, "classlabels_int64s": [0, 1]}
        yield "TreeEnsembleClassifier", forest("class", range(1)) | shared
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        shared = {"post_transform": transform, "classlabels_int64s": [5, 6]}
        second = forest("class", range(1, 2)) | shared
        yield "TreeEnsembleClassifier", second
        yield "TreeEnsembleClassifier", second | {"base_values": [0.25]}
        yield "TreeEnsembleClassifier", second | positive(second["class_weights"])
    for how in ("SUM", "AVERAGE", "MIN", "MAX"):
        shared = {"aggregate_function": how, "n_targets": 2, "base_values": [0.5, -1.0]}
        yield "TreeEnsembleRegressor", forest("target", range(2), MODES) | shared
        yield "TreeEnsembleRegressor", repeated(forest("target", range(1)), how)
    for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
        linear = {"coefficients": numbers(1, 3 * FEATURES), "intercepts": numbers(2, 3)}
        shared = {"classlabels_ints": labels, "post_transform": transform}
        yield "LinearClassifier", linear | shared
        yield "LinearRegressor", linear | {"targets": 3, "post_transform": transform}
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        yield "SVMClassifier", svm(3, 4, kernel_type=kernel)
        yield "SVMClassifier", svm(2, 4, kernel_type=kernel)
        both = {"prob_a": [-1.0, -0.5, -2.0], "prob_b": [0.1, 0.2, 0.3]}
        yield "SVMClassifier", svm(3, 4, kernel_type=kernel, **both)
        regression = svm(1, 6, kernel_type=kernel) | {"n_supports": 6, "rho": [0.5]}
        del regression["vectors_per_class"], regression["classlabels_ints"]
        yield "SVMRegressor", regression | {"coefficients": numbers(4, 6)}
    yield "Scaler", {"offset": numbers(1, FEATURES), "scale": numbers(2, FEATURES)}
    yield "Imputer", {"imputed_value_floats": numbers(1, FEATURES), "replaced_value_float": np.nan}
    yield "Binarizer", {"threshold": 0.5}
    for norm in ("MAX", "L1", "L2"):
        yield "Normalizer", {"norm": norm}


def votes(trees: int) -> tuple[dict[str, Any], Array]:
    """Return a forest of two classes, and rows of which row k gets k votes for the second one."""
    each = np.arange(trees)
    attributes: dict[str, Any] = {
        "nodes_treeids": np.repeat(each, 3),
        "nodes_nodeids": np.tile([0, 1, 2], trees),
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * trees,
        "nodes_featureids": np.zeros(3 * trees, int),
        "nodes_values": np.repeat(each, 3).astype(np.float32),
        "nodes_truenodeids": np.tile([1, 0, 0], trees),
        "nodes_falsenodeids": np.tile([2, 0, 0], trees),
        "class_treeids": np.repeat(each, 2),
        "class_nodeids": np.tile([1, 2], trees),
        "class_ids": np.zeros(2 * trees, int),
        "class_weights": np.tile([0, 1 / trees], trees).astype(np.float32),
        "classlabels_int64s": [0, 1],
    }
    x: Array = np.zeros((trees + 1, FEATURES), np.float32)
    x[:, 0] = np.arange(trees + 1) - 0.5
    return attributes, x


def model_of(kind: str, attributes: dict[str, Any], rows: int) -> ModelProto:
    outputs = {"y": TensorProto.FLOAT}
    if kind.endswith("Classifier"):
        outputs = {"label": TensorProto.INT64, **outputs}
    node = helper.make_node(kind, ["x"], list(outputs), domain="ai.onnx.ml", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, FEATURES])
    results = [helper.make_tensor_value_info(name, t, None) for name, t in outputs.items()]
    graph = helper.make_graph([node], "one", [x], results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [pytest.param(*case, id=f"{case[0]}{i}") for i, case in enumerate(cases())],
)
@pytest.mark.parametrize("rows", [3, 200])
def test_ml(kind: str, attributes: dict[str, Any], rows: int) -> None:
    """Of few rows, all nodes of all trees are compared."""
    ort = pytest.importorskip("onnxruntime")
    x: Array = draw(1, (rows, FEATURES)).round(1)
    if kind.startswith("Tree") or kind == "Imputer":
        x[::5, 1] = np.nan
    proto = model_of(kind, attributes, len(x))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(proto) as model:
        for got, want in zip(model(x), session.run(None, {"x": x}), strict=True):
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["SUM", "AVERAGE"])
def test_a_target_without_weights_has_its_base_value(how: str) -> None:
    """onnxruntime gives 0; onnxmltools writes such files of XGBoost models with several targets."""
    shared = {"aggregate_function": how, "n_targets": 2, "base_values": [0.5, -1.0]}
    proto = model_of("TreeEnsembleRegressor", forest("target", range(1)) | shared, 9)
    x = draw(1, (9, FEATURES))
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    with tercet.load(proto) as model:
        (found,) = model(x)
    np.testing.assert_allclose(found, np.asarray(want), rtol=1e-5)
    assert (found[:, 1] == -1).all()


def test_a_damaged_tree_is_refused() -> None:
    attributes: dict[str, Any] = forest("target", range(1))
    inner = attributes["nodes_modes"].index("BRANCH_LEQ", 1)
    attributes["nodes_truenodeids"][inner] = attributes["nodes_nodeids"][0]
    with tercet.load(model_of("TreeEnsembleRegressor", attributes, 3)) as model:
        x = np.zeros((3, FEATURES), np.float32)
        with pytest.raises(tercet.UnsupportedError, match="no root leads to"):
            model.run({"x": x})


@pytest.mark.parametrize("trees", [3, 5, 10])
def test_votes_of_a_forest_are_probabilities(trees: int) -> None:
    """Of k votes each 1/n: k/n, which is never outside of 0 to 1, and no class wins a tie."""
    ort = pytest.importorskip("onnxruntime")
    attributes, x = votes(trees)
    proto = model_of("TreeEnsembleClassifier", attributes, len(x))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(proto) as model:
        labels, scores = model(x)
    np.testing.assert_array_equal(labels, session.run(["label"], {"x": x})[0])
    exact = np.arange(trees + 1) / trees
    np.testing.assert_allclose(scores, np.stack([1 - exact, exact], 1), rtol=0, atol=1e-7)
    assert (scores >= 0).all()
    assert (scores <= 1).all()


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("transform", ["SOFTMAX", "SOFTMAX_ZERO"])
def test_softmax_of_the_scores_of_two_classes(kernel: str, transform: str) -> None:
    """onnxruntime leaves it out, and gives 1 - s as the score of the first class."""
    attributes = svm(2, 4, kernel_type=kernel, post_transform=transform)
    proto = model_of("SVMClassifier", attributes, 9)
    x = draw(1, (9, FEATURES))
    _, want = ReferenceEvaluator(proto).run(None, {"x": x})
    with tercet.load(proto) as model:
        _, found = model(x)
    np.testing.assert_allclose(found, np.asarray(want), rtol=1e-4, atol=1e-6)


def test_svm_of_no_rows() -> None:
    ort = pytest.importorskip("onnxruntime")
    both = {"prob_a": [-1.0, -0.5, -2.0], "prob_b": [0.1, 0.2, 0.3]}
    x = np.zeros((0, FEATURES), np.float32)
    proto = model_of("SVMClassifier", svm(3, 4, kernel_type="RBF", **both), 0)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with tercet.load(proto) as model:
        for got, want in zip(model(x), session.run(None, {"x": x}), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
