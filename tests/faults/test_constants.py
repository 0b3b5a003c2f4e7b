"""Native code that writes to the constants of a graph, which others share."""

from __future__ import annotations

import ctypes
from collections.abc import Set

import numpy as np
import pytest
from onnx import ModelProto
from onnx.parser import parse_model

from tercet.backends.numpy import NumpyBackend
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.options import Options
from tercet.tools.bisect.bisection import bisect
from tercet.tools.compare.layers import compare_layers
from tercet.tools.runners.replay import BackendPlayer

from .faulty import FaultyBackend
from .networks import Array


class Scribbler(FaultyBackend):
    """Computes everything as numpy does, then writes to the constants of some nodes."""

    def __init__(self, nodes: Set[str]) -> None:
        super().__init__(nodes, self._scribble)
        self._constants: list[Array] = []

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> FaultyBackend:
        faulty = filter(self._is_faulty, graph.nodes)
        read = [value.data for node in faulty for value in node.distinct_reads]
        self._constants = [data for data in read if data is not None]
        return self

    def _scribble(self, data: Array) -> None:
        for constant in self._constants:
            there = (ctypes.c_char * constant.nbytes).from_address(constant.ctypes.data)
            floats = np.frombuffer(memoryview(there), constant.dtype)
            floats *= floats.dtype.type(1.5)


@pytest.fixture
def network() -> ModelProto:
    rng = np.random.default_rng(0)
    numbers = ", ".join(str(round(float(x), 3)) for x in rng.standard_normal(64))
    return parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[4,8] x) => (float[4,8] y) <float[8,8] w = {{{numbers}}}> {{
            [first] a = MatMul(x, w)
            [weights] b = Softmax(a)
            [second] c = MatMul(b, w)
            [sum] y = Add(a, c)
        }}""")


def test_only_its_own_step_is_accused(network: ModelProto) -> None:
    def player() -> BackendPlayer:
        return BackendPlayer("faulty", (Scribbler({"first"}), NumpyBackend()))

    found = compare_layers(network, ["numpy", player()], runs=2)
    (wrong,) = (layer for layer in found.layers if layer.repeatable is False)
    assert "first" in wrong.nodes
    assert not found.rewritten
    once = compare_layers(network, ["numpy", player()])
    assert [finding.agreement.output for finding in once.whole] == ["y"]
    assert once.planned is None  # another step reads the constants that it has overwritten
    assert not once.rewritten
    fault = bisect(network, ["numpy", player()])
    assert (fault.fault, fault.nodes) == ("nodes", ("first",))
