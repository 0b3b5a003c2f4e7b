"""Winograd convolutions that read, add and store slices of larger images, on an emulated GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends import open_backends
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Relu
from tercet.runtime.ops.movement import Concat
from tercet.runtime.session.model import Model

from .dry import normal
from .emulator import needs_compiler
from .samples import OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

SHAPE = (2, 8, 9, 10)


def dense_blocks(dtype: DType) -> Graph:
    """Two residual dense blocks (ESRGAN): sums are the beginnings of what the next one joins."""
    graph = Graph()

    def conv(x: Value, channels: int, seed: int) -> Value:
        w = graph.constant(normal(8, channels, 3, 3).astype(dtype) / (4 + seed))
        return graph.insert(Conv(pads=(1,) * 4), [x, w]).output

    x = conv(graph.add_input("x", TensorType(dtype, SHAPE)), 8, 0)
    for seed in (1, 2):
        more = graph.insert(Relu(), [conv(x, 8, seed)]).output
        joined = graph.insert(Concat(axis=1), [x, more]).output
        x = graph.insert(Add(), [conv(joined, 16, seed), x]).output
    graph.set_outputs({"y": graph.insert(Relu(), [conv(x, 8, 3)]).output})
    infer(graph)
    return graph


@needs_compiler
@pytest.mark.parametrize("algorithm", ["winograd_f2", "winograd_f2_nonfused", "winograd_f4"])
def test_dense_blocks(algorithm: str, emulated: CudaBackend) -> None:
    x = normal(*SHAPE)
    with Model(dense_blocks(float32), [emulated], replace(OPTIONS, conv=algorithm), evaluate) as m:
        rows = m.prepare().rows
        got = m.run({"x": x})["y"]
    kernels = [row.kernel for row in rows if row.kind == "step"]
    assert all("winograd" in kernel or "F(" in kernel for kernel in kernels), "and no Concat"
    with Model(dense_blocks(float64), open_backends("numpy", OPTIONS), OPTIONS, evaluate) as m:
        want = m.run({"x": x.astype(float64)})["y"]
    assert np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want)
