"""Write samples of AMD Quark's operators, with the results of its own implementation.

    pip install amd-quark==0.13 torch 'onnxruntime<1.23'
    python tools/workshop/quark_files.py tests/contrib/quark

A sample is one node, or a quantization and its inverse. Next to the file is an .npz file with
inputs and results. This script imports nothing of tercet, so it runs in environments without it;
Quark compiles its operators for onnxruntime's CPU when it first quantizes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

DOMAIN, LIBRARY = "com.amd.quark", "quark.onnx.operators.custom_ops"
RNG = np.random.default_rng(0)
FORMATS = ("int8", "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1")
#: Shapes, axes, sizes of blocks, and modes of rounding.
BLOCKS = (
    ((2, 40), 1, 32, 0),
    ((3, 7, 5), 1, 4, 1),
    ((3, 7, 5), 0, 2, 2),
    ((33,), 1, 16, 0),
    ((2, 3, 4, 5), 3, 8, 2),
    ((1, 1), 1, 32, 0),
)
#: By number in ONNX: scale and zero point. Quark's CPU ignores both for float16.
STORED = {
    TensorProto.INT8: (0.25, 3),
    TensorProto.UINT16: (0.01, 500),
    TensorProto.INT32: (0.5, -7),
    TensorProto.UINT32: (0.5, 9),
    TensorProto.FLOAT16: (1, 0),
    TensorProto.BFLOAT16: (0.5, 2),
}


def numbers(shape: tuple[int, ...]) -> Any:
    """Return floats of many magnitudes, halves of integers, and a few that are special."""
    x = (RNG.standard_normal(shape) * 10 ** RNG.uniform(-6, 3, shape)).astype(np.float32)
    flat = x.reshape(-1)
    if flat.size > 1:
        halves = RNG.integers(0, flat.size, 8)
        flat[halves] = RNG.integers(-300, 300, 8) / 4
        special = (0, -0.0, 1e-41, -3e38, np.inf, np.nan)
        flat[RNG.integers(0, flat.size, len(special))] = special
    return x


def samples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield operators that quantize and dequantize, attributes, and inputs."""
    for (shape, axis, size, mode), name in ((b, f) for b in BLOCKS for f in FORMATS):
        how = {"axis": axis, "block_size": size, "rounding_mode": mode, "element_dtype": name}
        yield "MXQuantizeDequantize", how, numbers(shape)
    for shape, axis, size, mode in BLOCKS:
        how = {"axis": axis, "block_size": size, "rounding_mode": mode}
        more = {"bit_width": 13, "convert_to_bfloat_before_bfp": 1}
        carry = {"use_compiler_version_cpu_kernel": 1}
        parts = {"bfp_method": "to_bfp_prime", "sub_block_size": 2, "sub_block_shift_bits": 2}
        for extra in ({}, more, carry, parts):
            yield "BFPQuantizeDequantize", how | extra, numbers(shape)


def chains() -> Iterator[tuple[int, Any, Any, Any]]:
    """Yield dtypes, scales, zero points and inputs: for tensors and for channels."""
    for dtype, (scale, zero) in STORED.items():
        x = np.clip(np.nan_to_num(numbers((2, 3, 4))), -1e6, 1e6)
        yield dtype, np.float32(scale), np.float32(zero), x
        if dtype != TensorProto.FLOAT16:
            both = np.array([[scale, 2 * scale], [zero, zero + 1]], np.float32)
            yield dtype, *both, x


def model() -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a model with all samples, and its inputs."""
    nodes, weights, feeds = [], [], {}
    for op, how, x in samples():
        name = f"s{len(feeds)}"
        nodes.append(helper.make_node(op, [name], [f"{name}_y"], domain=DOMAIN, **how))
        feeds[name] = x
    for dtype, scale, zero, x in chains():
        name = f"s{len(feeds)}"
        shape = list(np.shape(scale))
        weights.append(helper.make_tensor(f"{name}_scale", 1, shape, np.ravel(scale)))
        held = np.ravel(zero) if dtype in (10, 16) else np.ravel(zero).astype(np.int64)
        weights.append(helper.make_tensor(f"{name}_zero", dtype, shape, held))
        how = [f"{name}_scale", f"{name}_zero"]
        for kind, (source, target) in (
            ("", (name, f"{name}_q")),
            ("De", (f"{name}_q", f"{name}_y")),
        ):
            op = f"Extended{kind + 'q' if kind else 'Q'}uantizeLinear"
            nodes.append(helper.make_node(op, [source, *how], [target], domain=DOMAIN))
        feeds[name] = x
    inputs = [helper.make_tensor_value_info(n, 1, x.shape) for n, x in feeds.items()]
    outputs = [helper.make_tensor_value_info(f"{n}_y", 1, x.shape) for n, x in feeds.items()]
    graph = helper.make_graph(nodes, "samples", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feeds


def main(target: Path) -> None:
    """Write the model, its inputs and results."""
    made, feeds = model()
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(import_module(LIBRARY).get_library_path("CPU"))
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    names = [each.name for each in session.get_outputs()]
    results = zip(names, session.run(None, feeds), strict=True)
    onnx.save(made, target.with_suffix(".onnx"))
    arrays = {f"input/{n}": x for n, x in feeds.items()}
    arrays |= {f"output/{n}": y for n, y in results}
    np.savez_compressed(target.with_suffix(".npz"), allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
