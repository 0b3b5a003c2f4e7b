"""Every test gets the same numbers, whichever tests run before it."""

from __future__ import annotations

import numpy as np
import pytest

from . import graphs


@pytest.fixture(autouse=True)
def numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "RNG", np.random.default_rng(7))
