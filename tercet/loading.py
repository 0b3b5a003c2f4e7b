"""What `tercet.load` does once a GPU is starting: reads, optimises, and opens backends."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from . import backends as _backends
from .api import Operators
from .importers import onnx as importer
from .runtime.base.budget import Budget
from .runtime.base.collecting import no_collection
from .runtime.base.guard import bounded, inherited
from .runtime.errors import ModelWarning
from .runtime.ir.custom import with_custom
from .runtime.ir.op import OPERATORS
from .runtime.options import Options

if TYPE_CHECKING:
    from .runtime.session.model import Model


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
    read = partial(
        importer.load,
        source,
        operators=known,
        external_data_dir=external_data_dir,
        map_external_data=map_external_data,
    )
    with no_collection(), bounded(timeout, Budget(chosen.max_bytes)):
        if backend == "numpy" and fallback in (None, "numpy"):
            from . import preparing

            chain = _backends.open_backends(backend, chosen, fallback)
            found = read()
            prepared = partial(preparing.prepared, found, chosen, freeze, weights, chain)
        else:
            # A file is read while Python imports the rest, and optimised while a GPU starts.
            with ThreadPoolExecutor(1) as aside:
                reading = aside.submit(copy_context().run, inherited(read))
                from . import preparing

                then = inherited(
                    lambda: preparing.prepared(reading.result(), chosen, freeze, weights)
                )
                prepared = aside.submit(copy_context().run, then).result
                chain = _backends.open_backends(backend, chosen, fallback)
            found = reading.result()
        for text in found.warnings:
            model = f"{found.file}: " if found.file else ""
            warnings.warn(f"{model}{text}", ModelWarning, stacklevel=4)
        return preparing.model_of(found, prepared(), chain, chosen)
