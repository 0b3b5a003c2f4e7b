"""Packages that some tests need and that not every platform has."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

needs_cuda = pytest.mark.skipif(
    find_spec("cuda") is None, reason="cuda.core is not installed: pip install 'tercet[cuda13]'"
)
