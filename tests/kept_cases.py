"""ONNX's cases, kept for later runs: making them takes seconds, most of them of its pools."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import onnx

from tercet.tools.conformance import suite
from tercet.tools.conformance.suite import ConformanceCase


def keep(folder: Path) -> None:
    """Let `suite.all_cases` read the cases from a folder, or make them and write them there.

    Args:
        folder: of this user alone, as what it holds is unpickled.
    """
    make: Callable[[], tuple[ConformanceCase, ...]] = suite.all_cases
    text = Path(str(suite.__file__)).read_bytes()
    versions = (sys.version, np.__version__, onnx.__version__, onnx.__file__)
    name = hashlib.sha256(text + repr(versions).encode()).hexdigest()[:32]
    file = folder / f"{name}.pickle"

    @cache
    def cases() -> tuple[ConformanceCase, ...]:
        if file.exists():
            return pickle.loads(file.read_bytes())
        made = make()
        folder.mkdir(0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder, delete=False) as written:
            written.write(pickle.dumps(made))
        Path(written.name).replace(file)  # other processes may be at it, too
        return made

    suite.all_cases = cases
