"""Resampling: resizing axis by axis, and sampling at grids of coordinates."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import gcd, prod

import ml_dtypes
import numpy as np

from ....runtime.base.record import record
from ....runtime.ir.dtypes import FLOATS, INTEGERS, DType, bfloat16, float16, float32, float64
from ....runtime.ir.graph import Node
from ....runtime.ir.types import Array
from ....runtime.ops.resampling import ResizeAxis, axes_of, nearest, positions_of, taps_of
from ....runtime.ops.resize import AffineGrid, GridSample, Resize
from ..algorithms.registry import Answer, kernel, need_dtypes, need_known
from ..codegen.copies import copy_strided
from ..codegen.elementwise import ANY, SMALL_FLOATS, in_chains
from ..codegen.epilogue import Epilogue, no_epilogue
from ..recipe.arguments import MAX_TABLE, TooLarge
from ..recipe.launch import Launch, each
from ..recipe.operands import Arguments, Ints, Packed, Scratch, Tensor, as_it_is, index_type, order

#: Elements that a result of two axes may read, and bytes of a word of adjacent results.
MAX_TAPS, WORD = 16, 16
#: Maximum results in a row that one thread computes.
ACROSS = 4


def _arithmetic(dtype: DType) -> DType:
    return float32 if dtype in (float16, bfloat16, float32) or dtype in SMALL_FLOATS else float64


@record
class _Pass:
    """One axis: the input elements of each result, [results, taps]; -1 is outside."""

    axis: int
    indices: Array
    weights: Array


@record
class _Resampling:
    """Passes that run as one launch: along one axis, or along two adjacent ones.

    Attributes:
        op: the attributes.
        passes: one or two.
        dims: shape of the source, in memory order.
        source: what is read.
        target: what is written.
        types: element types of both.
        compute: element type of weights and sums.
        epilogue: applied to the results.
    """

    op: Resize
    passes: tuple[_Pass, ...]
    dims: Ints
    source: Tensor | Scratch
    target: Tensor | Scratch
    types: tuple[DType, DType]
    compute: DType
    epilogue: Epilogue

    @property
    def ends(self) -> tuple[Tensor | Scratch, Tensor | Scratch]:
        """Source and target."""
        return self.source, self.target

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of both that are not in the workspace."""
        return tuple(end for end in self.ends if isinstance(end, Tensor))

    def pitches(self, *widths: int) -> tuple[int, ...]:
        """Return the elements from one row to the next of both, given those of a row."""
        pairs = zip(self.ends, widths, strict=True)
        return tuple((isinstance(end, Tensor) and end.pitch) or width for end, width in pairs)

    def aliases(self, count: int) -> tuple[tuple[str, DType], ...]:
        """Return the C++ aliases of a kernel with this many results."""
        sizes = (prod(self.dims), count, *(tensor.extent for tensor in self.tensors))
        index = index_type(*sizes)
        return (
            *(("FROM", self.types[0]), ("TO", self.types[1])),
            *(("A", self.compute), ("T", self.epilogue.sums), ("Index", index)),
        )

    def constants(
        self, taps: int, row_taps: int = 1, vector: int = 1, *, gaps: bool = False
    ) -> tuple[tuple[str, float | int | bool], ...]:
        """Return the compile-time constants of `resample.cu`."""
        to = self.types[1]
        whole = to in INTEGERS and self.op.mode != "nearest"
        limits = ml_dtypes.iinfo(to) if whole else None
        ends = (int(limits.min), int(limits.max)) if limits else (0, 0)
        return (
            *(("TAPS", taps), ("ROW_TAPS", row_taps), ("VECTOR", vector)),
            *(("WEIGHTED", self.op.mode != "nearest"), ("WHOLE", whole)),
            *(("LOWEST", float(ends[0])), ("GREATEST", float(ends[1])), ("GAPS", gaps)),
            ("EPILOGUE", bool(self.epilogue.title)),
            ("CHANNELS_LAST", any(tensor.is_channels_last for tensor in self.tensors)),
        )

    def launch(
        self,
        entry: str,
        count: int,
        args: Arguments,
        constants: tuple[tuple[str, float | int | bool], ...],
        note: str,
    ) -> Launch:
        """Return the launch of a kernel with this many threads; see `Launch`."""
        epilogue = self.epilogue
        return each(
            "image/resample.cu",
            entry,
            count,
            {**args, **epilogue.args},
            types=self.aliases(count),
            constants=constants,
            code=epilogue.code,
            note=f"{self.op.mode} {note} {epilogue.title}".strip(),
            pitched=tuple(t for t in self.tensors if t is self.source or not epilogue.along),
        )


def _follows(node: Node) -> bool:
    """Whether a Resize takes images in any format.

    A result of the graph is contiguous; if the image grows, it costs less to reorder that.
    """
    x, value = node.operands[0], node.output
    while (reader := next(iter(value.consumers), None)) is not None:
        if len(value.consumers) > 1 or not in_chains(reader):
            return True
        value = reader.output
    return value.tensor.size <= x.tensor.size


@kernel(Resize, follows=_follows)
def resize(
    op: Resize,
    y: Tensor,
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    epilogue: Epilogue,
) -> Answer:
    """Interpolate along one axis after another, with precomputed tables."""
    if epilogue.title and need_dtypes(FLOATS, x, y):
        return f"elements of {x.dtype.name} followed by fused nodes"
    crops = op.coordinate_transformation_mode == "tf_crop_and_resize"
    refused = need_known(scales=scales, sizes=sizes, roi=roi if crops else None)
    if refused or not y.size:
        return refused or ()
    known = [None if t is None else t.known for t in (scales, sizes, roi if crops else None)]
    axes = axes_of(op, x.dims, y.dims, known[0], known[1], known[2])
    passes = [_pass(op, axis, crops) for axis in axes if crops or not axis.is_whole]
    if not passes:
        return "no axis to resize" if epilogue.title else copy_strided(y, x, x.strides)
    return need_dtypes(ANY, x) or _passes(op, y, x, passes, epilogue)


def _pass(op: Resize, axis: ResizeAxis, crops: bool) -> _Pass:
    if axis.new > MAX_TABLE:
        raise TooLarge(f"an axis of {axis.new} elements, each of which would have a row of a table")
    # Nearest rounds as in float32, where 3 / 0.6 is 5.
    dtype = float32 if op.mode == "nearest" else float64
    positions = positions_of(op.coordinate_transformation_mode, axis, dtype)
    if op.mode == "nearest":
        indices = nearest(op.nearest_mode, positions, axis.old)[np.newaxis]
        weights = np.ones_like(positions)[np.newaxis]
    else:
        indices, weights = taps_of(op, axis, positions)
    if crops:
        indices = np.where((positions < 0) | (positions > axis.old - 1), -1, indices)
    return _Pass(axis.index, indices.T, weights.T)


def _passes(
    op: Resize, y: Tensor, x: Tensor, passes: list[_Pass], epilogue: Epilogue
) -> tuple[Launch, ...] | str:
    """Return one launch per axis, or per pair of adjacent axes.

    Intermediate results are in the workspace.
    """
    compute = _arithmetic(x.dtype)
    between = x.dtype if op.mode == "nearest" else compute
    layout = order(x.rank, x.format)
    passes = sorted((replace(one, axis=layout.index(one.axis)) for one in passes), key=_axis)
    stages = _stages(passes, x, y)
    begin, end = stages[-1][0].axis, stages[-1][-1].axis
    by_channel = end < x.rank - 1 if x.is_channels_last else (x.rank, begin) == (4, 2)
    if epilogue.reads_channels and (len(stages[-1]) == 1 or not by_channel):
        return "constants per channel in the epilogue of one axis, or of the channels'"
    dims = [x.dims[axis] for axis in layout]
    launches: list[Launch] = []
    largest = 0
    for one in passes:
        dims[one.axis] = len(one.indices)
        largest = max(largest, prod(dims) * between.itemsize)
    room = -(-largest // 256) * 256
    dims = [x.dims[axis] for axis in layout]
    source: Tensor | Scratch = x
    for number, stage in enumerate(stages):
        last = number == len(stages) - 1
        target: Tensor | Scratch = y if last else Scratch(number % 2 * room)
        types = (x.dtype if number == 0 else between, y.dtype if last else between)
        then = epilogue if last else no_epilogue(between)
        found = _Resampling(op, stage, tuple(dims), source, target, types, compute, then)
        launches.append(_plane(found) if len(stage) == 2 else _line(found))
        for one in stage:
            dims[one.axis] = len(one.indices)
        source = target
    scratch = 0 if len(stages) == 1 else 2 * room
    return tuple(replace(launch, scratch=scratch) for launch in launches)


def _axis(one: _Pass) -> int:
    return one.axis


def _stages(passes: list[_Pass], x: Tensor, y: Tensor) -> list[tuple[_Pass, ...]]:
    """Return the passes in pairs of adjacent axes as far as possible.

    A result of a pair reads all products of taps, which pays for a few of them.
    """
    found: list[tuple[_Pass, ...]] = []
    left = list(passes)
    while left:
        one, *others = left
        other = others[0] if others else None
        together = other is not None and other.axis == one.axis + 1
        if together and other is not None:
            taps = one.indices.shape[1] * other.indices.shape[1]
            gaps = bool(x.pitch or y.pitch) and other.axis == x.rank - 1
            together = taps <= MAX_TAPS and not gaps
        found.append(tuple(left[: 1 + together]))
        left = left[1 + together :]
    return found


def _line(stage: _Resampling) -> Launch:
    """Return the launch of a pass along one axis."""
    (one,), dims = stage.passes, stage.dims
    places, taps = one.indices.shape
    inner = prod(dims[one.axis + 1 :])
    count = prod(dims[: one.axis]) * places * inner
    widths = (dims[-1], places if one.axis == len(dims) - 1 else dims[-1])
    of_x, of_y = (
        {"width": width, "pitch": pitch}
        for width, pitch in zip(widths, stage.pitches(*widths), strict=True)
    )
    gaps = any(tensor.pitch for tensor in stage.tensors)
    return stage.launch(
        "resample",
        count,
        {
            **{"x": stage.source, "indices": _table(one.indices, np.dtype(np.int32))},
            **{"weights": _table(one.weights, stage.compute), "y": stage.target, "count": count},
            **{"size": dims[one.axis], "places": places, "inner": inner},
            **{"outside": stage.op.extrapolation_value, "of_x": of_x, "of_y": of_y},
        },
        stage.constants(taps, gaps=gaps),
        f"{dims[one.axis]} to {places}",
    )


def _plane(stage: _Resampling) -> Launch:
    """Return the launch of a pass along two adjacent axes."""
    (rows, columns), dims = stage.passes, stage.dims
    height, width = dims[rows.axis], dims[columns.axis]
    (places, row_taps), (across, taps) = rows.indices.shape, columns.indices.shape
    outer, inner = prod(dims[: rows.axis]), prod(dims[columns.axis + 1 :])
    pitches = stage.pitches(inner, inner)
    word = WORD // max(dtype.itemsize for dtype in stage.types)
    along = inner == 1 and pitches == (1, 1) and rows.axis == 2 and len(dims) == 4
    vector = gcd(min(word, ACROSS), across) if along else gcd(word, inner, *pitches)
    count = outer * places * across * inner
    args = {
        **{"x": stage.source, "y": stage.target, "count": count // vector},
        **{"row_indices": _table(rows.indices, np.dtype(np.int32))},
        **{"row_weights": _table(rows.weights, stage.compute)},
        **{"column_indices": _table(columns.indices, np.dtype(np.int32))},
        **{"column_weights": _table(columns.weights, stage.compute)},
        "plane": {"height": height, "width": width, "rows": places, "columns": across},
        **{"outside": stage.op.extrapolation_value, "channels": dims[1]},
    }
    if not along:
        args |= {"inner": inner // vector, "pitch_x": pitches[0], "pitch_y": pitches[1]}
    return stage.launch(
        "resample_rows" if along else "resample_plane",
        count // vector,
        args,
        stage.constants(taps, row_taps, vector),
        f"{height} x {width} to {places} x {across}",
    )


def _table(data: Array, dtype: DType) -> Packed:
    made = np.ascontiguousarray(data.astype(dtype))
    return Packed((), ("table", dtype.name, made.tobytes()), partial(as_it_is, made))


# ── grids ────────────────────────────────────────────────────────────────────────────────────────

_MODES = ("nearest", "linear", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


def _constants(axes: int, op: GridSample | AffineGrid) -> tuple[tuple[str, int | bool], ...]:
    sample = op if isinstance(op, GridSample) else GridSample()
    return (
        *(("AXES", axes), ("MODE", _MODES.index(sample.mode))),
        ("PADDING", _PADDINGS.index(sample.padding_mode)),
        ("ALIGN_CORNERS", bool(op.align_corners)),
    )


@kernel(GridSample, follows=True, contiguous=(1,))
def grid_sample(op: GridSample, y: Tensor, x: Tensor, grid: Tensor) -> Answer:
    """Interpolate at every position of the grid."""
    refused = need_dtypes(FLOATS, grid) or need_dtypes(ANY, x)
    axes = x.rank - 2
    if refused or axes > 3:
        return refused or f"{axes} spatial axes"
    if not x.size and y.size:
        return "an image without elements"
    entry, vector, rows = "grid_sample", 1, dict[str, int]()
    if x.is_channels_last:
        entry, rows = "grid_sample_pixels", {"row_x": x.row, "row_y": y.row}
        vector = gcd(WORD // x.dtype.itemsize, x.dims[1], *rows.values())
    return each(
        "image/grid.cu",
        entry,
        y.size // vector,
        {
            **{"x": x, "grid": grid, "y": y, "count": y.size // vector, "channels": x.dims[1]},
            **{**rows, "sizes": {"in": x.dims[2:], "out": y.dims[2:]}},
        },
        types=(
            *(("T", x.dtype), ("G", grid.dtype)),
            *(("P", _arithmetic(grid.dtype)), ("A", _arithmetic(x.dtype))),
        ),
        constants=(*_constants(axes, op), ("VECTOR", vector)),
        note=op.mode,
        pitched=(x, y) if rows else (),
    )


@kernel(AffineGrid)
def affine_grid(op: AffineGrid, y: Tensor, theta: Tensor, size: Tensor) -> Answer:
    """Transform the coordinates of every pixel."""
    spatial = y.dims[1:-1]
    return need_dtypes(FLOATS, theta) or each(
        "image/grid.cu",
        "affine_grid",
        y.size,
        {"theta": theta, "y": y, "count": y.size, "sizes": {"in": spatial, "out": spatial}},
        types=(("T", theta.dtype), ("G", theta.dtype), ("P", float64), ("A", float64)),
        constants=(*_constants(len(spatial), op), ("VECTOR", 1)),
    )
