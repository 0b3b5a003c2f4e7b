"""What `tercet.load` does once a GPU is starting: reads, optimises, and opens backends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from . import backends as _backends
from .api import Operators
from .runtime.base.budget import Budget
from .runtime.base.collecting import no_collection
from .runtime.base.guard import bounded, inherited
from .runtime.base.warned import warn
from .runtime.errors import ModelWarning
from .runtime.ir.custom import with_custom
from .runtime.ops import OPERATORS
from .runtime.options import Options
from .runtime.plan.keeping import marks_of

if TYPE_CHECKING:
    from .importers.onnx import Imported, Loadable
    from .preparing import Prepared
    from .runtime.plan.backend import Backend
    from .runtime.session.kept_plans import KeptModel, Snapshot
    from .runtime.session.model import Model

T = TypeVar("T")


def loaded(
    source: Loadable,
    backend: str | Sequence[str],
    chosen: Options,
    *,
    fallback: str | Sequence[str] | None,
    operators: Operators | None,
    freeze: Mapping[str, Any] | None,
    weights: Mapping[str, Any] | None,
    external_data_dir: str | os.PathLike[str] | None,
    map_external_data: bool,
    whole_caches: bool,
    timeout: float | None,
) -> Model:
    """Return the model; see `tercet.load`."""
    custom = with_custom({}, operators or {})

    def read() -> Imported:
        from .importers import onnx as importer  # which a kept model does not need

        return importer.load(
            source,
            operators={**OPERATORS, **custom},
            external_data_dir=external_data_dir,
            map_external_data=map_external_data,
            whole_caches=whole_caches,
        )

    with no_collection(), bounded(timeout, Budget(chosen.max_bytes)):
        if backend == "numpy" and fallback in (None, "numpy"):
            from . import preparing

            chain = _backends.open_backends(backend, chosen, fallback)
            kept, prepared = None, preparing.prepared(read(), chosen, freeze, weights, chain)
        else:
            from . import keeping

            given = operators, freeze, weights, external_data_dir is not None
            find = partial(
                keeping.kept_model,
                source,
                backend,
                chosen,
                fallback,
                given,
                map_external_data=map_external_data,
                whole_caches=whole_caches,
            )
            opening = partial(_backends.open_backends, backend, chosen, fallback)
            chain, kept, prepared = _while_opening(opening, find, read, chosen, freeze, weights)
            from . import preparing
        file = prepared.source.file
        for text in prepared.source.warnings:
            warn(f"{file}: {text}" if file else text, ModelWarning)
        return preparing.model_of(prepared, chain, chosen, kept)


def _while_opening(
    opening: Callable[[], tuple[Backend, ...]],
    find: Callable[[], KeptModel | None],
    read: Callable[[], Imported],
    chosen: Options,
    freeze: Mapping[str, Any] | None,
    weights: Mapping[str, Any] | None,
) -> tuple[tuple[Backend, ...], KeptModel | None, Prepared]:
    """Open backends, and read a file while Python imports the rest; optimise while a GPU starts.

    Args:
        opening: opens the backends, on this thread.
        find: returns the entry that the model may have on disk.
        read: reads the file.
        chosen: options of the model.
        freeze: see `tercet.load`.
        weights: likewise.

    Returns:
        The backends, the entry if they can use it, and the model.
    """
    with ThreadPoolExecutor(1) as aside:

        def begin(work: Callable[[], T]) -> Future[T]:
            return aside.submit(copy_context().run, inherited(work))

        def found() -> tuple[KeptModel | None, Snapshot | None]:
            kept = find()
            return kept, None if kept is None else kept.read()

        finding = begin(found)
        reading = begin(lambda: finding.result()[1] or read())
        from . import preparing

        preparation = begin(lambda: preparing.prepared(reading.result(), chosen, freeze, weights))
        chain = opening()
        kept, snapshot = finding.result()
        if marks_of(chain) is None:
            kept = None
        if snapshot is None:
            preparing.provide(chain)
    prepared = preparation.result()
    if kept is not None and snapshot is None:
        preparing.note(kept, reading.result(), prepared)
    return chain, kept, prepared
