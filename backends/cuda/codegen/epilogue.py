"""Epilogues: what kernels do to accumulators before storing them: bias, residual, activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from math import gcd, prod
from types import MappingProxyType

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, bool_, float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ir.types import Array
from ....runtime.ops.conv import Conv
from ....runtime.ops.elementwise import Add
from ....runtime.ops.experts import MoE, QMoE
from ....runtime.ops.matmul import Gemm, MatMul
from ....runtime.ops.norm import (
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from ....runtime.ops.packed import MatMulNBits
from ....runtime.ops.shapes import normalize_axis
from ....runtime.plan.format import Format
from ..recipe.operands import Packed, Tensor
from ..recipe.source import C_TYPES, arithmetic
from .elementwise import CHEAP, chain_of

MAX_OPERANDS = 2
#: Minimum bytes of a pixel's channels, of all images, for normalizations of channels in place: with
#: fewer, blocks that share them leave most of a GPU idle, and copies to C order take no longer.
#: Measured on an H200 with ResNets of FRN: 24% faster at batch 32; 21% slower at batch 1, where
#: most layers have fewer.
FILLING = 4096
#: How an operand is indexed: like the result, with one element per channel or per row of a matrix,
#: like the result with rows of another distance, with one row for all rows of a sample, or with one
#: element per row of all matrices, or pixel of all images; see `epilogue.cuh`.
ALONG, BY_CHANNEL, BY_ROW, PLACED, BY_SAMPLE, BY_LINE = 1, 2, 3, 4, 5, 6
#: Operators with channels along the last axis.
OF_ROWS = MatMul | Gemm | MatMulNBits | MoE | QMoE | LayerNormalization | RMSNormalization
#: Operators of images whose kernels apply epilogues element by element.
OF_PLANES = GroupNormalization | InstanceNormalization
#: Operators of rows, or images whose channels are last, that may have operands by sample; by line.
OF_SAMPLES = MatMul | LayerNormalization | RMSNormalization | Conv | OF_PLANES
OF_LINES = MatMul | Gemm | Conv
#: Returns the epilogue of a node: those of the free nodes after it that its kernel can compute.
Tail = Callable[[Graph, Node, Set[Node]], tuple[Node, ...]]
#: Returns the elementwise nodes that combine two products, and that an epilogue computes.
Meeting = Callable[[Graph, tuple[Node, Node], Set[Node]], tuple[Node, ...]]


@record
class Epilogue:
    """The C++ function ``epilogue(value, i, row, channel, z0, z1)``, which returns what is stored.

    Attributes:
        code: the function: `value` is the accumulator, `i` its index in the result's memory, `row`
            and `channel` its position in a matrix product, or the channel of an image. With two
            products that meet in it, ``value0, value1`` are their accumulators.
        operands: the tensors behind z0 and z1.
        title: the operators, for reports.
        is_cheap: whether each operator takes only a few instructions.
        sums: the dtype of the kernel's own result, and of the operands.
        stored: the dtype it stores.
        bias: a constant with one element per column, added first by a matrix product; or None.
        kinds: how each operand is indexed.
        shared: the number of adjacent rows that have the same operands by sample; 0 without any.
        halves: where results are stored in halves; None if nowhere.
        plain: whether they are stored as they are.
        behind_bias: the same without the node that adds the first operand, which is its `bias`, if
            there is such a node and operand; else None.
    """

    code: str
    operands: tuple[Tensor | Packed, ...] = ()
    title: str = ""
    is_cheap: bool = True
    sums: DType = float32
    stored: DType = float32
    bias: Tensor | None = None
    kinds: tuple[int, ...] = ()
    shared: int = 0
    halves: Tensor | None = None
    plain: bool = True
    behind_bias: Epilogue | None = None

    @property
    def types(self) -> tuple[tuple[str, DType], tuple[str, DType]]:
        """The C++ aliases T, of operands, and R, of results."""
        return ("T", self.sums), ("R", self.stored)

    @property
    def aliases(self) -> tuple[tuple[str, DType], tuple[str, DType]]:
        """The same as Z and R, for kernels whose T is the type of the factors."""
        return ("Z", self.sums), ("R", self.stored)

    @property
    def reads_along(self) -> bool:
        """Whether an operand is read at the index of the result."""
        return bool(self.along)

    @property
    def is_heavy(self) -> bool:
        """Whether large tiles of `tma.cu` lack registers: it reads along, or two operands."""
        return self.reads_along or len(self.operands) > 1

    @property
    def along(self) -> tuple[Tensor, ...]:
        """The operands with the result's order of elements; rows may be further apart."""
        return self._of(ALONG, PLACED)

    @property
    def pitched(self) -> tuple[Tensor, ...]:
        """The operands that may be slices: those along, by sample, and by line."""
        return self._of(ALONG, PLACED, BY_SAMPLE, BY_LINE)

    @property
    def apart(self) -> tuple[Tensor, ...]:
        """The operands whose rows have other positions than those of the result."""
        return self._of(PLACED, BY_SAMPLE)

    def _of(self, *kinds: int) -> tuple[Tensor, ...]:
        found = zip(self.operands, self.kinds, strict=True)
        return tuple(o for o, k in found if k in kinds and isinstance(o, Tensor))

    @property
    def reads_channels(self) -> bool:
        """Whether an operand is read at the channel of the result."""
        return BY_CHANNEL in self.kinds

    @property
    def reads_rows(self) -> bool:
        """Whether an operand is read at the row of the result, in a matrix product."""
        return BY_ROW in self.kinds

    def flags(
        self, bias: Tensor | Packed | None, *, mapped: bool = False
    ) -> tuple[tuple[str, int], ...]:
        """Return the constants of `epilogue.cuh`: whether there is a bias, and operand layouts.

        Z0 and Z1 are the kinds of the operands, 0 for none.

        Args:
            bias: added first.
            mapped: whether tensor maps say where rows of operands are, if these have as many as
                the result.
        """
        known = {PLACED: ALONG} if mapped else {BY_SAMPLE: PLACED}
        first, second = (*(known.get(kind, kind) for kind in self.kinds), 0, 0)[:2]
        return ("BIAS", bias is not None), ("Z0", first), ("Z1", second)

    @property
    def halves_code(self) -> str:
        """The macros of `store_halves.cuh`: whether results are stored in halves, and plainly."""
        return in_halves_code(self.halves, plain=self.plain)

    @property
    def as_plain(self) -> Epilogue:
        """This epilogue, which stores results as they are."""
        return self.storing(None)

    def storing(self, halves: Tensor | None, *, plain: bool = True) -> Epilogue:
        """Return this epilogue, with other values of `halves` and `plain`."""
        known = (self.halves, self.plain) == (halves, plain)
        return self if known else replace(self, halves=halves, plain=plain)

    @property
    def args(self) -> dict[str, Tensor | Packed | None]:
        """`operands` by the kernels' parameter names, null if absent."""
        return dict(zip(("z0", "z1"), (*self.operands, None, None), strict=False))


def in_halves_code(halves: Tensor | None, *, plain: bool) -> str:
    """Return the macros of `store_halves.cuh`; see `Epilogue`."""
    code = f"#define IN_HALVES {int(halves is not None)}\n#define PLAIN {int(plain)}"
    return f"{code}\n{order_of_halves(halves.format if halves else Format.HALVES)}"


def order_of_halves(format: Format) -> str:
    """Return the macro of `store_halves.cuh` that says how rows in halves are ordered."""
    return f"#define OF_PIXELS {int(format is Format.PIXEL_HALVES)}"


def _head(sums: DType, stored: DType, values: Sequence[str] = ("value",)) -> str:
    operand, computed = C_TYPES[sums], C_TYPES[arithmetic(sums)]
    return (
        f"__device__ __forceinline__ {C_TYPES[stored]} epilogue("
        f"{''.join(f'{computed} {value}, ' for value in values)}long long i, "
        f"int row, int channel, const {operand}* z0, const {operand}* z1)"
    )


def _places(*rows: tuple[int, int, int]) -> str:
    """Return ``place0(i)`` and ``place1(i)``: where operands have what the result has at `i`.

    Args:
        rows: distances between rows of the result and of each operand, in elements, and the number
            of the result's rows for which the operand has one; 0 if its rows have one element.
    """
    found: list[str] = []
    for number, (of_y, of_z, each) in enumerate((*rows, (1, 1, 1), (1, 1, 1))[:MAX_OPERANDS]):
        row = f"(unsigned)i / {of_y * (each or 1)}u * {of_z}ll"
        apart = f"{row} + (unsigned)i % {of_y}u" if each else row
        place = "i" if of_y == of_z and each == 1 else apart
        head = f"__device__ __forceinline__ long long place{number}(long long i)"
        found.append(f"{head} {{ return {place}; }}\n")
    return "".join(found)


def no_epilogue(dtype: DType) -> Epilogue:
    """Return the epilogue that only rounds to `dtype`."""
    code = f"{_places()}{_head(dtype, dtype)} {{ return {C_TYPES[dtype]}(value); }}"
    return Epilogue(code, sums=dtype, stored=dtype)


def unrounded(dtype: DType) -> Epilogue:
    """Return the epilogue that stores the float32 accumulators of a 16-bit product."""
    code = f"{_places()}{_head(dtype, float32)} {{ return value; }}"
    return Epilogue(code, sums=dtype, stored=float32)


def unrounded_chain(nodes: tuple[Node, ...], first: Value) -> Epilogue | str:
    """Return the elementwise nodes after a kernel as its epilogue, whose results are not rounded.

    Args:
        nodes: a chain in which each reads the previous one, and nothing that has to be loaded; may
            be empty.
        first: the kernel's own result.
    """
    dtype = first.tensor.dtype
    if not nodes:
        return unrounded(dtype)
    chain = chain_of(nodes, "chain", (first,), rounds=False)
    if isinstance(chain, str):
        return chain
    if len(chain.operands) > 1:
        return f"{len(chain.operands) - 1} operands"
    code = f"{chain.code}\n{_places()}{_head(dtype, float32)} {{ return chain(value); }}"
    cheap = all(isinstance(node.op, CHEAP) for node in nodes)
    return Epilogue(code, title=chain.title, is_cheap=cheap, sums=dtype, stored=float32)


def rounding_to(dtype: DType) -> Epilogue:
    """Return the epilogue that rounds float32 sums to a 16-bit type."""
    code = f"{_places()}{_head(float32, dtype)} {{ return {C_TYPES[dtype]}(value); }}"
    return Epilogue(code, title="Cast", stored=dtype)


NO_EPILOGUE = no_epilogue(float32)


def epilogue_of(
    nodes: tuple[Node, ...],
    y: Tensor,
    first: Value,
    *others: Value,
    pitches: Mapping[Value, int] = MappingProxyType({}),
) -> Epilogue | str:
    """Return the elementwise nodes after a kernel as its epilogue, or why that is impossible.

    Args:
        nodes: a chain in which each reads the previous one; may be empty.
        y: the last result, in the format that the kernel stores.
        first: the kernel's own result, with the shape of `y`.
        others: further results of the kernel, of the same shape.
        pitches: of operands that are slices; see `View.pitch`.
    """
    if not nodes:
        return no_epilogue(y.dtype)
    head = None if first.producer is None else first.producer.op
    of_rows = isinstance(head, OF_ROWS) and first.producer and not divides_channels(first.producer)
    axis = -1 if of_rows or y.rank < 3 else 1
    if isinstance(head, MatMul) and first.producer and first.producer.operands[1].tensor.rank == 1:
        axis = None  # a matrix times a vector is one column
    rows = None if others else _row_axis(first, y)
    heads = OF_SAMPLES, OF_PLANES, OF_LINES
    by_sample, by_plane, by_line = (not others and isinstance(head, each) for each in heads)
    repeats = not others and isinstance(head, MatMul) and _is_stacked(first)
    masks = not others and _is_of_two(first)
    places = _Places(axis, rows, by_sample, by_plane, by_line, repeats, masks, pitches)
    epilogue = _epilogue(nodes, y, (first, *others), places)
    if isinstance(epilogue, str):
        return epilogue
    has_bias = isinstance(head, MatMul) and axis is not None and not others
    bias = _bias_of(nodes[0], first, y) if has_bias else None
    rest = None if bias is None else _behind(nodes, y, places)
    if isinstance(rest, Epilogue):
        rest = replace(rest, bias=bias, title=epilogue.title)
    if len(epilogue.operands) <= MAX_OPERANDS:
        return epilogue if rest is None else replace(epilogue, behind_bias=rest)
    return rest or f"{len(epilogue.operands)} operands"


def divides_channels(node: Node) -> bool:
    """Whether a node is an RMSNormalization of each channel of images, many and without a scale.

    So filter response normalization begins, which then scales and shifts channels.
    """
    return isinstance(node.op, RMSNormalization) and are_divided(node.op, *node.operands)


def are_divided(op: RMSNormalization, x: Value, scale: Value) -> bool:
    """Return `divides_channels` of an operator and its operands."""
    dims = x.tensor.dims
    if len(dims) < 4 or normalize_axis(op.axis, len(dims)) != 2 or scale.data is None:
        return False
    is_large = prod(dims[:2]) * x.tensor.dtype.itemsize >= FILLING
    return is_large and bool((scale.data == 1).all())


def _behind(nodes: tuple[Node, ...], y: Tensor, places: _Places) -> Epilogue | None:
    """Return the epilogue of the nodes behind the first one, if there is one."""
    if len(nodes) == 1:
        return no_epilogue(y.dtype) if y.dtype == nodes[0].output.tensor.dtype else None
    rest = _epilogue(nodes[1:], y, (nodes[0].output,), places)
    return None if isinstance(rest, str) or len(rest.operands) > MAX_OPERANDS else rest


@record
class _Places:
    """Where the operands of an epilogue may be.

    Attributes:
        channels: the axis of the channels; None if there is none.
        rows: the axis of the rows of a matrix product that count from zero in each matrix, or None.
        by_sample: whether all rows of a sample may share one.
        by_plane: whether all elements of an image's plane may share one.
        by_line: whether all elements of a row, or channels of a pixel, may share one.
        repeats: whether batches may share constants that are whole matrices.
        masks: whether constants of booleans may be as large as a matrix; else they have one element
            for each channel or row. Kernels whose weights are constant map other operands.
        pitches: of operands that are slices; see `View.pitch`.
    """

    channels: int | None
    rows: int | None
    by_sample: bool
    by_plane: bool
    by_line: bool
    repeats: bool
    masks: bool
    pitches: Mapping[Value, int]


def _row_axis(sums: Value, y: Tensor) -> int | None:
    """Return the axis of the rows of a matrix product that count from zero in each matrix."""
    node = sums.producer
    if node is None or not isinstance(node.op, MatMul) or y.rank < 2:
        return None
    ranks = [len(value.tensor.dims) for value in node.operands]
    return -2 if min(ranks) >= 2 and (ranks[0] == 2 or prod(y.dims[:-2]) == 1) else None


def _is_of_two(sums: Value) -> bool:
    """Whether a product has two computed factors."""
    node = sums.producer
    return node is not None and isinstance(node.op, MatMul) and node.operands[1].data is None


def _is_stacked(sums: Value) -> bool:
    """Whether a product has several right matrices."""
    return sums.producer is not None and prod(sums.producer.operands[1].tensor.dims[:-2]) > 1


def _bias_of(node: Node, sums: Value, y: Tensor) -> Tensor | None:
    """Return the constant that a node adds to every row of a product; None if it does not."""
    others = [value for value in node.inputs if value is not None and value is not sums]
    if not isinstance(node.op, Add) or len(others) != 1:
        return None
    (other,) = others
    operand = Tensor(other)
    fits = other.data is not None and _is_per_channel(operand.dims, y.dims, -1)
    return operand if fits and operand.dtype == sums.tensor.dtype else None


def _epilogue(
    nodes: tuple[Node, ...],
    y: Tensor,
    results: tuple[Value, ...],
    places: _Places,
) -> Epilogue | str:
    chain, sums = chain_of(nodes, "chain", results), results[0].tensor.dtype
    if isinstance(chain, str):
        return chain
    values = [f"value{i}" for i in range(len(results))] if len(results) > 1 else ["value"]
    arguments = [*values]
    operands: list[Tensor | Packed] = []
    kinds: list[int] = []
    apart: list[tuple[int, int, int]] = []
    axis, rows = places.channels, places.rows
    for value in chain.operands[len(results) :]:
        place = 1, 1, 1
        operand = Tensor(value, y.format, places.pitches.get(value, 0))
        is_constant = value.data is not None
        is_mask = is_constant and operand.dtype == bool_
        if operand.dtype != sums and not is_mask:
            return f"operand of {operand.dtype.name}"
        if is_constant and _is_per_channel(operand.dims, y.dims, axis):
            operand, kind, index = Tensor(value), BY_CHANNEL, "channel"
        elif is_constant and rows and _is_per_channel(operand.dims, y.dims, rows):
            operand, kind, index = Tensor(value), BY_ROW, "row"
        elif _is_along(operand, y):
            is_apart = operand.rank > 0 and operand.row != y.row
            if is_apart and y.extent >= 2**32:
                return f"an operand whose rows are apart, and {y.extent} results"
            kind, index = PLACED if is_apart else ALONG, f"place{len(operands)}(i)"
            place = (y.row, operand.row, 1) if is_apart else place
        elif shared := _place_by_sample(operand, y, places):
            kind, index, place = BY_SAMPLE, f"place{len(operands)}(i)", shared
        elif places.by_line and not is_mask and _is_by_line(operand, y):
            kind, index, place = BY_LINE, f"place{len(operands)}(i)", (y.row, operand.pitch or 1, 0)
        elif is_constant and places.repeats and _is_repeated(operand.dims, y):
            kind, index, place = PLACED, f"place{len(operands)}(i)", (operand.size, 0, 1)
        else:
            return f"an operand of {value.tensor} does not fit {y.value.tensor}"
        if is_mask and not places.masks and kind not in (BY_CHANNEL, BY_ROW):
            return f"a mask of {value.tensor}"
        element = f"z{len(operands)}[{index}]"
        arguments.append(f"float({element}) != 0" if is_mask else element)
        operands.append(_numbers(value, sums) if is_mask else operand)
        kinds.append(kind)
        apart.append(place)
    call = f"{_head(sums, y.dtype, values)} {{ return chain({', '.join(arguments)}); }}"
    code = f"{chain.code}\n{_places(*apart[:MAX_OPERANDS])}{call}"
    cheap = all(isinstance(node.op, CHEAP) for node in nodes)
    return Epilogue(
        code,
        tuple(operands),
        chain.title,
        cheap,
        sums=sums,
        stored=y.dtype,
        kinds=tuple(kinds),
        shared=gcd(
            *(each for (_, _, each), kind in zip(apart, kinds, strict=True) if kind == BY_SAMPLE)
        ),
    )


def _numbers(mask: Value, dtype: DType) -> Packed:
    """Return a constant of booleans as zeros and ones."""

    def pack(data: Array) -> Array:
        return data.astype(dtype)

    return Packed((mask,), ("numbers", dtype), pack)


def _place_by_sample(operand: Tensor, y: Tensor, places: _Places) -> tuple[int, int, int] | None:
    """Return where a computed operand is that many rows of the result share; see `_places`.

    Such as a vector of each of 32 samples, [32, 1, 1, 96], of which 49 rows of a result of [32, 7,
    7, 96] have one, or the pixels of channels-last images; or constants of one of several matrices.
    """
    allowed = places.repeats if operand.data is not None else places.by_sample
    if not allowed or y.rank < 2 or y.extent >= 2**32:
        return None
    dims = (1,) * (y.rank - operand.rank) + operand.dims
    if places.by_plane and y.format is Format.CONTIGUOUS:
        of_planes = dims == (*y.dims[:2], *(1,) * (y.rank - 2))
        return (1, 1, prod(y.dims[2:])) if of_planes else None
    if y.format.order(dims) != Format.CONTIGUOUS.order(dims):
        return None  # pixels of one axis: nothing asks for them with channels last
    own, sizes = (y.format.physical(each) for each in (dims, y.dims))
    same = next((i for i, (d, s) in enumerate(zip(own, sizes, strict=True)) if d != s), y.rank)
    if own != (*sizes[:same], *(1,) * (y.rank - 1 - same), sizes[-1]):
        return None
    return y.row, operand.pitch or own[-1], prod(sizes[same:-1])


def _is_by_line(operand: Tensor, y: Tensor) -> bool:
    """Whether an operand has one element for each row of the result, or pixel of an image."""
    dims = (1,) * (y.rank - operand.rank) + operand.dims
    if y.rank < 2 or y.extent >= 2**32 or y.format.order(dims) != Format.CONTIGUOUS.order(dims):
        return False
    own, sizes = (y.format.physical(each) for each in (dims, y.dims))
    return own == (*sizes[:-1], 1) and sizes[-1] > 1


def _is_along(operand: Tensor, y: Tensor) -> bool:
    """Whether an operand has the result's elements in its order; constants are contiguous."""
    if operand.data is None:
        return operand.dims == y.dims
    padded = (1,) * (y.rank - operand.rank) + operand.dims
    return padded == y.dims and y.format is Format.CONTIGUOUS


def _is_repeated(dims: tuple[int, ...], y: Tensor) -> bool:
    """Whether a tensor is whole matrices of a result, the same for the first axes of a batch."""
    whole = y.format is Format.CONTIGUOUS and 2 <= len(dims) <= y.rank and y.extent < 2**32
    padded = (1,) * (y.rank - len(dims)) + dims
    same = next((i for i, d in enumerate(padded) if d != 1), y.rank)
    return whole and same <= y.rank - 2 and padded[same:] == y.dims[same:]


def _is_per_channel(dims: tuple[int, ...], shape: tuple[int, ...], axis: int | None) -> bool:
    """Whether a constant has one element for each channel, along `axis`; one in all if None."""
    axis = None if axis is None else axis % max(1, len(shape))
    padded = (1,) * (len(shape) - len(dims)) + dims
    return all(
        d == (s if i == axis else 1) for i, (d, s) in enumerate(zip(padded, shape, strict=True))
    )
