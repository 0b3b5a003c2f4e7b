"""Random graphs of many operators give the same however they are run; see the workshop's fuzzer."""

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

from tercet.tools.workshop.fuzz.differential import findings, main
from tercet.tools.workshop.fuzz.graphs import random_model


@pytest.mark.parametrize("seed", range(7_000_000, 7_000_006))
def test_random_graphs(seed: int) -> None:
    proto, feeds = random_model(seed, 12)
    onnx.checker.check_model(proto, full_check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of onnxruntime's, about opsets
        assert list(findings(proto, feeds)) == []


def test_a_seed_is_a_graph() -> None:
    (one, feeds), (other, again) = random_model(5), random_model(5)
    assert one.SerializeToString() == other.SerializeToString()
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
    assert random_model(6)[0].SerializeToString() != one.SerializeToString()


def test_one_graph_can_be_had(tmp_path: Path) -> None:
    file = tmp_path / "graph.onnx"
    assert main(["--only", "3", "--seed", "1", "--nodes", "8", "--save", str(file)]) == 0
    assert len(onnx.load(file).graph.node) >= 8
