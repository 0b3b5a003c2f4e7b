"""Folds per-channel scaling and shifting into the preceding Conv, Gemm or batch norm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.dtypes import DType
from ...ir.graph import Graph, Node
from ...ir.types import Array
from ...ops.conv import Conv, ConvTranspose
from ...ops.elementwise import Add, Div, Mul, Sub
from ...ops.matmul import Gemm, MatMul
from ...ops.norm import BatchNormalization
from ...ops.shape import RESHAPES
from ...ops.signal import DFT
from ..driver import Context
from ..editing import rank_of, size_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..linear import layer_of, rebuilt
from ..pattern import Apply, Var
from ..pointwise import is_elementwise
from ..rounding import check, half_types, narrowed, product, rounded_bias, scaled_row
from .scaled_sources import scaled

_LAYER = Apply((Conv, ConvTranspose, Gemm, BatchNormalization), name="layer")
_CONSTANT = Var("constant", lambda value: value.data is not None)


def _affine(found: Found) -> tuple[Array, Array] | None:
    """Return scale and shift per channel (float64), or None if the constant varies otherwise."""
    value = found.match.get("sum") or found["layer"]
    other, op = found["constant"].data, found.top.op
    rank = rank_of(value)
    if rank is None or other is None:
        return None
    axis = rank - 1 if isinstance(found.match.made("layer").op, Gemm | MatMul) else 1
    if other.ndim > rank or other.dtype != value.tensor.dtype or other.dtype.kind != "f":
        return None
    shape = (1,) * (rank - other.ndim) + other.shape
    if any(size != 1 for i, size in enumerate(shape) if i != axis):
        return None
    values = other.astype(np.float64).reshape(-1)
    is_first = found.top.inputs[0] is value
    one, zero = np.ones(1), np.zeros(1)
    if isinstance(op, Add):
        return one, values
    if isinstance(op, Mul):
        return values, zero
    if isinstance(op, Sub):
        return (one, -values) if is_first else (-one, values)
    return (1 / values, zero) if is_first and values.all() else None


def _build(found: Found) -> Outcome:
    affine = _affine(found)
    if affine is None:
        return None
    scale, shift = affine
    linear, layer = layer_of(found), found.match.made("layer")
    if linear is None:
        is_fixed = isinstance(layer.op, BatchNormalization) and not layer.op.training_mode
        return _rescaled(found, layer, scale, shift) if is_fixed else None
    if not {scale.size, shift.size} <= {1, linear.channels}:
        return None
    weight = linear.scaled(np.broadcast_to(scale, linear.channels))
    also = _half_types(found, linear.weight)
    return rebuilt(found.graph, linear, weight, linear.bias * scale + shift, also=also)


def _half_types(found: Found, weight: Array) -> tuple[DType, ...]:
    return half_types(found.context.options.precision, weight.dtype)


def _rescaled(found: Found, norm: Node, scale: Array, shift: Array) -> Replacement | None:
    old = [v.data for v in norm.inputs[1:3] if v is not None and v.data is not None]
    if len(old) != 2 or len(norm.outputs) != 1 or not {scale.size, shift.size} <= {1, old[0].size}:
        return None
    weight = old[0].astype(np.float64) * scale
    check(weight, old[0].dtype, old[0], "scales")
    shifts = rounded_bias(old[1].astype(np.float64) * scale + shift, old[1].dtype)
    inputs = list(norm.inputs)
    for i, data in enumerate((weight.astype(old[0].dtype), shifts), 1):
        inputs[i] = found.graph.constant(data, f"{norm.name}.{i}")
    return Replacement(norm.op, inputs, named=norm)


# ── products of rows ─────────────────────────────────────────────────────────────────────────────

_WEIGHT = Var("weight", lambda value: value.data is not None and value.data.ndim == 2)
_PRODUCT = Apply(MatMul, "x", _WEIGHT, name="layer")
_BIASED = Apply(Add, _PRODUCT, Var("bias", lambda value: value.data is not None), name="sum")


def _build_rows(found: Found) -> Outcome:
    """Scale the columns of a constant matrix, and the bias that follows the product."""
    weight, bias, affine = found["weight"].data, found.match.get("bias"), _affine(found)
    if weight is None or affine is None or affine[0].size not in (1, weight.shape[1]):
        return None
    scale, shift = affine
    addend = np.zeros(1) if bias is None or bias.data is None else bias.data.astype(np.float64)
    if addend.ndim > 1 or (bias is None and shift.any()):
        return None
    made = _scaled(found, weight, scale)
    row = scaled_row(addend * scale + shift, scale, weight.dtype)
    node = found.match.made("layer")
    scaled = found.graph.constant(made, f"{found['weight'].name}.folded")
    if bias is None:
        return Replacement(MatMul(), (found["x"], scaled), named=node)
    product = found.builder(node.name, (node,))(MatMul(), found["x"], scaled)
    addends = found.graph.constant(row, f"{node.name}.bias")
    return Replacement(Add(), (product, addends), named=found.match.made("sum"))


def _scaled(found: Found, weight: Array, scale: Array) -> Array:
    """Return a matrix with its columns scaled."""
    also = _half_types(found, weight)
    return narrowed(product(weight, scale), weight.dtype, weight, axis=1, also=also)


_SCALED = Apply((Mul, Div), "x", Var("factor", lambda value: value.data is not None), name="scaled")
_ADDEND = Var("addend", lambda value: value.data is not None)
_SHIFTED = Apply((Add, Sub), "x", _ADDEND, name="shifted")
_SCALED_AND_SHIFTED = Apply((Add, Sub), _SCALED, _ADDEND, name="shifted")


def _build_before(found: Found) -> Outcome:
    """Scale the rows of a constant matrix instead of the columns that it multiplies.

    What is added to these is multiplied, and added to the product, but for the bias of a product in
    front, which costs nothing there.
    """
    weight, (scale, shift) = found["weight"].data, _before(found)
    if weight is None or (scale is None and shift is None):
        return None
    maker = found["x"].producer
    if scale is None and maker is not None and isinstance(maker.op, MatMul):
        return None
    node, matrix = found.top, found["weight"]
    if scale is not None:
        made = _scaled(found, weight, scale[:, np.newaxis])
        matrix = found.graph.constant(made, f"{matrix.name}.folded")
    if shift is None or not shift.any():
        return Replacement(MatMul(), (found["x"], matrix), named=node)
    row = rounded_bias(shift @ weight.astype(np.float64), weight.dtype)
    product = found.builder(node.name, (node,))(MatMul(), found["x"], matrix)
    return Replacement(Add(), (product, found.graph.constant(row, f"{node.name}.bias")), named=node)


def _build_mixed(found: Found) -> Outcome:
    """Leave out zeros that are added to what a constant matrix mixes (new weights of ResMLP)."""
    _, shift = _before(found)
    if shift is None or shift.any():
        return None
    return Replacement(MatMul(), (found["weight"], found["x"]), named=found.top)


def _before(found: Found) -> tuple[Array | None, Array | None]:
    """Return what scales and shifts the columns of x, in float64; None, None if that varies."""
    scale = shift = None
    if found.match.get("factor") is not None:
        scale = _per_column(found, "scaled", "factor")
        divides = isinstance(found.match.made("scaled").op, Div)
        if scale is None or (divides and not scale.all()):
            return None, None
        scale = 1 / scale if divides else scale
    if found.match.get("addend") is not None:
        shift = _per_column(found, "shifted", "addend")
        if shift is None:
            return None, None
        shift = -shift if isinstance(found.match.made("shifted").op, Sub) else shift
    return scale, shift


def _per_column(found: Found, maker: str, name: str) -> Array | None:
    """Return a constant with an element for each column of rows, in float64; None of others.

    Nor one that is divided by what is here, or from which that is subtracted.
    """
    constant, x, node = found[name], found["x"], found.match.made(maker)
    rank, columns, data = rank_of(x), size_of(x, -1), constant.data
    if data is None or rank is None or not isinstance(columns, int):
        return None
    if isinstance(node.op, Div | Sub) and node.operands[1] is not constant:
        return None
    if data.ndim > rank or data.dtype != x.tensor.dtype or data.dtype.kind != "f":
        return None
    if data.size != 1 and (data.size, *data.shape[-1:]) != (columns, columns):
        return None
    return np.broadcast_to(data.astype(np.float64).reshape(-1), columns)


# ── Fourier transforms ───────────────────────────────────────────────────────────────────────────

_NUMBER = Var("factor", lambda value: value.data is not None and value.data.size == 1)


def _build_in_front(found: Found) -> Outcome:
    """Scale what elementwise nodes or a norm compute instead of a transform of it, or a view.

    Each axis of ``norm="ortho"`` has such a number. One behind the last transform that elementwise
    nodes read stays with them, and so does one directly behind a norm.
    """
    source, factor, node = found["x"], found["factor"], found.top
    if len(factor.tensor.dims) > 1 or node.inputs[0] is not source:
        return None
    maker, reader = source.producer, found.graph.sole_consumer(node.output)
    if maker is None or not isinstance(node.op, Mul | Div):
        return None
    if isinstance(maker.op, DFT):
        while reader is not None and isinstance(reader.op, RESHAPES):
            reader = found.graph.sole_consumer(reader.output)
        if reader is None or is_elementwise(reader.op):
            return None
    elif reader is None or not isinstance(reader.op, DFT) or is_elementwise(maker.op):
        return None
    also = half_types(found.context.options.precision, factor.tensor.dtype)
    new = scaled(found.graph, node, source, node.op, factor, also)
    made = None if new is None else new.producer
    if made is None:
        return None
    found.graph.remove(made)
    return Replacement(made.op, made.inputs)


FUSIONS = tuple(
    Fusion(Apply(kinds, *operands), build, text="{new} took over {kind} '{anchor}'")
    for kinds, operands, build in (
        ((Add, Mul, Sub, Div), (_LAYER, _CONSTANT), _build),
        (Sub, (_CONSTANT, _LAYER), _build),
        ((Add, Mul, Sub, Div), (_BIASED, _CONSTANT), _build_rows),
        ((Mul, Div), (_PRODUCT, _CONSTANT), _build_rows),
        (MatMul, (_SCALED_AND_SHIFTED, _WEIGHT), _build_before),
        (MatMul, (_SHIFTED, _WEIGHT), _build_before),
        (MatMul, (_SCALED, _WEIGHT), _build_before),
        (MatMul, (_WEIGHT, _SHIFTED), _build_mixed),
        ((Mul, Div), ("x", _NUMBER), _build_in_front),
    )
)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``y * s + t`` (Mul, Div, Add, Sub by a constant per channel) into the producer of `y`.

    Weight and bias of a Conv, ConvTranspose, Gemm or MatMul, or scale and shift of a
    BatchNormalization in inference, are changed instead, in float64. So are the matrix by which
    rows are multiplied whose columns are scaled, and the bias behind it where they are shifted
    (ResMLP). `y` must have no other reader. With precision float16, scales for which weights would
    leave its range are not folded. A number between two Fourier transforms scales what the first
    one reads.
    """
    return fuse(graph, context, FUSIONS)
