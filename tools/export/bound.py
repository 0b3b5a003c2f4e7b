"""Graphs for fixed shapes of inputs."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends.numpy import evaluate
from ...runtime.ir.graph import Graph
from ...runtime.ir.infer import specialise_as_asked
from ...runtime.ir.types import Dim, TensorType, ValueType
from ...runtime.passes import STATIC_PASSES
from ...runtime.passes import optimise as run_passes
from ...runtime.session.model import Model, TensorInfo
from ..common.shapes import input_shapes


def bound(
    model: Model, graph: Graph, shapes: Sequence[str], dims: Sequence[str], *, optimise: bool
) -> Graph:
    """Return a copy of a graph for fixed input shapes, with the passes run once more."""
    types: dict[str, ValueType] = {v.name: v.type for v in graph.inputs if v.type is not None}
    for name, shape in _bound_shapes(model.inputs, shapes, dims).items():
        type_ = types.get(name)
        if isinstance(type_, TensorType):
            types[name] = type_.with_shape(shape)
    bound = specialise_as_asked(graph, types)
    if optimise:
        run_passes(bound, STATIC_PASSES, model.options, evaluate, model.rewrites.copy())
    return bound


def _bound_shapes(
    infos: Sequence[TensorInfo], shapes: Sequence[str], dims: Sequence[str]
) -> dict[str, tuple[Dim, ...]]:
    """Return the shape of every input with fixed dimensions; other symbols are kept."""
    sizes = input_shapes(infos, shapes, dims)
    names = [info.name for info in infos]
    named = {name for name in names if any(text.startswith(f"{name}=") for text in shapes)}
    if shapes and len(names) == 1:
        named = set(names)
    symbols = {text.rpartition("=")[0] for text in dims}
    for info in infos:
        if info.name in named:
            symbols.update(dim for dim in info.shape or () if isinstance(dim, str))
    found: dict[str, tuple[Dim, ...]] = {}
    for info in infos:
        if info.name in named:
            found[info.name] = sizes[info.name]
        elif info.shape is not None:
            pairs = zip(info.shape, sizes[info.name], strict=True)
            found[info.name] = tuple(size if dim in symbols else dim for dim, size in pairs)
    return found
