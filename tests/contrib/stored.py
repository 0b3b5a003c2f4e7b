"""Inputs and results of a model that lie next to it, as another program computed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def arrays(model: Path, kind: str) -> dict[str, Any]:
    """Return the arrays of ``model.npz`` by name, those whose keys begin with `kind`."""
    with np.load(model.with_suffix(".npz")) as file:
        return {k.removeprefix(kind): file[k] for k in file.files if k.startswith(kind)}
