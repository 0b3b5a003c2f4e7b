"""What `tercet.load` does once a GPU is starting: reads, optimises, and opens backends."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from . import backends as _backends
from .api import Operators
from .backends.numpy import evaluate
from .importers import onnx as importer
from .runtime.base.budget import Budget
from .runtime.base.collecting import no_collection
from .runtime.base.guard import bounded, inherited
from .runtime.errors import ModelWarning
from .runtime.ir.custom import with_custom
from .runtime.ir.graph import Graph
from .runtime.ir.op import OPERATORS
from .runtime.options import Options, check_algorithms
from .runtime.passes.to_half import check_kept
from .runtime.session.freeze import freeze_inputs, frozen_around
from .runtime.session.model import Model, ModelSource
from .runtime.session.program_cache import Optimised, optimised
from .runtime.session.refit import refit, weights_around


def loaded(
    source: importer.Loadable,
    backend: str | Sequence[str],
    chosen: Options,
    *,
    fallback: str | Sequence[str] | None,
    operators: Operators | None,
    freeze: Mapping[str, Any] | None,
    weights: Mapping[str, Any] | None,
    external_data_dir: str | os.PathLike[str] | None,
    map_external_data: bool,
    timeout: float | None,
) -> Model:
    """Return the model; see `tercet.load`."""
    known = with_custom(OPERATORS, operators or {})
    with no_collection(), bounded(timeout, Budget(chosen.max_bytes)):
        read = partial(
            importer.load,
            source,
            operators=known,
            external_data_dir=external_data_dir,
            map_external_data=map_external_data,
        )
        frozen = {**frozen_around(), **(freeze or {})}
        given = {**weights_around(), **(weights or {})}

        def prepare(found: importer.Imported) -> tuple[Graph, Optimised]:
            check_kept(found.graph, chosen.keep_float32)
            check_algorithms(found.graph, chosen.algorithms)
            graph = refit(found.graph, given) if given else found.graph
            graph = freeze_inputs(graph, frozen) if frozen else graph
            return graph, optimised(graph, chosen, evaluate)

        if backend == "numpy" and fallback in (None, "numpy"):
            chain = _backends.open_backends(backend, chosen, fallback)
            found = read()
            prepared = partial(prepare, found)
        else:
            # A GPU takes as long to start as a file to be read and optimised.
            with ThreadPoolExecutor(1) as aside:
                reading = aside.submit(copy_context().run, inherited(read))
                then = inherited(lambda: prepare(reading.result()))
                prepared = aside.submit(copy_context().run, then).result
                chain = _backends.open_backends(backend, chosen, fallback)
            found = reading.result()
        about = ModelSource(
            found.file,
            found.opsets,
            found.ir_version,
            found.producer,
            found.metadata,
            found.warnings,
            found.mapped,
        )
        for text in found.warnings:
            model = f"{found.file}: " if found.file else ""
            warnings.warn(f"{model}{text}", ModelWarning, stacklevel=4)
        graph, made = prepared()
        return Model(graph, chain, chosen, evaluate, about, made)
