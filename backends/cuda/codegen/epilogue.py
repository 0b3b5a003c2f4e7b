"""Epilogues: what kernels do to accumulators before storing them: bias, residual, activation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import gcd, prod

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, float32
from ....runtime.ir.graph import Graph, Node, Value
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
from .epilogue_operands import (
    ALONG,
    BY_CHANNEL,
    BY_LINE,
    BY_ROW,
    BY_SAMPLE,
    PLACED,
    EpilogueOperand,
    Places,
    RowLayout,
    is_per_channel,
    operand_of,
)

MAX_OPERANDS = 2
#: Minimum bytes of a pixel's channels, of all images, for normalizations of channels in place: with
#: fewer, blocks that share them leave most of a GPU idle, and copies to C order take no longer.
#: Measured on an H200 with ResNets of FRN: 24% faster at batch 32; 21% slower at batch 1, where
#: most layers have fewer.
FILLING = 4096
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
        period: after how many rows a constant along repeats; 0 without any.
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
    period: int = 0
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
    def along(self) -> tuple[Tensor | Packed, ...]:
        """The operands with the result's order of elements, masks as numbers among them.

        Rows of tensors may be further apart; see `row_of`.
        """
        return self._of(ALONG, PLACED)

    @property
    def pitched(self) -> tuple[Tensor, ...]:
        """The operands that may be slices: those along, by sample, and by line."""
        return self._tensors(ALONG, PLACED, BY_SAMPLE, BY_LINE)

    @property
    def apart(self) -> tuple[Tensor, ...]:
        """The operands whose rows have other positions than those of the result."""
        return self._tensors(PLACED, BY_SAMPLE)

    def _of(self, *kinds: int) -> tuple[Tensor | Packed, ...]:
        found = zip(self.operands, self.kinds, strict=True)
        return tuple(operand for operand, kind in found if kind in kinds)

    def _tensors(self, *kinds: int) -> tuple[Tensor, ...]:
        return tuple(each for each in self._of(*kinds) if isinstance(each, Tensor))

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


def _places(*rows: RowLayout) -> str:
    """Return ``place0(i)`` and ``place1(i)``: where operands have what the result has at `i`."""
    layouts = (*rows, *[RowLayout()] * MAX_OPERANDS)[:MAX_OPERANDS]
    head = "__device__ __forceinline__ long long place"
    return "".join(
        f"{head}{number}(long long i) {{ return {each.place}; }}\n"
        for number, each in enumerate(layouts)
    )


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


def read_along(nodes: Iterable[Node], dims: tuple[int, ...]) -> Iterator[Value]:
    """Yield what nodes behind a result of these sizes read in its shape, such as residuals."""
    for node in nodes:
        yield from (v for v in node.distinct_reads if v.tensor.dims == dims)


def epilogue_of(
    nodes: tuple[Node, ...],
    y: Tensor,
    first: Value,
    *others: Value,
    operand: Callable[[Value], Tensor],
) -> Epilogue | str:
    """Return the elementwise nodes after a kernel as its epilogue, or why that is impossible.

    Args:
        nodes: a chain in which each reads the previous one; may be empty.
        y: the last result, in the format that the kernel stores.
        first: the kernel's own result, with the shape of `y`.
        others: further results of the kernel, of the same shape.
        operand: returns the operand of a value, which may be a slice; `Tensor` while none is.
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
    repeats = not others and isinstance(head, MatMul)
    masks = not others and _is_of_two(first)
    pitches = pitches_in(nodes, operand)
    places = Places(axis, rows, by_sample, by_plane, by_line, repeats, masks, pitches)
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


def pitches_in(nodes: tuple[Node, ...], operand: Callable[[Value], Tensor]) -> Mapping[Value, int]:
    """Return the pitches of what an epilogue reads that is a slice; see `View.pitch`.

    Kernels of several nodes may read such a tensor both in the epilogue and in front of it.

    Args:
        nodes: of the epilogue.
        operand: returns the operand of a value.
    """
    read = dict.fromkeys(value for node in nodes for value in node.distinct_reads)
    return {value: pitch for value in read if (pitch := operand(value).pitch)}


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


def _behind(nodes: tuple[Node, ...], y: Tensor, places: Places) -> Epilogue | None:
    """Return the epilogue of the nodes behind the first one, if there is one."""
    if len(nodes) == 1:
        return no_epilogue(y.dtype) if y.dtype == nodes[0].output.tensor.dtype else None
    rest = _epilogue(nodes[1:], y, (nodes[0].output,), places)
    return None if isinstance(rest, str) or len(rest.operands) > MAX_OPERANDS else rest


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


def _bias_of(node: Node, sums: Value, y: Tensor) -> Tensor | None:
    """Return the constant that a node adds to every row of a product; None if it does not."""
    others = [value for value in node.inputs if value is not None and value is not sums]
    if not isinstance(node.op, Add) or len(others) != 1:
        return None
    (other,) = others
    operand = Tensor(other)
    fits = other.data is not None and is_per_channel(operand.dims, y.dims, -1)
    return operand if fits and operand.dtype == sums.tensor.dtype else None


def _epilogue(
    nodes: tuple[Node, ...],
    y: Tensor,
    results: tuple[Value, ...],
    places: Places,
) -> Epilogue | str:
    chain, sums = chain_of(nodes, "chain", results), results[0].tensor.dtype
    if isinstance(chain, str):
        return chain
    values = [f"value{i}" for i in range(len(results))] if len(results) > 1 else ["value"]
    operands: list[EpilogueOperand] = []
    for value in chain.operands[len(results) :]:
        operand = operand_of(value, len(operands), y, sums, places)
        if isinstance(operand, str):
            return operand
        operands.append(operand)
    arguments = ", ".join((*values, *(each.code for each in operands)))
    call = f"{_head(sums, y.dtype, values)} {{ return chain({arguments}); }}"
    code = f"{chain.code}\n{_places(*(each.rows for each in operands[:MAX_OPERANDS]))}{call}"
    cheap = all(isinstance(node.op, CHEAP) for node in nodes)
    return Epilogue(
        code,
        tuple(each.tensor for each in operands),
        chain.title,
        cheap,
        sums=sums,
        stored=y.dtype,
        kinds=tuple(each.kind for each in operands),
        shared=gcd(*(each.rows.shared for each in operands if each.kind == BY_SAMPLE)),
        period=max((each.rows.period for each in operands), default=0),
    )
