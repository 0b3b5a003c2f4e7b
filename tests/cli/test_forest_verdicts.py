"""The verdict on forests, whose leaves are sums that may cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .test_error_bounds import Node, judged, model, numbers


@pytest.mark.parametrize("kind", ["TreeEnsembleRegressor", "TreeEnsembleClassifier"])
def test_leaves_that_cancel_round_by_their_own_magnitude(kind: str) -> None:
    """Leaves of 53 and -29 add up to 3e-2, which float32 rounds by their magnitude."""
    leaves = np.array([53, -27, 10 / 3, -29.3], np.float32)
    trees, zeros = [*range(len(leaves))], [0] * len(leaves)
    lists: dict[str, Any] = {"domain": "ai.onnx.ml", "nodes_treeids": trees}
    for part in ("nodeids", "featureids", "truenodeids", "falsenodeids"):
        lists[f"nodes_{part}"] = zeros
    lists |= {"nodes_values": [0.0] * len(leaves), "nodes_modes": ["LEAF"] * len(leaves)}
    prefix = "target" if kind.endswith("Regressor") else "class"
    ids = {f"{prefix}_treeids": trees, f"{prefix}_nodeids": zeros, f"{prefix}_ids": zeros}
    attributes: dict[str, Any] = lists | ids | {f"{prefix}_weights": leaves.tolist()}
    if prefix == "target":
        nodes: list[Node] = [(kind, "x", "y", attributes | {"n_targets": 1})]
    else:
        nodes = [(kind, "x", "label y", attributes | {"classlabels_int64s": [0, 1, 2]})]
    case = model(nodes, {"x": numbers(2, 1)}, {}, {"y": 1})
    one_by_one = np.add.accumulate(leaves)[-1]

    def summed(y: np.ndarray) -> np.ndarray:
        assert abs(y[0, 0] - one_by_one) > 1e-5 * abs(one_by_one)
        y[:, 0] = one_by_one
        return y

    assert judged(case, summed).ok
    assert judged(case, lambda y: y * np.float32(1.01)).verdict == "MISMATCH"
