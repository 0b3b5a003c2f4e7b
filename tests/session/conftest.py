"""Models that several tests need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

import tercet

#: Gives the model of a file.
OnNumpy = Callable[[Path], tercet.Model]


@pytest.fixture(scope="module")
def on_numpy() -> Iterator[OnNumpy]:
    """Loads each file on numpy once; its plans serve several tests."""
    with ExitStack() as stack:
        yield cache(lambda path: stack.enter_context(tercet.load(path)))
