"""Chains of elementwise operators with several results, as one kernel.

What several chains read is computed with one of them, and stored for the others: the other ones do
not read it from memory, and are no launches. So a tensor that is read in two float types is written
in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from math import prod

from ....runtime.base.record import record
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.plan.partition import results_of
from ..recipe.launch import Launch, Recipe
from ..recipe.operands import (
    Given,
    Ints,
    Tensor,
    ceil_div,
    divisors,
    index_type,
    merge,
    order,
)
from ..recipe.pattern import OperandOf, Whole
from ..recipe.setting import Setting, Stored
from .chain_kernel import THREADS, factors_of, vector_of, walk_of
from .elementwise import MAX_CHAINED, chain_of, compute_type, in_chains
from .readers import Formed

#: Number of elements below which launches are all that counts.
FEW_ELEMENTS = 1 << 14
#: Threads of a block of few elements.
FEW_THREADS = 64
#: Maximum numbers of tensors that are read, and of results, of few elements and of many.
MAX_OPERANDS, MAX_RESULTS = {True: 16, False: 8}, {True: 8, False: 4}

#: Returns some nodes, and elementwise ones before them that only these read.
Closed = Callable[[Graph, Sequence[Node], Set[Node]], list[Node]]


@record
class SharedChain(Whole):
    """Elementwise nodes of as many elements, of which several results are read elsewhere.

    Attributes:
        chain: in topological order.
        results: what other nodes read.
    """

    chain: tuple[Node, ...]
    results: tuple[Value, ...]

    reads_rows = True

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        return frozenset(self.chain)

    @property
    def follows(self) -> bool:
        """Whether it accepts any format; see `Pattern`."""
        rank = self.results[0].tensor.rank
        operands = operands_of(self.chain)
        return all(value.tensor.rank == rank or value.tensor.size == 1 for value in operands)

    def recipe(
        self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored
    ) -> Recipe | str:
        """Return its recipe; see `Pattern`."""
        return shared_chain(self, operand)


def operands_of(nodes: Sequence[Node]) -> list[Value]:
    """Return what elementwise nodes read; numbers are part of their code."""
    made = {node.output for node in nodes}
    reads = dict.fromkeys(v for node in nodes for v in node.distinct_reads)
    return [v for v in reads if v not in made and (v.data is None or v.data.size > 1)]


def shared_chain_at(
    graph: Graph, nodes: Sequence[Node], free: Set[Node], formed: Formed, closed: Closed
) -> SharedChain | None:
    """Return a chain together with others that it shares tensors with, if there are any.

    Args:
        graph: the graph.
        nodes: the chain; the first of them is its last node.
        free: nodes that may be taken.
        formed: the groups of nodes that are in one.
        closed: see there.
    """
    found, dims = set(nodes), nodes[0].output.tensor.dims
    while len(found) < MAX_CHAINED:
        beside = _beside(graph, found, free, dims)
        more = (set(closed(graph, [node, *found], free)) for node in beside)
        wider = next((each for each in more if _fits(graph, each) and formed.may_join(each)), None)
        if wider is None:
            break
        found = wider
    if len(found) == len(nodes):
        return None
    chain = graph.in_order(found)
    return SharedChain(chain, results_of(graph, chain))


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
    results = results_of(graph, chain)
    dims = {value.tensor.dims for value in results}
    few = prod(next(iter(dims))) <= FEW_ELEMENTS
    read, written = len(operands_of(chain)), len(results)
    return len(dims) == 1 and read <= MAX_OPERANDS[few] and written <= MAX_RESULTS[few]


def shared_chain(found: SharedChain, operand: OperandOf) -> Launch | str:
    """Return the launch, or why there is none."""
    chain = chain_of(found.chain, handed=found.results)
    if isinstance(chain, str):
        return chain
    results = [operand(value) for value in found.results]
    operands = [operand(value) for value in chain.operands]
    y = results[-1]
    others, axes = (*results[:-1], *operands), order(y.rank, y.format)
    walks = [walk_of(x, None, y, factors_of(y.dims, ()) or ()) for x in others]
    rows = [y.strides, *(walk.strides for walk in walks), *(walk.slots for walk in walks)]
    sizes, merged = merge([y.dims[a] for a in axes], [tuple(row[a] for a in axes) for row in rows])
    few = y.size <= FEW_ELEMENTS
    vector, aligned = (
        (1, [1] * len(others)) if few else vector_of((y, *others), sizes, merged, walks)
    )
    made, parts = len(results), aligned[len(results) - 1 :]
    moves = (*merged[1:made], merged[0], *merged[made : made + len(operands)])
    args: dict[str, Given] = {"count": y.size, "sizes": sizes, **divisors(sizes)}
    for i, (t, move) in enumerate(zip(results, moves, strict=False)):
        args |= {f"y{i}": t, f"steps{i}": move}
    for i, (x, move) in enumerate(zip(operands, moves[made:], strict=True)):
        args |= {f"a{i}": x, f"strides{i}": move}
    words = [f"words{i}.at[q]" for i in range(len(operands))] + [f"result{i}" for i in range(made)]
    kinds = [f"using C{i} = {compute_type(t.dtype)};" for i, t in enumerate(results)]
    threads = FEW_THREADS if few else THREADS
    constants = [("RANK", len(sizes)), ("VECTOR", vector), ("THREADS", threads)]
    stored = [max(each, 1) for each in aligned[: made - 1]]
    constants += [(f"OUTER{i}", each) for i, each in enumerate([*stored, vector])]
    constants += [(f"INNER{i}", each) for i, each in enumerate(parts)]
    return Launch(
        "elementwise/shared.cu",
        "shared_chain",
        grid=(ceil_div(y.size, threads * vector), 1, 1),
        block=threads,
        args=args,
        types=(
            ("Index", index_type(*(t.extent for t in (*results, *operands)))),
            *((f"R{i}", t.dtype) for i, t in enumerate(results)),
            *((f"A{i}", x.dtype) for i, x in enumerate(operands)),
        ),
        constants=tuple(constants),
        code="\n".join(
            [
                chain.code,
                *kinds,
                f"#define OPERANDS(X) {' '.join(f'X({i})' for i in range(len(operands)))}",
                f"#define RESULTS(X) {' '.join(f'X({i})' for i in range(made))}",
                f"#define CHAIN_ARGUMENTS {', '.join(words)}",
            ]
        ),
        note=f"{chain.title}, {made} results",
        pitched=(*results, *operands),
    )
