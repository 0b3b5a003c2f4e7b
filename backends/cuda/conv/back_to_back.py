"""Back-to-back 1x1 convolutions as one kernel: `back_to_back.cu` (Hopper).

This is where a residual unit ends and the next one begins: a convolution expands the channels, the
input of the unit is added, and a convolution reduces them. At batch 1 most of the time goes into
the boundaries between kernels, and into what a block loads before it can begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from math import inf, prod
from typing import Any

from ....runtime.base.record import record
from ....runtime.ir.dtypes import float32
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.conv import Conv
from ....runtime.ops.pool import GlobalAveragePool
from ....runtime.ops.reduce import ReduceMean
from ....runtime.plan.format import Format
from ..algorithms.registry import Answer, RecipeContext, Setting
from ..algorithms.selection import CHANNELS_LAST, SELECTORS
from ..codegen.epilogue import Tail, epilogue_of, read_along
from ..codegen.epilogue_operands import row_of
from ..codegen.namespaces import in_namespaces
from ..gemm.atoms import F16X3, HALVES, atom_of
from ..gemm.convolution import ConvProblem, problem_of
from ..gemm.f16x3 import filter_refusal, in_halves, scales_of
from ..gemm.joined_groups import JoinedGroups
from ..gemm.pack_rows import Order
from ..gemm.problem import packed_filters
from ..gemm.schedules.multistage import SplitK
from ..gemm.tile import MAX_CLUSTER, clusters_of, inbox
from ..recipe.launch import Launch
from ..recipe.operands import Packed, Tensor, TensorMap, ceil_div
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Stored
from ..recipe.targets import Target
from .inverted_residual import ConvLayer

#: Operators that the kernel of a convolution computes as well.
MEANS = GlobalAveragePool | ReduceMean
#: Columns of a warpgroup.
COLUMNS = 64
#: Bytes of a row of a step.
LINE = 128
#: Maximum number of rows of a box of the copy engine.
BOX = 256
#: Minimum number of pixels; with fewer, reading the weights bounds the time.
MIN_PIXELS = 32
#: Possible numbers of warpgroups.
GROUPS = (2, 4)
#: Maximum number of rows of a block: with more, ResNet-50 in float16 takes 2 to 4 % more time at
#: batch 4.
MAX_ROWS = 64
#: The same in float32, where more rows spill registers.
MAX_ROWS_WIDE = 48
#: Registers of a multiprocessor.
REGISTERS = 1 << 16
#: Registers of a thread for other things than sums.
OTHER = 72
#: Of the clusters that would fit, the share that starts together.
STARTING = 0.95
#: Maximum number of bytes that a block of 16-bit floats reads: with more, ResNeXt-50 takes up to
#: 6 % more time in float16, as little is left to read while the kernel in front still runs.
MAX_BYTES = 145 << 10
# The constants below were fitted on an H200 so that pairs of ResNet-50, ResNeXt-50, Wide ResNet-50
# and DLA-60 are one kernel where these networks take less time with it.
#: Microseconds of a launch, besides reading.
AROUND = 1.2
#: Microseconds per row of a block, and the same in float32, whose rows are cut into halves.
OF_ROW, OF_ROW_WIDE = 0.03, 0.06
#: Microseconds of adding up the sums of a cluster.
JOIN = 1.1
#: Microseconds of weights that are read late.
LATE = 0.5
#: Bytes per microsecond that a multiprocessor reads.
READ = 60e3
#: Microseconds that two kernels must be estimated to take: RegNetY-016 takes 0.5 % more time where
#: shorter pairs are one.
LEAST = 4.0


@record
class BackToBack(Whole):
    """Two convolutions by 1x1 windows, the second of which reads the result of the first.

    Attributes:
        first: the first one.
        second: the second one.
        stores: whether something else reads the result of the first one.
    """

    first: ConvLayer
    second: ConvLayer
    stores: bool

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((*self.first.nodes, *self.second.nodes))

    @property
    def in_halves(self) -> tuple[Node, ...]:
        """The convolutions, the second of which may store its results in halves; see `Pattern`."""
        is_wide = self.first.y.tensor.dtype == float32
        return (self.first.conv, self.second.conv) if is_wide else ()

    def requested(self, setting: Setting) -> Mapping[Value, Format]:
        """Return the formats that it requests; see `Pattern`."""
        images = [self.first.conv.operands[0]]
        for layer in (self.first, self.second):
            images += [*read_along(layer.epilogue, layer.y.tensor.dims), layer.y]
        return dict.fromkeys(images, Format.CHANNELS_LAST)

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return back_to_back(self, y, operand, setting, stored)


def back_to_back_at(graph: Graph, conv: Node, free: Set[Node], tail: Tail) -> BackToBack | None:
    """Return two back-to-back convolutions of which this node is the first, if there are any.

    Args:
        graph: the graph.
        conv: a convolution.
        free: nodes that may be taken.
        tail: returns the epilogue of a node.
    """
    if conv not in free or not _is_pointwise(conv):
        return None
    dims = conv.output.tensor.dims
    if dims[0] * prod(dims[2:]) < MIN_PIXELS:
        return None
    first = ConvLayer(conv, tail(graph, conv, free))
    inside = set(first.nodes)
    readers = [node for node in graph.in_order(first.y.consumers) if _is_pointwise(node)]
    for node in readers:
        if node not in free or node.operands[0] is not first.y:
            continue
        second = ConvLayer(node, tail(graph, node, free - inside))
        behind = graph.sole_consumer(second.y)
        if behind is not None and (isinstance(behind.op, MEANS) or _is_depthwise(behind)):
            continue  # it is part of another pattern
        stores = len(first.y.consumers) > 1 or graph.is_output(first.y)
        return BackToBack(first, second, stores)
    return None


def _is_pointwise(node: Node) -> bool:
    """Whether a node is a convolution of floats by constant 1x1 windows at all pixels."""
    op = node.op
    if not isinstance(op, Conv) or any(v.data is None for v in node.operands[1:]):
        return False
    x, w = (value.tensor for value in node.operands[:2])
    if (
        x.dtype not in HALVES | {float32}
        or len(x.dims) != 4
        or op.group != 1
        or w.dims[2:] != (1, 1)
    ):
        return False
    return not any(op.pads or ()) and all(stride == 1 for stride in op.strides or ())


def _is_depthwise(node: Node) -> bool:
    return isinstance(node.op, Conv) and 1 < node.op.group == node.operands[0].tensor.dims[1]


# ── which tile ───────────────────────────────────────────────────────────────────────────────────


@record
class Form:
    """How the kernel computes two products.

    Attributes:
        rows: of a block.
        groups: its warpgroups.
        splits: the blocks of a cluster, which share the terms of the second product.
        early: steps of the second product whose weights have room of their own; others take the
            place of weights of the first product.
    """

    rows: int
    groups: int
    splits: int
    early: int

    def __str__(self) -> str:
        early = "" if self.early == self.groups else f", {self.early} early"
        return f"w{self.rows}x{COLUMNS * self.groups} split {self.splits}{early}"


@record
class Sizes:
    """The sizes of two products.

    Attributes:
        m: rows.
        k: terms of the first one.
        hidden: its columns.
        n: columns of the second one.
        wide: whether they are of float32, whose numbers are two.
    """

    m: int
    k: int
    hidden: int
    n: int
    wide: bool = False

    @property
    def tiles(self) -> int:
        """Tiles of columns of the second product."""
        return ceil_div(self.n, COLUMNS)

    @property
    def line(self) -> int:
        """Bytes of a row of a step."""
        return 2 * LINE if self.wide else LINE

    @property
    def steps(self) -> int:
        """Steps of the first product."""
        return ceil_div(self.k, COLUMNS)

    def shared(self, form: Form) -> int:
        """Return the bytes of shared memory of a block."""
        own, columns = COLUMNS * form.groups, COLUMNS * self.tiles
        slices = max(1, form.groups // self.tiles)
        first = self.steps * self.line * (form.rows + own)
        sums = ceil_div(4 * slices * form.rows * (max(own, columns) + 4), 1024) * 1024
        late = (form.groups - form.early) * self.line * columns
        behind = self.line * (form.groups * form.rows + form.early * columns)
        scales = 4 * (self.steps + form.groups) * form.rows if self.wide else 0
        barriers = 16 * ((self.steps + 3) // 2)
        nbytes = max(first, sums + late) + behind + scales + barriers
        return nbytes + inbox(form.rows, columns, form.splits)

    def forms(self, target: Target) -> Iterator[Form]:
        """Yield the forms whose blocks run at once."""
        for groups in GROUPS:
            own = COLUMNS * groups
            splits = ceil_div(self.hidden, own)
            if splits > MAX_CLUSTER or (self.tiles < groups and groups % self.tiles):
                continue
            if self.wide and (self.k % COLUMNS or self.hidden % own):
                continue
            together = target.processors
            if splits > 1:
                together = int(STARTING * clusters_of(splits, target))
            registers = REGISTERS // (128 * groups + 32) // 8 * 8 - OTHER
            for parts in range(1, ceil_div(self.m, 8) + 1):
                rows = ceil_div(ceil_div(self.m, parts), 8) * 8
                if parts > together:
                    break
                if (
                    rows > (MAX_ROWS_WIDE if self.wide else MAX_ROWS)
                    or rows * (parts - 1) >= self.m
                ):
                    continue
                if rows // 2 * (ceil_div(self.tiles, groups) + self.wide) > registers:
                    continue
                found = (Form(rows, groups, splits, early) for early in range(groups, -1, -1))
                form = next((f for f in found if self.shared(f) <= target.shared), None)
                if form is not None:
                    yield form

    def read(self, form: Form) -> int:
        """Return the bytes that a block reads."""
        own, columns = COLUMNS * form.groups, COLUMNS * self.tiles
        return self.line * (self.steps * (form.rows + own) + form.groups * columns)

    def expected(self, form: Form) -> float:
        """Return the estimate for a form in microseconds."""
        of_row = OF_ROW_WIDE if self.wide else OF_ROW
        time = AROUND + of_row * form.rows + self.read(form) / READ
        joining = JOIN if form.splits > 1 else 0.0
        return time + joining + (LATE if form.early < form.groups else 0.0)


def quickest(sizes: Sizes, target: Target) -> tuple[float, Form | None]:
    """Return the lowest estimate, and the form; infinite if there is none."""
    timed = ((sizes.expected(form), str(form), form) for form in sizes.forms(target))
    time, _, form = min(timed, default=(inf, "", None))
    return time, form


# ── the recipe ───────────────────────────────────────────────────────────────────────────────────


def back_to_back(
    found: BackToBack, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
) -> Answer:
    """Return the launch of two convolutions, or why each has its own.

    Args:
        found: the nodes.
        y: the result.
        operand: returns the operand of a value.
        setting: the GPU and the user's options.
        stored: how the result is stored.
    """
    target = setting.target
    if not target.has_wgmma:
        return f"{target.arch} has no wgmma"
    if setting.options.precision == "tf32":
        return "precision tf32"
    if setting.choices:
        return "layers are measured one by one"
    between = Tensor(found.first.y, Format.CHANNELS_LAST)
    if found.stores:
        between = operand(found.first.y)
    x = operand(found.first.conv.operands[0])
    first = _problem(found.first, x, between, operand, setting)
    second = _problem(found.second, between, y, operand, setting)
    for conv in (first, second):
        if isinstance(conv, str):
            return conv
        refused = _refusal(conv)
        if refused:
            return refused
    assert isinstance(first, ConvProblem)
    assert isinstance(second, ConvProblem)
    halves = Tensor(y.value, y.format.halves) if stored.halves else None
    second = replace(second, epilogue=second.epilogue.storing(halves, plain=stored.plain))
    sizes = sizes_of(first, second)
    time, form = quickest(sizes, target)
    if form is None:
        return "weights that do not fit in shared memory"
    apart = sum(SELECTORS[Conv].expected(conv)[1]() for conv in (first, second))
    if not sizes.wide and sizes.read(form) > MAX_BYTES:
        return f"blocks that read {sizes.read(form)} bytes"
    if time > apart or apart < LEAST:
        return "one kernel is not estimated to be faster than two"
    return launch(first, second, form, target, stores=found.stores)


def _problem(
    layer: ConvLayer, x: Tensor, y: Tensor, operand: OperandOf, setting: Setting
) -> ConvProblem | str:
    own = setting.for_node(layer.conv)
    if own.asked:
        return f"algorithm '{own.asked[0]}'"
    epilogue = epilogue_of(layer.epilogue, y, layer.conv.output, operand=operand)
    if isinstance(epilogue, str):
        return epilogue
    inputs = (x, *(Tensor(value) for value in layer.conv.operands[1:]))
    return problem_of(RecipeContext(layer.conv.op, y, inputs, own, epilogue=epilogue))


def _refusal(conv: ConvProblem) -> str:
    """Return why the kernel does not take a convolution; empty if it does."""
    assert conv.w.data is not None
    wide = conv.x.dtype == float32
    refused = conv.need_constants() or (filter_refusal(conv.w.data, 1) if wide else "")
    if refused:
        return refused
    if conv.formats != CHANNELS_LAST:
        return "images not in channels-last format"
    along = (row_of(each, conv.filters) for each in conv.epilogue.along)
    if any(count % 8 for count in (conv.channels, conv.filters, conv.x.row, conv.y.row, *along)):
        return f"{conv.channels} channels and {conv.filters} filters, which do not fill words"
    if conv.y.dtype != conv.x.dtype or conv.epilogue.sums != conv.x.dtype:
        return "results of another dtype"
    if max(conv.x.extent, conv.y.extent) >= 2**31:
        return f"{max(conv.x.extent, conv.y.extent)} elements"
    return ""


def sizes_of(first: ConvProblem, second: ConvProblem) -> Sizes:
    """Return the sizes of two convolutions."""
    wide = first.x.dtype == float32
    return Sizes(first.pixels, first.channels, first.filters, second.filters, wide)


def launch(
    first: ConvProblem, second: ConvProblem, form: Form, target: Target, *, stores: bool
) -> Launch:
    """Return the launch of two convolutions.

    Args:
        first: the first one.
        second: the second one.
        form: how they are computed.
        target: the GPU.
        stores: whether results of the first one are stored.
    """
    x, dtype, own = first.x, first.x.dtype, COLUMNS * form.groups
    sizes = sizes_of(first, second)
    m, k, hidden, n = sizes.m, sizes.k, sizes.hidden, sizes.n
    operands, epilogue = first.epilogue.args, second.epilogue
    flags = dict(first.epilogue.flags(first.b))
    title = f"{first.epilogue.title}, {epilogue.title}".strip(", ")
    if sizes.wide:
        atom, entry, read = F16X3, "back_to_back_f16x3", _in_halves(first, second)
        read["halves"] = epilogue.halves
    else:
        box = COLUMNS * sizes.tiles // ceil_div(COLUMNS * sizes.tiles, BOX)
        atom, entry = atom_of(dtype), "back_to_back"
        read = {
            "a": TensorMap(x, dtype, (k, m), (x.row,), (COLUMNS, form.rows)),
            **{"w": _weights(first, own), "next": _weights(second, box)},
        }
    return Launch(
        "conv/back_to_back.cu",
        entry,
        grid=(ceil_div(m, form.rows), form.splits, 1),
        block=128 * form.groups + 32,
        args={
            **read,
            **{"hidden": first.y if stores else None, "first_bias": first.b},
            **{"first_z0": operands.get("z0"), "first_z1": operands.get("z1")},
            **{"c": second.y if epilogue.plain else None, "bias": second.b, **epilogue.args},
            **{"m": m, "n1": hidden, "ldh": first.y.row, "n": n, "ldc": second.y.row},
        },
        types=(("T", dtype), *epilogue.aliases),
        constants=(
            *(("BM", form.rows), ("GROUPS", form.groups), ("K", k), ("N", n)),
            *(("EARLY", form.early), ("STORED", stores)),
            *((f"FIRST_{name}", value) for name, value in flags.items()),
            ("SPLIT", int(SplitK.CLUSTER if form.splits > 1 else SplitK.WHOLE)),
            *(("VECTOR_C", 8), *epilogue.flags(second.b)),
        ),
        code="\n".join(
            (
                atom.code(form.rows),
                epilogue.halves_code,
                in_namespaces({"first": first.epilogue}, epilogue),
            )
        ),
        shared=target.alone(sizes.shared(form)),
        cluster=(1, form.splits, 1),
        note=f"{atom.title} {form} {title}".strip() if sizes.wide else f"{form} {title}".strip(),
        pitched=(x, first.y, second.y, *first.epilogue.pitched, *epilogue.pitched),
    )


def _weights(conv: ConvProblem, rows: int) -> TensorMap:
    """Return the map of the filters, whose channels are terms."""
    packed: Packed = JoinedGroups(conv).filters(conv.channels)
    dims = conv.channels, conv.filters
    return TensorMap(packed, conv.x.dtype, dims, (conv.channels,), (COLUMNS, rows))


def _in_halves(first: ConvProblem, second: ConvProblem) -> dict[str, Any]:
    """Return the arguments that say where operands of float32 are."""

    def packed(conv: ConvProblem, order: str, arrange: Order) -> Packed:
        return packed_filters(conv.w, 1, conv.channels, order, arrange)

    return {
        **{"a": first.x, "lda": first.x.row},
        "w": packed(first, "in halves", in_halves),
        "next": packed(second, "in halves", in_halves),
        "scales": packed(first, "scales", scales_of),
        "next_scales": packed(second, "scales", scales_of),
        "rows_w": ceil_div(first.filters, 8) * 8,
        "rows_next": ceil_div(second.filters, 8) * 8,
    }
