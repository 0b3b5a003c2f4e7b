"""Classical models that together need every form of their kernels, as files of one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper

from tercet.runtime.ir.dtypes import TO_ONNX
from tercet.runtime.ir.types import Array

from ..ops.test_ml import FEATURES, MODES, cases, forest, votes

ROWS = 75
ML = "ai.onnx.ml"


def drawn(rows: int, columns: int, dtype: Any = np.float32) -> Array:
    """Return features of few digits, so that some are equal to what nodes compare them with."""
    x = np.random.default_rng(rows + columns).standard_normal((rows, columns)).round(1)
    return (x * 4 if np.dtype(dtype).kind == "i" else x).astype(dtype)


def model_of(
    kind: str, attributes: dict[str, Any], *inputs: Array, version: int = 3
) -> tuple[ModelProto, dict[str, Array]]:
    """Return a file of one node, and what is fed to it."""
    feeds = {f"x{i}": x for i, x in enumerate(inputs)}
    outputs = ["label", "y"] if kind.endswith("Classifier") else ["y"]
    node = helper.make_node(kind, list(feeds), outputs, domain=ML, **attributes)
    graph = helper.make_graph(
        [node],
        kind,
        [helper.make_tensor_value_info(n, TO_ONNX[x.dtype], x.shape) for n, x in feeds.items()],
        [ValueInfoProto(name=name) for name in outputs],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def tensor(values: Any, dtype: Any) -> Any:
    return numpy_helper.from_array(np.array(values, dtype))


def newest(dtype: Any, mode: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a TreeEnsemble of version 5 whose nodes share leaves; mode 6 tests sets of values."""
    rng = np.random.default_rng(7)
    trees, inner = 6, 7
    count = trees * inner
    modes = np.full(count, mode) if mode is not None else rng.integers(0, 7, count)
    below = np.tile(np.arange(inner), trees)
    first = np.repeat(np.arange(trees) * inner, inner)
    is_last = below >= 3
    sets = [[*rng.choice(5, rng.integers(1, 4)).tolist(), np.nan] for m in modes if m == 6]
    held = (
        {"membership_values": tensor([v for members in sets for v in members], dtype)}
        if sets
        else {}
    )
    return {
        "n_targets": 3,
        "leaf_targetids": rng.integers(0, 3, 9).tolist(),
        "leaf_weights": tensor(rng.standard_normal(9), dtype),
        "nodes_featureids": rng.integers(0, FEATURES, count).tolist(),
        "nodes_modes": tensor(modes, np.uint8),
        "nodes_splits": tensor(rng.standard_normal(count).round(1), dtype),
        "nodes_missing_value_tracks_true": rng.integers(0, 2, count).tolist(),
        "nodes_trueleafs": is_last.astype(int).tolist(),
        "nodes_falseleafs": is_last.astype(int).tolist(),
        "nodes_truenodeids": np.where(is_last, rng.integers(0, 9, count), first + 2 * below + 1)
        .astype(int)
        .tolist(),
        "nodes_falsenodeids": np.where(is_last, rng.integers(0, 9, count), first + 2 * below + 2)
        .astype(int)
        .tolist(),
        "tree_roots": (np.arange(trees) * inner).tolist(),
        **held,
        **more,
    }


def doubles(kind: str, targets: range) -> dict[str, Any]:
    """Return a forest whose numbers are tensors of float64."""
    found = forest(kind, targets, MODES)
    for name in ("nodes_values", f"{kind}_weights"):
        numbers = np.array(found.pop(name)) + 1e-9
        found[f"{name}_as_tensor"] = tensor(numbers, np.float64)
    return found


def own_models() -> Iterator[tuple[str, ModelProto, dict[str, Array]]]:
    """Yield those of which onnxruntime's CPU makes something else: see docs/rulings.md."""
    one, x = forest("class", range(1)), drawn(ROWS, FEATURES)
    for transform in ("SOFTMAX", "SOFTMAX_ZERO", "PROBIT"):
        given = {**one, "classlabels_int64s": [0, 1], "post_transform": transform}
        yield transform, *model_of("TreeEnsembleClassifier", given, x)
    for transform in ("NONE", "SOFTMAX"):
        given = {**pair(), "post_transform": transform}
        yield f"Linear{transform}", *model_of("LinearClassifier", given, x)


def pair() -> dict[str, Any]:
    """Return a LinearClassifier of two classes with one row of coefficients."""
    found: dict[str, Any] = {"coefficients": drawn(1, FEATURES).ravel()}
    return found | {"classlabels_ints": [4, 6], "intercepts": [0.125]}


def models() -> Iterator[tuple[str, ModelProto, dict[str, Array]]]:
    """Yield names, files and feeds; those that onnxruntime's CPU runs."""
    gaps = drawn(ROWS, FEATURES)
    gaps[::5, 1] = np.nan
    made: list[tuple[Any, ...]] = []
    for kind, attributes in cases():
        x = gaps if kind.startswith("Tree") or kind == "Imputer" else drawn(ROWS, FEATURES)
        made.append((kind, attributes, x))
    labels = {"classlabels_int64s": [0, 1]}
    one, three = forest("class", range(1)), forest("class", range(3))
    for x in (drawn(1, FEATURES), drawn(7, FEATURES), drawn(ROWS, FEATURES, np.int64)):
        made.append(("TreeEnsembleClassifier", {**one, **labels}, x))
    weights = np.abs(one["class_weights"]) / 5
    for transform in ("NONE", "LOGISTIC"):
        given = {**one, **labels, "class_weights": weights, "post_transform": transform}
        made.append(("TreeEnsembleClassifier", given, gaps))
    several = {"classlabels_int64s": [3, 1, 2], "base_values": [0.5, 0.25, -1.0]}
    made.append(("TreeEnsembleClassifier", {**three, **several}, gaps))
    made.append(("TreeEnsembleClassifier", *votes(10)))
    sparse = {**three, "class_ids": [i % 2 for i in three["class_ids"]]}
    made.append(("TreeEnsembleClassifier", {**sparse, "classlabels_int64s": [3, 1, 2]}, gaps))
    wide = drawn(40, 300)
    made.append(("TreeEnsembleRegressor", {**forest("target", range(1)), "n_targets": 1}, wide))
    many = {**forest("target", range(70), MODES), "n_targets": 70}
    made.append(("TreeEnsembleRegressor", many, gaps))
    made.append(("TreeEnsembleRegressor", {**forest("target", range(1)), "n_targets": 2}, gaps))
    twice = doubles("target", range(1))
    made.append(("TreeEnsembleRegressor", {**twice, "n_targets": 1}, gaps.astype(np.float64)))
    twice = doubles("class", range(3)) | {"classlabels_int64s": [3, 1, 2]}
    made.append(("TreeEnsembleClassifier", twice, gaps.astype(np.float64)))
    categories = {"cats_int64s": [-1, 0, 2, 5]}
    made.append(("OneHotEncoder", categories, drawn(9, 3)))
    made.append(("OneHotEncoder", categories, drawn(9, 3, np.int64)))
    made.append(("FeatureVectorizer", {"inputdimensions": [2, 3]}, drawn(9, 2), drawn(9, 3)))
    made.append(("Binarizer", {"threshold": 0.3}, drawn(9, 3)))
    for kind in (np.float32, np.int64):
        made.append(("Scaler", {"offset": [0.3], "scale": [0.7]}, drawn(9, 3, kind)))
    numbers = {"imputed_value_int64s": [7], "replaced_value_int64": 0}
    made.append(("Imputer", numbers, drawn(9, 3, np.int64)))
    made.append(("Normalizer", {"norm": "L2"}, drawn(9, 70, np.int64)))
    outliers = {"one_class": 1, "n_supports": 2, "coefficients": [1.0, -0.5], "rho": [-0.1]}
    vectors = {"support_vectors": drawn(2, FEATURES).ravel(), "kernel_params": [0.5, 0.0, 3.0]}
    made.append(("SVMRegressor", {**outliers, **vectors, "kernel_type": "RBF"}, gaps * 0 + 0.5))
    straight = {"coefficients": drawn(3, FEATURES).ravel(), "rho": [0.25]}
    named = {"classlabels_ints": [4, 5, 6], "kernel_params": [0.0, 0.0, 0.0]}
    made.append(("SVMClassifier", {**straight, **named}, drawn(9, FEATURES)))
    made.append(("LinearClassifier", {**pair(), "post_transform": "LOGISTIC"}, drawn(9, FEATURES)))
    for at, (kind, attributes, *inputs) in enumerate(made):
        yield (f"{kind}{at}", *model_of(kind, attributes, *inputs))
    for mode, dtype in ((0, np.float32), (None, np.float32), (None, np.float64), (6, np.float32)):
        for function in range(4):
            attributes = newest(dtype, mode, aggregate_function=function)
            found = model_of("TreeEnsemble", attributes, gaps.astype(dtype), version=5)
            yield f"TreeEnsemble{mode}{np.dtype(dtype)}{function}", *found
    for keys, values, x in (
        ({"keys_int64s": [3, -1, 3]}, {"values_floats": [0.5, 1.5, 2.5]}, drawn(9, 3, np.int64)),
        ({"keys_floats": [0.5, np.nan, 0.1]}, {"values_int64s": [4, 5, 6]}, gaps),
    ):
        yield f"LabelEncoder{len(x)}", *model_of("LabelEncoder", keys | values, x, version=4)
