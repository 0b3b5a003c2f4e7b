"""What is measured on a device is measured before claims are made, which are pure."""

from __future__ import annotations

from collections.abc import Iterator, Set
from copy import copy

import numpy as np

from tercet.backends.numpy import evaluate
from tercet.backends.numpy.backend import NumpyBackend
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Relu, Sigmoid
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Claim, Decline
from tercet.runtime.session.model import Model


class Measuring(NumpyBackend):
    """Declines what it has measured to be slow."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self.asked, self.slow = asked, frozenset[Node]()

    def prepare(self, graph: Graph, free: Set[Node], options: Options) -> Measuring:
        self.asked.append("prepare")
        found = copy(self)
        found.slow = frozenset(node for node in free if isinstance(node.op, Sigmoid))
        return found

    def claim(self, graph: Graph, free: Set[Node], options: Options) -> Iterator[Claim | Decline]:
        self.asked.append("claim")
        yield from (Decline(node, "slow here") for node in graph.nodes if node in self.slow)
        yield from super().claim(graph, free - self.slow, options)


def two() -> Graph:
    graph = Graph("two")
    x = graph.add_input("x", TensorType(float32, (2, 3)))
    y = graph.insert(Sigmoid(), [x], ["y"], name="smooth").output
    graph.set_outputs({"z": graph.insert(Relu(), [y], ["z"], name="rectify").output})
    infer(graph)
    return graph


def test_a_backend_is_prepared_before_it_is_asked() -> None:
    asked: list[str] = []
    backend = Measuring(asked)
    with Model(two(), (backend, NumpyBackend()), Options(), evaluate) as model:
        x = np.array([[-1, 0, 1], [2, 3, 4]], np.float32)
        (z,) = model.run({"x": x}).values()
    assert asked[:2] == ["prepare", "claim"]
    assert asked.count("prepare") == asked.count("claim")
    assert not backend.slow, "the backend itself stays as it is"
    np.testing.assert_allclose(z, 1 / (1 + np.exp(-x)), rtol=1e-6)
