"""The encoder-decoders that tests open, and what transformers generates with the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tercet.runtime.ir.types import Array

from .folders import DECODERS

ENCODERS = DECODERS.parent / "encoders"
T5, BART, WHISPER, TROCR = (f"optimum_{each}" for each in ("t5", "bart", "whisper", "trocr"))


def told(name: str) -> Any:
    """What transformers generates with the same weights."""
    return json.loads((ENCODERS / name / "expected.json").read_text())


def copied(name: str, target: Path) -> Path:
    return shutil.copytree(ENCODERS / name, target / name)


def features(name: str) -> Array:
    with np.load(ENCODERS / name / "features.npz") as file:
        return file["features"]
