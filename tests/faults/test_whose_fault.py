"""Neither passes nor importing are blamed for what one program does, and nothing hides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.random import default_rng

from tercet import bisect, compare, compare_layers
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.types import HostValue
from tercet.runtime.ops.norm import BatchNormalization
from tercet.tools.runners.onnxruntime_runner import OnnxRuntime
from tercet.tools.runners.replay import BackendPlayer, FilePlayer, Player, Values, open_player

from .faulty import FaultyBackend
from .networks import inputs_of, network

#: A batch norm that passes fold, with an epsilon that matters.
HIDDEN = """<ir_version: 9, opset_import: ["" : 18]>
g (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y)
<float[3, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] one = {1, 1.5, 2},
 float[3] zero = {0, 1, 0}, float[3] small = {0.01, 0.02, 0.03}> {
  [conv] a = Conv (x, w)
  [norm] b = BatchNormalization <epsilon = 0.001> (a, one, zero, zero, small)
  [relu] y = Relu (b)
}"""
FEEDS = {"x": default_rng(0).standard_normal((2, 3, 4, 4), np.float32)}


class _Epsilon(BackendPlayer):
    """Normalizes with another epsilon."""

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        changed = graph.clone()
        for node in changed.nodes:
            if isinstance(node.op, BatchNormalization):
                node.op = replace(node.op, epsilon=1e-5)
        return super().run(changed, feeds)


class _Unsteady(FilePlayer):
    """Gives something else in every run."""

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        found: dict[str, Any] = super().run(graph, feeds)
        return {name: data + default_rng().random(data.shape) for name, data in found.items()}


class _Folded(FilePlayer):
    """Computes something else in a graph of two nodes, as that of `HIDDEN` is behind passes."""

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        found: dict[str, Any] = super().run(graph, feeds)
        return {n: data + 1 if len(graph.nodes) == 2 else data for n, data in found.items()}


class _Together(BackendPlayer):
    """Computes something else if it computes more than one node."""

    def run(self, graph: Graph, feeds: Values) -> dict[str, HostValue]:
        found: dict[str, Any] = super().run(graph, feeds)
        return {n: data + 1 if len(graph.nodes) > 1 else data for n, data in found.items()}


def wrong_norm() -> Player:
    numpy = open_player("numpy")
    assert isinstance(numpy, BackendPlayer)
    return _Epsilon("wrong", numpy.backends, numpy.options)


@pytest.mark.parametrize("is_reference", [False, True])
def test_a_wrong_node_that_passes_remove_is_named(*, is_reference: bool) -> None:
    """The optimised graph is right on both: no pass changes anything."""
    players: list[str | Player] = ["onnx.reference", wrong_norm()]
    found = compare_layers(HIDDEN, players[:: -1 if is_reference else 1], FEEDS)
    assert found.verdict == "MISMATCH"
    assert found.first is not None
    assert "norm" in found.first.nodes
    assert (found.of_file, found.rewritten, found.imported) == (True, (), ())
    assert found.to_dict()["of_file"] is True
    assert "the steps are those of the file's graph" in " ".join(str(found).split())
    assert "a graph pass changes" not in str(found)


def test_what_another_program_makes_of_an_optimised_graph_is_no_fault_of_the_file() -> None:
    players: list[str | Player] = ["numpy", _Folded("onnx.reference")]
    found = compare_layers(HIDDEN, players, FEEDS)
    assert (len(found.layers), found.whole, found.ok) == (2, (), True)


def test_nothing_hides_where_nothing_is_wrong() -> None:
    found = compare_layers(HIDDEN, ["onnx.reference", "numpy"], FEEDS)
    assert found.ok
    assert not found.of_file


def test_importing_is_not_blamed_for_what_changes_from_run_to_run() -> None:
    players: list[str | Player] = ["numpy", _Unsteady("onnx.reference")]
    found = compare_layers(HIDDEN, players, FEEDS)
    assert found.imported == ()
    assert found.unread == "onnx.reference gives something else in its second run"
    assert found.rewritten == ()


@pytest.mark.parametrize("order", [("onnxruntime", "numpy"), ("numpy", "onnxruntime")])
def test_a_runner_that_is_wrong_in_every_run_in_another_way_is_named(
    order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    run: Callable[..., dict[str, Any]] = OnnxRuntime.run

    def unsteady(self: OnnxRuntime, feeds: Any) -> dict[str, Any]:
        found = run(self, feeds)
        return {name: data + default_rng().random(data.shape, "f") for name, data in found.items()}

    monkeypatch.setattr(OnnxRuntime, "run", unsteady)
    (output,) = compare(HIDDEN, order, FEEDS, repeat=2).results[1].agreements
    assert output.verdict == "MISMATCH"
    assert "run 2 of onnxruntime gave something else than the first" in output.reason
    behind = ", with onnxruntime as the second runner," in output.reason
    assert behind == (order[0] == "onnxruntime")


def test_a_step_that_the_reference_alone_computes_alike_is_not_wrong() -> None:
    numpy = open_player("numpy")
    assert isinstance(numpy, BackendPlayer)
    players: list[str | Player] = [_Together("other", numpy.backends), "onnx.reference"]
    found = compare_layers(HIDDEN, players, FEEDS, optimise=False)
    assert [layer.verdict for layer in found.layers] == ["inconclusive"] * 3
    (first, *_) = found.layers
    assert first.worst is not None
    assert first.worst.agreement.reason.startswith("other gives the same alone; ")


def test_bisection_names_the_node_where_outputs_are_inconclusive() -> None:
    """Softmax makes little of a sum that is a bit off; the sum itself is wrong."""

    def a_bit_off(data: np.ndarray) -> None:
        data += np.float32(0.003)

    faulty = FaultyBackend({"depthwise"}, a_bit_off)
    model, feeds = network("classifier"), inputs_of("classifier")
    players: list[str | Player] = ["onnx.reference", BackendPlayer("faulty", (faulty,))]
    found = bisect(model, players, feeds, reduce=False)
    assert (found.fault, found.verdict) == ("nodes", "MISMATCH")
    assert "depthwise" in found.nodes
    assert all(each.verdict == "wrong" for each in found.findings)


def test_the_model_is_valid() -> None:
    onnx.checker.check_model(onnx.parser.parse_model(HIDDEN), full_check=True)
