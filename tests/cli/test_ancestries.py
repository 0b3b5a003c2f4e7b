"""What decides, and how coarse arithmetic is, before an output of a model."""

from __future__ import annotations

import numpy as np
import pytest

import tercet as api
from tercet.tools.verdict.operators import Ancestry, ancestries

from .test_error_bounds import model, numbers

DECIDING = {
    "a cast to integers": (("Cast", "x", "y", {"to": 7}), 7, True),
    "a cast to half": (("Cast", "x", "y", {"to": 10}), 10, False),
    "resized floats": (("Resize", "x n s", "y", {"mode": "linear"}), 1, False),
    "nearest floats": (("Resize", "x n s", "y", {"mode": "nearest"}), 1, False),
    "the greatest": (("ArgMax", "x", "y"), 7, True),
    "rounded": (("Round", "x", "y"), 1, True),
    "a product": (("Mul", "x x", "y"), 1, False),
}


@pytest.mark.parametrize("name", DECIDING)
def test_what_decides(name: str) -> None:
    """What only rounds leaves no step behind, whatever else its operator can do."""
    node, result, expected = DECIDING[name]
    constants = {"n": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    proto, _ = model([node], {"x": numbers(1, 2, 4, 4)}, constants, {"y": result})
    with api.load(proto, stop_at=0) as loaded:
        assert ancestries(loaded.imported, "float32")["y"].decides == expected


def test_only_ancestors_decide() -> None:
    """A decision or narrow arithmetic beside an output says nothing of that output."""
    nodes = [("MatMul", "x x", "y"), ("Round", "y", "r"), ("Cast", "x", "h", {"to": 10})]
    nodes += [("Relu", "h", "n"), ("Add", "r r", "z"), ("Mul", "x x", "s")]
    proto, _ = model(nodes, {"x": numbers(1, 2, 4, 4)}, {}, {"y": 1, "z": 1, "n": 10, "s": 1})
    with api.load(proto, stop_at=0) as loaded:
        found = ancestries(loaded.imported, "tf32")
    assert found["y"] == Ancestry(decides=False, coarsest="tf32")
    assert found["z"] == Ancestry(decides=True, coarsest="tf32")
    assert found["n"] == Ancestry(decides=False, coarsest="float16")
    assert found["s"] == Ancestry(decides=False, coarsest="float32")


def test_whole_numbers_that_no_noise_reaches_decide_nothing() -> None:
    """PyTorch computes the pads of a Pad from a shape, and casts them."""
    nodes = [("Shape", "x", "s"), ("Mul", "s zero", "t"), ("Cast", "t", "p", {"to": 7})]
    nodes += [("Concat", "p p", "pads", {"axis": 0}), ("Exp", "x", "e"), ("Pad", "e pads", "y")]
    nodes += [("Cast", "t", "f", {"to": 1}), ("Greater", "f e", "z")]
    constants = {"zero": np.zeros(2, np.int64)}
    proto, _ = model(nodes, {"x": numbers(2, 2)}, constants, {"y": 1, "z": 9})
    with api.load(proto, stop_at=0) as loaded:
        found = ancestries(loaded.imported, "float32")
    assert not found["y"].decides
    assert found["z"].decides
