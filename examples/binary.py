"""A convolution of signs: weights and pixels of one bit, multiplied by xor and popcount.

    python examples/binary.py                           # on numpy
    python examples/binary.py cuda --write model.onnx   # with the kernels below

Rastegari et al., "XNOR-Net" (ECCV 2016): weights are their signs times the mean magnitude of each
filter. ONNX defines neither operator. This file defines both, as a numpy function, which is the
reference, and as CUDA source; `tercet compare model.onnx --operators examples/binary.py` compares
the two on the model that `--write` has saved.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper, save
from onnx.parser import parse_model

import tercet

Array = np.ndarray[Any, Any]

SOURCE = r"""
// Bit i of packed[n][j][p] is set where x[n][32 j + i][p] is negative. One thread per word.
extern "C" __global__ void pack_signs(
    const float* x, uint32* packed, int channels, int pixels, int words, int count)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int pixel = at % pixels, j = at / pixels % words, n = at / pixels / words;
    uint32 bits = 0;
    for (int i = 0; i < 32 && 32 * j + i < channels; ++i)
        bits |= (uint32)(x[((long long)n * channels + 32 * j + i) * pixels + pixel] < 0) << i;
    packed[at] = bits;
}

// y = scale * sum of products of signs; pixels outside the image count as 0. One thread per output.
// A sum is the number of products minus twice the number of those whose signs differ.
extern "C" __global__ void binary_conv(
    const uint32* x, const uint32* w, const float* scale, float* y, int channels, int words,
    int height, int width, int filters, int window, int pad, int out_height, int out_width,
    int count)
{
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    int q = at % out_width, p = at / out_width % out_height;
    int filter = at / out_width / out_height % filters, n = at / out_width / out_height / filters;
    int differing = 0, pixels = 0;
    for (int r = 0; r < window; ++r)
        for (int s = 0; s < window; ++s) {
            int h = p + r - pad, v = q + s - pad;
            if (h < 0 || v < 0 || h >= height || v >= width) continue;
            ++pixels;
            for (int j = 0; j < words; ++j)
                differing += __popc(x[((n * words + j) * height + h) * width + v]
                                    ^ w[((filter * words + j) * window + r) * window + s]);
        }
    y[at] = scale[filter] * (float)(channels * pixels - 2 * differing);
}
"""


def pack_signs(x: Array) -> Array:
    """Return the signs of `[n, c, h, w]` as bits: uint32 `[n, ceil(c / 32), h, w]`."""
    bits = np.zeros((len(x), -(-x.shape[1] // 32) * 32, *x.shape[2:]), np.uint32)
    bits[:, : x.shape[1]] = x < 0
    bits = bits.reshape(len(x), -1, 32, *x.shape[2:])
    return np.bitwise_or.reduce(bits << np.arange(32, dtype=np.uint32)[:, None, None], axis=2)


def signs(packed: Array, channels: int) -> Array:
    """Unpack the result of `pack_signs`: -1 and 1, float32 `[n, channels, h, w]`."""
    bits = packed[:, :, None] >> np.arange(32, dtype=np.uint32)[:, None, None] & 1
    bits = bits.reshape(len(packed), -1, *packed.shape[2:])[:, :channels]
    return 1 - 2 * bits.astype(np.float32)


def binary_conv(x: Array, w: Array, scale: Array, *, channels: int, pad: int) -> Array:
    """Convolve signs with signs, of stride 1; `scale` has one number per filter."""
    image = np.pad(signs(x, channels), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(image, w.shape[2:], (2, 3))
    sums = np.einsum("nchwrs,mcrs->nmhw", windows, signs(w, channels))
    return scale[:, None, None] * sums.astype(np.float32)


def packed_type(x: Any) -> Any:
    """Return the type of `pack_signs`."""
    n, c, *size = x.dims
    return x.with_shape((n, -(-c // 32), *size)).with_dtype(np.dtype(np.uint32))


def convolved_type(x: Any, w: Any, scale: Any, *, channels: int, pad: int) -> Any:
    """Return the type of `binary_conv`."""
    n, _, *size = x.dims
    grown = (s + 2 * pad - w.dims[2] + 1 for s in size)
    return scale.with_shape((n, w.dims[0], *grown))


def pack_on_cuda(x: Any, packed: Any) -> tercet.CudaKernel:
    """Return the launch that computes `pack_signs`."""
    args = {"x": x, "packed": packed, "count": packed.size}
    args |= {"channels": x.dims[1], "words": packed.dims[1], "pixels": x.dims[2] * x.dims[3]}
    return tercet.CudaKernel(SOURCE, "pack_signs", -(-packed.size // 256), 256, args)


def convolve_on_cuda(
    x: Any, w: Any, scale: Any, y: Any, *, channels: int, pad: int
) -> tercet.CudaKernel:
    """Return the launch that computes `binary_conv`."""
    _, words, height, width = x.dims
    args = {"x": x, "w": w, "scale": scale, "y": y, "channels": channels, "words": words}
    args |= {"height": height, "width": width, "filters": w.dims[0], "window": w.dims[2]}
    args |= {"pad": pad, "out_height": y.dims[2], "out_width": y.dims[3], "count": y.size}
    return tercet.CudaKernel(SOURCE, "binary_conv", -(-y.size // 256), 256, args)


OPERATORS = {
    ("binary", "PackSigns"): tercet.CustomOperator(
        pack_signs, packed_type, kernels={"cuda": pack_on_cuda}
    ),
    ("binary", "Conv"): tercet.CustomOperator(
        binary_conv, convolved_type, kernels={"cuda": convolve_on_cuda}
    ),
}


def binary_model(w: Array, size: int) -> ModelProto:
    """Return a model of one convolution whose weights, `[m, c, k, k]`, are signs and scales."""
    filters, channels, window, _ = w.shape
    pad = window // 2
    model = parse_model(f"""
        <ir_version: 10, opset_import: ["": 21, "binary": 1]>
        g (float[1, {channels}, {size}, {size}] x) => (float[1, {filters}, {size}, {size}] y) {{
            bits = binary.PackSigns (x)
            y = binary.Conv <channels = {channels}, pad = {pad}> (bits, w, scale)
        }}""")
    scale = np.abs(w).mean((1, 2, 3), dtype=np.float64).astype(np.float32)
    for name, data in (("w", pack_signs(w)), ("scale", scale)):
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    return model


def main() -> None:
    """Compare a binary convolution with a float32 one of the same numbers."""
    parser = argparse.ArgumentParser(description="A convolution of signs.")
    parser.add_argument("backend", nargs="?", default="numpy", help="default: numpy")
    parser.add_argument("--write", metavar="FILE", help="also write the model")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    x = rng.standard_normal((1, 64, 32, 32)).astype(np.float32)
    proto = binary_model(w, 32)
    if arguments.write:
        save(proto, arguments.write)
    with tercet.load(proto, arguments.backend, operators=OPERATORS) as model:
        (y,) = model(x)
    found = np.where(x < 0, -1, 1).astype(np.float32), np.where(w < 0, -1, 1).astype(np.float32)
    sums = tercet.run_op("Conv", *found, pads=(1, 1, 1, 1))
    scale = numpy_helper.to_array(proto.graph.initializer[1])
    packed = numpy_helper.to_array(proto.graph.initializer[0])
    equal = np.array_equal(y, scale[:, None, None] * sums)
    print(f"equal to the convolution of -1 and 1 in floats: {equal}")
    print(f"weights: {w.nbytes} bytes as floats, {packed.nbytes} as bits")


if __name__ == "__main__":
    main()
