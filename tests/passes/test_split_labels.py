"""Classifiers of texts: numbers first, which a device finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet

RECORDED = Path(__file__).parents[1] / "producers" / "recorded"


@pytest.mark.parametrize("name", ["sklearn_logistic_labels", "catboost"])
@pytest.mark.filterwarnings("ignore:.*the file declares types:tercet.ModelWarning")
def test_scores_are_made_on_the_device(name: str) -> None:
    path = RECORDED / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as file:
        feeds = {key[6:]: file[key] for key in file.files if key.startswith("input/")}
    with tercet.load(path) as model, tercet.load(path, stop_at=0) as plain:
        kinds = [node.kind for node in model.graph.nodes]
        found, wanted = model.run(feeds), plain.run(feeds)
    assert "ai.onnx.ml::LabelEncoder" in kinds
    for key, data in wanted.items():
        if isinstance(data, np.ndarray):
            np.testing.assert_array_equal(found[key], data)
    rows = len(next(iter(feeds.values())))
    shapes = {key: x.shape for key, x in feeds.items()}
    placed = tercet.inspect(
        path, placement="cuda", target="sm_90a", fallback="numpy", shapes=shapes
    ).placement
    assert placed is not None
    assert rows > 1
    host = {row.operators for row in placed if row.backend == "numpy"}
    assert not [one for one in host if "Classifier" in one]
    assert [row for row in placed if "Classifier" in row.operators and "cuda" in row.backend]
