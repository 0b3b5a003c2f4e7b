"""Chains of elementwise operators of few elements, with several results, as one kernel.

Where there are few elements, launches are all that counts: what several chains read is computed
with one of them, and stored for the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ..recipe.launch import Launch, Recipe
from ..recipe.operands import (
    Given,
    Ints,
    Tensor,
    broadcast_strides,
    ceil_div,
    divisors,
    index_type,
    merge,
    order,
)
from ..recipe.pattern import Operand, Whole
from ..recipe.setting import Setting, Stored
from .elementwise import MAX_CHAINED, chain_of, compute_type, in_chains

#: Maximum numbers of elements, of tensors that are read, and of results.
FEW_ELEMENTS, MAX_OPERANDS, MAX_RESULTS = 1 << 14, 16, 8
THREADS = 64


@record
class SharedChain(Whole):
    """Elementwise nodes of as many elements, of which several results are read elsewhere.

    Attributes:
        chain: in topological order.
        results: what other nodes read.
    """

    chain: tuple[Node, ...]
    results: tuple[Value, ...]

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset(self.chain)

    @property
    def reads_rows(self) -> bool:
        """Whether its kernel takes parts of rows; see `Pattern`."""
        return True

    @property
    def follows(self) -> bool:
        """Whether it accepts any format; see `Pattern`."""
        rank = self.results[0].tensor.rank
        return all(value.tensor.rank == rank for value in operands_of(self.chain))

    def recipe(self, y: Tensor, operand: Operand, setting: Setting, stored: Stored) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return shared_chain(self, operand)


def operands_of(nodes: Sequence[Node]) -> list[Value]:
    """Return what elementwise nodes read; numbers are part of their code."""
    made = {node.output for node in nodes}
    reads = dict.fromkeys(v for node in nodes for v in node.distinct_reads)
    return [v for v in reads if v not in made and (v.data is None or v.data.size > 1)]


class Formed:
    """Groups of nodes that run together, as far as they are known.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        self._mates = dict[Node, tuple[Node, ...]]()
        self._spans = list[tuple[int, int]]()

    def add(self, nodes: tuple[Node, ...]) -> None:
        """Note that nodes run together."""
        inside = set(nodes)
        read = (v for node in nodes for v in node.outputs if v.consumers.keys() - inside)
        if len(nodes) > 1 and any(value.producer is not nodes[-1] for value in read):
            self._mates.update(dict.fromkeys(nodes, nodes))
            places = [self._places[node] for node in nodes]
            self._spans.append((min(places), max(places)))

    def may_join(self, nodes: Set[Node]) -> bool:
        """Whether nodes may run together: nothing that they wait for waits for one of them.

        Nodes in groups with one result lead to that, whatever runs together with them.
        """
        last = self._last(max(self._places[node] for node in nodes))
        waiting = [reader for node in nodes for reader in node.output.consumers]
        seen = set(nodes)
        while waiting:
            node = waiting.pop()
            if node in nodes:
                continue
            for mate in self._mates.get(node, (node,)):
                if mate not in seen and self._places[mate] <= last:
                    seen.add(mate)
                    readers = [r for value in mate.outputs for r in value.consumers]
                    if not nodes.isdisjoint(readers):
                        return False
                    waiting += readers
        return True

    def _last(self, place: int) -> int:
        """Return the last place of nodes that may lead to one at a place, through groups."""
        grown = True
        while grown:
            ends = (end for begin, end in self._spans if begin < place < end)
            wider = max(ends, default=place)
            grown, place = wider > place, wider
        return place


def shared_chain_at(
    graph: Graph, nodes: Sequence[Node], free: Set[Node], formed: Formed
) -> SharedChain | None:
    """Return a chain together with others that it shares tensors with, if there are any.

    Args:
        graph: the graph.
        nodes: the chain; the first of them is its last node.
        free: nodes that may be taken.
        formed: the groups of nodes that are in one.
    """
    if nodes[0].output.tensor.size > FEW_ELEMENTS:
        return None
    found, dims = set(nodes), nodes[0].output.tensor.dims
    while len(found) < MAX_CHAINED:
        more = (found | {node} for node in _beside(graph, found, free, dims))
        wider = next((each for each in more if _fits(graph, each) and formed.may_join(each)), None)
        if wider is None:
            break
        found = wider
    if len(found) == len(nodes):
        return None
    chain = graph.in_order(found)
    return SharedChain(chain, _results(graph, chain))


def _beside(graph: Graph, nodes: Set[Node], free: Set[Node], dims: Ints) -> Iterator[Node]:
    """Yield elementwise nodes of these sizes that compute what others read, or read it."""
    chain = graph.in_order(nodes)
    values = [value for value in operands_of(chain) if not value.is_constant]
    makers = [value.producer for value in values]
    readers = [reader for node in chain for reader in graph.in_order(node.output.consumers)]
    for node in dict.fromkeys((*makers, *readers)):
        if node is None or node not in free or node in nodes or not in_chains(node):
            continue
        if node.output.tensor.dims == dims:
            yield node


def _fits(graph: Graph, nodes: Set[Node]) -> bool:
    """Whether one kernel can have these nodes: nodes of fewer elements have no results."""
    chain = graph.in_order(nodes)
    results = _results(graph, chain)
    alike = len({value.tensor.dims for value in results}) == 1
    return alike and len(operands_of(chain)) <= MAX_OPERANDS and len(results) <= MAX_RESULTS


def _results(graph: Graph, nodes: Sequence[Node]) -> tuple[Value, ...]:
    """Return what other nodes read, or what are results of the graph."""
    inside = set(nodes)
    return tuple(
        node.output
        for node in nodes
        if graph.is_output(node.output) or node.output.consumers.keys() - inside
    )


def shared_chain(found: SharedChain, operand: Operand) -> Launch | str:
    """Return the launch, or why there is none."""
    chain = chain_of(found.chain, handed=found.results)
    if isinstance(chain, str):
        return chain
    results = [operand(value) for value in found.results]
    operands = [operand(value) for value in chain.operands]
    y = results[-1]
    axes = order(y.rank, y.format)
    rows = [t.strides for t in results]
    rows += [broadcast_strides(x.dims, x.format, y.dims, x.pitch) for x in operands]
    sizes, moves = merge([y.dims[a] for a in axes], [tuple(row[a] for a in axes) for row in rows])
    args: dict[str, Given] = {"count": y.size, "sizes": sizes, **divisors(sizes)}
    for i, (t, move) in enumerate(zip(results, moves, strict=False)):
        args |= {f"y{i}": t, f"steps{i}": move}
    for i, (x, move) in enumerate(zip(operands, moves[len(results) :], strict=True)):
        args |= {f"a{i}": x, f"strides{i}": move}
    words = [f"word{i}" for i in range(len(operands))] + [f"result{i}" for i in range(len(results))]
    kinds = [f"using C{i} = {compute_type(t.dtype)};" for i, t in enumerate(results)]
    return Launch(
        "elementwise/shared.cu",
        "shared_chain",
        grid=(ceil_div(y.size, THREADS), 1, 1),
        block=THREADS,
        args=args,
        types=(
            ("Index", index_type(*(t.extent for t in (*results, *operands)))),
            *((f"R{i}", t.dtype) for i, t in enumerate(results)),
            *((f"A{i}", x.dtype) for i, x in enumerate(operands)),
        ),
        constants=(("RANK", len(sizes)),),
        code="\n".join(
            [
                chain.code,
                *kinds,
                f"#define OPERANDS(X) {' '.join(f'X({i})' for i in range(len(operands)))}",
                f"#define RESULTS(X) {' '.join(f'X({i})' for i in range(len(results)))}",
                f"#define CHAIN_ARGUMENTS {', '.join(words)}",
            ]
        ),
        note=f"{chain.title}, {len(results)} results",
        pitched=(*results, *operands),
    )
