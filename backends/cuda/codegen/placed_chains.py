"""Few elements that are read and stored where indices say, with what computes them, as one kernel.

That is how a step ends that writes the state of the next one: each of its kernels would have a
single block, and wait for the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from ....runtime.base.record import record
from ....runtime.ir.dtypes import DType, int32, int64, name_of
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.gather import GatherElements, ScatterElements, ScatterND
from ....runtime.ops.shapes import normalize_axis
from ..recipe.launch import Launch, Recipe
from ..recipe.operands import Given, Tensor, ceil_div, index_type
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.source import C_TYPES
from .copies import copied_unless_same
from .elementwise import MAX_CHAINED, chain_of, compute_type, in_chains

#: Maximum number of elements: one block has them, so that it reads all before it stores any.
MAX_ELEMENTS = 256
#: Maximum numbers of tensors that are read, and of results.
MAX_OPERANDS, MAX_RESULTS = 12, 6
WARP = 32


@record
class Place:
    """Where a kernel finds element n of a tensor: at ``n * stride``, and steps from there.

    Attributes:
        stride: in elements.
        indices: index ``n * slot`` is the number of steps, which is negative from the end; None if
            there are none.
        slot: in indices.
        size: number of places that indices choose among.
        step: the distance between these in elements.
    """

    stride: int
    indices: Tensor | None = None
    slot: int = 0
    size: int = 0
    step: int = 0

    @property
    def dtype(self) -> DType:
        """The type of indices."""
        return int64 if self.indices is None else self.indices.dtype

    def arguments(self, of: str) -> dict[str, Given]:
        """Return the arguments of a kernel by name, which ends with `of`."""
        named: dict[str, Given] = {f"stride{of}": self.stride, f"at{of}": self.indices}
        numbers = {"slot": self.slot, "size": self.size, "step": self.step}
        return named | {f"{name}{of}": number for name, number in numbers.items()}


@record
class PlacedChain(Whole):
    """Elementwise nodes of few elements, and what they read and store where indices say.

    Nothing reads what the nodes give but themselves: their results are those of the graph.

    Attributes:
        gathers: nodes that choose an element for each of the chain's.
        chain: the elementwise nodes, in order.
        updates: nodes that replace at most one element for each of the chain's.
        views: what updates read through: of what is stored, and of indices.
    """

    gathers: tuple[Node, ...]
    chain: tuple[Node, ...]
    updates: tuple[Node, ...]
    views: tuple[Node, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset((*self.gathers, *self.chain, *self.updates, *self.views))

    @property
    def in_place(self) -> tuple[tuple[Value, Value], ...]:
        """What is updated, and elementwise results of as many bytes as an operand."""
        updated = [(node.output, node.operands[0]) for node in self.updates]
        inside = {node.output for node in self.nodes}
        same = [
            (node.output, value)
            for node in self.chain
            for value in node.distinct_reads
            if value not in inside and not value.is_constant and value.type == node.output.type
        ]
        return (*updated, *same)

    @property
    def count(self) -> int:
        """The number of elements."""
        return self.updates[0].operands[2].tensor.size

    @property
    def stored(self) -> dict[Value, Value]:
        """What each result has: of an update, the elements that it writes."""
        stored = {node.output: self.source(node.operands[2]) for node in self.updates}
        ends = (node.output for node in self.chain if not node.output.consumers)
        return {**stored, **{value: value for value in ends}}

    def source(self, value: Value) -> Value:
        """Return what a value is a view of."""
        while (node := value.producer) in self.views and node is not None:
            value = node.operands[0]
        return value

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return placed_chain(self, operand)


def placed_chain_at(graph: Graph, node: Node, free: Set[Node]) -> PlacedChain | None:
    """Return what ends with an update of few elements, if elementwise nodes are among it.

    Args:
        graph: the graph.
        node: updates elements.
        free: nodes that may be taken.
    """
    if node not in free or node.output.consumers or not _updates_few(node):
        return None
    found, more = {node}, _Closed(graph, free, node.operands[2].tensor.size)
    while len(found) < MAX_CHAINED and (other := more.next(found)) is not None:
        found.add(other)
    nodes = graph.in_order(found)
    chain = tuple(each for each in nodes if in_chains(each))
    if not chain:
        return None
    return PlacedChain(
        tuple(each for each in nodes if isinstance(each.op, GatherElements)),
        chain,
        tuple(each for each in nodes if _updates(each)),
        tuple(each for each in nodes if each.op.view),
    )


@record
class _Closed:
    """Nodes whose results only some nodes read, or that are at the end of the graph as these.

    Attributes:
        graph: the graph.
        free: nodes that may be taken.
        count: number of elements.
    """

    graph: Graph
    free: Set[Node]
    count: int

    def next(self, nodes: Set[Node]) -> Node | None:
        """Return a node that one kernel can have with these."""
        reads = dict.fromkeys(v for node in self.graph.in_order(nodes) for v in node.distinct_reads)
        given = [value for value in reads if not value.is_constant]
        placed = [node for node in nodes if _updates(node) or self._gathers(node)]
        places = _with_views(node.operands[1] for node in placed)
        before = {node.operands[0] for node in placed}
        for value in given:
            maker = value.producer
            if maker is None or maker not in self.free or maker in nodes or value in before:
                continue
            if not self.graph.is_read_outside(value, nodes):
                of_updates = all(_updates(node) for node in value.consumers)
                computes = self._computes(maker) or self._gathers(maker)
                if (maker.op.view and of_updates) or (computes and value not in places):
                    return maker
        readers = (node for value in given for node in self.graph.in_order(value.consumers))
        return next((n for n in readers if n not in nodes and self._ends(n, nodes)), None)

    def _computes(self, node: Node) -> bool:
        """Whether a node computes an element each of one or one each of its operands."""
        sizes = {value.tensor.size for value in (node.output, *node.distinct_reads)}
        return in_chains(node) and sizes <= {1, self.count}

    def _gathers(self, node: Node) -> bool:
        if not isinstance(node.op, GatherElements) or node.output.tensor.size != self.count:
            return False
        return _has_line(node.operands[1])

    def _ends(self, node: Node, nodes: Set[Node]) -> bool:
        """Whether nothing reads what a node gives, and it updates nothing that these compute."""
        if node not in self.free or node.output.consumers:
            return False
        if not _updates(node):
            return self._computes(node)
        x, indices, updates = node.operands
        made = {value for each in nodes if not each.op.view for value in each.outputs}
        apart = made.isdisjoint((x, *_with_views((indices,))))
        return apart and updates.tensor.size == self.count and _updates_few(node)


def _with_views(values: Iterable[Value]) -> set[Value]:
    """Return values with what they are views of."""
    found = set(values)
    for value in tuple(found):
        while (node := value.producer) is not None and node.op.view:
            value = node.operands[0]
            found.add(value)
    return found


def _updates(node: Node) -> bool:
    return isinstance(node.op, ScatterElements | ScatterND)


def _updates_few(node: Node) -> bool:
    """Whether a node replaces few elements, each by at most one other."""
    op, (x, indices, updates) = node.op, node.operands
    if not isinstance(op, ScatterElements | ScatterND) or op.reduction != "none":
        return False
    if not 0 < updates.tensor.size <= MAX_ELEMENTS:
        return False
    if isinstance(op, ScatterND):
        return indices.tensor.size == indices.tensor.dims[-1] == 1
    axis = normalize_axis(op.axis, len(x.tensor.dims))
    return indices.tensor.dims[axis] == 1 and _has_line(indices)


def _has_line(indices: Value) -> bool:
    """Whether there is one index for each element, and all are along one axis."""
    wide = [size for size in indices.tensor.dims if size > 1]
    return indices.tensor.dtype in (int32, int64) and len(wide) <= 1


def placed_chain(found: PlacedChain, operand: OperandOf) -> Recipe | str:
    """Return the launches, or why there are none."""
    stored, inside = found.stored, {node.output for node in found.chain}
    made = [value for value in dict.fromkeys(stored.values()) if value in inside]
    chain = chain_of(found.chain, handed=made)
    if isinstance(chain, str):
        return chain
    moved = (value for value in stored.values() if value not in inside)
    reads = tuple(dict.fromkeys((*chain.operands, *moved)))
    if len(reads) > MAX_OPERANDS or len(stored) > MAX_RESULTS:
        return f"{len(reads)} tensors are read, {len(stored)} are stored"
    unknown = [v.tensor.dtype for v in reads if v.tensor.dtype not in C_TYPES]
    if unknown:
        return f"dtype {name_of(unknown[0])}"
    args: dict[str, Given] = {"count": found.count}
    types, code, extents = list[tuple[str, DType]](), [chain.code], list[int]()
    for i, value in enumerate(reads):
        x, place = _read(found, value, operand)
        args |= {f"a{i}": x, **place.arguments(f"{i}")}
        types += [(f"A{i}", x.dtype), (f"I{i}", place.dtype)]
        extents.append(x.extent)
    for i, (result, value) in enumerate(stored.items()):
        y, place = _written(found, result, operand)
        args |= {f"y{i}": y, f"count{i}": value.tensor.size, **place.arguments(f"_y{i}")}
        types += [(f"R{i}", y.dtype), (f"J{i}", place.dtype)]
        extents.append(y.extent)
        name = f"made{made.index(value)}" if value in inside else f"operand{reads.index(value)}"
        code.append(f"#define RESULT{i} {name}")
    arguments = [f"operand{i}" for i in range(len(chain.operands))]
    arguments += [f"made{i}" for i in range(len(made))]
    code += [f"using C{i} = {compute_type(v.tensor.dtype)};" for i, v in enumerate(made)]
    for name, values in (("OPERANDS", reads), ("MADE", made), ("RESULTS", stored)):
        code.append(f"#define {name}(X) {' '.join(f'X({i})' for i in range(len(values)))}")
    code.append(f"#define CHAIN_ARGUMENTS {', '.join(arguments)}")
    threads = WARP * ceil_div(found.count, WARP)
    others = (*found.gathers, *found.updates)
    launch = Launch(
        "elementwise/placed.cu",
        "placed_chain",
        grid=(1, 1, 1),
        block=threads,
        args=args,
        types=(("Index", index_type(*extents)), *types),
        constants=(("THREADS", threads), ("VECTOR", 1)),
        code="\n".join(code),
        note="+".join([chain.title, *(type(node.op).__name__ for node in others)]),
    )
    pairs = ((operand(node.output), operand(node.operands[0])) for node in found.updates)
    return (*(copied_unless_same(y, x) for y, x in pairs), launch)


def _read(found: PlacedChain, value: Value, operand: OperandOf) -> tuple[Tensor, Place]:
    """Return the tensor that a value is read from, and the places there."""
    for node in found.gathers:
        if node.output is value:
            x = operand(node.operands[0])
            return x, _place_along(node, x, operand(node.operands[1]))
    return operand(value), Place(int(value.tensor.size > 1))


def _written(found: PlacedChain, result: Value, operand: OperandOf) -> tuple[Tensor, Place]:
    """Return the tensor of a result, and the places there."""
    y = operand(result)
    for node in found.updates:
        if node.output is result:
            indices = operand(found.source(node.operands[1]))
            if isinstance(node.op, ScatterND):
                return y, Place(1, indices, 0, y.dims[0], y.strides[0])
            return y, _place_along(node, y, indices)
    return y, Place(1)


def _place_along(node: Node, x: Tensor, indices: Tensor) -> Place:
    """Return the places of elements that indices choose along an axis."""
    assert isinstance(node.op, GatherElements | ScatterElements)
    axis = normalize_axis(node.op.axis, x.rank)
    dims = node.operands[1].tensor.dims
    stride = sum(x.strides[a] for a, size in enumerate(dims) if size > 1 and a != axis)
    return Place(stride, indices, int(indices.size > 1), x.dims[axis], x.strides[axis])
