"""What cuDNN is told of an operator computes what ONNX asks for: windows, pads, groups, strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")
pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import onnxruntime
import torch

from tercet.backends.cudnn.conv import Convolution, describe
from tercet.backends.cudnn.matmul import MatMulProblem
from tercet.backends.cudnn.matmul import describe as describe_product
from tercet.importers.onnx.writing.export import export
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph as IRGraph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.matmul import Gemm
from tercet.tools.workshop.convolution_cases import ConvolutionCase

#: Both ends of both axes differ, in all that a window has.
CASES = (
    ConvolutionCase(Conv(pads=(1, 2, 3, 0)), (2, 4, 9, 8), (6, 4, 3, 2)),
    ConvolutionCase(Conv(strides=(2, 3), dilations=(2, 1)), (1, 3, 11, 10), (5, 3, 3, 2)),
    ConvolutionCase(Conv(group=2, pads=(0, 1, 2, 0), strides=(1, 2)), (1, 4, 7, 9), (6, 2, 2, 3)),
    ConvolutionCase(Conv(pads=(2, 1), dilations=(3,)), (2, 3, 12), (4, 3, 3)),
    ConvolutionCase(ConvTranspose(pads=(1, 0, 0, 2), strides=(2, 3)), (1, 4, 5, 4), (4, 3, 3, 4)),
    ConvolutionCase(
        ConvTranspose(output_padding=(1, 0), strides=(3, 1)), (2, 2, 3, 4), (2, 5, 2, 3)
    ),
)


class Computed:
    """A tensor of `Graph`; that of a gradient is computed once its sizes are set."""

    def __init__(
        self, data: Any = None, of_sizes: Callable[[list[int]], Any] | None = None
    ) -> None:
        self.data, self._of_sizes = data, of_sizes

    def set_dim(self, dims: list[int]) -> None:
        assert self._of_sizes is not None
        self.data = self._of_sizes(dims)


class Graph:
    """Stands for cuDNN's graph: computes by its definitions of a convolution and its gradient."""

    def conv_fprop(self, image: Any, weight: Any, **windows: list[int]) -> Computed:
        begin, end = windows["pre_padding"], windows["post_padding"]
        sides = [size for pair in zip(begin[::-1], end[::-1], strict=True) for size in pair]
        groups = image.shape[1] // weight.shape[1]
        how = {"stride": windows["stride"], "dilation": windows["dilation"], "groups": groups}
        padded = torch.nn.functional.pad(image, sides)
        return Computed(torch.nn.functional.conv2d(padded, weight, **how))

    def matmul(self, A: Any, B: Any) -> Computed:  # cuDNN's names
        return Computed(torch.matmul(A, B))

    def conv_dgrad(self, loss: Any, filter: Any, **windows: list[int]) -> Computed:
        """The gradient of the image of which the forward convolution makes `loss`."""

        def gradient(dims: list[int]) -> Any:
            x = torch.zeros(dims, dtype=loss.dtype, requires_grad=True)
            self.conv_fprop(x, filter, **windows).data.backward(loss)
            return x.grad

        return Computed(of_sizes=gradient)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_are_those_of_the_operator(case: ConvolutionCase) -> None:
    found = describe(case.graph().nodes[0])
    assert isinstance(found, Convolution)
    weights, _ = case.constants()
    image = np.random.default_rng(0).standard_normal(case.x).astype(np.float32)
    x, w = (torch.from_numpy(data).double() for data in (image, weights))
    tensors = {"x": x.reshape(found.x.dims), "w": w.reshape(found.w.dims)}
    y = found.express(Graph(), None, tensors)["y"].data
    assert tuple(y.shape) == found.y.dims
    np.testing.assert_allclose(y.flatten().numpy(), of_onnxruntime(case, image), 1e-4, 1e-4)


def of_onnxruntime(case: ConvolutionCase, image: Any) -> Any:
    session = onnxruntime.InferenceSession(
        export(case.graph(), at_least={"": 13}).SerializeToString()
    )
    return np.asarray(session.run(None, {"x": image})[0]).reshape(-1)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("of_a", [0, 1])
@pytest.mark.parametrize("of_b", [0, 1])
def test_products_are_of_elements_where_they_are(of_a: int, of_b: int, transposed: bool) -> None:
    """Also as the product of the transposed matrices, in the other order."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 3) if of_a else (3, 5)).astype(np.float32)
    b = rng.standard_normal((4, 5) if of_b else (5, 4)).astype(np.float32)
    graph = IRGraph("product")
    values = [
        graph.add_input(name, TensorType(float32, x.shape)) for name, x in (("a", a), ("b", b))
    ]
    node = graph.insert(Gemm(transA=of_a, transB=of_b), values)
    infer(graph)
    described = describe_product(node, "tf32")
    assert isinstance(described, MatMulProblem)
    found = replace(described, transposed=transposed)
    tensors = {
        role: torch.as_strided(torch.from_numpy(data), operand.dims, operand.strides)
        for role, data in (("a", a), ("b", b))
        for operand in (found.operands[role],)
    }
    y = found.express(Graph(), None, tensors)["y"].data
    expected = (a.T if of_a else a) @ (b.T if of_b else b)
    written = np.zeros((3, 4), np.float32)
    place = found.operands["y"]
    torch.as_strided(torch.from_numpy(written), place.dims, place.strides).copy_(y)
    np.testing.assert_allclose(written, expected, 1e-5, 1e-5)
