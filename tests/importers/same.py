"""Whether two graphs are the same: operators, wiring, constants and names of inputs and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import zip_longest
from typing import Any

import numpy as np

from tercet.runtime.ir.dtypes import string
from tercet.runtime.ir.graph import Graph, Node, Value
from tercet.runtime.ir.op import body_names
from tercet.runtime.ir.types import Array


def assert_same(one: Graph, other: Graph, image: Mapping[Value, Value] | None = None) -> None:
    """Fail unless `other` computes what `one` does in the same way.

    Names of inner values may differ, and outputs that are not read need not be there.

    Args:
        one: a graph.
        other: what came back from a file.
        image: for bodies, the values around `other` by those around `one`.
    """
    if image is None:
        assert [v.name for v in one.inputs] == [v.name for v in other.inputs]
        assert list(one.outputs) == list(other.outputs)
    same = dict(image or {})
    same.update(zip(one.inputs, other.inputs, strict=True))
    for value, twin in zip(one.inputs, other.inputs, strict=True):
        assert str(value.type) == str(twin.type)
    for node, twin in zip_longest(one.nodes, other.nodes):
        assert node is not None, f"{twin} is new"
        assert twin is not None, f"{node} is lost"
        _assert_same_node(node, twin, same)
    for value, twin in zip(one.outputs.values(), other.outputs.values(), strict=True):
        _assert_same_value(value, twin, same)


def _assert_same_node(node: Node, twin: Node, same: dict[Value, Value]) -> None:
    assert node.kind == twin.kind
    for value, found in zip_longest(node.inputs, twin.inputs):
        assert (value is None) == (found is None), f"{node} against {twin}"
        if value is not None and found is not None:
            _assert_same_value(value, found, same)
    _assert_same_attributes(node, twin, same)
    live = [v for v in node.outputs if v.consumers]
    found = [v for v in twin.outputs if v.consumers]
    assert len(live) == len(found)
    same.update(zip(live, found, strict=True))
    if len(node.outputs) == len(twin.outputs):
        same.update(zip(node.outputs, twin.outputs, strict=True))


def _assert_same_attributes(node: Node, twin: Node, same: dict[Value, Value]) -> None:
    bodies = body_names(type(node.op))
    for field in fields(node.op):
        if field.name not in bodies:
            one, other = getattr(node.op, field.name), getattr(twin.op, field.name)
            assert _as_file(one) == _as_file(other), f"{field.name} of {node}"
    actual, found = iter(node.captures), iter(twin.captures)
    for body, mirror in zip(node.op.graphs(), twin.op.graphs(), strict=True):
        outside = {formal: same[next(actual)] for formal in body.captures}
        inside = {same_: formal for formal, same_ in zip(mirror.captures, found, strict=False)}
        assert_same(body, mirror, {f: inside[v] for f, v in outside.items()})


def _as_file(value: Any) -> Any:
    """Return an attribute in the precision that a file has."""
    if isinstance(value, tuple):
        return tuple(map(_as_file, value))
    return np.float32(value) if isinstance(value, float) else value


def _assert_same_value(value: Value, found: Value, same: Mapping[Value, Value]) -> None:
    if value.data is None:
        assert same[value] is found, f"{value} against {found}"
        return
    assert found.data is not None
    assert_same_data(value.data, found.data)


def assert_same_data(one: Array, other: Array) -> None:
    """Fail unless two arrays have the same dtype, shape and bits."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    if one.dtype == string:
        assert one.tolist() == other.tolist()
    else:
        assert np.array_equal(_bytes_of(one), _bytes_of(other))


def _bytes_of(data: Array) -> Array:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
