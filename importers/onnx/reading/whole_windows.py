"""Caches of sliding windows as caches of all positions, for callers to whom no length matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....runtime.ir.types import Dim, TensorType, ValueType
from ..source.raw import RawModel, RawNode

_KEY = ("com.microsoft", "GroupQueryAttention")
_WINDOWED = "sliding_window_cache"
#: The axis of positions of caches, and the places of both among inputs and outputs.
_AXIS, _PASTS, _PRESENTS = 2, slice(3, 5), slice(1, 3)


def with_whole_caches(model: RawModel) -> RawModel:
    """Return a model whose attention drops no positions from its caches.

    It sees the same ones. A buffer that is as long as a window has to be moved in every step; rows
    of a longer one stay where they are. Caches whose length the file says stay as they are.
    """
    graph = model.graph
    inputs, declared = dict(graph.inputs), dict(graph.declared)
    moved = [node for node in graph.nodes if _grows(node, inputs)]
    if not moved:
        return model
    kept = [node for node in graph.nodes if _is_attention(node) and node not in moved]
    lengths = {_length(inputs, name) for node in kept for name in node.inputs[_PASTS]}
    for node in moved:
        for name in node.inputs[_PASTS]:
            type_ = inputs[name]
            if len(lengths) == 1 and isinstance(type_, TensorType) and type_.shape is not None:
                shape = list(type_.shape)
                shape[_AXIS] = next(iter(lengths))
                inputs[name] = TensorType(type_.dtype, tuple(shape))
        for name in node.outputs[_PRESENTS]:
            declared.pop(name, None)
    nodes = tuple(_whole(node) if node in moved else node for node in graph.nodes)
    return replace(model, graph=replace(graph, inputs=inputs, declared=declared, nodes=nodes))


def _is_attention(node: RawNode) -> bool:
    return (node.domain, node.op) == _KEY and len(node.inputs) >= _PASTS.stop


def _grows(node: RawNode, inputs: Mapping[str, ValueType | None]) -> bool:
    """Whether a node has caches as long as a window, and the file leaves their length open."""
    if not _is_attention(node) or not node.attributes.get(_WINDOWED):
        return False
    lengths = [_length(inputs, name) for name in node.inputs[_PASTS]]
    return all(isinstance(each, str) for each in lengths)


def _length(inputs: Mapping[str, ValueType | None], name: str) -> Dim:
    """Return the length that the file declares for a cache; 0 for what is none of its inputs."""
    type_ = inputs.get(name)
    if not isinstance(type_, TensorType) or type_.shape is None or len(type_.shape) <= _AXIS:
        return 0
    return type_.shape[_AXIS]


def _whole(node: RawNode) -> RawNode:
    kept = {name: value for name, value in node.attributes.items() if name != _WINDOWED}
    return node.change(attributes=kept)
