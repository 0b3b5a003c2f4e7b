"""Every estimator of scikit-learn that skl2onnx converts, fitted to a few random rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx

#: Parameters that make an estimator small.
_SMALL = {"max_iter": 50, "n_estimators": 5, "n_init": 1, "random_state": 0}
_WORDS = ("the quick", "brown fox", "the lazy dog", "a fox", "quick, quick!", "dog")
_ROWS, _COLUMNS = 90, 5


def estimators() -> Iterator[tuple[str, Callable[[Path], dict[str, Any]]]]:
    """Yield the names of estimators, and what fits and writes each of them to a path."""
    every = import_module("sklearn.utils").all_estimators()
    supported = set(import_module("skl2onnx").supported_converters())
    for name, kind in every:
        if f"Sklearn{name}" in supported:
            yield name, partial(_write, kind)


def _write(kind: Any, target: Path) -> dict[str, Any]:
    """Fit an estimator, write it, and return rows for it."""
    generator = import_module("sklearn.utils._test_common.instance_generator")
    estimator = next(iter(generator._construct_instances(kind)))
    known = estimator.get_params()
    estimator.set_params(**{name: value for name, value in _SMALL.items() if name in known})
    rows, truth = _data(estimator)
    estimator.fit(rows, truth)
    alias = import_module("skl2onnx._supported_operators").get_model_alias(kind)
    converter = import_module("skl2onnx.common._registration").get_converter(alias)
    known = converter.get_allowed_options() or ()
    options = {id(estimator): {"zipmap": False}} if "zipmap" in known else None
    types = import_module("skl2onnx.common.data_types")
    texts = [("X", types.StringTensorType([None, *rows.shape[1:]]))]
    floats = [("X", types.FloatTensorType([None, *rows.shape[1:]]))]
    made = import_module("skl2onnx").convert_sklearn(
        estimator,
        initial_types=texts if rows.dtype.kind == "U" else floats,
        options=options,
        target_opset={"": 21, "ai.onnx.ml": 3},
    )
    onnx.save(made, target)
    return {made.graph.input[0].name: rows[:12]}


def _data(estimator: Any) -> tuple[Any, Any]:
    """Return rows and truths that the estimator's tags ask for."""
    rng = np.random.default_rng(0)
    tags = estimator.__sklearn_tags__()
    rows: Any = rng.standard_normal((_ROWS, _COLUMNS)).astype(np.float32)
    score = rows @ np.arange(_COLUMNS) - rows[:, 0] ** 2
    if tags.input_tags.string and not tags.input_tags.two_d_array:
        rows = np.array([_WORDS[i] for i in rng.integers(0, len(_WORDS), _ROWS)])
    elif tags.input_tags.one_d_array and not tags.input_tags.two_d_array:
        rows = rows[:, 0]
    elif tags.input_tags.positive_only or tags.input_tags.categorical:
        rows = np.abs(np.rint(3 * rows))
    truth: Any = np.digitize(score, (-2, 3))
    if import_module("sklearn.base").is_regressor(estimator):
        truth = np.abs(score) + 1
    if tags.target_tags.one_d_labels and not tags.target_tags.two_d_labels:
        rows = truth if tags.input_tags.two_d_array is False else rows
    if tags.target_tags.multi_output and not tags.target_tags.single_output:
        truth = np.stack([truth, truth[::-1]], 1)
    return rows, truth
