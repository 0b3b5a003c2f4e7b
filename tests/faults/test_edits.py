"""A fault in one node of a file is found at that node, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tercet.tools.compare.layers import compare_layers

from .edits import FAULTS, Fault
from .networks import NETWORKS, inputs_of, network


# What an edit makes of a shape is no longer what the file declares.
@pytest.mark.filterwarnings("ignore::tercet.ModelWarning")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_found(fault: Fault) -> None:
    feeds = inputs_of(fault.network)
    found = compare_layers(network(fault.network), ["numpy"], feeds, other=fault.planted())
    wrong = [layer for layer in found.layers if layer.verdict == "wrong"]
    assert [layer.nodes for layer in wrong] == [(fault.node,)], found
    assert found.first is found.worst[0] is wrong[0]
    assert not found.ok


def test_what_only_sizes_decide_is_compared_too() -> None:
    """Nodes that become constants once sizes are known, up to an output."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[2, 3] x) => (float[2, 3] y, int64[n] r) <int64 zero = {0}, int64 one = {1}>
      { s = Shape <start = START> (x)  d = Squeeze (s)  r = Range (zero, d, one)  y = Relu (x) }"""
    shapes = ("start = 0, end = 1", "start = 1, end = 2")
    model, edited = (
        onnx.parser.parse_model(text.replace("start = START", shape)) for shape in shapes
    )
    x = {"x": np.ones((2, 3), np.float32)}
    found = compare_layers(model, ["numpy"], x, other=edited)
    assert [layer.nodes for layer in found.layers if layer.verdict == "wrong"] == [("s",)]
    found = compare_layers(model, ["numpy", "onnxruntime"], x, optimise=False)
    assert [layer.nodes for layer in found.layers] == [("s",), ("d",), ("r",), ("y",)]
    assert found.ok


def test_there_are_enough() -> None:
    assert len(set(map(str, FAULTS))) == len(FAULTS) >= 50
    assert len({fault.network for fault in FAULTS}) >= 5


#: Its LRN sums over as many channels as the batch has pictures.
WRONG_IN_ONNX = {"classifier"}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("cumulative", [False, True], ids=["alone", "cumulative"])
def test_no_alarm(name: str, cumulative: bool) -> None:
    """The same file, others who run it, and the passes: all of that is rounding."""
    model, feeds = network(name), inputs_of(name)
    others = ["onnxruntime"] if name in WRONG_IN_ONNX else ["onnxruntime", "onnx.reference"]
    results = [compare_layers(model, ["numpy"], feeds, other=model, cumulative=cumulative)]
    for other in others:
        results.append(compare_layers(model, ["numpy", other], feeds, cumulative=cumulative))
    for found in results:
        assert found.ok, found
        assert found.first is None


def test_a_fault_of_onnx_is_found() -> None:
    found = compare_layers(
        network("classifier"), ["numpy", "onnx.reference"], inputs_of("classifier")
    )
    assert [layer.operators for layer in found.layers if layer.verdict == "wrong"] == ["LRN"]
