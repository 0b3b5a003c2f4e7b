"""Operators of com.microsoft that ONNX has under another name or with another signature."""

from __future__ import annotations

from typing import Annotated

from ....runtime.ir import dtypes
from .builder import NodeBuilder
from .declaration import Anything, Index, Int32, Int64, Kind, Results, T, contrib

Number = Annotated[str, Kind("T", dtypes.FLOATS | dtypes.INTEGERS)]
Int16 = Annotated[str, Kind("S", frozenset({dtypes.int16, dtypes.uint16}))]
Grid = Annotated[str, Kind("G", frozenset(dtypes.TO_ONNX))]


@contrib("Pad")
def pad(
    b: NodeBuilder, x: T, pads: Int64, value: T | None = None, *, mode: str = "constant"
) -> str:
    """Pad with a 1-D or 2-D tensor of pads."""
    if value is not None:
        value = b.Reshape(value, b.ints())
    return b.Pad(x, b.Reshape(pads, b.ints(-1)), value, mode=mode)


@contrib("Range")
def range_(b: NodeBuilder, start: Number, limit: Number, delta: Number | None = None) -> str:
    """Range with scalars or one-element vectors."""
    step = delta if delta is not None else b.number(1, start)
    return b.Range(*(b.Reshape(each, b.ints()) for each in (start, limit, step)))


@contrib("Trilu")
def trilu(b: NodeBuilder, x: Anything, k: Int64 | None = None, *, upper: int = 1) -> str:
    """ONNX's Trilu."""
    return b.Trilu(x, k, upper=upper)


@contrib("GatherND")
def gather_nd(b: NodeBuilder, data: Anything, indices: Index) -> str:
    """ONNX's GatherND, with int32 indices as well."""
    return b.GatherND(data, b.cast(indices, dtypes.int64))


@contrib("ExpandDims")
def expand_dims(b: NodeBuilder, x: Anything, axis: Int32) -> str:
    """Unsqueeze of one axis."""
    return b.Unsqueeze(x, b.cast(b.Reshape(axis, b.ints(-1)), dtypes.int64))


@contrib("Unique", outputs=(3, 3))
def unique(b: NodeBuilder, x: Anything) -> Results:
    """The sorted distinct elements, inverse indices, and counts."""
    b.rank(x, 1)
    y, _, where, counts = b.chosen("Unique", (True, False, True, True), x, sorted=0)
    return y, where, counts


@contrib("GridSample")
def grid_sample(
    b: NodeBuilder,
    x: Grid,
    grid: Grid,
    *,
    align_corners: int = 0,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
) -> str:
    """ONNX's GridSample with other names for its modes."""
    names = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}
    if mode not in names:
        raise b.error(f"mode='{mode}'; expected {', '.join(names)}")
    how = names[mode]
    return b.GridSample(x, grid, align_corners=align_corners, mode=how, padding_mode=padding_mode)


@contrib("TorchEmbedding")
def torch_embedding(
    b: NodeBuilder,
    weight: Anything,
    indices: Int64,
    padding_idx: Int64 | None = None,
    scale_grad_by_freq: Annotated[str, Kind("B", frozenset({dtypes.bool_}))] | None = None,
) -> str:
    """Rows of an embedding table."""
    return b.Gather(weight, indices, axis=0)


@contrib("SampleOp")
def sample_op(b: NodeBuilder, x: Number) -> str:
    """The input itself."""
    return b.Identity(x)


@contrib("MatMulInteger16")
def matmul_integer16(b: NodeBuilder, x: Int16, y: Int16) -> str:
    """Product of 16-bit integers with int32 accumulation."""
    return b.MatMul(b.cast(x, dtypes.int32), b.cast(y, dtypes.int32))
