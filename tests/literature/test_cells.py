"""Cells as a search for architectures finds them: many small branches (PNAS)."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

import tercet
from tercet.runtime.ir.types import Array
from tercet.tools.workshop.studies_cells import Cells

CHANNELS, EXTENT = 8, 9


def image_of(seed: int, batch: int) -> Array:
    return np.random.default_rng(seed).standard_normal(
        (batch, CHANNELS, EXTENT, EXTENT), np.float32
    )


def expected(model: ModelProto, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("seed", range(100))
def test_cells_on_numpy(seed: int) -> None:
    batch = 1 + seed % 2
    model, x = Cells(seed).model(batch), image_of(seed, batch)
    want = expected(model, x)
    with tercet.load(model) as found:
        got = found(x)[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda", "cudnn"])
@pytest.mark.parametrize("seeds", [range(i, i + 10) for i in range(0, 100, 10)], ids=str)
def test_cells_side_by_side(seeds: range, backend: str) -> None:
    """Four streams give bit by bit what one stream gives, run after run, and what numpy gives."""
    for seed in seeds:
        batch = 1 + seed % 2
        model, x = Cells(seed).model(batch), image_of(seed, batch)
        with tercet.load(model) as host:
            want = host(x)[0]
        with tercet.load(model, backend, streams=1) as single:
            alone = single(x)[0]
        with tercet.load(model, backend) as wide:
            for _ in range(3):
                np.testing.assert_array_equal(wide(x)[0], alone)
        np.testing.assert_allclose(alone, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
