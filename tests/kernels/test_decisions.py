"""The kernels behind control flow that the GPU decides on, where the host reads the answers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.control import conditional_nodes
from tercet.backends.cuda.control.conditional_nodes import CudaDecisions, chosen, counted, moved
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.driver.memory import pointer
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.importers.onnx import load
from tercet.runtime.control import loop_step
from tercet.runtime.ir.dtypes import float16, float32, float64, uint8
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import View
from tercet.runtime.plan.host import HOST, HostBuffer
from tercet.runtime.session.model import Model

from ..control.flows import FLOWS, Flow
from .cubins import all_compile, assert_arguments
from .emulator import emulated, needs_compiler, open_emulated
from .fake_driver import FAKE, FakeCompiler, Gate, plant

#: Kernels that this module compiles.
COMPILES = {"move/control.cu", "move/element.cu"}
COUNTED, SCANNED = (flow for flow in FLOWS if flow.name in ("counted", "scanned"))


class EmulatedDecisions(CudaDecisions):
    def _read(self, view: View, stream: Any) -> Array:
        found = np.empty(view.type.dims, view.type.dtype)
        ctypes.memmove(found.ctypes.data, pointer(view), found.nbytes)
        return found


@needs_compiler
@pytest.mark.parametrize("unrolled", [0, 1024])
@pytest.mark.parametrize("flow", [COUNTED, SCANNED], ids=str)
def test_rounds(
    flow: Flow, unrolled: int, libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_step, "UNROLLED", unrolled)
    backend = open_emulated(libraries, monkeypatch.setattr)
    monkeypatch.setattr(conditional_nodes, "bind_launch", emulated)
    device: Any = backend.device
    device.decisions = EmulatedDecisions(device)
    with (
        Model(load(flow.model).graph, (backend,), Options(), evaluate) as model,
        tercet.load(flow.model) as reference,
    ):
        for feeds in flow.feeds:
            want = reference.run(feeds)
            for name, data in model.run(feeds).items():
                np.testing.assert_allclose(data, want[name], rtol=2e-5, atol=1e-6)
        assert model.prepare().is_plan


@needs_compiler
def test_the_thread_that_runs_records(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditional nodes ask cuda.core for the device that is current in their thread."""
    monkeypatch.setattr(loop_step, "UNROLLED", 0)
    plant(FakeCompiler(libraries, FAKE), Gate(), monkeypatch.setattr)
    with (
        ThreadPoolExecutor(1) as pool,
        tercet.load(COUNTED.model, "cuda") as model,
        tercet.load(COUNTED.model) as reference,
    ):
        for feeds in (*COUNTED.feeds, *COUNTED.feeds):
            want = reference.run(feeds)
            for name, data in pool.submit(model.run, feeds).result().items():
                np.testing.assert_allclose(data, want[name], rtol=2e-5, atol=1e-6)


def an_element() -> Iterator[Launch]:
    """What takes an element of 1 to 8 bytes out of a tensor, and puts it back."""
    for dtype in (uint8, float16, float32, float64):
        part, whole = (
            View(HOST, HostBuffer(256), 0, TensorType(dtype, dims)) for dims in ((3, 1), (3, 5))
        )
        for entry in ("take", "put"):
            yield moved(entry, part, whole, 1, backward=entry == "put")


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_they_compile(target: Target, cache: Path) -> None:
    launches = [chosen(1), counted(1, 9, first=True), counted(None, 9, first=False), *an_element()]
    all_compile([launch.source for launch in launches], target, cache, COMPILES)
    assert_arguments(launches, target, cache)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_conditional_nodes_are_told_by_kernels(target: Target) -> None:
    compiler = Compiler(target)
    for launch in (chosen(1), counted(1, 9, first=True), counted(None, 9, first=False)):
        code = compiler.code(launch.source)
        assert (b"cudaGraphSetConditional" in code) == dict(launch.constants)["RECORDED"]
