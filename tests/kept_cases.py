"""ONNX's cases, kept for later runs: making them takes seconds, most of them of its pools."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import onnx

from tercet.tools.conformance import suite
from tercet.tools.conformance.suite import ConformanceCase

Cases = tuple[ConformanceCase, ...]


def kept(make: Callable[[], Cases], folder: Path) -> Any:
    """Return what reads the cases from a folder, or makes them and writes them there.

    Args:
        make: makes them.
        folder: of this user alone, as it is unpickled.
    """
    text = Path(str(suite.__file__)).read_bytes()
    versions = (sys.version, np.__version__, onnx.__version__, onnx.__file__)
    name = hashlib.sha256(text + repr(versions).encode()).hexdigest()[:32]
    file = folder / f"{name}.pickle"

    @cache
    def cases() -> Cases:
        if file.exists():
            return pickle.loads(file.read_bytes())
        made = make()
        folder.mkdir(0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, delete=False) as written:
            written.write(pickle.dumps(made))
        Path(written.name).replace(file)  # other processes may be at it, too
        return made

    return cases
