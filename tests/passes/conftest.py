"""Every test gets the same numbers, whichever tests run before it, and all passes are verified."""

from __future__ import annotations

import numpy as np
import pytest

from tercet.runtime.passes.driver import VERIFY

from . import graphs


@pytest.fixture(autouse=True)
def numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "RNG", np.random.default_rng(7))


@pytest.fixture(autouse=True)
def all_passes_are_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERIFY, "1")
