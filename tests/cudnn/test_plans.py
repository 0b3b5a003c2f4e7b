"""Whole plans with a double of cuDNN, which reads and writes the memory that it is given.

The kernels around it run on the host, as they are; needs a C++ compiler, but no GPU and no cuDNN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import Op
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Add, Clip, Mish, Relu, Swish
from tercet.runtime.ops.movement import Concat
from tercet.runtime.ops.pool import MaxPool
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model
from tercet.tools.workshop.convolution_cases import convolved

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn import epilogue, prepack
from tercet.backends.cudnn.backend import CudnnBackend
from tercet.backends.cudnn.choice import EngineChoice, EngineTask
from tercet.backends.cudnn.convolution import Convolution
from tercet.backends.cudnn.operation import Operand
from tercet.backends.cudnn.stages import FLOW, PointwiseStage

from ..kernels.emulator import emulated, needs_compiler, open_emulated

pytestmark = [pytest.mark.slow, needs_compiler]


@dataclass
class Described:
    """In the place of a graph: only what it computes."""

    operation: Convolution


@dataclass
class HostEngine:
    """In the place of an engine: computes with numpy, in float64."""

    graph: Described
    name: str = "numpy"
    scratch: int = 64
    compiled: bool = False
    milliseconds: float = 0.0

    def execute(self, addresses: Mapping[str, int], scratch: int, stream: object) -> None:
        made = self.graph.operation
        assert set(addresses) == set(made.operands)
        ctypes.memset(scratch, 0xFF, self.scratch)
        seen = {role: memory(addresses[role], made.operands[role]) for role in addresses}
        y = convolved(
            Conv(
                group=made.group,
                pads=made.pads_begin + made.pads_end,
                strides=made.strides,
                dilations=made.dilations,
            ),
            np.array(seen["x"]),
            np.array(seen["w"]),
        )
        for stage in made.epilogue.stages:
            y = applied(stage, y, seen)
        seen["y"][...] = y


def memory(address: int, operand: Operand) -> Array:
    """The elements at an address, in logical order."""
    held = (ctypes.c_uint8 * operand.extent).from_address(address)
    elements = np.ctypeslib.as_array(held).view(operand.dtype)
    strides = [step * operand.dtype.itemsize for step in operand.strides]
    return np.lib.stride_tricks.as_strided(elements, operand.dims, strides)


def applied(stage: PointwiseStage, flow: Array, seen: Mapping[str, Array]) -> Array:
    """What a stage gives, in float64."""
    inputs: list[Array | None] = []
    for given in stage.inputs:
        if isinstance(given, str):
            inputs.append(flow if given == FLOW else seen[given].astype(np.float64))
        else:
            inputs.append(None if given is None else np.asarray(given, np.float64))
    found = evaluate(stage.op, inputs, 1)
    assert found is not None
    return found[0]


class Takes:
    """A chooser that takes one of the ways to divide a task, the last one where there are fewer."""

    def __init__(self, way: int) -> None:
        self.division = way
        self.taken: list[str] = []

    def choose(self, task: EngineTask, judge: object, *, tune: bool) -> EngineChoice:
        way = task.divisions[min(self.division, len(task.divisions) - 1)]
        self.taken.append(str(way))
        operation: Any = way.operation
        engine: Any = HostEngine(Described(operation))
        return EngineChoice(engine, way.rest, front=way.front)


def run(
    graph: Graph, way: int, folder: Path, libraries: Path, feeds: dict[str, Array]
) -> tuple[Array, list[str]]:
    """The only result, and what ran on cuDNN."""
    with pytest.MonkeyPatch.context() as patch:
        cuda = open_emulated(libraries, patch.setattr)
        chooser: Any = Takes(way)
        backends = (CudnnBackend(cuda.device, chooser), cuda)
        with Model(graph, backends, Options(cache=folder), evaluate) as model:
            (got,) = model.run(feeds).values()
            kinds = [row.kind for row in model.placement()]
    assert kinds.count("reformat") <= 1, "nothing but the result"
    return got, chooser.taken


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prepack, epilogue):
        monkeypatch.setattr(module, "bind_launch", emulated)


def weights(*dims: int) -> Array:
    return np.random.default_rng(sum(dims)).standard_normal(dims) / np.sqrt(np.prod(dims[1:]))


def network(dtype: DType) -> tuple[Graph, dict[str, Array], Array]:
    """A first layer, branches that are joined, a residual; with numbers and the result."""
    graph = Graph()
    x = graph.add_input("x", TensorType(dtype, (2, 3, 12, 10)))
    data = np.random.default_rng(1).standard_normal((2, 3, 12, 10)).astype(dtype)
    want: dict[Value, Array] = {x: data.astype(np.float64)}

    def put(op: Op, *inputs: Value) -> Value:
        y = graph.insert(op, list(inputs)).output
        infer(graph)
        found = evaluate(op, [want[v] for v in inputs], 1)
        assert found is not None
        want[y] = found[0]
        return y

    def constant(data: Array) -> Value:
        value = graph.constant(data.astype(dtype))
        want[value] = data.astype(dtype).astype(np.float64)
        return value

    def conv(x: Value, filters: int, size: int) -> Value:
        w = constant(weights(filters, x.tensor.dims[1], size, size))
        op = Conv(pads=(size // 2,) * 4)
        return put(op, x, w, constant(weights(filters)))

    x = put(Relu(), conv(x, 16, 3))
    x = put(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), x)
    x = put(Concat(axis=1), put(Swish(), conv(x, 8, 1)), put(Relu(), conv(x, 24, 3)))
    y = put(Relu(), put(Add(), conv(x, 32, 3), x))
    y = put(Clip(), put(Mish(), conv(y, 8, 1)), constant(np.array(0.0)), constant(np.array(0.5)))
    graph.set_outputs({"y": y})
    return graph, {"x": data}, want[y]


@pytest.mark.parametrize("dtype", [float32, float16], ids=str)
@pytest.mark.parametrize("way", [0, 1, 2])
def test_every_division_is_right(dtype: DType, way: int, folder: Path, libraries: Path) -> None:
    graph, feeds, want = network(dtype)
    got, taken = run(graph, way, folder, libraries, feeds)
    assert len(taken) == 5
    assert taken[0].startswith("x packed from 2x3x12x10 float16, conv") == (dtype == float16)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert error < {float32: 1e-6, float16: 2e-3}[dtype]
