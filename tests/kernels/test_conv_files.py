"""Choosing an algorithm of a convolution enters no file of the algorithms that are not chosen."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from .dry import launches, normal, planned, single

#: The files of algorithms that others than the chosen one must not enter.
ALGORITHMS = {"depthwise", "direct", "fft", "im2col", "implicit_precomp_gemm", "winograd"}
#: Channels, filters, extent, kernel, dtype, the algorithm that is asked for, and its file.
CASES = [
    (64, 64, 56, 3, np.float16, None, set[str]()),
    (64, 64, 56, 3, np.float32, None, set[str]()),
    (256, 64, 14, 1, np.float32, None, set[str]()),
    (64, 64, 56, 1, np.float16, None, set[str]()),
    (64, 64, 56, 3, np.float32, "fft", {"fft"}),
    (64, 64, 56, 3, np.float32, "winograd_f4", {"winograd"}),
]


@pytest.mark.parametrize(
    ("channels", "filters", "extent", "kernel", "dtype", "asked", "files"), CASES
)
def test_only_the_chosen_algorithm_is_entered(
    channels: int,
    filters: int,
    extent: int,
    kernel: int,
    dtype: type,
    asked: str | None,
    files: set[str],
) -> None:
    x = normal(1, channels, extent, extent).astype(dtype)
    w = normal(filters, channels, kernel, kernel).astype(dtype)
    graph = single("Conv", [x, w, normal(filters).astype(dtype)], (1, 2), pads=(kernel // 2,) * 4)
    planned(graph, conv=asked)  # imports the files
    entered: set[str] = set()

    def watch(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent.name == "conv" and frame.f_code.co_name != "<lambda>":
            entered.add(path.stem)

    sys.setprofile(watch)
    try:
        layout = planned(graph, conv=asked)
    finally:
        sys.setprofile(None)
    assert launches(layout)
    assert entered & ALGORITHMS == files
