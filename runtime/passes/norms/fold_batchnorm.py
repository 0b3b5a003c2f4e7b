"""Folds a BatchNormalization into the preceding convolution or Gemm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir.dtypes import DType
from ...ir.graph import Graph, Node
from ...ir.types import Array
from ...ops.elementwise import Add
from ...ops.matmul import Gemm, MatMul
from ...ops.norm import BatchNormalization
from ...ops.shape import Flatten, Reshape
from ..driver import Context
from ..editing import rank_of, shape_of
from ..fusion import Found, Fusion, Outcome, Replacement, fuse
from ..linear import LAYER, layer_of, rebuilt
from ..pattern import Apply, OneOf, Var, perhaps
from ..rounding import Exact, narrowed, product, scaled_row


def _is_inference(norm: Node) -> bool:
    constants = norm.inputs[1:5]
    return (
        not getattr(norm.op, "training_mode", 0)
        and len(norm.outputs) == 1
        and all(v is not None and v.data is not None for v in constants)
    )


def folded(norm: Node) -> tuple[Array, Array] | None:
    """Return the factor and addend per channel of a constant BatchNormalization (float64).

    None in training mode, if its constants differ in shape, or if one of these is not finite.
    """
    if not isinstance(norm.op, BatchNormalization) or not _is_inference(norm):
        return None
    constants = [v.data for v in norm.inputs[1:5] if v is not None and v.data is not None]
    scale, shift, mean, var = (data.astype(np.float64) for data in constants)
    if len({scale.shape, shift.shape, mean.shape, var.shape}) != 1:
        return None
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + norm.op.epsilon)
        addend = shift - mean * factor
    is_finite = np.isfinite(factor).all() and np.isfinite(addend).all()
    return (factor, addend) if is_finite else None


def written(norm: Node, affine: tuple[Array, Array], dtype: DType) -> tuple[Array, Array]:
    """Return factor and addend per channel in a type, for a Mul and an Add instead of a norm.

    Raises:
        Unfit: the type cannot represent them, or the product may be infinite though the sum is not.
    """
    factor, addend = affine
    scale = narrowed(Exact.of(factor), dtype, norm.operands[1].data)
    return scale, scaled_row(addend, factor, dtype)


def _build(found: Found) -> Outcome:
    norm, linear = found.top, layer_of(found)
    affine = folded(norm)
    if linear is None or affine is None or affine[0].shape != (linear.channels,):
        return None
    if isinstance(linear.node.op, Gemm) and rank_of(norm.inputs[0]) != 2:
        return None
    scale, shift = affine
    return rebuilt(found.graph, linear, linear.scaled(scale), linear.bias * scale + shift)


FUSIONS = (
    Fusion(
        Apply(BatchNormalization, LAYER, where=_is_inference),
        _build,
        text="{new} took over {kind} '{anchor}'",
    ),
)


# ── after products of rows ───────────────────────────────────────────────────────────────────────

_PRODUCT = Apply(
    MatMul, "x", Var("weight", lambda v: v.data is not None and v.data.ndim == 2), name="product"
)
_SUM = perhaps(
    Add, _PRODUCT, Var("bias", lambda value: value.data is not None and value.data.ndim <= 1)
)


def _build_rows(found: Found) -> Outcome:
    match, norm = found.match, found.match.made("norm")
    weight, affine, bias = found["weight"].data, folded(norm), match.get("bias")
    rows = match.get("rows")
    if weight is None or affine is None or affine[0].shape != weight.shape[1:]:
        return None
    shape = shape_of(norm.output)
    if shape is None or len(shape) != 2 or shape[-1] != weight.shape[1]:
        return None
    scale, shift = affine
    made = narrowed(product(weight, scale), weight.dtype, weight, axis=1)
    addend = np.zeros(()) if bias is None or bias.data is None else bias.data.astype(np.float64)
    row = scaled_row(addend * scale + shift, scale, weight.dtype)
    graph, layer = found.graph, match.made("product")
    scaled = graph.constant(made, f"{found['weight'].name}.folded")
    addends = graph.constant(row, f"{layer.name}.bias")
    add = found.builder(layer.name, (layer,))
    value = add(MatMul(), found["x"], scaled)
    if rows is None:
        return Replacement(Add(), (value, addends), named=norm)
    view = match.made("rows")
    total = found.builder(norm.name, (norm,))(Add(), value, addends)
    return Replacement(view.op, (total, *view.inputs[1:]), named=view)


ROWS = (
    Fusion(
        Apply(
            BatchNormalization,
            OneOf(Apply((Reshape, Flatten), _SUM, name="rows"), _SUM),
            name="norm",
            where=_is_inference,
        ),
        _build_rows,
        text="a product took over {kind} '{anchor}'",
    ),
)


def run_rows(graph: Graph, context: Context) -> Iterator[str]:
    """Fold a BatchNormalization into the preceding product of rows with a constant matrix.

    The rows may be flattened to one axis in between. ``(x W + b - mean) * s + shift`` is ``x (W
    s)`` plus a row, computed in float64.
    """
    return fuse(graph, context, ROWS)


def run(graph: Graph, context: Context) -> Iterator[str]:
    """Fold ``scale * (conv(x) - mean) / sqrt(var + eps) + shift`` into weight and bias.

    ``w' = w * s`` and ``b' = (b - mean) * s + shift`` with ``s = scale / sqrt(var + eps)`` per
    output channel, computed in float64. Conv, ConvTranspose (also grouped) and Gemm, with or
    without bias; the convolution must have no other reader.
    """
    return fuse(graph, context, FUSIONS)
