"""Convolutions by computed filters: those of all images, and those of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")
torch = pytest.importorskip("torch")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.session.model import Model

from .cubins import all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned
from .emulator import needs_compiler
from .samples import OPTIONS

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

#: The kernels that this module compiles.
COMPILES = {"conv/pack_filters.cu", "conv/depthwise.cu", "gemm/multistage.cu"}
BOUNDS = {float32: 2e-6, float16: 2e-3}


@dataclass(frozen=True)
class Case:
    """Images, filters, attributes, and the kernels that compute them in float16 and float32."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    how: dict[str, Any] = field(default_factory=dict)
    kernel: str = "mma"
    own: bool = False
    bias: bool = False
    placed: bool = False

    @property
    def group(self) -> int:
        """Groups of an image."""
        return self.x[1] // self.w[1]


CASES = {
    "windows": Case((2, 16, 9, 7), (24, 16, 3, 3), {"pads": (1,) * 4}),
    "pixels": Case((1, 16, 9, 7), (24, 16, 1, 1), {"strides": (2, 2)}),
    "line": Case((2, 16, 30), (8, 16, 5), {"dilations": (2,)}, bias=True),
    "groups": Case((1, 32, 6, 5), (32, 8, 3, 3)),
    "joined groups": Case((1, 16, 6, 5), (16, 4, 3, 3), {"pads": (1,) * 4}),
    "even channels": Case((1, 12, 6, 5), (8, 12, 3, 3)),
    "odd channels": Case((1, 21, 6, 5), (8, 21, 3, 3)),
    "single channels": Case((2, 16, 9, 8), (16, 1, 3, 3), kernel="depthwise", bias=True),
    "no words": Case((2, 6, 9, 8), (6, 1, 5, 3), kernel="depthwise"),
    "images": Case((3, 16, 9, 7), (72, 16, 3, 3), {"pads": (1,) * 4}, own=True),
    "images with bias": Case((2, 16, 9, 7), (32, 16, 3, 3), own=True, bias=True),
    "correlation": Case((3, 16, 9, 8), (48, 1, 5, 5), {}, "depthwise", own=True),
    "template": Case((3, 16, 13, 12), (48, 1, 5, 5), {}, "depthwise", own=True, placed=True),
    "one template": Case((1, 16, 13, 12), (16, 1, 5, 5), {}, "depthwise", placed=True),
    "signals": Case((3, 16, 40), (48, 1, 4), {"strides": (2,)}, "depthwise", own=True, placed=True),
}


def graph_of(case: Case, dtype: DType) -> Graph:
    """Return the convolution as exporters write it, of inputs."""
    graph = Graph()

    def shaped(value: Any, *sizes: int) -> Any:
        return graph.insert(Reshape(), [value, graph.constant(np.array(sizes))]).output

    n, c, *sides = case.x
    count = n if case.own else 1
    x = graph.insert(Relu(), [graph.add_input("x", TensorType(dtype, case.x))]).output
    form = (n, c, *case.w[2:]) if case.placed else case.w
    w = graph.insert(Relu(), [graph.add_input("w", TensorType(dtype, form))]).output
    inputs = [x, shaped(w, *case.w) if case.placed else w]
    if case.own:
        inputs[0] = shaped(x, 1, n * c, *sides)
    if case.bias:
        inputs.append(graph.add_input("b", TensorType(dtype, case.w[:1])))
    y = graph.insert(Conv(group=count * case.group, **case.how), inputs).output
    if case.own:
        infer(graph)
        y = shaped(y, n, case.w[0] // n, *y.tensor.dims[2:])
    graph.set_outputs({"y": graph.insert(Relu(), [y]).output})
    infer(graph)
    return graph


def feeds_of(graph: Graph) -> dict[str, Array]:
    return {v.name: normal(*v.tensor.dims).astype(v.tensor.dtype) for v in graph.inputs}


def expected(case: Case, feeds: dict[str, Array]) -> Array:
    """Return what PyTorch computes in float64."""
    x, w, b = (torch.tensor(feeds[k].astype(np.float64)) if k in feeds else None for k in "xwb")
    assert x is not None and w is not None
    how = {"padding" if k == "pads" else k[:-1]: v for k, v in case.how.items()}
    rank = len(case.x) - 2
    for name in how:
        how[name] = how[name][:rank]
    how = {{"stride": "stride", "dilation": "dilation"}.get(k, k): v for k, v in how.items()}
    call = torch.nn.functional.conv1d if rank == 1 else torch.nn.functional.conv2d
    count = case.x[0] if case.own else 1
    images = x.relu().split(1) if case.own else [x.relu()]
    filters = w.relu().reshape(case.w).chunk(count)
    biases = [None] * count if b is None else b.chunk(count)
    found = [
        call(*each, **how, groups=case.group) for each in zip(images, filters, biases, strict=True)
    ]
    return torch.cat(found).relu().numpy()


@needs_compiler
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_results(case: Case, dtype: DType, emulated: CudaBackend) -> None:
    graph = graph_of(case, dtype)
    feeds = feeds_of(graph)
    with Model(graph.clone(), [emulated], OPTIONS, evaluate) as model:
        got = model.run(feeds)["y"].astype(np.float64)
    want = expected(case, feeds)
    np.testing.assert_allclose(got, want, rtol=0, atol=BOUNDS[dtype] * np.abs(want).max())


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_kernels(case: Case, dtype: DType) -> None:
    found = [launch.entry for launch in launches(planned(graph_of(case, dtype)))]
    print(found)
