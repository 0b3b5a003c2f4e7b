"""Normalizations, with statistics that are computed or given."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...runtime.base.record import record
from ...runtime.ir.dtypes import float32, name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array
from ...runtime.ops import elementwise as ops
from ...runtime.ops.norm import (
    BatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
    are_of_rows,
)
from ...runtime.ops.shapes import normalize_axis
from ...runtime.options import Options
from ...runtime.plan.partition import results_of
from ..cuda.codegen.batch_norm import pack_batch_norm
from ..cuda.norm.norm_rows import MAX_KEPT, MAX_WARPS
from ..cuda.recipe.operands import Packed
from .choice import Division, EngineTask
from .operation import FLOATS, HALVES, NEVER, ROUNDING, Operand
from .pointwise import PointwiseChain, extend, group_of, wanted
from .registry import NodeGroup, Source, claims, is_wanted_anyway
from .stages import FLOW, NO_TAIL, PointwiseStage, Tail, expressed, expressible, follow

#: The results of a normalization, in order.
STATISTICS: tuple[str, ...] = ("y", "mean", "deviation")

# ── what is computed ─────────────────────────────────────────────────────────────────────────────


@record
class Normalization:
    """Groups of elements normalized to mean 0 and variance 1, or by their root mean square.

    Statistics are float32. The variance is computed from the differences from the mean.

    Attributes:
        kind: cuDNN's name: ``layernorm``, ``rmsnorm`` or ``instancenorm``.
        x: [rows, n, 1, 1], or for instances [images, channels, n, 1].
        scale: factor of the results: [1, n, 1, 1], or [1, channels, 1, 1].
        y: the result.
        epsilon: added to the variance.
        statistics: whether mean and 1 / deviation of every group are results, too.
        tail: the epilogue applied by the same graph.
    """

    kind: str
    x: Operand
    scale: Operand
    y: Operand
    epsilon: float
    statistics: bool = False
    tail: Tail = NO_TAIL

    @property
    def title(self) -> str:
        """A short name: ``layernorm+add``."""
        return f"{self.kind}+{self.tail.title}" if self.tail else self.kind

    def __str__(self) -> str:
        given = " with statistics" if self.statistics else ""
        text = f"{self.title}{given} x {self.x} scale {self.scale} y {self.y}"
        return f"{text}: {self.tail}" if self.tail else text

    @property
    def operands(self) -> Mapping[str, Operand]:
        """The tensors read and written."""
        reads = {"x": self.x, "scale": self.scale}
        if self.kind != "rmsnorm":
            reads["bias"] = self.scale
        gives = {"y": self.y}
        if self.statistics:
            groups = Operand.of((self.x.dims[0], 1, 1, 1), float32)
            gives |= {"mean": groups, "deviation": groups}
        return reads | dict(self.tail.operands) | gives

    @property
    def results(self) -> tuple[str, ...]:
        """The roles of the tensors written."""
        return STATISTICS if self.statistics else STATISTICS[:1]

    @property
    def notes(self) -> tuple[str, ...]:
        """Intermediate values are not rounded."""
        return NEVER + ROUNDING

    def express(self, graph: Any, cudnn: Any, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the operation to a cuDNN graph; see `Operation`."""
        phases = cudnn.norm_forward_phase
        epsilon = graph.tensor_scalar(self.epsilon, cudnn.scalar_type.RUNTIME_PARAM)
        given = getattr(graph, self.kind)(
            norm_forward_phase=phases.TRAINING if self.statistics else phases.INFERENCE,
            input=tensors["x"],
            scale=tensors["scale"],
            epsilon=epsilon,
            **({"bias": tensors["bias"]} if self.kind != "rmsnorm" else {}),
        )
        found = dict(zip(STATISTICS, given, strict=False))
        found["y"] = expressed(self.tail.stages, graph, cudnn, found["y"], tensors)
        return {role: found[role] for role in self.results}


# ── by statistics of the elements ────────────────────────────────────────────────────────────────


@claims(LayerNormalization, RMSNormalization)
def rows(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return a normalization of the last axes, with its elementwise epilogue."""
    op, inputs, y = node.op, _inputs(node), node.output
    if isinstance(inputs, str):
        return inputs
    x, scale, *shift = inputs
    centred = isinstance(op, LayerNormalization)
    axis = normalize_axis(getattr(op, "axis", -1), len(x.tensor.dims))
    groups, count = prod(x.tensor.dims[:axis]), prod(x.tensor.dims[axis:])
    for name, given in zip(("scale", "shift"), (scale, *shift), strict=False):
        if not are_of_rows(x.tensor.dims, axis, given.tensor.dims):
            return f"{name} {given.tensor} for rows of {count} elements"
    if centred and not shift and not scale.is_constant:
        return "no shift with a computed scale; cuDNN needs both"
    slow = "" if is_wanted_anyway(node, options) else _slow(x, count)
    if slow:
        return slow
    read = results_of(graph, (node,))
    if read != (y,) and len(read) != 3:
        return "only one of mean and deviation is read; cuDNN computes both"
    operation = Normalization(
        kind="layernorm" if centred else "rmsnorm",
        x=Operand.of((groups, count, 1, 1), x.tensor.dtype),
        scale=Operand.of((1, count, 1, 1), scale.tensor.dtype),
        y=Operand.of((groups, count, 1, 1), y.tensor.dtype),
        epsilon=getattr(op, "epsilon", 1e-5),
        statistics=len(read) == 3,
    )
    reads: dict[str, Source] = {"x": x, "scale": scale}
    if centred:
        zeros = Packed((scale,), ("cudnn", "no shift"), np.zeros_like)
        reads["bias"] = shift[0] if shift else zeros
    if operation.statistics:
        gives = dict(zip(STATISTICS, read, strict=True))
        return NodeGroup((node,), EngineTask.of(operation, options), reads, gives)
    return _with_followers(graph, node, operation, reads, free, options)


def _slow(x: Value, count: int) -> str:
    """Return why the cuda kernels are faster for these rows; empty if they are not.

    cuDNN's fast engines need rows that are multiples of 128 bytes; the cuda kernels are fast for
    rows that fit into registers. For long rows of 16 bits, cuDNN compiles an engine for 17 s.
    """
    nbytes = count * x.tensor.dtype.itemsize
    if nbytes % 128 and count <= 32 * MAX_WARPS * MAX_KEPT:
        return (
            f"rows of {nbytes} bytes, not a multiple of 128; on an H200 1000 rows of 1000 float32"
            " take cuDNN 12.9 us, the cuda kernel 3.7 us"
        )
    if nbytes % 128 == 0 and x.tensor.dtype in HALVES and count > 1 << 16:
        return f"rows of {count} 16-bit elements, for which cuDNN compiles for 17 s"
    return ""


def _with_followers(
    graph: Graph,
    node: Node,
    operation: Normalization,
    reads: Mapping[str, Source],
    free: Set[Node],
    options: Options,
) -> NodeGroup:
    """Return a normalization of rows with the nodes that can be fused."""
    found = follow(graph, node.output, free, axis=-1)
    last_axis = operation.x.dims[1] == node.output.tensor.dims[-1]
    if not all(map(expressible, found.stages)) or (found.across and not last_axis):
        return NodeGroup((node,), EngineTask.of(operation, options), reads, {"y": node.output})
    channels = Operand.of((1, *operation.y.dims[1:]), operation.y.dtype)
    operands = dict.fromkeys(found.across, channels) | dict.fromkeys(found.along, operation.y)
    tail = Tail.of(found.stages, operands)
    alone = Division(operation, tail)
    divisions = (Division(replace(operation, tail=tail)), alone) if tail else (alone,)
    return NodeGroup(
        nodes=(node, *found.nodes),
        task=EngineTask(divisions, options.workspace),
        reads={**reads, **found.across, **found.along},
        gives={"y": (node, *found.nodes)[-1].output},
    )


@claims(InstanceNormalization)
def instances(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return an instance normalization."""
    inputs = _inputs(node)
    if isinstance(inputs, str):
        return inputs
    x, scale, shift = inputs
    images, channels, *spatial = x.tensor.dims
    operation = Normalization(
        kind="instancenorm",
        x=Operand.of((images, channels, prod(spatial), 1), x.tensor.dtype),
        scale=Operand.of((1, channels, 1, 1), scale.tensor.dtype),
        y=Operand.of((images, channels, prod(spatial), 1), x.tensor.dtype),
        epsilon=getattr(node.op, "epsilon", 1e-5),
    )
    reads = {"x": x, "scale": scale, "bias": shift}
    return NodeGroup((node,), EngineTask.of(operation, options), reads, {"y": node.output})


@claims(GroupNormalization)
def channel_groups(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return a group normalization as an instance normalization followed by a scaling kernel."""
    if not is_wanted_anyway(node, options):
        return (
            "cuDNN has no channel groups; an instance normalization followed by a kernel has not"
            " been measured (algorithm 'cudnn' requests it)"
        )
    inputs = _inputs(node)
    if isinstance(inputs, str):
        return inputs
    x, scale, shift = inputs
    if not scale.is_constant:
        return "a computed scale"
    images, channels, *spatial = x.tensor.dims
    groups = getattr(node.op, "num_groups", 1)
    dims = (images, groups, channels // groups, prod(spatial))
    dtype = x.tensor.dtype
    operation = Normalization(
        kind="instancenorm",
        x=Operand.of(dims, dtype),
        scale=Operand.of((1, groups, 1, 1), dtype),
        y=Operand.of(dims, dtype),
        epsilon=getattr(node.op, "epsilon", 1e-5),
    )
    stages = (
        PointwiseStage(ops.Mul(), (FLOW, "factor")),
        PointwiseStage(ops.Add(), (FLOW, "shift")),
    )
    by_channel = Operand.of((1, *dims[1:3], 1), dtype)
    tail = Tail.of(stages, {"factor": by_channel, "shift": by_channel})
    ones = Packed((scale,), ("cudnn", "ones", groups), partial(_filled, count=groups, number=1))
    zeros = Packed((scale,), ("cudnn", "zeros", groups), partial(_filled, count=groups, number=0))
    return NodeGroup(
        nodes=(node,),
        task=EngineTask((Division(operation, tail),), options.workspace),
        reads={"x": x, "scale": ones, "bias": zeros, "factor": scale, "shift": shift},
        gives={"y": node.output},
    )


def _filled(scale: Array, count: int, number: float) -> Array:
    return np.full(count, number, scale.dtype)


def _inputs(node: Node) -> tuple[Value, ...] | str:
    """Return a node's inputs, or why cuDNN cannot read them."""
    inputs = tuple(value for value in node.inputs if value is not None)
    for value in (*inputs, node.output):
        if value.tensor.dtype not in FLOATS:
            return f"dtype {name_of(value.tensor.dtype)}; cuDNN normalizes floats of 32 and 16 bits"
        if 0 in value.tensor.dims:
            return "a tensor without elements"
    return inputs


# ── by given statistics ──────────────────────────────────────────────────────────────────────────


@claims(BatchNormalization)
def channels(graph: Graph, node: Node, free: Set[Node], options: Options) -> NodeGroup | str:
    """Return a batch normalization with its epilogue, in cuDNN a chain of pointwise operations."""
    inputs, training = _inputs(node), getattr(node.op, "training_mode", 0)
    if isinstance(inputs, str):
        return inputs
    if training:
        return "training_mode=1; cuDNN's batch normalization of training is not used"
    if not all(value.is_constant for value in inputs[1:]):
        return (
            "computed statistics; cuDNN 9.19 gave wrong results on an H200 for columns that are"
            " computed before they are broadcast"
        )
    group = group_of(graph, node, free)
    chain = PointwiseChain(group.nodes)
    _scale(chain, node, inputs)
    return extend(chain, group.nodes[1:]) or wanted(chain, options)


def _scale(chain: PointwiseChain, node: Node, inputs: tuple[Value, ...]) -> None:
    """Append the two stages of a batch normalization with constant statistics."""
    x, scale, b, mean, variance = inputs
    rank = len(x.tensor.dims)
    dims = (1, scale.tensor.size) + (1,) * (rank - 2) if rank > 1 else (1,)
    epsilon = getattr(node.op, "epsilon", 1e-5)
    flow = chain.given(x)
    statistics = (scale, b, mean, variance)
    for place, op in enumerate((ops.Mul(), ops.Add())):
        pack = partial(_factor, place=place, epsilon=epsilon)
        packed = Packed(statistics, ("cudnn", "batch norm", place, epsilon), pack)
        flow = chain.append(op, flow, chain.read(packed, dims, float32))
    chain.made[node.output] = str(flow)


def _factor(
    scale: Array, b: Array, mean: Array, variance: Array, place: int, epsilon: float
) -> Array:
    """Return the factor of each channel (place 0), or its addend."""
    pairs = pack_batch_norm(scale, b, mean, variance, epsilon, float32)
    return np.ascontiguousarray(pairs[:, place])
