"""What some tests need and not every platform has: packages, and a function of the system."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

needs_cuda = pytest.mark.skipif(
    find_spec("cuda") is None, reason="cuda.core is not installed: pip install 'tercet[cuda13]'"
)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
