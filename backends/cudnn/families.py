"""Imports all families, which fills the table of the registry."""

from __future__ import annotations

from . import attention, conv, matmul, norm, pointwise, reduce
from .registry import FAMILIES

__all__ = ["FAMILIES", "attention", "conv", "matmul", "norm", "pointwise", "reduce"]
