"""Which models are kept on disk with their plans, and what these depend on; see `kept_plans`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np

from . import version
from .runtime import __path__ as _runtime
from .runtime.base.file_parts import print_of
from .runtime.ir.custom import OPERATORS_AROUND
from .runtime.ir.mapped import external_data_dir
from .runtime.options import Options
from .runtime.passes.driver import VERIFY
from .runtime.session.freeze import FROZEN
from .runtime.session.kept_plans import KeptModel
from .runtime.session.refit import WEIGHTS

#: Environment variable: ``0`` makes every plan anew, and keeps none.
PLANS = "TERCET_PLANS"
#: The folders of this package that plans depend on, besides that of this file.
_FOLDERS = ("runtime", "importers", "backends")


def kept_model(
    source: object,
    backend: str | Sequence[str],
    options: Options,
    fallback: str | Sequence[str] | None,
    given: Sequence[object],
    *,
    map_external_data: bool,
    whole_caches: bool,
) -> KeptModel | None:
    """Return what is kept of a model, or will be; None if that is not known by its file.

    Args:
        source: see `load`; only files are kept.
        backend: see `load`.
        options: of the model.
        fallback: see `load`.
        given: what else `load` was given that plans depend on; nothing of it may be.
        map_external_data: see `load`.
        whole_caches: see `load`.
    """
    if not isinstance(source, str | os.PathLike) or any(given) or options.tune:
        return None
    if os.environ.get(PLANS) == "0" or os.environ.get(VERIFY):
        return None
    if FROZEN.get() or WEIGHTS.get() or OPERATORS_AROUND.get() or external_data_dir():
        return None
    if not map_external_data or not os.path.isfile(path := os.fsdecode(source)):
        return None
    chosen = [_text(getattr(options, f.name)) for f in fields(options) if f.name != "cache"]
    if any(text is None or " at 0x" in text for text in chosen):
        return None
    try:
        around = backend, fallback, whole_caches
        parts = (_made_by(), path, repr(around), *filter(None, chosen))
        key = "\0".join(parts).encode(errors="surrogateescape")
        return KeptModel(options.cache, path, key)
    except (OSError, ValueError):  # of the package; of the model the importer says more
        return None


def _text(value: object) -> str | None:
    """Return the value of an option; functions by name, None for those of other packages."""
    if not callable(value):
        return repr(value)
    module, name = getattr(value, "__module__", ""), getattr(value, "__name__", "")
    is_own = module.partition(".")[0] == __package__
    is_named = getattr(sys.modules.get(module), name, None) is value
    return f"{module}.{name}" if is_own and is_named else None


@cache
def _made_by() -> str:
    """Return what identifies the code that makes plans: this package's, and that of others.

    Raises:
        OSError: there are no files, as in an archive.
        ValueError: some of it may have been imported as it was before a change.
    """
    here, root = Path(__file__).parent, Path(_runtime[0]).parent
    folders = {here, *(root / folder for folder in _FOLDERS if root != here)}
    own = print_of(map(str, folders), version.IMPORTED).hex()
    spec = find_spec("onnx")  # which is not imported
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    onnx = "" if folder is None else (folder / "version.py").read_text(errors="replace")
    versions = (version.__version__, sys.version, np.__version__, ml_dtypes.__version__, onnx)
    return "\0".join((own, *versions, platform.machine(), sys.byteorder))
