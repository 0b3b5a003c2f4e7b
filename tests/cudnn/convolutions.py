"""Convolutions to test with; the sweep of tools/cudnn_sweep.py draws the same ones."""

from __future__ import annotations

from tercet.tools.convolution_cases import Case, convolved, fits, random_cases, transposed

__all__ = ["Case", "convolved", "fits", "random_cases", "transposed"]
