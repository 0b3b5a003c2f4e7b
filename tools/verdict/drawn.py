"""Random numbers: results behind them differ between runtimes, as ONNX names no generator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array
from ...runtime.ops.norm import Dropout
from .agreement import Agreement


def draws_of(graph: Graph) -> dict[str, frozenset[Node]]:
    """Return the nodes behind each output that draw random numbers, by its name; none left out."""
    behind: dict[Value, frozenset[Node]] = {}
    for node in graph.nodes:
        found = frozenset(own for own in _with_bodies(node) if _draws(own))
        found = found.union(*(behind.get(v, ()) for v in (*node.inputs, *node.captures) if v))
        if found:
            behind |= dict.fromkeys(node.outputs, found)
    return {name: behind[value] for name, value in graph.outputs.items() if value in behind}


def draws(node: Node) -> bool:
    """Whether a node, or one in its bodies, draws random numbers."""
    return any(map(_draws, _with_bodies(node)))


def _with_bodies(node: Node) -> Iterable[Node]:
    return (node, *(each for body in node.op.graphs() for each in body.walk()))


def _draws(node: Node) -> bool:
    """Whether a node draws random numbers, as a Dropout outside training does not."""
    if node.op.deterministic or not isinstance(node.op, Dropout):
        return not node.op.deterministic
    training = (*node.inputs, None, None)[2]
    return training is not None and (training.data is None or bool(training.data.any()))


def with_draws(
    found: Agreement,
    behind: Iterable[Node],
    reference: Array | None,
    theirs: Array | None,
    *,
    same_generator: bool,
) -> Agreement:
    """Return a difference as inconclusive if random numbers may be its reason.

    A tolerance that the user gives is kept, and so is another dtype or rank.

    Args:
        found: of an output.
        behind: the nodes behind it that draw random numbers.
        reference: what it is held against; None if that is nothing.
        theirs: the runner's.
        same_generator: whether equal seeds give both runners equal numbers.
    """
    free = [node for node in behind if not same_generator or getattr(node.op, "seed", None) is None]
    if found.ok or not free or found.tolerance.origin == "given":
        return found
    if reference is None or theirs is None:
        return found
    if (reference.dtype, reference.ndim) != (theirs.dtype, theirs.ndim):
        return found
    node = min(free, key=lambda node: node.name)
    reason = f"it depends on random numbers ({node.kind} '{node.name}'), and runtimes draw others"
    return replace(found, verdict="inconclusive", reason=reason)
