"""Generators that several tests need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tercet import Generator

from .folders import Opened


@pytest.fixture(scope="session")
def opened() -> Iterator[Opened]:
    """Opens recorded files, each once: a test leaves its generator as it is.

    One that keeps its caches has those of any test; `rewind` forgets them.
    """
    with ExitStack() as generators:

        @cache
        def of(path: Path, **options: Any) -> Generator:
            return generators.enter_context(Generator(path, **options))

        yield of
