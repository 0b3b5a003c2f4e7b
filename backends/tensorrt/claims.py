"""Which nodes may be in a region: those that the parser and the builder are known to accept.

The parser itself reports the operators that it supports. Attributes and dtypes that it refuses are
listed here; docs/results/tensorrt_support.md compares this with the real parser and builder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from math import prod
from typing import Any

import numpy as np

from ...runtime.ir import dtypes
from ...runtime.ir.dtypes import DType, name_of
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op, input_names
from ...runtime.ir.types import TensorType
from ...runtime.ops.elementwise import (
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Max,
    Min,
    Mod,
    Where,
)
from ...runtime.ops.gather import Gather, GatherElements, ScatterElements, ScatterND
from ...runtime.ops.matmul import MatMul
from ...runtime.ops.movement import Concat, Expand, Pad, Slice, Split, Tile, Transpose
from ...runtime.ops.norm import BatchNormalization, LayerNormalization
from ...runtime.ops.pool import AveragePool, LpPool, MaxPool
from ...runtime.ops.quantize import DequantizeLinear, QuantizeLinear
from ...runtime.ops.recurrent import GRU, LSTM, RNN
from ...runtime.ops.shape import Flatten, Identity, Reshape, Squeeze, Unsqueeze
from ..regions.section import written_as
from .loops import DROPS, droppers

#: The opset of regions: the first one whose pooling has the windows of the operators here; newer
#: operators are written as the functions that the specification defines.
OPSET = 22
#: Element types of tensors; byte types only for quantized, moved or compared tensors.
DTYPES: frozenset[DType] = frozenset(
    (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.int32, dtypes.int64, dtypes.bool_)
)
QUANTIZED: frozenset[DType] = frozenset((dtypes.int8, dtypes.float8e4m3fn))
#: Operators that only move or compare bytes: they support int8, too.
MOVING: frozenset[type[Op]] = frozenset(
    (
        *(Concat, Expand, Flatten, Gather, GatherElements, Identity, Pad, Reshape, Slice, Split),
        *(Squeeze, Tile, Transpose, Unsqueeze, Where),
        *(Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Max, Min),
    )
)
#: Maximum rank of a tensor.
MAX_AXES = 8
#: Inputs that determine the shape of the result, which engines fix.
PARAMETERS = frozenset(
    (
        *("axes", "axis", "ends", "output_shape", "pads", "repeats", "roi", "scales", "shape"),
        *("sizes", "split", "starts", "steps", "training_mode"),
    )
)


def refusals(
    graph: Graph, free: Set[Node], takes: Callable[[str], bool], vendor: str
) -> dict[Node, str]:
    """Return for each free node why it cannot be in a region; empty if it can.

    Args:
        graph: all shapes static.
        free: the nodes in question.
        takes: whether the parser supports an operator.
        vendor: the library, for the reasons.
    """
    dropping = droppers(graph)
    return {
        node: DROPS if node in dropping else refusal(graph, node, takes, vendor)
        for node in graph.nodes
        if node in free
    }


def refusal(graph: Graph, node: Node, takes: Callable[[str], bool], vendor: str) -> str:
    """Return why a node cannot be in a region; empty if it can.

    Args:
        graph: all shapes static.
        node: one of its nodes.
        takes: whether the parser supports an operator.
        vendor: the library, for the reason.
    """
    if node.op.domain:
        return f"an operator of '{node.op.domain}'"
    within, written, reason = written_as(graph, node, OPSET)
    if reason:
        return f"regions are written in opset {OPSET}: {reason}"
    own = _of_borders(node) or (_of_parameters(node) if written == (node,) else "")
    return own or next(filter(None, (_refusal(within, n, takes, vendor) for n in written)), "")


def _of_borders(node: Node) -> str:
    for value in (*node.distinct_reads, *node.outputs):
        if len(value.tensor.dims) > MAX_AXES:
            return f"'{value.name}' has {len(value.tensor.dims)} axes"
        if 0 in value.tensor.dims and not value.is_constant:
            return f"'{value.name}' has no elements"
    return ""


def _of_parameters(node: Node) -> str:
    for name, value in zip(input_names(type(node.op)), node.inputs, strict=False):
        if name in PARAMETERS and value is not None and not value.is_constant:
            return f"its input '{name}' is not a constant"
    return ""


def _refusal(graph: Graph, node: Node, takes: Callable[[str], bool], vendor: str) -> str:
    operator = type(node.op).__name__
    if not takes(operator):
        return f"the parser of {vendor} does not know {operator}"
    for value in (*node.distinct_reads, *node.outputs):
        if isinstance(value.type, TensorType) and not _has(value, node.op):
            return f"'{value.name}' has dtype {name_of(value.type.dtype)}"
    rule = _RULES.get(type(node.op))
    return rule(node.op, node, graph) if rule else ""


def _has(value: Value, op: Op) -> bool:
    """Whether the library supports the dtype of a value, for this operator."""
    dtype, quantizes = value.tensor.dtype, isinstance(op, QuantizeLinear | DequantizeLinear)
    if dtype == dtypes.int8 and type(op) in MOVING:
        return True
    if dtype == dtypes.int4:  # packed differently, so that regions neither read nor write it
        return quantizes and value.is_constant and prod(value.tensor.dims) % 2 == 0
    return dtype in (DTYPES | QUANTIZED if quantizes else DTYPES)


# ── what the parser refuses of operators that it knows ───────────────────────────────────────────


def _pool(op: Any, node: Node, graph: Graph) -> str:
    if any(each != 1 for each in op.dilations or ()):
        return f"dilations={op.dilations}: its windows have no dilation"
    if isinstance(op, LpPool) and op.p not in (1, 2):
        return f"p={op.p}: it supports the norms 1 and 2"
    if op.ceil_mode and _windows(op, node) != node.output.tensor.dims[2:]:
        return "ceil_mode=1: it would add windows that start after the last element"
    return _first_alone(op, node, graph)


def _windows(op: Any, node: Node) -> tuple[int, ...]:
    """Return the number of complete pooling windows."""
    sizes, rank = node.distinct_reads[0].tensor.dims[2:], len(op.kernel_shape)
    steps, pads = op.strides or (1,) * rank, op.pads or (0,) * 2 * rank
    given = zip(sizes, op.kernel_shape, steps, pads[:rank], pads[rank:], strict=True)
    return tuple(-(-(n + a + b - k) // step) + 1 for n, k, step, a, b in given)


def _recurrence(op: Any, node: Node, graph: Graph) -> str:
    return "layout=1: it supports layout 0" if op.layout else ""


def _first_alone(op: Any, node: Node, graph: Graph) -> str:
    others = [v for v in node.outputs[1:] if v.consumers or graph.is_output(v)]
    return f"it has only the first result, and '{others[0].name}' is read" if others else ""


def _normalization(op: Any, node: Node, graph: Graph) -> str:
    return "training_mode=1" if op.training_mode else ""


def _scatter(op: Any, node: Node, graph: Graph) -> str:
    return "" if op.reduction == "none" else f"reduction={op.reduction}: it only replaces elements"


def _quantization(op: Any, node: Node, graph: Graph) -> str:
    found = node.output if isinstance(op, QuantizeLinear) else node.distinct_reads[0]
    if found.tensor.dtype not in QUANTIZED | {dtypes.int4}:
        return f"'{found.name}' has dtype {name_of(found.tensor.dtype)}"
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is not None and zero.data is None:
        return "its input 'zero_point' is not a constant"
    if zero is not None and zero.data is not None and np.any(zero.data.astype(np.float32)):
        return "its zero point is not 0"
    return ""


def _mod(op: Any, node: Node, graph: Graph) -> str:
    floats = node.output.tensor.dtype not in (dtypes.int32, dtypes.int64)
    return "fmod=0 is for integers" if floats and not op.fmod else ""


def _product(op: Any, node: Node, graph: Graph) -> str:
    a, b = (value.tensor.dims for value in node.operands)
    batched = len(a) == 1 and len(b) > 2 and prod(b[:-2]) != 1
    return "a vector times several matrices" if batched else ""


_RULES: Mapping[type[Op], Callable[[Any, Node, Graph], str]] = {
    **dict.fromkeys((AveragePool, LpPool, MaxPool), _pool),
    **dict.fromkeys((ScatterElements, ScatterND), _scatter),
    BatchNormalization: _normalization,
    **dict.fromkeys((GRU, LSTM, RNN), _recurrence),
    LayerNormalization: _first_alone,
    MatMul: _product,
    Mod: _mod,
    **dict.fromkeys((DequantizeLinear, QuantizeLinear), _quantization),
}
