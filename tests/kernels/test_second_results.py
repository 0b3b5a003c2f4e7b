"""Epilogues that store two results: one as it is, and an elementwise function of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.algorithms.registry import Answer
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.codegen.epilogue_operands import SECOND
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.gemm import conv_f16
from tercet.backends.cuda.gemm.convolution import ConvProblem
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Value
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Add, Gelu, LeakyRelu, Mul, Relu
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.movement import Concat
from tercet.runtime.ops.norm import BatchNormalization

from .cubins import assert_nothing_spills
from .dry import (
    DryCompiler,
    DryDevice,
    Net,
    apply,
    compiled_files,
    files_of,
    launches,
    normal,
    planned,
)
from .emulator import needs_compiler
from .samples import Sample, compare

Case = Callable[[Net, DType], Value]


def weights(dtype: DType, *shape: int) -> np.ndarray:
    return normal(*shape, scale=0.5 / np.sqrt(np.prod(shape[1:]))).astype(dtype)


def lines(net: Net, dtype: DType) -> Value:
    """Blocks of a vocoder."""
    x = net.input(2, 16, 30, dtype=dtype)
    up = ConvTranspose(strides=(2,), pads=(1, 1))
    y = apply(net.graph, up, x, weights(dtype, 16, 24, 4), weights(dtype, 24))
    for dilation in (1, 3):
        inner = apply(net.graph, LeakyRelu(alpha=0.1), y)
        same = Conv(pads=(dilation, dilation), dilations=(dilation,))
        inner = apply(net.graph, same, inner, weights(dtype, 24, 24, 3), weights(dtype, 24))
        inner = apply(net.graph, LeakyRelu(alpha=0.1), inner)
        inner = apply(net.graph, Conv(pads=(1, 1)), inner, weights(dtype, 24, 24, 3))
        y = apply(net.graph, Add(), inner, y)
    return y


def images(net: Net, dtype: DType, channels: int = 64, size: int = 7) -> Value:
    """Blocks whose activations come first."""
    y = net.input(1, channels, size, size, dtype=dtype)
    for _ in range(3):
        inner = apply(net.graph, Relu(), y)
        same = Conv(pads=(1,) * 4)
        bias = weights(dtype, channels)
        inner = apply(net.graph, same, inner, weights(dtype, channels, channels, 3, 3), bias)
        inner = apply(net.graph, Relu(), inner)
        inner = apply(net.graph, Conv(), inner, weights(dtype, channels, channels, 1, 1), bias)
        y = apply(net.graph, Add(), y, inner)
    return y


def pixels(net: Net, dtype: DType) -> Value:
    """Many pixels of few channels, which are no whole words."""
    return images(net, dtype, 10, 40)


def deep(net: Net, dtype: DType) -> Value:
    """Few pixels with many channels, whose sums are split."""
    return images(net, dtype, 256, 4)


def rows(net: Net, dtype: DType) -> Value:
    """Layers of which each reads an activation of the sums so far, that are scaled besides."""
    y = net.input(70, 64, dtype=dtype)
    for _ in range(2):
        inner = apply(net.graph, MatMul(), y, weights(dtype, 64, 64).T.copy())
        y = apply(net.graph, Add(), apply(net.graph, Add(), inner, weights(dtype, 64)), y)
        inner = apply(net.graph, Gelu(), apply(net.graph, Mul(), y, np.array(0.5, dtype)))
        inner = apply(net.graph, MatMul(), inner, weights(dtype, 64, 64).T.copy())
        y = apply(net.graph, Add(), inner, y)
    return y


def scaled(net: Net, dtype: DType, channels: int = 64, size: int = 7) -> Value:
    """Blocks whose normalizations come first; every other convolution has no bias."""
    y = net.input(2, channels, size, size, dtype=dtype)
    for block in range(3):
        statistics = [np.abs(normal(channels)).astype(dtype) + dtype.type(0.5) for _ in range(4)]
        inner = apply(net.graph, BatchNormalization(), y, *statistics)
        inner = apply(net.graph, Relu(), inner)
        inner = apply(
            net.graph, Conv(pads=(1,) * 4), inner, weights(dtype, channels, channels, 3, 3)
        )
        inner = apply(net.graph, Relu(), inner)
        bias = (weights(dtype, channels),) * (block % 2)
        w = weights(dtype, channels, channels, 1, 1)
        y = apply(net.graph, Add(), y, apply(net.graph, Conv(), inner, w, *bias))
    return y


def narrow(net: Net, dtype: DType) -> Value:
    """The same with channels that are no whole words."""
    return scaled(net, dtype, 20, 9)


def wide(net: Net, dtype: DType, channels: int = 256, taps: int = 1) -> Value:
    """Many pixels, to which layers of few terms add: products of many rows."""
    x, y = (net.input(1, n, 24, 24, dtype=dtype) for n in (64, channels))
    w, bias = weights(dtype, channels, 64, taps, taps), weights(dtype, channels)
    same = Conv(pads=(taps // 2,) * 4)
    last = weights(dtype, 64, channels, 1, 1)
    y = apply(net.graph, Add(), apply(net.graph, same, x, w, bias), y)
    inner = apply(net.graph, Conv(), apply(net.graph, Relu(), y), last)
    z = apply(net.graph, Add(), apply(net.graph, same, x, w), y)
    statistics = [np.abs(normal(channels)).astype(dtype) + dtype.type(0.5) for _ in range(4)]
    scaled = apply(net.graph, BatchNormalization(), z, *statistics)
    again = apply(net.graph, Conv(), scaled, last)
    sums = apply(net.graph, Add(), inner, again)
    return apply(net.graph, Concat(axis=1), sums, apply(net.graph, Add(), y, z))


def filtered(net: Net, dtype: DType) -> Value:
    """Few filters of 3 x 3 pixels, which stay in shared memory."""
    return wide(net, dtype, 64, 3)


CASES: tuple[Case, ...] = (lines, images, pixels, deep, rows, scaled, narrow)
DTYPES = pytest.mark.parametrize("dtype", [float16, float32], ids=lambda dtype: dtype.name)
NETWORKS = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


def sample_of(case: Case, dtype: DType) -> Sample:
    net = Net()
    return Sample(net.outputs(case(net, dtype)), net.feeds)


@needs_compiler
@DTYPES
@NETWORKS
def test_emulated(case: Case, dtype: DType, emulated: CudaBackend) -> None:
    compare(sample_of(case, dtype), emulated)


@pytest.mark.slow
@needs_compiler
@DTYPES
@NETWORKS
def test_wgmma(case: Case, dtype: DType, hopper: CudaBackend) -> None:
    compare(sample_of(case, dtype), hopper)


@pytest.mark.slow
@needs_compiler
@DTYPES
@pytest.mark.parametrize("case", [lines, deep], ids=lambda case: case.__name__)
def test_clusters(case: Case, dtype: DType, h200: CudaBackend) -> None:
    compare(sample_of(case, dtype), h200)


#: What computes products of many rows in float16: networks and files.
KERNELS: dict[str, tuple[Case, str]] = {
    "tma ": (wide, "gemm/tma.cu"),
    "stationary": (filtered, "gemm/stationary.cu"),
    "tma_persistent": (wide, "gemm/tma_persistent.cu"),
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel(name: str, hopper: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    by_estimate, done = conv_f16.convolution, list[str]()

    def by_name(conv: ConvProblem, variant: str = "") -> Answer:
        forms = conv_f16.convolution_forms(conv) if SECOND in conv.epilogue.kinds else ()
        for form in forms:
            if form.title.startswith(name):
                done.append(form.title)
                return form.make()
        return by_estimate(conv, variant)

    monkeypatch.setattr(conv_f16, "convolution", by_name)
    case, file = KERNELS[name]
    compare(sample_of(case, float16), hopper)
    assert done
    assert file in compiled_files(hopper)


@pytest.mark.parametrize("target", [A100, H200], ids=["sm_80", "sm_90a"])
@DTYPES
@NETWORKS
def test_nothing_is_read_for_an_activation(case: Case, dtype: DType, target: Target) -> None:
    """Only that of the input is a launch of its own."""
    device = DryDevice(compiler=DryCompiler(target=target))
    found = launches(planned(sample_of(case, dtype).graph, device))
    alone = [each for each in found if each.file.startswith(("elementwise/", "norm/"))]
    scales = case in (scaled, narrow)
    if scales and dtype == float32 and not target.has_wgmma:  # by simt.cu, which does not
        assert len(alone) == 3
    else:
        assert len(alone) == (scales or case in (images, pixels, deep))


def test_results_that_are_joined_are_stored_in_place() -> None:
    net = Net()
    x = net.input(1, 64, 8, 8)
    first, other = (apply(net.graph, Conv(), x, normal(64, 64, 1, 1)) for _ in range(2))
    inner = apply(net.graph, Conv(), apply(net.graph, Relu(), first), normal(64, 64, 1, 1))
    joined = apply(net.graph, Concat(axis=1), first, other)
    y = apply(net.graph, Conv(), joined, normal(64, 128, 1, 1))
    assert any("elementwise" in file for file in files_of(net.outputs(y, inner)))


@pytest.mark.slow
@pytest.mark.parametrize("target", [A100, H200], ids=["sm_80", "sm_90a"])
def test_nothing_spills(target: Target, cache: Path) -> None:
    device = DryDevice(compiler=DryCompiler(target=target))
    for case, dtype in product((*CASES, wide, filtered), (float16, float32)):
        planned(sample_of(case, dtype).graph, device)
    found = [source for source in device.compiler.sources if "#define SECOND" in source.code]
    assert found
    assert_nothing_spills(found, Compiler(target, cache))
