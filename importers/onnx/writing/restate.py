"""Graph rewrites for nodes that an older opset lacks, by other operators.

Nodes that only have another form are handled by `downgrade`; those with a function in the
specification by `expand`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ....runtime.ir.dtypes import float32, int64
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.infer import infer
from ....runtime.ir.op import OPERATORS, Op
from ....runtime.ir.types import TensorType
from ....runtime.ops.elementwise import Add, Mul
from ....runtime.ops.movement import Pad, Slice, Split
from ....runtime.ops.norm import LayerNormalization, are_of_rows
from ....runtime.ops.resize import Resize
from ....runtime.ops.shape import Identity, Range, Reshape, Shape, Squeeze

Rewrite = Callable[[Graph, Node], bool]


def restated(graph: Graph, version: int) -> Graph:
    """Return a graph whose nodes exist in an opset of ai.onnx, as far as there are rewrites.

    Args:
        graph: with inferred types; not modified.
        version: the opset.

    Returns:
        A new graph with inferred types; the same one if there is nothing to do.
    """
    copy = graph.clone()
    graphs = list(copy.graphs())
    done = [_rewrite(each, node, version) for each in graphs for node in list(each.nodes)]
    if not any(done):
        return graph
    infer(copy)
    return copy


def _rewrite(graph: Graph, node: Node, version: int) -> bool:
    until, rewrite = _REWRITES.get(type(node.op), (0, None))
    return rewrite is not None and version < until and rewrite(graph, node)


def _replace(graph: Graph, node: Node, op: Op, inputs: Sequence[Value | None]) -> bool:
    """Replace a node by another one; results keep their names."""
    graph.set_inputs(node, inputs)
    graph.set_op(node, op)
    return True


def _constant(graph: Graph, elements: Sequence[float], hint: str, dtype: np.dtype = int64) -> Value:
    return graph.constant(np.array(elements, dtype), hint)


def _elements(value: Value | None) -> tuple[int, ...] | None:
    """Return the elements of a constant of integers, None for anything else."""
    if value is None or value.data is None:
        return None
    return tuple(int(item) for item in value.data.flat)


def _shape(graph: Graph, node: Node) -> bool:
    """Shape had no bounds: its result is sliced."""
    op = node.op
    assert isinstance(op, Shape)
    if not op.start and op.end is None:
        return False
    end = np.iinfo(np.int64).max if op.end is None else op.end
    whole = graph.insert(Shape(), node.inputs, before=node, origin=(node,)).output
    bounds = [_constant(graph, [bound], "bound") for bound in (op.start, end)]
    return _replace(graph, node, Slice(), (whole, *bounds))


def _reshape(graph: Graph, node: Node) -> bool:
    """Without a size of 0 the meaning of 0 is irrelevant."""
    op, shape, type_ = node.op, _elements(node.inputs[1]), node.output.type
    assert isinstance(op, Reshape)
    if shape is None and isinstance(type_, TensorType) and type_.is_static:
        shape = type_.dims
    if not op.allowzero or shape is None or 0 in shape:
        return False
    return _replace(graph, node, replace(op, allowzero=0), node.inputs)


def _pad(graph: Graph, node: Node) -> bool:
    """Axes that are not named get no padding."""
    data, pads, fill, axes = (*node.inputs, None, None)[:4]
    rank = _rank(data)
    named, widths = _elements(axes), _elements(pads)
    if axes is None or rank is None or named is None or widths is None:
        return False
    full = [0] * (2 * rank)
    for i, axis in enumerate(named):
        full[axis % rank], full[rank + axis % rank] = widths[i], widths[i + len(named)]
    kept = (data, _constant(graph, full, "pads"), *(() if fill is None else (fill,)))
    return _replace(graph, node, node.op, kept)


def _resize(graph: Graph, node: Node) -> bool:
    """Axes that are not named keep their sizes."""
    op = node.op
    assert isinstance(op, Resize)
    x, roi, scales, sizes = (*node.inputs, None, None, None)[:4]
    rank = _rank(x)
    if op.axes is None or rank is None or op.keep_aspect_ratio_policy != "stretch":
        return False
    if op.coordinate_transformation_mode == "tf_crop_and_resize":
        return False
    axes = [axis % rank for axis in op.axes]
    plain = replace(op, axes=None)
    if scales is not None and scales.data is not None and scales.data.size:
        factors = [1.0] * rank
        for axis, factor in zip(axes, scales.data.flat, strict=True):
            factors[axis] = float(factor)
        given = _constant(graph, factors, "scales", float32)
        return _replace(graph, node, plain, (x, roi, given))
    wanted, type_ = _elements(sizes), x.type if x is not None else None
    if wanted is None or not isinstance(type_, TensorType) or not type_.is_static:
        return False
    full = list(type_.dims)
    for axis, size in zip(axes, wanted, strict=True):
        full[axis] = size
    return _replace(graph, node, plain, (x, roi, None, _constant(graph, full, "sizes")))


def _split(graph: Graph, node: Node) -> bool:
    """Unequal parts need explicit sizes."""
    op = node.op
    assert isinstance(op, Split)
    x, types = node.inputs[0], [value.type for value in node.outputs]
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return False
    shapes = [t.shape if isinstance(t, TensorType) else None for t in types]
    sizes = [None if shape is None else (*shape,)[op.axis] for shape in shapes]
    exact = [size for size in sizes if isinstance(size, int)]
    if len(exact) < len(sizes) or len(set(exact)) == 1:
        return False
    return _replace(graph, node, op, (x, _constant(graph, exact, "split")))


def _reduction(graph: Graph, node: Node) -> bool:
    """A reduction over no axes applies the operator to each element separately."""
    x, axes = (*node.inputs, None)[:2]
    if not getattr(node.op, "noop_with_empty_axes", 0) or (axes is not None and _elements(axes)):
        return False
    if axes is not None and axes.data is None:
        return False
    match type(node.op).__name__:
        case "ReduceL1" | "ReduceL2":
            return _replace(graph, node, OPERATORS["", "Abs"](), (x,))
        case "ReduceLogSum":
            return _replace(graph, node, OPERATORS["", "Log"](), (x,))
        case "ReduceSumSquare":
            return _replace(graph, node, OPERATORS["", "Mul"](), (x, x))
        case _:
            return _replace(graph, node, Identity(), (x,))


def _layer_norm(graph: Graph, node: Node) -> bool:
    """The specification's function takes one element per element of a row: others are factors."""
    assert isinstance(node.op, LayerNormalization)
    x, scale, *shift = node.operands
    shapes = [value.tensor.shape for value in (x, scale, *shift)]
    dims = [shape for shape in shapes if shape is not None]
    if len(dims) < len(shapes) or are_of_rows(dims[0], node.op.axis, *dims[1:]):
        return False
    one = graph.constant(np.ones(1, scale.tensor.dtype), "one")
    new = graph.insert(node.op, (x, one), len(node.outputs), before=node, origin=(node,))
    y, *statistics = new.outputs
    for op, other in zip((Mul(), Add()), (scale, *shift), strict=False):
        y = graph.insert(op, (y, other), before=node, origin=(node,)).output
    graph.replace(node, [y, *statistics])
    return True


def _range(graph: Graph, node: Node) -> bool:
    """Bounds are scalars; the specification's own function of AffineGrid has vectors there."""
    if all(_rank(value) in (0, None) for value in node.inputs):
        return False
    bounds = list[Value | None]()
    for value in node.operands:
        if _rank(value) != 1:
            bounds.append(value)
        elif value.data is not None:
            bounds.append(graph.constant(value.data.reshape(()), value.name))
        else:
            bounds.append(graph.insert(Squeeze(), (value,), before=node, origin=(node,)).output)
    return _replace(graph, node, node.op, bounds)


def _rank(value: Value | None) -> int | None:
    return value.type.rank if value is not None and isinstance(value.type, TensorType) else None


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
#: A version that there is not.
_NEVER = 1000
#: The first version that needs no rewrite, and the rewrite for older ones.
_REWRITES: dict[type[Op], tuple[int, Rewrite]] = {
    Range: (_NEVER, _range),
    Shape: (15, _shape),
    Reshape: (14, _reshape),
    Pad: (18, _pad),
    Resize: (18, _resize),
    Split: (18, _split),
    LayerNormalization: (17, _layer_norm),
    **{OPERATORS["", f"Reduce{kind}"]: (18, _reduction) for kind in _REDUCTIONS},
}
