"""Constants in the order in which their readers want them in memory.

A plan that needs a constant in another order makes a copy, and the model keeps the original: twice
the memory. Where all readers want the same order, the constant itself is laid out so: it has the
same shape and elements, and other strides, so nobody else has to know.
"""

from __future__ import annotations

import numpy as np

from ..base.guard import check_time
from ..base.parallel import in_parallel
from ..ir.graph import Graph, Node, Value
from ..ir.types import Array
from .backend import Backend, Ordering

#: A constant, and its axes in order of their strides, the largest first.
_Wanted = tuple[Value, tuple[int, ...]]


def reorder(graph: Graph, backend: Backend) -> None:
    """Lay out the constants of a graph and its bodies as a backend reads them."""
    if not isinstance(backend, Ordering):
        return
    wanted = dict[Value, dict[Node, tuple[int, ...]]]()
    for each in graph.graphs():
        for node in each.nodes:
            for value, order in backend.orders(node):
                wanted.setdefault(value, {})[node] = order
    found: list[_Wanted] = []
    for value, orders in wanted.items():
        if orders.keys() == value.consumers.keys() and len({*orders.values()}) == 1:
            found.append((value, next(iter(orders.values()))))
    for (value, _), data in zip(found, in_parallel(_laid_out, found), strict=True):
        value.fix(data)


def _laid_out(wanted: _Wanted) -> Array:
    """Return the elements of a constant in another order; in the one that they have, themselves."""
    check_time()
    (value, order), data = wanted, wanted[0].data
    if data is None:
        raise TypeError(f"'{value.name}' is not a constant")
    moved = data.transpose(order)
    if moved.flags.c_contiguous:
        return data
    return np.ascontiguousarray(moved).transpose(np.argsort(order))
