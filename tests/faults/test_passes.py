"""A rewrite that changes what a graph computes is found by its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest

from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ir.op import with_attributes
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.passes import SYMBOLIC_PASSES, Pass, linear
from tercet.runtime.passes.driver import Context
from tercet.runtime.passes.half.widen_halves import widen_halves
from tercet.runtime.session import program_cache
from tercet.tools.bisect.bisection import bisect
from tercet.tools.compare import case
from tercet.tools.compare.compare import compare
from tercet.tools.compare.layers import compare_layers
from tercet.tools.runners.replay import PassList

from .networks import NETWORKS, Array, inputs_of, network

Damage = Callable[[Graph], None]


def sabotaged(name: str, number: int, damage: Damage) -> PassList:
    """Return the usual passes, of which one damages the graph in its rewrite of this number."""
    (original,) = (each for each in SYMBOLIC_PASSES if each.name == name)

    def run(graph: Graph, context: Context) -> Iterator[str]:
        for i, text in enumerate(original.run(graph, context), 1):
            if i == number:
                with suppress(LookupError):  # a part of the network need not have the node
                    damage(graph)
            yield text

    wrong = replace(original, run=run)
    return PassList(before=tuple(wrong if each is original else each for each in SYMBOLIC_PASSES))


def added(rewrite: Callable[[Graph], str], at: str) -> PassList:
    """Return the usual passes and, in front of one of them, a wrong one of a single rewrite."""

    def run(graph: Graph, context: Context) -> Iterator[str]:
        with suppress(LookupError):
            yield rewrite(graph)

    places = [i for i, each in enumerate(SYMBOLIC_PASSES) if each.name == at]
    passes = list(SYMBOLIC_PASSES)
    passes.insert(places[0], Pass("wrong", run, "a test wants it"))
    return PassList(before=tuple(passes))


def node_of(graph: Graph, kind: str, number: int = 0) -> Node:
    return [node for node in graph.nodes if node.kind == kind][number]


def data_of(node: Node, at: int) -> np.ndarray:
    value = node.inputs[at]
    assert value is not None
    assert value.data is not None
    return value.data


def change_constant(
    kind: str, at: int, change: Callable[[np.ndarray], np.ndarray], number: int = 0
) -> Damage:
    """Return what changes the constant that a node reads."""

    def damage(graph: Graph) -> None:
        node = node_of(graph, kind, number)
        new = graph.constant(change(data_of(node, at)), "damaged")
        inputs = list(node.inputs)
        inputs[at] = new
        graph.set_inputs(node, inputs)

    return damage


def change_attribute(kind: str, **changes: object) -> Damage:
    """Return what changes attributes of a node."""

    def damage(graph: Graph) -> None:
        node = node_of(graph, kind)
        graph.set_op(node, with_attributes(node.op, **changes))

    return damage


def swap(kind: str) -> Callable[[Graph], str]:
    """Return a rewrite that exchanges two operands, as if they commuted."""

    def rewrite(graph: Graph) -> str:
        node = node_of(graph, kind)
        graph.set_inputs(node, node.inputs[::-1])
        return f"exchanged the operands of '{node.name}'"

    return rewrite


def bypass(kind: str) -> Callable[[Graph], str]:
    """Return a rewrite that takes a node for one that changes nothing."""

    def rewrite(graph: Graph) -> str:
        node = node_of(graph, kind)
        source = node.inputs[0]
        assert source is not None
        graph.replace(node, [source])
        return f"removed '{node.name}'"

    return rewrite


def merge_equal_operators(graph: Graph) -> str:
    """Take two products of one tensor for the same, whatever the weights are."""
    one, other = node_of(graph, "MatMul", 0), node_of(graph, "MatMul", 1)
    graph.replace(other, one.outputs)
    return f"merged '{other.name}' into '{one.name}'"


def rectify(graph: Graph) -> str:
    """Put a Relu behind a node that had none."""
    node = node_of(graph, "Conv")
    readers = list(node.output.consumers)
    new = graph.insert(Relu(), [node.output], before=readers[0])
    new.output.type = node.output.type
    for reader in readers:
        graph.set_inputs(reader, [new.output if v is node.output else v for v in reader.inputs])
    return f"rectified '{node.name}'"


@dataclass(frozen=True)
class Planted:
    """A network and the passes that ruin it.

    Attributes:
        network: its name.
        what: in a word.
        name: the pass that is wrong.
        number: which of its rewrites is.
        passes: all of them.
    """

    network: str
    what: str
    name: str
    number: int
    passes: PassList

    def __str__(self) -> str:
        return f"{self.network}-{self.what}"


def damaged(network_: str, what: str, number: int, damage: Damage) -> Planted:
    """Plant a fault in a rewrite of fold_batchnorm."""
    name = "fold_batchnorm"
    return Planted(network_, what, name, number, sabotaged(name, number, damage))


def alien(network_: str, what: str, rewrite: Callable[[Graph], str], at: str) -> Planted:
    """Plant a pass that is wrong as a whole."""
    return Planted(network_, what, "wrong", 1, added(rewrite, at))


def scaled(data: np.ndarray) -> np.ndarray:
    return data * np.float32(1.01)


def flipped(data: np.ndarray) -> np.ndarray:
    return data.swapaxes(2, 3)


PLANTED = (
    damaged("classifier", "no-bias", 1, change_constant("Conv", 2, np.zeros_like)),
    damaged("classifier", "wrong-scale", 2, change_constant("Conv", 1, scaled, 1)),
    damaged("classifier", "transposed", 3, change_constant("Conv", 1, flipped, 2)),
    damaged("classifier", "pads", 2, change_attribute("Conv", pads=(0, 0, 2, 2))),
    damaged("classifier", "slope", 3, change_attribute("LeakyRelu", alpha=0.2)),
    damaged("digits", "bias", 1, change_constant("Conv", 2, np.negative)),
    damaged("digits", "axis", 2, change_attribute("Softmax", axis=0)),
    alien("classifier", "bypassed-relu", bypass("Relu"), "fold_batchnorm"),
    alien("classifier", "rectified", rectify, "merge_duplicates"),
    alien("transformer", "swapped-sub", swap("Sub"), "fold_affine"),
    alien("transformer", "bypassed-softmax", bypass("Softmax"), "merge_duplicates"),
    alien("transformer", "merged-products", merge_equal_operators, "remove_identity"),
    alien("recurrent", "bypassed-tanh", bypass("Tanh"), "fold_affine"),
    alien("detector", "swapped-concat", swap("Concat"), "merge_duplicates"),
    alien("detector", "bypassed-clip", bypass("Clip"), "merge_linear"),
    alien("squeezenet", "bypassed-relu", bypass("Relu"), "merge_duplicates"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_found(planted: Planted) -> None:
    feeds = inputs_of(planted.network)
    found = bisect(network(planted.network), None, feeds, passes=planted.passes)
    assert found.fault == "rewrite", found
    own = [rewrite for rewrite in found.rewrites if rewrite.name == planted.name]
    assert found.rewrite == own[planted.number - 1]
    assert found.reduced is not None
    assert len(found.reduced.nodes) <= 8


def test_parts_on_which_a_wrong_pass_fails_are_left_out() -> None:
    """Whatever it raises: the rewrite is known by then."""

    def rewrite(graph: Graph) -> str:
        if sum(node.kind == "Conv" for node in graph.nodes) < 2:
            raise ValueError("not an error of tercet's")
        return bypass("Relu")(graph)

    passes = added(rewrite, "merge_duplicates")
    found = bisect(network("squeezenet"), None, inputs_of("squeezenet"), passes=passes)
    assert found.rewrite is not None
    assert found.rewrite.name == "wrong"
    assert found.reduced is not None


@pytest.mark.parametrize("name", NETWORKS)
def test_no_alarm(name: str) -> None:
    found = bisect(network(name), None, inputs_of(name))
    assert found.ok, found
    assert found.reduced is None


FOLDED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 3, 6, 6] x) => (y)
<float[4] s = {1, 2, 3, 4}, float[4] b = {4, 3, 2, 1}, float[4] m = {1, 1, 2, 2},
 float[4] v = {1, 2, 1, 2}>
{ c = Conv (x, w)  n = BatchNormalization (c, s, b, m, v)  y = Relu (n) }"""


@pytest.mark.parametrize("cumulative", [False, True])
def test_layers_tell_that_a_rewrite_is_wrong(
    cumulative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the rewritten graph is right then."""
    proto = onnx.parser.parse_model(FOLDED)
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    right = compare_layers(proto, ["onnxruntime", "numpy"], cumulative=cumulative)
    assert right.ok
    assert right.rewritten == ()
    monkeypatch.setattr(linear, "rounded_bias", lambda exact, dtype: (-exact).astype(dtype))
    wrong = compare_layers(proto, ["onnxruntime", "numpy"], cumulative=cumulative)
    assert wrong.first is None
    assert [finding.agreement.output for finding in wrong.rewritten] == ["y"]
    assert wrong.verdict == "MISMATCH"
    assert "a graph pass changes y: " in str(wrong)
    assert wrong.to_dict()["rewritten"][0]["verdict"] == "wrong"
    found = bisect(proto, ["onnxruntime", "numpy"])
    assert found.rewrite is not None


HALVES = """<ir_version: 10, opset_import: ["" : 21]>
g (float16[1, 2, 4, 4] x) => (float16[1, 2, 4, 4] y)
{ a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Sigmoid (a) y = Conv <pads = [1, 1, 1, 1]> (b, w) }"""


def test_what_keeps_halves_in_float32_is_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model on numpy does so last, when sizes are known; so does what looks for its fault."""
    proto = onnx.parser.parse_model(HALVES)
    weights = np.random.default_rng(0).standard_normal((2, 2, 3, 3)).astype(np.float16)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    pair = ["onnxruntime", "numpy"]
    steps = compare_layers(proto, pair)
    types = {finding.agreement.type for step in steps.layers for finding in step.findings}
    assert compare(proto, pair, repeat=0).ok
    assert steps.ok
    assert "float32[1,2,4,4]" in types
    assert bisect(proto, pair).fault == "none"

    def wrong(graph: Graph, constants: Callable[[Array], Array], limit: int) -> None:
        widen_halves(graph, lambda data: constants(data) * np.float32(1.02), limit)

    for module in (program_cache, case):
        monkeypatch.setattr(module, "widen_halves", wrong)
    assert compare(proto, pair, repeat=0).verdict == "MISMATCH"
    assert [each.agreement.output for each in compare_layers(proto, pair).rewritten] == ["y"]
    found = bisect(proto, pair)
    assert found.fault == "rewrite"
    assert found.rewrite is not None
    assert found.rewrite == found.rewrites[-1]
    assert found.rewrite.name == "widen_halves"
    assert compare(proto, pair, widen=False, repeat=0).ok
    assert bisect(proto, pair, widen=False).fault == "none"
