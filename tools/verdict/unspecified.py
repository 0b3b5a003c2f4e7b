"""Elements that an operator's documentation leaves open: whatever they are is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import ml_dtypes
import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.op import Op
from ...runtime.ir.types import Array
from .operators import becomes_integer, is_unspecified, leaves_rows_open, opens
from .overflow import rule_common
from .rounding import Ruling

_SAID = "it is computed from elements that an operator leaves unspecified"


#: Gives a tensor as it is; where its second input is False, its elements may be anything.
Opened: type[Op] = declare(
    "tercet.noise", "Opened", CustomOperator(lambda x, kept: x, lambda x, kept: x)
)


def opened_in_place(graph: Graph) -> Graph:
    """Return a graph with an `Opened` for each node that says what is open."""
    if not any(map(opens, graph.walk())):
        return graph
    copy = graph.clone()
    for each in list(copy.graphs()):
        for node in list(filter(opens, each.nodes)):
            kept, x, _ = node.operands
            made = each.insert(Opened(), [x, kept], before=node)
            made.output.type = x.type
            each.redirect(x, made.output)
            each.set_inputs(made, [x, kept])
            each.remove(node)
    return copy


def has_unspecified(graph: Graph) -> bool:
    """Whether a node of a graph leaves elements of its result open."""
    return any(map(_leaves_open, graph.walk()))


def _leaves_open(node: Node) -> bool:
    if (
        leaves_rows_open(node)
        or becomes_integer(node)
        or any(map(is_unspecified, node.distinct_reads))
    ):
        return True
    return any(opens(reader) for value in node.outputs for reader in value.consumers)


def with_open_rows(cache: Array, new: Array, places: Array) -> Array:
    """Return a cache [batch, heads, rows, size] with other elements behind its new rows.

    Args:
        cache: with the new rows in it.
        new: these rows.
        places: where those of each sequence begin.
    """
    ends = (places + new.shape[2])[:, np.newaxis]
    is_open = (np.arange(cache.shape[2]) >= ends)[:, np.newaxis, :, np.newaxis]
    return np.where(is_open, ~cache if cache.dtype.kind in "iu" else np.nan, cache)


def with_others(x: Array, kept: Array) -> Array:
    """Return an array of numbers with others where `kept` is False, all of them finite.

    What reads them may mask them: times 0 they are 0. They differ along a row, which a norm keeps.
    """
    return np.where(kept, x, x + np.arange(1, x.shape[-1] + 1))


def with_other_integers(y: Array, x: Array) -> Array:
    """Return integers with others where numbers have none: NaN, and what is out of range."""
    limits = cast("Any", ml_dtypes.iinfo)(y.dtype)
    fits = (x > float(limits.min) - 1) & (x < float(limits.max) + 1)
    return np.where(fits, y, (y == 0).astype(y.dtype))


def rule_unspecified(
    a: Array,
    b: Array,
    ruling: Ruling,
    exact: Array,
    opened: Array,
    rule: Callable[[Array, Array], Ruling],
    output: Value | None,
) -> Ruling:
    """Judge a mismatch again, without the elements that an operator leaves open.

    Args:
        a: the reference's.
        b: the runner's.
        ruling: the mismatch.
        exact: in float64.
        opened: in float64, where such elements are NaN.
        rule: judges the other elements.
        output: what was compared; None for an element of a list.

    Returns:
        What is to be said of the others, if it is a result of the operator; what is computed from
        open elements is inconclusive.
    """
    rest = rule_common(a, b, exact, opened, rule)
    if rest is None or rest.word == "MISMATCH":
        return ruling
    node = None if output is None else output.producer
    if node is not None and _leaves_open(node):
        return rest
    return replace(rest, word="inconclusive", reason=f"{ruling.reason}; {_SAID}")
