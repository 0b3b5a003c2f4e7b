"""Models from files that have been read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .backends import check_algorithms_of_nodes
from .runtime.ir.graph import Graph
from .runtime.ir.op import Op
from .runtime.ir.types import Array
from .runtime.options import Options
from .runtime.plan.backend import Backend
from .runtime.plan.keeping import Keeping
from .runtime.plan.orders import reorder
from .runtime.session.freeze import FROZEN, freeze_inputs
from .runtime.session.kept_plans import KeptModel, Snapshot
from .runtime.session.model import Model
from .runtime.session.model_source import ModelSource
from .runtime.session.program_cache import Optimised, optimised
from .runtime.session.refit import WEIGHTS, refit

if TYPE_CHECKING:
    from .importers.onnx import Imported


def evaluate(op: Op, inputs: Sequence[Array | None], count: int) -> Sequence[Array] | None:
    """See `backends.numpy.evaluate`, which is imported when the first constant is computed."""
    from .backends import numpy

    return numpy.evaluate(op, inputs, count)


class Prepared(NamedTuple):
    """A model: where it is from, its graph with constants for frozen inputs, and after passes."""

    source: ModelSource
    graph: Graph
    made: Optimised


def prepared(
    found: Imported | Snapshot,
    options: Options,
    freeze: Mapping[str, Any] | None,
    weights: Mapping[str, Any] | None,
    backends: Sequence[Backend] = (),
) -> Prepared:
    """Replace weights, freeze inputs, and optimise, unless that was kept; see `tercet.load`.

    Args:
        found: what was read.
        options: those of the model.
        freeze: inputs that become constants.
        weights: constants to replace.
        backends: those that will run the model; empty if they are not open yet.
    """
    if isinstance(found, Snapshot):
        about = ModelSource(**found.about, mapped=found.mapped)
        return Prepared(about, found.graph, Optimised(found.made, found.rewrites))
    if options.keep_float32:
        from .runtime.passes.half.to_half import check_kept  # with all that half precision needs

        check_kept(found.graph, options.keep_float32)
    frozen = {**FROZEN.get(), **(freeze or {})}
    given = {**WEIGHTS.get(), **(weights or {})}
    graph = refit(found.graph, given) if given else found.graph
    graph = freeze_inputs(graph, frozen) if frozen else graph
    if len(backends) == 1:
        reorder(graph, backends[0])
    made = optimised(graph, options, evaluate)
    check_algorithms_of_nodes(options, graph, made.graph)
    about = {name: getattr(found, name) for name in _ABOUT}
    return Prepared(ModelSource(**about, mapped=found.mapped), graph, made)


_ABOUT = ("file", "opsets", "ir_version", "producer", "metadata", "warnings")


def provide(backends: Sequence[Backend]) -> None:
    """Import what plans are made with."""
    for each in backends:
        if isinstance(each, Keeping):
            each.provide()


def note(kept: KeptModel, found: Imported | Snapshot, prepared: Prepared) -> None:
    """Let a model that was read and optimised be kept with its first program."""
    if not isinstance(found, Snapshot):
        about = {name: getattr(found, name) for name in _ABOUT}
        snapshot = Snapshot(about, prepared.graph, *prepared.made, found.mapped)
        kept.note(snapshot, found.blocks)


def model_of(
    prepared: Prepared, backends: tuple[Backend, ...], options: Options, kept: KeptModel | None
) -> Model:
    """Return the model."""
    source, graph, made = prepared
    return Model(graph, backends, options, evaluate, source, made, kept)
