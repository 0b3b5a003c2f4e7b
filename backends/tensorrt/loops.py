"""A workaround for graphs with several recurrences, on which the builder fails.

TensorRT-RTX 1.7 fails with an internal error (``bb.cpp:43: append_to->parent() == this``) if the
initial state of a recurrence other than an engine's first one has lost a last axis of size 1 inside
the engine: (1, 1, 128, 1) becomes (1, 1, 128), by views and operators of one input. The node that
drops the axis is excluded from the region; usually it is a view, which costs nothing elsewhere.
"""

from __future__ import annotations

from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import input_names
from ...runtime.ops.gather import Gather
from ...runtime.ops.recurrent import GRU, LSTM, RNN

DROPS = "the state of a second recurrence loses its last axis here, on which the builder fails"
_STATES = ("initial_h", "initial_c")


def droppers(graph: Graph) -> frozenset[Node]:
    """Return nodes that drop the last axis of the initial state of a second or later recurrence."""
    recurrences = [node for node in graph.nodes if isinstance(node.op, GRU | LSTM | RNN)]
    found: set[Node] = set()
    for node in recurrences[1:]:
        named = zip(input_names(type(node.op)), node.inputs, strict=False)
        states = [value for name, value in named if name in _STATES and value is not None]
        found.update(filter(None, map(_dropper, states)))
    return frozenset(found)


def _dropper(state: Value) -> Node | None:
    """Return the node nearest to a state that drops its last axis; None if there is none."""
    dims, value = state.tensor.dims, state
    while (node := value.producer) is not None:
        source = node.inputs[0]
        if source is None:
            return None
        before = source.tensor.dims
        if before[:-1] == dims and (before[-1] == 1 if node.op.view else _reduces(node)):
            return node
        keeps = len(node.inputs) == 1 and before == value.tensor.dims
        if not node.op.view and not keeps:
            return None
        value = source
    return None


def _reduces(node: Node) -> bool:
    return isinstance(node.op, Gather) or getattr(node.op, "keepdims", 1) == 0
