"""Removes nodes whose output equals their input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..ir.graph import Graph, Node, Value
from ..ir.grown import Grown
from ..ir.types import TensorType
from ..ops import elementwise
from ..ops.elementwise import Cast, Max, Mean, Min, Mul, Sum
from ..ops.gather import GatherND
from ..ops.movement import Concat, Expand, Pad, Slice, Tile, Transpose
from ..ops.norm import Dropout
from ..ops.resize import Resize
from ..ops.shape import Identity, Reshape
from .driver import Context
from .editing import drop, shape_of

#: Elementwise operators that do not broadcast their inputs.
_RIGID = (elementwise.BitCast, elementwise.CastLike, elementwise.PRelu, elementwise.SwiGLU)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Redirect the readers of a node that changes nothing to its input."""
    for node in list(graph.nodes):
        same = _RULES.get(type(node.op))
        if same is None or (len(node.outputs) != 1 and _is_read(graph, node.outputs[1:])):
            continue
        source = node.inputs[0] if node.inputs else None
        if source is None or not same(node):
            continue
        graph.redirect(node.output, source)
        graph.remove(node)
        yield f"{node.kind} '{node.name}' changes nothing"
    for node in list(graph.nodes):
        if isinstance(node.op, Expand):
            yield from _broadcast(graph, node)


def _broadcast(graph: Graph, node: Node) -> Iterator[str]:
    """Have elementwise readers of an Expand broadcast its input themselves."""
    source, repeated = node.inputs[0], node.output
    whole = shape_of(repeated)
    if source is None or whole is None or None in whole or len(shape_of(source) or ()) > len(whole):
        return
    for reader in list(repeated.consumers):
        others = [value for value in reader.reads if value is not repeated]
        if not _broadcasts(reader) or all(shape_of(value) != whole for value in others):
            continue
        inputs = [source if value is repeated else value for value in reader.inputs]
        graph.set_inputs(reader, inputs)
        yield f"{reader.kind} '{reader.name}' broadcasts what {node.kind} '{node.name}' repeats"
    drop(graph, node)


def _broadcasts(node: Node) -> bool:
    return type(node.op).__module__ == elementwise.__name__ and not isinstance(node.op, _RIGID)


def _is_read(graph: Graph, values: tuple[Value, ...]) -> bool:
    return any(v.consumers or graph.is_output(v) for v in values)


def _always(node: Node) -> bool:
    return True


def _is_inference(node: Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is None or (training.data is not None and not training.data.any())


def _is_single(node: Node) -> bool:
    return len(node.inputs) == 1


def _keeps_dtype(node: Node) -> bool:
    source = node.inputs[0]
    return (
        source is not None
        and isinstance(source.type, TensorType)
        and source.type.dtype == getattr(node.op, "to", None)
    )


def _keeps_order(node: Node) -> bool:
    perm = getattr(node.op, "perm", None)
    shape = shape_of(node.inputs[0])  # of unknown rank, it may not suit `perm`
    return perm is not None and shape is not None and list(perm) == list(range(len(perm)))


def _keeps_shape(node: Node) -> bool:
    """Whether input and output have equal known shapes, which suffices for these operators."""
    source, result = node.inputs[0], node.output
    shape = shape_of(source)
    if source is None or shape is None or not all(isinstance(s, int | Grown) for s in shape):
        return False
    return source.type == result.type


def _takes_all(node: Node) -> bool:
    """Whether a Slice of unchanged shape also keeps the order, without a negative step."""
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    forward = steps is None or (steps.data is not None and bool((steps.data > 0).all()))
    return forward and _keeps_shape(node)


def _takes_only_row(node: Node) -> bool:
    """Whether a GatherND with known indices takes the only row of each entry."""
    indices = node.inputs[1]
    known = indices.type.known if indices and isinstance(indices.type, TensorType) else None
    is_row = getattr(node.op, "batch_dims", 0) == 1 and _keeps_shape(node)
    shape = shape_of(node.output) or ()
    return is_row and shape[1:2] == (1,) and known is not None and set(known.flat) <= {0, -1}


def _pads_nothing(node: Node) -> bool:
    pads = node.inputs[1]
    return pads is not None and pads.data is not None and not pads.data.any()


def _keeps_pixels(node: Node) -> bool:
    """Whether a Resize to the size that an image has reads it pixel by pixel."""
    scales, sizes = (*node.inputs[2:], None, None)[:2]
    single = scales is None or scales.tensor.shape == (0,)
    if single:
        single = sizes is not None
    elif scales is not None:
        single = scales.data is not None and bool((scales.data == 1).all())
    crops = getattr(node.op, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
    return single and not crops and _keeps_shape(node)


def _times_one(node: Node) -> bool:
    factor = node.inputs[1]
    return (
        factor is not None
        and factor.data is not None
        and factor.data.size <= 1 << 16
        and bool(np.all(factor.data == 1))
        and _keeps_shape(node)
    )


_RULES: dict[type[Any], Callable[[Node], bool]] = {
    Identity: _always,
    Dropout: _is_inference,
    Cast: _keeps_dtype,
    Concat: _is_single,
    Expand: _keeps_shape,
    GatherND: _takes_only_row,
    Max: _is_single,
    Mean: _is_single,
    Min: _is_single,
    Mul: _times_one,
    Pad: _pads_nothing,
    Reshape: _keeps_shape,
    Resize: _keeps_pixels,
    Slice: _takes_all,
    Sum: _is_single,
    Tile: _keeps_shape,
    Transpose: _keeps_order,
}
