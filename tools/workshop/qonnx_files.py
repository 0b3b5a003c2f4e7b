"""Write samples of QONNX's operators, and small networks of Brevitas, with their own results.

    pip install brevitas qonnx onnxoptimizer onnxscript
    python tools/workshop/qonnx_files.py tests/contrib/qonnx tests/producers/converted

A sample is one node; its results are those of qonnx's implementation. Next to each file is an .npz
file with inputs and results. This script imports nothing of tercet, so it runs in environments
without it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

DOMAIN = "qonnx.custom_op.general"
RNG = np.random.default_rng(0)
MODES = ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")
Sample = tuple[str, dict[str, Any], dict[str, Any], Any]


def number(value: float) -> Any:
    """Return a scalar."""
    return np.array(value, np.float32)


def samples() -> Iterator[Sample]:
    """Yield operators, inputs, attributes and results."""
    general = "qonnx.custom_op.general"
    of_int = import_module(f"{general}.intquant").int_quant
    x = (RNG.standard_normal((2, 3, 5)) * 3).astype(np.float32)
    x.ravel()[:6] = [0.5, -0.5, 1.5, -1.5, 0, 2.5]
    scales = np.abs(RNG.standard_normal((3, 1))).astype(np.float32)
    for (i, mode), signed, narrow in product(enumerate(MODES), (0, 1), (0, 1)):
        bits, scale = number((1, 2, 4, 8)[i % 4]), (number(1), scales)[i % 2]
        zero = number(i % 3)
        inputs = {"x": x, "scale": scale, "zero": zero, "bits": bits}
        given = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
        yield "Quant", inputs, given, of_int(x, scale, zero, bits, signed, narrow, mode)
    of_sign = import_module(f"{general}.bipolar_quant").binary_quant
    yield "BipolarQuant", {"x": x, "scale": scales}, {}, of_sign(x, scales)
    truncating = import_module(f"{general}.trunc")
    scale, zero, eight, four = number(0.125), number(0), number(8), number(4)
    whole = of_int(x, scale, zero, eight, 1, 0, "ROUND").astype(np.float32)
    shared = {"x": whole, "scale": scale, "zero": zero, "in_bits": eight}
    for mode, signed in product(("FLOOR", "ROUND"), (0, 1)):
        given = {"rounding_mode": mode, "signed": signed, "narrow": 1 - signed}
        inputs = {**shared, "out_scale": number(1), "out_bits": four}
        result = truncating.trunc_v2(
            whole, scale, zero, eight, 1 - signed, signed, number(1), four, mode
        )
        yield "Trunc", inputs, given, result
    old = truncating.trunc_v1(whole, scale, zero, eight, four, "FLOOR")
    yield "Trunc", {**shared, "out_bits": four}, {"rounding_mode": "FLOOR"}, old
    reached = import_module(f"{general}.multithreshold").multithreshold
    for layout, shape, channels in product(("NCHW", "NHWC"), ((2, 3, 4, 3),), (1, 3)):
        x = RNG.standard_normal(shape).astype(np.float32)
        limits = np.sort(RNG.standard_normal((channels, 7)).astype(np.float32), 1)
        given = {"out_dtype": "INT4", "out_scale": 0.5, "out_bias": -1.0, "data_layout": layout}
        result = reached(x, limits, 0.5, -1.0, layout == "NHWC")
        yield "MultiThreshold", {"x": x, "limits": limits}, given, result
    of_float = import_module(f"{general}.floatquant").float_quant
    x = (RNG.standard_normal(90) * 10 ** RNG.uniform(-3, 3, 90)).astype(np.float32)
    for (exponent, mantissa), mode in product(((4, 3), (5, 2), (2, 1)), ("ROUND", "FLOOR")):
        numbers = [number(n) for n in (0.37, exponent, mantissa, 2 ** (exponent - 1) - 1, 240)]
        names = ("scale", "exponent", "mantissa", "bias", "max")
        flags = dict.fromkeys(("has_inf", "has_nan", "has_subnormal"), 0)
        given = {**flags, "saturation": 1, "rounding_mode": mode}
        result = of_float(x, *numbers[:4], True, numbers[4], rounding_mode=mode)
        yield "FloatQuant", {"x": x, **dict(zip(names, numbers, strict=True))}, given, result


def model_of(drawn: list[Sample]) -> onnx.ModelProto:
    """Return a model with a node for each sample; inputs but the first are weights."""
    nodes, weights, inputs, results = [], [], [], []
    for i, (op, given, attributes, _) in enumerate(drawn):
        names = [f"s{i}_{name}" for name in given]
        nodes.append(helper.make_node(op, names, [f"y{i}"], domain=DOMAIN, **attributes))
        first, *rest = given.values()
        inputs.append(helper.make_tensor_value_info(names[0], 1, first.shape))
        weights += [numpy_helper.from_array(x, n) for n, x in zip(names[1:], rest, strict=True)]
        results.append(onnx.ValueInfoProto(name=f"y{i}"))
    graph = helper.make_graph(nodes, "samples", inputs, results, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 2)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def networks() -> Iterator[tuple[str, onnx.ModelProto, Any, Any]]:
    """Yield names, models, inputs and results of Brevitas's networks."""
    torch, nn, quant = (import_module(n) for n in ("torch", "brevitas.nn", "brevitas.quant"))
    binary = import_module("brevitas.quant.binary")
    export = import_module("brevitas.export").export_qonnx
    torch.manual_seed(0)
    low = quant.Int8WeightPerChannelFloat
    few = torch.nn.Sequential(
        nn.QuantIdentity(bit_width=8),
        nn.QuantConv2d(3, 6, 3, weight_bit_width=4, weight_quant=low),
        torch.nn.BatchNorm2d(6),
        nn.QuantReLU(bit_width=3),
        nn.QuantConv2d(6, 6, 3, groups=6, weight_bit_width=4, weight_quant=low),
        nn.QuantReLU(bit_width=3),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        nn.QuantLinear(6, 5, bias=True, weight_bit_width=4),
    )
    signs = torch.nn.Sequential(
        nn.QuantIdentity(act_quant=binary.SignedBinaryActPerTensorConst),
        nn.QuantConv2d(3, 5, 3, weight_quant=binary.SignedBinaryWeightPerTensorConst, bias=False),
        nn.QuantIdentity(act_quant=binary.SignedBinaryActPerTensorConst),
    )
    x = torch.randn(2, 3, 10, 10)
    for name, network in (("brevitas_cnn", few), ("brevitas_binary", signs)):
        network.train()(x)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/model.onnx"
            export(network.eval(), args=(x,), export_path=path, dynamo=False, opset_version=17)
            yield name, onnx.load(path), x.numpy(), network(x).numpy()


def main(contrib: Path, producers: Path) -> None:
    """Write the samples to one file, and the networks to a folder."""
    drawn = list(samples())
    results = {f"output/y{i}": np.asarray(y, np.float32) for i, (*_, y) in enumerate(drawn)}
    inputs = {f"input/s{i}_x": given["x"] for i, (_, given, *_) in enumerate(drawn)}
    onnx.save(model_of(drawn), contrib.with_suffix(".onnx"))
    np.savez_compressed(contrib.with_suffix(".npz"), allow_pickle=False, **inputs, **results)
    producers.mkdir(parents=True, exist_ok=True)
    for name, model, x, y in networks():
        onnx.save(model, producers / f"{name}.onnx")
        weights = {each.name for each in model.graph.initializer}
        (given,) = (each.name for each in model.graph.input if each.name not in weights)
        arrays = {f"input/{given}": x, f"output/{model.graph.output[0].name}": y}
        np.savez_compressed(producers / f"{name}.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
