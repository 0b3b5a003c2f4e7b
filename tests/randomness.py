"""Random numbers that are the same whatever tests ran before."""

from __future__ import annotations

from typing import Any

import numpy as np

_STARTED: list[tuple[np.random.Generator, Any]] = []


def restarting(seed: int) -> np.random.Generator:
    """Return a generator that begins anew with every test."""
    generator = np.random.default_rng(seed)
    _STARTED.append((generator, generator.bit_generator.state))
    return generator


def restart() -> None:
    """Let all of them begin anew."""
    for generator, state in _STARTED:
        generator.bit_generator.state = state
