"""The registry of families: a function per operator that describes cuDNN's work, or declines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Formats
from ..cuda.recipe.operands import Packed
from .choice import EngineTask
from .names import CUDNN

#: What a role stands for: a value, or constants packed on the host once per model.
Source = Value | Packed


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that cuDNN could run as one step.

    Attributes:
        nodes: in topological order.
        task: what an engine is needed for, where the tensors lie as `formats` wants them.
        reads: what is read by every role that some division of the task has.
        gives: what is given, by role.
        formats: the physical formats of what is read and given.
        at: gives the task for tensors that lie otherwise: those that `formats` allows to be
            slices, or all where it `follows`; or the reason why there is none.
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
    """Register a function for the operators with which its patterns begin."""

    def register(family: Family) -> Family:
        for operator in operators:
            if operator in FAMILIES:
                raise TypeError(f"{operator.__name__} has two families")
            FAMILIES[operator] = family
        return family

    return register


def is_wanted_anyway(node: Node, options: Options) -> bool:
    """Whether to offer a slow node to cuDNN: when tuning, or if the user asks for it."""
    return options.tune or CUDNN in options.algorithms_for(node.kind, (node.name, *node.origin))
