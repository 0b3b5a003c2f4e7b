"""What tests of the tensorrt backend share: a machine on which neither library is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tercet.backends.tensorrt import library
from tercet.backends.tensorrt.products import PRODUCTS


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No library is installed, and none is remembered."""
    monkeypatch.delenv(library.VARIABLE, raising=False)
    for product in PRODUCTS:
        for name in product.modules:
            monkeypatch.setitem(sys.modules, name, None)
    library.load.cache_clear()
    yield
    library.load.cache_clear()
