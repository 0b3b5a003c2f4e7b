"""Filters of spectra: a transform, products of coefficients, and the transform back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.runtime.ir.dtypes import float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Neg, Relu, Sub
from tercet.runtime.ops.movement import Concat, Slice, Transpose
from tercet.runtime.ops.shape import Squeeze, Unsqueeze
from tercet.runtime.ops.signal import DFT

from .cubins import all_compile
from .dry import apply, launches, normal, planned
from .emulator import needs_compiler
from .samples import Sample, compare, results_of

if TYPE_CHECKING:
    from pathlib import Path

    from tercet.backends.cuda.backend import CudaBackend

COMPILES = {"sequence/filter.cu"}
FILE = "sequence/filter.cu"


def numbers(*values: int) -> Array:
    return np.array(values, np.int64)


def part(graph: Graph, x: Value, axis: int, start: int, end: int) -> Value:
    return apply(graph, Slice(), x, numbers(start), numbers(end), numbers(axis))


def multiplied(graph: Graph, a: Value, by: Value | Array) -> Value:
    """Return the product of two spectra, whose last axis has real and imaginary parts."""
    real, imaginary = (part(graph, a, -1, i, i + 1) for i in range(2))
    if isinstance(by, Value):
        c, d = (part(graph, by, -1, i, i + 1) for i in range(2))
    else:
        c, d = (graph.constant(np.ascontiguousarray(by[..., i : i + 1])) for i in range(2))
    first = apply(graph, Sub(), apply(graph, Mul(), real, c), apply(graph, Mul(), imaginary, d))
    second = apply(graph, Add(), apply(graph, Mul(), real, d), apply(graph, Mul(), imaginary, c))
    return apply(graph, Concat(axis=-1), first, second)


def pairs(spectrum: Array) -> Array:
    return np.stack((spectrum.real, spectrum.imag), -1).astype(float32)


LONG = {
    # samples, channels, length of signals and of the transform, dtype, rows
    "causal": (2, 5, 24, 48, float32, False),
    "odd": (1, 3, 20, 39, float32, False),
    "16 bits": (2, 6, 32, 64, float16, False),
    "channels last": (2, 6, 24, 48, float32, True),
    "many channels, last": (2, 515, 16, 32, float16, True),
    "float64": (1, 2, 24, 48, float64, False),
}


def long(name: str, by: Array) -> Graph:
    """Return a causal convolution with a filter as long as the signals (Hyena, S4)."""
    samples, channels, length, of, dtype, rows = LONG[name]
    graph = Graph("filter")
    shape = (samples, length, channels) if rows else (samples, channels, length)
    x = graph.add_input("x", TensorType(dtype, shape))
    signal = apply(graph, Transpose(perm=(0, 2, 1)), apply(graph, Relu(), x)) if rows else x
    wide = float64 if dtype == float64 else float32
    signal = apply(graph, Unsqueeze(), signal, numbers(3))
    if dtype == float16:
        signal = apply(graph, Cast(to=float32), signal)
    spectrum = apply(graph, DFT(onesided=1), signal, numbers(of), np.array(2, np.int64))
    found = multiplied(graph, spectrum, by.astype(wide))
    op = DFT(inverse=1, onesided=1)
    back = apply(graph, op, found, numbers(of), np.array(2, np.int64))
    y = part(graph, apply(graph, Squeeze(), back, numbers(3)), 2, 0, length)
    if rows:
        y = apply(graph, Relu(), apply(graph, Transpose(perm=(0, 2, 1)), y))
    graph.set_outputs({"y": y})
    infer(graph)
    return graph


@needs_compiler
@pytest.mark.parametrize("name", LONG)
def test_long_convolutions(name: str, emulated: CudaBackend) -> None:
    _, channels, length, of, dtype, rows = LONG[name]
    taps = normal(channels, length)
    graph = long(name, pairs(np.fft.rfft(taps, of)))
    made = launches(planned(graph))
    assert FILE in {launch.source.file for launch in made}
    assert not rows or len(made) == 3
    x = normal(*graph.inputs[0].tensor.dims).astype(dtype)
    (found,) = results_of(Sample(graph, {"x": x}), [emulated])
    signals = np.maximum(x, 0).transpose(0, 2, 1) if rows else x
    spectrum = np.fft.rfft(signals.astype(float64), of) * np.fft.rfft(taps.astype(float64), of)
    wanted = np.fft.irfft(spectrum, of)[..., :length]
    wanted = np.maximum(wanted, 0).transpose(0, 2, 1) if rows else wanted
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())


def columns(height: int, width: int, *, computed: bool = False, conjugate: bool = False) -> Graph:
    """Return a filter of the columns of an image, all whose coefficients are complex (GFNet)."""
    graph, shape = Graph("filter"), (height, width, 2)
    x = graph.add_input("x", TensorType(float32, (2, *shape)))
    by = graph.add_input("by", TensorType(float32, shape)) if computed else normal(*shape)
    sizes = np.array(height), np.array(1)
    found = multiplied(graph, apply(graph, DFT(), x, *sizes), by)
    if conjugate:
        real, imaginary = (part(graph, found, -1, i, i + 1) for i in range(2))
        found = apply(graph, Concat(axis=-1), real, apply(graph, Neg(), imaginary))
    graph.set_outputs({"y": apply(graph, DFT(inverse=1), found, *sizes)})
    infer(graph)
    return graph


@needs_compiler
@pytest.mark.parametrize(("height", "width"), [(32, 5), (36, 259)])
def test_computed_filters_of_columns(height: int, width: int, emulated: CudaBackend) -> None:
    graph = columns(height, width, computed=True)
    assert launches(planned(graph))[-1].source.file == FILE
    x, by = normal(2, height, width, 2), normal(height, width, 2)
    (found,) = results_of(Sample(graph, {"x": x, "by": by}), [emulated])
    a, b = (each[..., 0] + 1j * each[..., 1].astype(float64) for each in (x, by))
    wanted = pairs(np.fft.ifft(np.fft.fft(a, axis=1) * b, axis=1))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())


def test_other_transforms_stay() -> None:
    short, read = columns(8, 64), columns(32, 64)
    transform = next(node for node in read.nodes if isinstance(node.op, DFT))
    read.set_outputs({"y": read.outputs["y"], "spectrum": transform.output})
    twice = columns(32, 64, conjugate=True)
    for graph in (short, read, twice):
        assert FILE not in {launch.source.file for launch in launches(planned(graph))}


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_kernels_compile(target: Target, cache: Path) -> None:
    graphs = [columns(36, 259, computed=True)]
    for name, (_, channels, length, of, *_) in LONG.items():
        graphs.append(long(name, pairs(np.fft.rfft(normal(channels, length), of))))
    sources = [launch.source for graph in graphs for launch in launches(planned(graph))]
    all_compile(sources, target, cache, COMPILES)


def widened(length: int) -> Sample:
    """The spectrum of 16-bit floats in float32."""
    graph, x = Graph("widened"), normal(3, length, 2).astype(float16)
    wide = apply(graph, Cast(to=float32), graph.add_input("x", TensorType(float16, x.shape)))
    graph.set_outputs({"y": apply(graph, DFT(), wide)})
    infer(graph)
    return Sample(graph, {"x": x})


@needs_compiler
@pytest.mark.parametrize(("length", "file"), [(6, "dft.cu"), (48, "fft.cu")])
def test_transforms_widen_what_they_read(length: int, file: str, emulated: CudaBackend) -> None:
    made = widened(length)
    assert [each.file for each in launches(planned(made.graph))] == [f"sequence/{file}"]
    compare(made, emulated, error=1e-6)
