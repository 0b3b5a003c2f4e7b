"""What cuDNN is told of an operator computes what ONNX asks for: windows, pads, groups, strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import onnxruntime

from tercet.backends.cudnn.conv import Convolution, describe
from tercet.backends.cudnn.matmul import MatMulProblem
from tercet.backends.cudnn.matmul import describe as describe_product
from tercet.importers.onnx.writing.export import export
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph as IRGraph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
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
        sides = [*zip(windows["pre_padding"], windows["post_padding"], strict=True)]
        padded = np.pad(image, [(0, 0), (0, 0), *sides])
        dilation, stride = windows["dilation"], windows["stride"]
        spans = [1 + (n - 1) * d for n, d in zip(weight.shape[2:], dilation, strict=True)]
        seen = sliding_window_view(padded, spans, (2, 3))
        seen = seen[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
        groups = image.shape[1] // weight.shape[1]
        parts = zip(np.split(seen, groups, 1), np.split(weight, groups), strict=True)
        return Computed(
            np.concatenate([np.einsum("ncpqhw,kchw->nkpq", *part) for part in parts], 1)
        )

    def matmul(self, A: Any, B: Any) -> Computed:  # cuDNN's names
        return Computed(A @ B)

    def conv_dgrad(self, loss: Any, filter: Any, **windows: list[int]) -> Computed:
        """The gradient of the image of which the forward convolution makes `loss`."""

        def gradient(dims: list[int]) -> Any:
            count = prod(dims[1:])
            each = np.eye(count).reshape(count, *dims[1:])
            of_each = self.conv_fprop(each, filter, **windows).data
            return np.einsum("ikpq,nkpq->ni", of_each, loss).reshape(dims)

        return Computed(of_sizes=gradient)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_windows_are_those_of_the_operator(case: ConvolutionCase) -> None:
    found = describe(case.graph().nodes[0])
    assert isinstance(found, Convolution)
    weights, _ = case.constants()
    image = np.random.default_rng(0).standard_normal(case.x).astype(np.float32)
    tensors = {
        "x": image.astype(np.float64).reshape(found.x.dims),
        "w": weights.astype(np.float64).reshape(found.w.dims),
    }
    y = found.express(Graph(), None, tensors)["y"].data
    assert tuple(y.shape) == found.y.dims
    np.testing.assert_allclose(y.reshape(-1), of_onnxruntime(case, image), 1e-4, 1e-4)


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
        role: strided(data, operand.dims, operand.strides)
        for role, data in (("a", a), ("b", b))
        for operand in (found.operands[role],)
    }
    y = found.express(Graph(), None, tensors)["y"].data
    expected = (a.T if of_a else a) @ (b.T if of_b else b)
    written = np.zeros((3, 4), np.float32)
    place = found.operands["y"]
    strided(written, place.dims, place.strides)[...] = y
    np.testing.assert_allclose(written, expected, 1e-5, 1e-5)


def strided(data: Array, dims: Sequence[int], strides: Sequence[int]) -> Array:
    """Return an array at places of another, whose strides count elements."""
    return as_strided(data, tuple(dims), [data.itemsize * each for each in strides])
