"""Signal processing: Fourier transforms, windows and the mel scale.

Complex numbers have a last axis of size 2, real ones of size 1.
"""

from __future__ import annotations

from ..errors import ShapeError
from ..ir.dtypes import DType, float32
from ..ir.op import Op, op
from ..ir.types import Dim, TensorType
from .shapes import checked, dim, int_of, need_rank, normalize_axis, same_dim, shape_text


def _half(n: Dim) -> Dim:
    """Return the size of the one-sided spectrum of `n` real numbers."""
    return n // 2 + 1 if isinstance(n, int) else None


def _need_positive(n: Dim, name: str) -> Dim:
    if isinstance(n, int) and n < 1:
        raise ShapeError(f"{name}={n}; it must be 1 or more")
    return n


def _need_parts(x: TensorType, name: str, allowed: tuple[int, ...]) -> None:
    parts = dim(x, -1)
    if isinstance(parts, int) and parts not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise ShapeError(f"{name} {x} must have a last axis of {wanted} (1: real, 2: complex)")


@op
class DFT(Op):
    """Discrete Fourier transform along `axis` (an input, -2 by default) (ONNX 20).

    The signal is truncated or zero-padded to `dft_length`. `onesided` gives the first dft_length //
    2 + 1 coefficients of a real signal; together with `inverse` it takes them and gives dft_length
    real numbers, by default 2 * (size - 1).
    """

    inverse: int = 0
    onesided: int = 0

    def infer(
        self,
        input: TensorType,
        dft_length: TensorType | None = None,
        axis: TensorType | None = None,
    ) -> TensorType:
        along = -2 if axis is None else int_of(axis, "axis")
        if input.shape is None:
            return input.with_shape(None)
        if len(input.shape) < 2:
            raise ShapeError(f"input {input} needs an axis of signal and one of 1 or 2 parts")
        expected = ((1,) if not self.inverse else (2,)) if self.onesided else (1, 2)
        _need_parts(input, "input", expected)
        parts = 1 if self.onesided and self.inverse else 2
        if not isinstance(along, int):
            same = not self.onesided and dft_length is None
            sizes = input.shape[:-1] if same else (None,) * (len(input.shape) - 1)
            return input.with_shape((*sizes, parts))
        along = normalize_axis(along, len(input.shape))
        if along == len(input.shape) - 1:
            raise ShapeError(f"axis={along} of input {input} holds real and imaginary parts")
        shape = [*input.shape[:-1], parts]
        n = self.length(input, dft_length, axis)
        shape[along] = _half(n) if self.onesided and not self.inverse else n
        return input.with_shape(checked(shape))

    def length(
        self,
        input: TensorType,
        dft_length: TensorType | None = None,
        axis: TensorType | None = None,
    ) -> Dim:
        """Return how many elements are transformed."""
        if dft_length is not None:
            return _need_positive(int_of(dft_length, "dft_length"), "dft_length")
        along = -2 if axis is None else int_of(axis, "axis")
        if input.shape is None or not isinstance(along, int):
            return None
        size = input.shape[along]
        if not (self.onesided and self.inverse):
            return _need_positive(size, "length of the signal")
        return _need_positive(2 * (size - 1), "dft_length") if isinstance(size, int) else None


@op
class STFT(Op):
    """DFT of every frame of the signal, `frame_step` apart, times `window` (ONNX 17).

    [batch, length, 1 or 2] → [batch, frames, coefficients, 2] with
    frames = (length - frame_length) // frame_step + 1. `frame_length` defaults to the length of
    the window; without a window as well, to that of the signal.
    """

    onesided: int = 1

    def infer(
        self,
        signal: TensorType,
        frame_step: TensorType,
        window: TensorType | None = None,
        frame_length: TensorType | None = None,
    ) -> TensorType:
        need_rank(signal, 3, "signal")
        need_rank(window, 1, "window")
        _need_parts(signal, "signal", (1,) if self.onesided else (1, 2))
        step = _need_positive(int_of(frame_step, "frame_step"), "frame_step")
        length = dim(signal, 1)
        n = self.length(signal, frame_step, window, frame_length)
        frames = None
        if isinstance(length, int) and isinstance(n, int):
            if n > length:
                raise ShapeError(f"frames of {n} elements in a signal of {length}")
            frames = (length - n) // step + 1 if isinstance(step, int) else None
        return signal.with_shape((dim(signal, 0), frames, _half(n) if self.onesided else n, 2))

    def length(
        self,
        signal: TensorType,
        _frame_step: TensorType,
        window: TensorType | None = None,
        frame_length: TensorType | None = None,
    ) -> Dim:
        """Return how many elements of a frame are transformed."""
        if window is None and frame_length is None:
            n = dim(signal, 1)
        else:
            n = int_of(frame_length, "frame_length")
            n = same_dim(n, dim(window, 0), "frame_length and the window's length")
        return _need_positive(n, "frame_length")


def _window(size: TensorType, dtype: DType) -> TensorType:
    n = int_of(size, "size")
    return TensorType(dtype, checked((n,)))


@op
class HannWindow(Op):
    """0.5 - 0.5 * cos(2 pi i / n) for i < size, n = size, or size - 1 if not periodic (ONNX 17)."""

    output_datatype: DType = float32
    periodic: int = 1

    def infer(self, size: TensorType) -> TensorType:
        return _window(size, self.output_datatype)


@op
class HammingWindow(Op):
    """25/46 - 21/46 * cos(2 pi i / n) for i < size; n as in HannWindow (ONNX 17)."""

    output_datatype: DType = float32
    periodic: int = 1

    def infer(self, size: TensorType) -> TensorType:
        return _window(size, self.output_datatype)


@op
class BlackmanWindow(Op):
    """0.42 - 0.5 * cos(2 pi i / n) + 0.08 * cos(4 pi i / n) for i < size (ONNX 17)."""

    output_datatype: DType = float32
    periodic: int = 1

    def infer(self, size: TensorType) -> TensorType:
        return _window(size, self.output_datatype)


@op
class MelWeightMatrix(Op):
    """Triangles on the mel scale, mel(f) = 2595 * log10(1 + f/700), as a matrix (ONNX 17).

    [dft_length // 2 + 1, num_mel_bins]; frequencies are in hertz.
    """

    output_datatype: DType = float32

    def infer(
        self,
        num_mel_bins: TensorType,
        dft_length: TensorType,
        sample_rate: TensorType,
        lower_edge_hertz: TensorType,
        upper_edge_hertz: TensorType,
    ) -> TensorType:
        bins = _need_positive(int_of(num_mel_bins, "num_mel_bins"), "num_mel_bins")
        n = _need_positive(int_of(dft_length, "dft_length"), "dft_length")
        _need_positive(int_of(sample_rate, "sample_rate"), "sample_rate")
        for name, edge in (
            ("lower_edge_hertz", lower_edge_hertz),
            ("upper_edge_hertz", upper_edge_hertz),
        ):
            if edge.shape not in (None, (), (1,)):
                raise ShapeError(f"{name} {shape_text(edge.shape)} must be a scalar")
        return TensorType(self.output_datatype, checked((_half(n), bins)))
