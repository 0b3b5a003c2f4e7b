"""Several recurrences in one engine: which node drops the last axis of a state. No library."""

from __future__ import annotations

import pytest

from tercet.backends.tensorrt.claims import refusals
from tercet.backends.tensorrt.loops import DROPS, droppers
from tercet.importers import onnx as importer
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer

from .recurrences import GATES, WAYS, recurrences


def graph_of(kind: str, way: str, count: int = 2) -> Graph:
    graph = importer.load(recurrences(kind, way, count)).graph
    infer(graph)
    return graph


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("way", WAYS)
def test_who_drops_it(kind: str, way: str) -> None:
    graph = graph_of(kind, way)
    expected = [WAYS[way][2]] if WAYS[way][2] else []
    assert [node.kind for node in droppers(graph)] == expected
    said = refusals(graph, set(graph.nodes), lambda name: True, "TensorRT")
    assert [node.kind for node, reason in said.items() if reason == DROPS] == expected


@pytest.mark.parametrize("way", WAYS)
def test_the_first_recurrence_may_have_it(way: str) -> None:
    assert not droppers(graph_of("LSTM", way, count=1))


def test_a_third_may_not() -> None:
    assert len(droppers(graph_of("GRU", "squeezed", count=3))) == 1
