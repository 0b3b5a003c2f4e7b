"""Write samples of TensorRT's operators, and small networks of NVIDIA's Model Optimizer.

    pip install 'nvidia-modelopt[onnx]' torch onnxscript
    python tools/workshop/modelopt_files.py tests/contrib/tensorrt tests/producers/converted

A sample is one node; its results are those of Model Optimizer's own functions, which compute the
weights of its exports. Next to each file is an .npz file with inputs and results; those of the
networks are PyTorch's, with simulated quantization. This script imports nothing of tercet, so it
runs in environments without it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "trt"
BLOCK = 16
Sample = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]


def samples() -> Iterator[Sample]:
    """Yield operators, inputs, attributes and results; results of narrow formats as float32."""
    torch = import_module("torch")
    tools = import_module("modelopt.onnx.quantization.quant_utils")
    to_float4 = import_module("modelopt.torch.quantization.qtensor").NVFP4QTensor._cast_fp4
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((6, 64)) * 10.0 ** rng.integers(-3, 3, (6, 64))).astype(np.float32)
    x[0, :BLOCK] = 0

    def float8(values: Any) -> Any:
        wide = torch.from_numpy(values).clamp(-448, 448)
        return wide.to(torch.float8_e4m3fn).float().numpy()

    scale = np.array(0.03, np.float32)
    narrow = float8(x / scale)
    yield "TRT_FP8QuantizeLinear", {"x": x, "scale": scale}, {}, {"y": narrow}
    given = {"axis": 1, "block_size": BLOCK}
    largest = tools.get_amax(x, 1, BLOCK)
    exponents = tools.compute_e8m0(np.maximum(largest, 1e-38), x.shape, 1, BLOCK)
    powers = np.exp2(np.repeat(exponents, BLOCK, 1).astype(np.float64) - 127)
    results = {"y": float8((x / powers).astype(np.float32)), "e": exponents.astype(np.uint8)}
    yield "TRT_MXFP8DynamicQuantize", {"x": x}, given, results
    of_tensor = np.array(np.abs(x).max() / 6 / 448, np.float32)
    scales = tools.get_weights_scaling_factor(x, BLOCK, of_tensor)
    scales = float8(scales * (largest.reshape(scales.shape) > 0))
    whole = tools.quantize(x, BLOCK, np.where(scales, scales, 1), of_tensor)
    codes = to_float4(torch.from_numpy(whole)).numpy()
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    signed = table[codes & 7] * np.where(codes & 8, -1, 1)
    results = {"y": signed.astype(np.float32).reshape(x.shape), "s": scales}
    yield "TRT_FP4DynamicQuantize", {"x": x, "scale": of_tensor}, given, results


def model_of(drawn: list[Sample]) -> onnx.ModelProto:
    """Return a model with a node for each sample; inputs but the first are weights."""
    nodes: list[Any] = []
    inputs: list[Any] = []
    outputs: list[Any] = []
    weights: list[Any] = []
    for i, (op, given, attributes, results) in enumerate(drawn):
        names = [f"s{i}_{name}" for name in given]
        raw = [f"s{i}_{name}_narrow" for name in results]
        nodes.append(helper.make_node(op, names, raw, domain=DOMAIN, **attributes))
        first, *rest = given.values()
        inputs.append(helper.make_tensor_value_info(names[0], TensorProto.FLOAT, first.shape))
        weights += [numpy_helper.from_array(w, n) for n, w in zip(names[1:], rest, strict=True)]
        for wide, (name, y) in zip(raw, results.items(), strict=True):
            to = helper.np_dtype_to_tensor_dtype(y.dtype)
            nodes.append(helper.make_node("Cast", [wide], [f"s{i}_{name}"], to=to))
            outputs.append(helper.make_tensor_value_info(f"s{i}_{name}", to, y.shape))
    graph = helper.make_graph(nodes, "samples", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def networks() -> Iterator[tuple[str, onnx.ModelProto, Any, Any]]:
    """Yield names, models, inputs and results."""
    torch = import_module("torch")
    quantization = import_module("modelopt.torch.quantization")
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 8, 3, groups=2),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 5),
    ).eval()
    x = torch.randn(2, 3, 8, 8)
    for name, config in (("fp8", "FP8_DEFAULT_CFG"), ("int8", "INT8_DEFAULT_CFG")):
        settings = getattr(quantization, config)
        found = quantization.quantize(deepcopy(network), settings, lambda module: module(x))
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.onnx"
            torch.onnx.export(found, (x,), path, input_names=["x"], output_names=["y"],
                              dynamo=False, opset_version=20)  # fmt: skip
            yield f"modelopt_{name}_qdq", onnx.load(path), x.numpy(), found(x).numpy()


def main(contrib: Path, producers: Path) -> None:
    """Write the samples to one file, and the networks to a folder."""
    drawn = list(samples())
    arrays = {f"input/s{i}_x": given["x"] for i, (_, given, *_) in enumerate(drawn)}
    for i, (*_, results) in enumerate(drawn):
        arrays |= {f"output/s{i}_{name}": y for name, y in results.items()}
    onnx.save(model_of(drawn), contrib.with_suffix(".onnx"))
    np.savez_compressed(contrib.with_suffix(".npz"), allow_pickle=False, **arrays)
    for name, model, x, y in networks():
        onnx.save(model, producers / f"{name}.onnx")
        arrays = {"input/x": x, "output/y": y}
        np.savez_compressed(producers / f"{name}.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
