"""The registry of families: a function per operator that describes cuDNN's work, or declines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import field

from ...runtime.base.record import record
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Formats
from ..cuda.recipe.operands import Packed
from .choice import EngineTask
from .names import CUDNN

#: The source of a role: a value, or constants packed on the host once per model.
Source = Value | Packed


@record
class NodeGroup:
    """Nodes that cuDNN could run as one step.

    Attributes:
        nodes: in topological order.
        task: the engine task for tensors in the requested `formats`.
        reads: the source of every role that some division of the task reads.
        gives: results by role.
        formats: the physical formats of inputs and results.
        at: returns the task for other layouts: slices allowed by `formats`, or any if it
            `follows`; or the reason why there is none.
    """

    nodes: tuple[Node, ...]
    task: EngineTask
    reads: Mapping[str, Source]
    gives: Mapping[str, Value]
    formats: Formats = field(default_factory=Formats)
    at: Callable[[BuildContext], EngineTask | str] | None = None


#: Called with the graph, a node, the nodes that are free (the node among them) and the options.
Family = Callable[[Graph, Node, Set[Node], Options], NodeGroup | str]

FAMILIES: dict[type[Op], Family] = {}


def claims(*operators: type[Op]) -> Callable[[Family], Family]:
    """Register a function for the operators that start its patterns."""

    def register(family: Family) -> Family:
        for operator in operators:
            if operator in FAMILIES:
                raise TypeError(f"{operator.__name__} has two families")
            FAMILIES[operator] = family
        return family

    return register


def is_wanted_anyway(node: Node, options: Options) -> bool:
    """Whether to offer a slow node to cuDNN: when tuning, or if the user requests it."""
    return options.tune or CUDNN in options.algorithms_for(node.kind, (node.name, *node.origin))
