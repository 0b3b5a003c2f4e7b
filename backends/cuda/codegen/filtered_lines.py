"""Filters of lines in the frequency domain: transforms, the arithmetic between, and back."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import takewhile
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.chains import chain_behind
from ....runtime.ir.dtypes import FLOATS
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.cuts import is_along_last
from ....runtime.ops.elementwise import Cast
from ....runtime.ops.movement import Concat, Slice
from ....runtime.ops.shapes import normalize_axis
from ....runtime.ops.signal import DFT
from ....runtime.plan.format import Format
from ..recipe.launch import Launch, Recipe
from ..recipe.operands import (
    Given,
    Ints,
    Tensor,
    broadcast_strides,
    divisors,
    index_type,
    merge,
)
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .elementwise import chain_of, in_chains
from .transforms import Transform, lines_of

#: Maximum numbers of nodes between transforms, and of tensors that these read.
MAX_NODES, MAX_OPERANDS = 16, 6


@record
class FilteredLines(Whole):
    """A transform, elementwise nodes of its coefficients, and the transform back.

    Attributes:
        casts: the Cast before it, if it alone reads one.
        forward: the transform.
        parts: real and imaginary parts of its coefficients, and the nodes that cut them.
        chain: the elementwise nodes.
        joined: the Concat of real and imaginary parts of their results.
        back: the transform back.
        cut: views behind it, and the Slice of its first results, if there is one.
    """

    casts: tuple[Node, ...]
    forward: Node
    parts: tuple[Node, Node]
    chain: tuple[Node, ...]
    joined: Node
    back: Node
    cut: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        inside = (*self.casts, self.forward, *self.parts, *self.chain, self.joined, self.back)
        return frozenset((*inside, *self.cut))

    @property
    def follows(self) -> bool:
        """Whether it accepts any format, as signals along an axis of pixels; see `Pattern`."""
        sizes = _sizes(self.forward)
        x, y = (node.tensor.dims for node in (self._source, self.back.output))
        is_real = x[-1] == y[-1] == 1
        return sizes is not None and sizes[0] == 2 and len(x) == 4 and is_real

    @property
    def _source(self) -> Value:
        return (*self.casts, self.forward)[0].operands[0]

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return _launch(self, y, operand(self._source), operand, setting)


def filtered_lines_at(graph: Graph, node: Node, free: Set[Node]) -> FilteredLines | None:
    """Return the filter that begins with a transform, if there is one."""
    if node not in free or not isinstance(node.op, DFT) or node.op.inverse:
        return None
    parts = _parts(graph, node, free)
    joined = None if parts is None else _joined(graph, parts, free)
    if parts is None or joined is None:
        return None
    back = graph.sole_consumer(joined[-1].output)
    if back is None or back not in free or not _inverts(back, node):
        return None
    maker = node.operands[0].producer
    is_cast = maker is not None and maker in free and isinstance(maker.op, Cast)
    alone = graph.sole_consumer(node.operands[0]) is node
    fits = is_cast and alone and maker and maker.operands[0].tensor.dtype in FLOATS
    casts = (maker,) if fits and maker is not None else ()
    cut = _cut(graph, back, free)
    return FilteredLines(casts, node, parts, joined[:-1], joined[-1], back, cut)


def _parts(graph: Graph, node: Node, free: Set[Node]) -> tuple[Node, Node] | None:
    """Return the Slices of real and imaginary parts, if these alone read the coefficients."""
    found: dict[int, Node] = {}
    for each in node.output.consumers:
        bounds = [v.data for v in each.operands[1:]] if isinstance(each.op, Slice) else []
        if each not in free or len(bounds) < 3 or any(b is None or b.size != 1 for b in bounds):
            return None
        start, _, axis, *step = (int(b.flat[0]) for b in bounds if b is not None)
        dims, last = node.output.tensor.dims, len(node.output.tensor.dims) - 1
        if normalize_axis(axis, len(dims)) != last or step not in ([], [1]):
            return None
        if each.output.tensor.dims != (*dims[:-1], 1):
            return None
        found[start % dims[-1]] = each
    is_output = graph.is_output(node.output) or len(node.output.consumers) != 2
    return (found[0], found[1]) if found.keys() == {0, 1} and not is_output else None


def _joined(graph: Graph, parts: tuple[Node, Node], free: Set[Node]) -> tuple[Node, ...] | None:
    """Return the elementwise nodes of coefficients, and the Concat of their results behind them."""
    dims, found, todo = parts[0].output.tensor.dims, set[Node](), [n.output for n in parts]
    ends = set[Node]()
    for value in todo:
        if graph.is_output(value) or not free >= value.consumers.keys():
            return None
        for node in value.consumers.keys() - found:
            if isinstance(node.op, Concat):
                ends.add(node)
            elif in_chains(node) and node.output.tensor.dims == dims:
                found.add(node)
                todo.append(node.output)
            else:
                return None
    end = next(iter(ends), None)
    if len(ends) != 1 or end is None or not isinstance(end.op, Concat) or len(end.inputs) != 2:
        return None
    made = all(v.producer in found and v.tensor.dims == dims for v in end.operands)
    chain = graph.in_order(found)
    few = len(chain) <= MAX_NODES and len(_read(chain, parts)) <= MAX_OPERANDS
    return (*chain, end) if made and few and is_along_last(end) else None


def _read(chain: Sequence[Node], parts: tuple[Node, Node]) -> list[Value]:
    """Return what elementwise nodes read besides numbers and the parts of coefficients."""
    made = {node.output for node in (*chain, *parts)}
    reads = dict.fromkeys(v for node in chain for v in node.distinct_reads)
    return [v for v in reads if v not in made and (v.data is None or v.data.size > 1)]


def _inverts(back: Node, forward: Node) -> bool:
    """Whether a transform is the inverse of another one, along the same axis, as long."""
    if not isinstance(back.op, DFT) or not isinstance(forward.op, DFT) or not back.op.inverse:
        return False
    sizes = _sizes(back), _sizes(forward)
    return None not in sizes and sizes[0] == sizes[1] and back.op.onesided == forward.op.onesided


def _sizes(node: Node) -> tuple[int, int] | None:
    """Return axis and length of a transform, if they are known."""
    op, (x, *more) = node.op, node.inputs
    numbers = [None if v is None else v.data for v in (*more, None, None)[:2]]
    unknown = any(v is not None and v.data is None for v in more)
    if x is None or unknown or not isinstance(op, DFT):
        return None
    dims, places = x.tensor.dims, [None if n is None else int(n.flat[0]) for n in numbers]
    axis = normalize_axis(-2 if places[1] is None else places[1], len(dims))
    if op.inverse and op.onesided:
        return axis, node.output.tensor.dims[axis]
    return axis, dims[axis] if places[0] is None else places[0]


def _cut(graph: Graph, back: Node, free: Set[Node]) -> tuple[Node, ...]:
    """Return views behind a transform and the Slice that leaves the first results of each line."""
    sizes = _sizes(back)
    views, dims = list[Node](), back.output.tensor.dims
    for node in takewhile(free.__contains__, chain_behind(graph, back.output)):
        views.append(node)
        if isinstance(node.op, Slice) and sizes is not None:
            before, after = node.operands[0].tensor.dims, node.output.tensor.dims
            changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
            bounds = [v.data for v in node.operands[1:]]
            firsts = [b is not None and b.size == 1 for b in bounds]
            if len(changed) != 1 or not all(firsts) or len(bounds) < 3:
                return ()
            (axis,), step = changed, [int(b.flat[0]) for b in bounds[3:] if b is not None]
            inner = prod(dims[sizes[0] + 1 :])
            same = before[axis] == sizes[1] and prod(before[axis + 1 :]) == inner
            start = bounds[0]
            first = start is not None and int(start.flat[0]) == 0 and step in ([], [1])
            return tuple(views) if same and first else ()
        if not node.op.view:
            break
    return ()


def _launch(
    found: FilteredLines, y: Tensor, x: Tensor, operand: OperandOf, setting: Setting
) -> Launch | str:
    sizes = _sizes(found.forward)
    if sizes is None:
        return "the length is not known"
    (axis, length), dims = sizes, found.forward.output.tensor.dims
    parts = x.dims[-1], found.back.output.tensor.dims[-1]
    count = prod(dims[:-1]) // dims[axis]
    lines = lines_of(x.dims, axis)
    if x.format is Format.CHANNELS_LAST:  # with adjacent channels, of which lines are parts
        lines |= {"inner": x.dims[1], "of_outer": x.strides[0]}
        lines |= {"of_inner": x.strides[1], "step": x.strides[2]}
    transform = Transform(length, lines, count, x.dtype, parts)
    if not transform.fits(setting.target):
        return f"lines of {length} numbers"
    results = [value for value in found.joined.operands]
    sums = [node.output for node in found.parts]
    chain = chain_of(found.chain, sums=sums, handed=results, rounds=False)
    if isinstance(chain, str):
        return chain
    names = {value: f"in{i}" for i, value in enumerate(sums)}
    values = [v for v in chain.operands if v not in names]
    operands = [operand(v) for v in values]
    names |= {value: f"word{i}[q]" for i, value in enumerate(values)}
    called = ", ".join((*(names[v] for v in chain.operands), "real", "imaginary"))
    args = _walks(operands, (*dims[:-1], 1), axis)
    args |= {"x": x, "y": y, "size": x.dims[axis]}
    args["coefficients"] = y.size // (count * parts[1])
    rank = len(args["sizes"]) if isinstance(args["sizes"], tuple) else 1
    return transform.launch(
        ("sequence/filter.cu", "filter"),
        setting.target,
        args,
        (
            *(("X", x.dtype), ("Y", y.dtype)),
            ("Index", index_type(prod(dims), *(each.extent for each in operands))),
            *((f"A{i}", each.dtype) for i, each in enumerate(operands)),
        ),
        (("SPECTRUM", dims[axis]), ("RANK", rank), ("HALF", False), ("WINDOWED", False)),
        (
            chain.code,
            f"#define OPERANDS(X) {' '.join(f'X({i})' for i in range(len(operands)))}",
            f"#define CHAIN_ARGUMENTS {called}",
        ),
    )


def _walks(operands: Sequence[Tensor], dims: Ints, axis: int) -> dict[str, Given]:
    """Return where operands are, by the number of a line and along it."""
    moves = [broadcast_strides(x.dims, x.format, dims, x.pitch) for x in operands]
    across = [i for i in range(len(dims)) if i != axis]
    sizes, merged = merge([dims[i] for i in across], [tuple(m[i] for i in across) for m in moves])
    args: dict[str, Given] = {"sizes": sizes, **divisors(sizes)}
    for i, (x, move) in enumerate(zip(operands, moves, strict=True)):
        args |= {f"a{i}": x, f"strides{i}": merged[i], f"step{i}": move[axis]}
    return args
