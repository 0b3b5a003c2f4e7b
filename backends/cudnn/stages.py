"""Elementwise epilogues: one description for cuDNN's graph and for a cuda kernel.

A `Tail` is a chain of stages, each of which reads the result of its predecessor. A prefix of it
goes into cuDNN's graph, and a kernel applies the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

from ...runtime.base.record import record
from ...runtime.ir.chains import chain_behind
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op
from ...runtime.ops import elementwise as ops
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext
from ..cuda.codegen.elementwise import is_elementwise
from ..cuda.recipe.operands import Ints
from .library import NoPlan
from .operation import Operand
from .pointwise_ops import WORDS, PointwiseWriter

#: The result of the previous stage, as an input.
FLOW = "·"

#: An input of a stage: `FLOW`, the role of a tensor, a number, or None if omitted.
Input = str | float | None


@record
class PointwiseStage:
    """One elementwise operator.

    Attributes:
        op: the operator.
        inputs: its inputs.
    """

    op: Op
    inputs: tuple[Input, ...]

    @property
    def title(self) -> str:
        """Its name in reports: ``relu``; the addition of a bias is ``bias``."""
        if isinstance(self.op, ops.Add | ops.Sum):
            return "bias" if {"bias", "zeros"}.intersection(self.roles) else "add"
        return type(self.op).__name__.lower()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of tensors that it reads besides `FLOW`."""
        return tuple(i for i in self.inputs if isinstance(i, str) and i != FLOW)

    def __str__(self) -> str:
        inputs = ", ".join("" if i is None else str(i) for i in self.inputs)
        return f"{self.op}({inputs})"


@record
class Tail:
    """An epilogue: stages with the tensors that they read.

    Attributes:
        stages: in order.
        operands: tensor by role, of every role that a stage reads; in pairs.
    """

    stages: tuple[PointwiseStage, ...] = ()
    operands: tuple[tuple[str, Operand], ...] = ()

    @classmethod
    def of(cls, stages: Sequence[PointwiseStage], operands: Mapping[str, Operand]) -> Tail:
        """Return a tail of stages, with those of the `operands` that they read."""
        used = dict.fromkeys(role for stage in stages for role in stage.roles)
        return cls(tuple(stages), tuple((role, operands[role]) for role in used))

    def cut(self, place: int) -> tuple[Tail, Tail]:
        """Split the tail after this number of stages."""
        operands = dict(self.operands)
        first, last = self.stages[:place], self.stages[place:]
        return Tail.of(first, operands), Tail.of(last, operands)

    @property
    def title(self) -> str:
        """A short name: ``bias+relu``."""
        return "+".join(stage.title for stage in self.stages)

    def __bool__(self) -> bool:
        return bool(self.stages)

    def __str__(self) -> str:
        stages = ", ".join(map(str, self.stages))
        operands = ", ".join(f"{role} {operand}" for role, operand in self.operands)
        return f"{stages} of {operands}" if operands else stages


NO_TAIL = Tail()


# ── what follows a node ──────────────────────────────────────────────────────────────────────────

#: Tensors that a tail reads besides its argument.
MAX_OPERANDS = 2


@record
class Followers:
    """Elementwise nodes after a value, each the only consumer of its predecessor.

    Attributes:
        nodes: in order.
        stages: the nodes as stages.
        along: values with the shape of the result, by role.
        across: constants with one number per channel, by role.
    """

    nodes: tuple[Node, ...]
    stages: tuple[PointwiseStage, ...]
    along: Mapping[str, Value]
    across: Mapping[str, Value]


@record
class Followed:
    """A node and the epilogue nodes in the same step.

    Attributes:
        node: the first one.
        followers: the nodes after it.
        options: the user's choices.
    """

    node: Node
    followers: Followers
    options: Options

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes."""
        return (self.node, *self.followers.nodes)

    @property
    def y(self) -> Value:
        """The output of the last node."""
        return self.nodes[-1].output

    @property
    def added(self) -> Value | None:
        """The bias of the first node: its third input."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    def pitches(self, site: BuildContext) -> dict[Value, int]:
        """Return the pitches of slices; the first node's result has the last one's layout."""
        found = dict(site.pitches)
        return found | {self.node.output: found[self.y]} if self.y in found else found


def follow(graph: Graph, value: Value, free: Set[Node], axis: int = 1) -> Followers:
    """Return the longest chain of elementwise nodes after a value that a tail can express.

    Args:
        graph: the graph.
        value: the value.
        free: nodes that may be claimed.
        axis: the axis of the channels.
    """
    nodes: list[Node] = []
    stages: list[PointwiseStage] = []
    roles: dict[Value, str] = {}
    shape, dtype = value.tensor.dims, value.tensor.dtype
    along: dict[str, Value] = {}
    across: dict[str, Value] = {}

    def input_of(given: Value | None) -> Input:
        if given is None or given is value:
            return None if given is None else FLOW
        if given in roles:
            return roles[given]
        if given.tensor.dtype != dtype:
            raise _UnreadableOperand
        if given.data is not None and given.data.size == 1:
            return given.data.reshape(()).item()
        place = len(roles)
        if given.data is None and given.tensor.dims == shape:
            roles[given] = "z" if not along else f"z{len(along)}"
            along[roles[given]] = given
        elif given.data is not None and _is_per_channel(given.tensor.dims, shape, axis):
            roles[given] = f"channels{len(across)}"
            across[roles[given]] = given
        if place == len(roles) or place == MAX_OPERANDS:
            raise _UnreadableOperand
        return roles[given]

    for node in chain_behind(graph, value):
        if node not in free or not is_elementwise(node.op):
            break
        output = node.output.tensor
        if output.dims != shape or output.dtype != dtype:
            break
        known = (dict(roles), dict(along), dict(across))
        try:
            stage = PointwiseStage(node.op, tuple(map(input_of, node.inputs)))
        except _UnreadableOperand:
            roles, along, across = known
            break
        nodes.append(node)
        stages.append(stage)
        value = node.output
    return Followers(tuple(nodes), tuple(stages), along, across)


class _UnreadableOperand(Exception):
    """An operand that a tail cannot read."""


def _is_per_channel(dims: Ints, shape: Ints, axis: int) -> bool:
    axis %= max(1, len(shape))
    padded = (1,) * (len(shape) - len(dims)) + dims
    pairs = zip(padded, shape, strict=True)
    return all(d == (s if i == axis else 1) for i, (d, s) in enumerate(pairs))


# ── in cuDNN's words ─────────────────────────────────────────────────────────────────────────────


def expressible(stage: PointwiseStage) -> bool:
    """Whether cuDNN can express a stage; Clip needs constant limits, minimum ≤ maximum."""
    if isinstance(stage.op, ops.Clip):
        limits = [given for given in stage.inputs[1:] if given is not None]
        lower, upper = (limits[0], limits[-1]) if limits else (0.0, 0.0)
        return not isinstance(lower, str) and not isinstance(upper, str) and lower <= upper
    if isinstance(stage.op, ops.Mod):
        return bool(stage.op.fmod)
    return type(stage.op) in WORDS


def expressed(
    stages: Sequence[PointwiseStage], graph: Any, cudnn: Any, flow: Any, tensors: Mapping[str, Any]
) -> Any:
    """Add stages to a frontend graph and return the result of the last one.

    Args:
        stages: the stages.
        graph: the graph.
        cudnn: the frontend.
        flow: the first stage's `FLOW`.
        tensors: the frontend's tensor by role.

    Raises:
        NoPlan: cuDNN cannot express one of them.
    """
    writer = PointwiseWriter(graph, cudnn)
    for stage in stages:
        if not expressible(stage):
            raise NoPlan(f"cuDNN cannot express {stage}")
        arguments: list[Any] = []
        for given in stage.inputs:
            if isinstance(given, str):
                arguments.append(flow if given == FLOW else tensors[given])
            else:
                arguments.append(None if given is None else float(given))
        flow = WORDS[type(stage.op)](writer, stage.op, *arguments)
    return flow
