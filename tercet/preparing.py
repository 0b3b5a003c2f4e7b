"""Models from files that have been read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .backends import check_algorithms_of_nodes
from .importers.onnx import Imported
from .runtime.ir.graph import Graph
from .runtime.ir.op import Op
from .runtime.ir.types import Array
from .runtime.options import Options
from .runtime.plan.backend import Backend
from .runtime.plan.orders import reorder
from .runtime.session.freeze import FROZEN, freeze_inputs
from .runtime.session.model import Model, ModelSource
from .runtime.session.program_cache import Optimised, optimised
from .runtime.session.refit import WEIGHTS, refit


def evaluate(op: Op, inputs: Sequence[Array | None], count: int) -> Sequence[Array] | None:
    """See `backends.numpy.evaluate`, which is imported when the first constant is computed."""
    from .backends import numpy

    return numpy.evaluate(op, inputs, count)


class Prepared(NamedTuple):
    """The graph of a model, with constants for frozen inputs, and what the passes made of it."""

    graph: Graph
    made: Optimised


def prepared(
    found: Imported,
    options: Options,
    freeze: Mapping[str, Any] | None,
    weights: Mapping[str, Any] | None,
    backends: Sequence[Backend] = (),
) -> Prepared:
    """Replace weights, freeze inputs, and optimise; see `tercet.load`.

    Args:
        found: what was read.
        options: those of the model.
        freeze: inputs that become constants.
        weights: constants to replace.
        backends: those that will run the model; empty if they are not open yet.
    """
    if options.keep_float32:
        from .runtime.passes.to_half import check_kept  # with all that half precision needs

        check_kept(found.graph, options.keep_float32)
    frozen = {**FROZEN.get(), **(freeze or {})}
    given = {**WEIGHTS.get(), **(weights or {})}
    graph = refit(found.graph, given) if given else found.graph
    graph = freeze_inputs(graph, frozen) if frozen else graph
    if len(backends) == 1:
        reorder(graph, backends[0])
    made = optimised(graph, options, evaluate)
    check_algorithms_of_nodes(options, graph, made.graph)
    return Prepared(graph, made)


def model_of(
    found: Imported, prepared: Prepared, backends: tuple[Backend, ...], options: Options
) -> Model:
    """Return the model."""
    about = ModelSource(
        found.file,
        found.opsets,
        found.ir_version,
        found.producer,
        found.metadata,
        found.warnings,
        found.mapped,
    )
    return Model(prepared.graph, backends, options, evaluate, about, prepared.made)
