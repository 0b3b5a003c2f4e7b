"""Chains of elementwise nodes as one cuDNN graph: the same chains as in the cuda backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import isqrt, prod
from typing import Any

import numpy as np

from ...runtime.base.record import record
from ...runtime.ir.dtypes import DType, bool_, int8, name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op
from ...runtime.ops import elementwise as ops
from ...runtime.options import Options
from ...runtime.plan.backend import BuildContext, Formats
from ...runtime.plan.format import Format
from ..cuda.algorithms.registry import KERNELS
from ..cuda.codegen.elementwise import MAX_CHAINED, is_elementwise
from ..cuda.families import provide
from ..cuda.fusion import FusionGroup, groups
from ..cuda.recipe.operands import Ints, broadcast_strides, merge, order
from .choice import EngineTask
from .operation import FLOATS, NEVER, Operand
from .pointwise_ops import WORDLESS, WORDS, PointwiseWriter, refusal, rounds
from .registry import NodeGroup, Source, claims, is_wanted_anyway
from .stages import Input, PointwiseStage

#: Flat tensors are split into rows, as kernels count blocks along a row in 16 bits: rows of a power
#: of two if possible, else the longest ones. On an H200, a sum of two tensors of 1e8 float32 takes
#: 523 us with rows of 1000, 281 us with rows of 32, and 279 us with the cuda kernel.
SHORTEST, SHORT, LONGEST = 32, 128, 1024
#: Number of elements below which the cuda kernels are 1.3 to 1.8 times as fast: on an H200, a sum
#: of 1e4 float32 takes 2.2 us with cuDNN and 1.2 us with the cuda kernel, of 1e6 3.8 and 2.5 us, of
#: 8e6 equally long.
FEW = 1 << 21

# ── what is computed ─────────────────────────────────────────────────────────────────────────────


@record
class Pointwise:
    """Elementwise operators over three axes, with broadcast operands.

    Attributes:
        reads: tensor by role, in pairs.
        y: the result, of the last stage.
        stages: in order; each reads tensors by role, and earlier stages by names such as ``v2``.
        title: the operators in short: ``Add+Gelu``.
    """

    reads: tuple[tuple[str, Operand], ...]
    y: Operand
    stages: tuple[PointwiseStage, ...]
    title: str = field(compare=False)

    def __str__(self) -> str:
        reads = " ".join(f"{role} {operand}" for role, operand in self.reads)
        return f"pointwise {reads} y {self.y}: {'; '.join(map(str, self.stages))}"

    @property
    def operands(self) -> Mapping[str, Operand]:
        """The tensors read and written."""
        return {**dict(self.reads), "y": self.y}

    @property
    def results(self) -> tuple[str, ...]:
        """The roles of the tensors written."""
        return ("y",)

    @property
    def notes(self) -> tuple[str, ...]:
        """Numeric restrictions; the engine always carries the note TENSOR_CORE."""
        return (*NEVER, "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")

    def express(self, graph: Any, cudnn: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the operation to a cuDNN graph; see `Operation`."""
        writer = PointwiseWriter(graph, cudnn)
        known = dict(tensors)
        result: Any = None
        for number, stage in enumerate(self.stages):
            given = [known[i] if isinstance(i, str) else i for i in stage.inputs]
            result = WORDS[type(stage.op)](writer, stage.op, *given)
            known[f"v{number}"] = result
        return {"y": result}


# ── nodes as stages ──────────────────────────────────────────────────────────────────────────────


@record
class Read:
    """An input of a chain.

    Attributes:
        source: the value, or packed constants.
        dims: its shape, which is broadcast to that of the result.
        dtype: of its elements.
    """

    source: Source
    dims: Ints
    dtype: DType


@dataclass(slots=True)
class PointwiseChain:
    """Nodes that become one graph.

    Attributes:
        nodes: in topological order.
        stages: their operations.
        reads: their inputs, by role.
        made: the stage that computes each value.
    """

    nodes: tuple[Node, ...]
    stages: list[PointwiseStage] = field(default_factory=list[PointwiseStage])
    reads: dict[str, Read] = field(default_factory=dict[str, Read])
    made: dict[Value, str] = field(default_factory=dict[Value, str])

    @property
    def y(self) -> Value:
        """The output of the last node."""
        return self.nodes[-1].output

    @property
    def title(self) -> str:
        """A short name made of the operators."""
        return "+".join(type(node.op).__name__ for node in self.nodes)

    def append(self, op: Op, *inputs: Input) -> str:
        """Append a stage and return the name of its result."""
        self.stages.append(PointwiseStage(op, inputs))
        return f"v{len(self.stages) - 1}"

    def read(self, source: Source, dims: Ints, dtype: DType) -> str:
        """Return the role of a tensor."""
        found = Read(source, dims, dtype)
        for role, read in self.reads.items():
            if read == found:
                return role
        role = f"x{len(self.reads)}"
        self.reads[role] = found
        return role

    def given(self, value: Value | None) -> Input:
        """Return the operand of a stage for a value."""
        if value is None or value in self.made:
            return None if value is None else self.made[value]
        if value.data is not None and value.data.size == 1:
            return float(value.data.reshape(()).item())
        return self.read(value, value.tensor.dims, value.tensor.dtype)

    def operation(
        self, formats: Mapping[Value, Format], pitches: Mapping[Value, int]
    ) -> Pointwise | str:
        """Return the operation for tensors with these layouts, or why there is none."""
        y = self.y.tensor
        own = formats.get(self.y, Format.CONTIGUOUS)
        moves = [broadcast_strides(y.dims, own, y.dims, pitches.get(self.y, 0))]
        for read in self.reads.values():
            value = read.source if isinstance(read.source, Value) else None
            format = (
                formats.get(value, Format.CONTIGUOUS) if value is not None else Format.CONTIGUOUS
            )
            pitch = pitches.get(value, 0) if value is not None else 0
            moves.append(broadcast_strides(read.dims, format, y.dims, pitch))
        dtypes = [y.dtype, *(read.dtype for read in self.reads.values())]
        found = shaped(y.dims, order(len(y.dims), own), moves, dtypes)
        if isinstance(found, str):
            return found
        result, *operands = found
        reads = tuple(zip(self.reads, operands, strict=True))
        return Pointwise(reads, result, tuple(self.stages), self.title)


def shaped(
    dims: Ints, axes: Ints, moves: Sequence[Ints], dtypes: Sequence[DType]
) -> tuple[Operand, ...] | str:
    """Return tensors with common axes as cuDNN needs them, or why that is impossible.

    Args:
        dims: shape of the result.
        axes: from the outermost to the innermost in memory.
        moves: strides of the result and of every operand along `dims`, 0 along broadcast axes.
        dtypes: of the result and of every operand.
    """
    ordered = [tuple(move[axis] for axis in axes) for move in moves]
    sizes, merged = merge([dims[axis] for axis in axes], ordered)
    if len(sizes) > 3:
        return f"{len(sizes)} axes that do not merge; cuDNN's pointwise engine has 3"
    if len(sizes) == 1:
        columns = _columns(sizes[0])
        sizes = (sizes[0] // columns, columns)
        merged = tuple((columns * move[0], move[0]) for move in merged)
    sizes = (1,) * (3 - len(sizes)) + sizes
    merged = tuple((0,) * (3 - len(move)) + move for move in merged)
    if merged[0][-1] != 1 or any(move[-1] > 1 for move in merged):
        return "an operand whose innermost axis is another one's outer axis"
    found = tuple(_operand(sizes, move, dtype) for move, dtype in zip(merged, dtypes, strict=True))
    return _unsafe(found) or found


def _operand(sizes: Ints, move: Ints, dtype: DType) -> Operand:
    """Return a tensor with size 1 along its broadcast axes."""
    dims = tuple(size if step else 1 for size, step in zip(sizes, move, strict=True))
    strides = list(move)
    for axis in reversed(range(len(dims))):
        if dims[axis] == 1:
            strides[axis] = prod(dims[axis + 1 :])
    return Operand(dims, tuple(strides), int8 if dtype == bool_ else dtype)


def _columns(size: int) -> int:
    """Return the row length for splitting a flat tensor."""
    even = size & -size
    if even >= SHORTEST:
        return min(even, SHORT)
    maximum = min(size, LONGEST)
    divisors = (n for n in range(maximum, isqrt(maximum), -1) if size % n == 0)
    return next(divisors, size)


def _unsafe(operands: Sequence[Operand]) -> str:
    """Return why cuDNN cannot broadcast operands over these axes; empty if it can.

    Over three axes it broadcasts columns wrongly: only the first matrix of a stack is correct. Full
    operands, one matrix for the whole stack, and one row per matrix were found to be correct.
    """
    stack, rows, columns = operands[0].dims
    right = ((stack, rows, columns), (1, rows, columns), (stack, 1, columns))
    wrong = [operand for operand in operands if operand.dims not in right]
    if stack == 1 or not wrong:
        return ""
    return f"{wrong[0]} in a stack of {stack} matrices; cuDNN broadcasts only whole rows correctly"


def extend(chain: PointwiseChain, nodes: Sequence[Node]) -> str:
    """Append elementwise nodes to a chain; return why that is impossible, or empty."""
    for node in nodes:
        refused = _refusal(node)
        if refused:
            return refused
        if rounds(node) and node is not nodes[-1]:
            return f"{node.op} inside a chain, where cuDNN keeps float32"
        inputs = [chain.given(value) for value in node.inputs]
        if not any(isinstance(given, str) for given in inputs):
            return f"{node.kind} of constants"
        chain.made[node.output] = chain.append(node.op, *inputs)
    return ""


def _refusal(node: Node) -> str:
    """Return why a node cannot be in a graph; empty if it can."""
    for value in (*node.distinct_reads, node.output):
        dtype = value.tensor.dtype
        number = value.data is not None and value.data.size == 1
        if dtype not in FLOATS and dtype != bool_ and not (number and _is_exact(value)):
            return f"dtype {name_of(dtype)}; cuDNN computes floats of 32 and 16 bits"
        if 0 in value.tensor.dims:
            return "a tensor without elements"
    refused = refusal(node)
    if not refused and isinstance(node.op, ops.Clip):
        refused = _limits(node)
    return refused


def _is_exact(value: Value) -> bool:
    """Whether a number is the same in float32."""
    number = np.asarray(value.data).reshape(()).item()
    return isinstance(number, int | float) and float(np.float32(number)) == number


def _limits(node: Node) -> str:
    """Return why the limits of a Clip cannot be in a graph."""
    given = [value for value in node.inputs[1:] if value is not None]
    if any(value.data is None for value in given):
        return "computed limits; cuDNN needs numbers"
    if len(given) == 2:
        lower, upper = (float(np.asarray(value.data).reshape(()).item()) for value in given)
        return "" if lower <= upper else "limits that cross"
    return ""


# ── the family ───────────────────────────────────────────────────────────────────────────────────


@claims(*WORDS, *WORDLESS)
def chain(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return the chain that contains a node."""
    refused = _refusal(node)
    if refused:
        return refused
    group = group_of(graph, node, free)
    if group.head is not None or group.whole is not None:
        first = group.head or group.nodes[0]
        return f"part of the kernel of the preceding {first.kind}"
    found = PointwiseChain(group.nodes)
    return extend(found, group.nodes) or wanted(found, options)


def _too_few(chain: PointwiseChain, options: Options) -> str:
    """Return why a small chain is left to the cuda kernels; empty if it is not."""
    size = chain.y.tensor.size
    if size >= FEW or any(is_wanted_anyway(node, options) for node in chain.nodes):
        return ""
    return (
        f"{size} elements; on an H200 a sum of 1e6 float32 takes cuDNN 3.8 us, the cuda kernel"
        " 2.5 us, and one of 1e4 2.2 us against 1.2 us"
    )


def group_of(graph: Graph, node: Node, free: Set[Node]) -> FusionGroup:
    """Return the group of nodes that the cuda backend would fuse a node with.

    What computes a second result is a group of its own, as on the cuda backend if need be.
    """
    provide(type(node.op))
    near = set(_near(graph, node, free))
    group = next(group for group in groups(graph, near) if node in group.nodes)
    also = group.also
    return FusionGroup(also.nodes, also.norm) if also and node in also.nodes else group


def _near(graph: Graph, node: Node, free: Set[Node]) -> Iterator[Node]:
    """Yield the elementwise neighbours of a node, and nodes whose kernels may fuse them."""
    seen = {node}
    waiting = [node]
    for current in waiting:
        yield current
        begins = current is node or is_elementwise(current.op)
        if not begins or len(waiting) > 4 * MAX_CHAINED:
            continue
        sources = [value.producer for value in current.distinct_reads]
        for other in (*sources, *current.output.consumers):
            known = other is not None and other in free and other not in seen
            if other is not None and known and (_takes_along(other) or is_elementwise(other.op)):
                seen.add(other)
                waiting.append(other)


def _takes_along(node: Node) -> bool:
    provide(type(node.op))
    registered = KERNELS.get(type(node.op))
    return registered is not None and registered.chains_for(node)


def wanted(chain: PointwiseChain, options: Options) -> NodeGroup | str:
    """Return the claim for a chain, or why there is none."""
    plain = _too_few(chain, options) or chain.operation({}, {})
    if isinstance(plain, str):
        return plain
    images = {
        read.source
        for read in chain.reads.values()
        if isinstance(read.source, Value) and not read.source.is_constant
    }
    y = chain.y.tensor

    def at(site: BuildContext) -> EngineTask | str:
        """Return the task for tensors with the given layouts."""
        found = chain.operation(site.formats, site.pitches)
        return found if isinstance(found, str) else EngineTask.of(found, options)

    return NodeGroup(
        nodes=chain.nodes,
        task=EngineTask.of(plain, options),
        reads={role: read.source for role, read in chain.reads.items()},
        gives={"y": chain.y},
        formats=Formats(
            follows=all(value.tensor.rank == y.rank for value in images),
            pitched=frozenset(v for v in (*images, chain.y) if v.tensor.dims == y.dims),
        ),
        at=at,
    )
