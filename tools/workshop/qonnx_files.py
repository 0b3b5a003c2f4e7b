"""Write samples of QONNX's operators, and small networks of Brevitas, with their own results.

    pip install brevitas qonnx onnxoptimizer onnxscript
    python tools/workshop/qonnx_files.py tests/contrib/qonnx tests/producers/converted

A sample is one node; its results are those of qonnx's implementation. Layers that qonnx lowers, or
moves the channels of, are in a second file, whose name ends in `_layers`. Next to each file is an
.npz file with inputs and results. This script imports nothing of tercet, so it runs in environments
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
CHANNELS_LAST = "qonnx.custom_op.channels_last"
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


def layers() -> Iterator[tuple[str, str, list[Any], dict[str, Any], tuple[int, ...]]]:
    """Yield domains, operators, inputs, attributes and shapes of results."""
    x = RNG.standard_normal((2, 7, 6, 4)).astype(np.float32)
    w = RNG.standard_normal((6, 3, 2, 2)).astype(np.float32)
    bias = RNG.standard_normal(6).astype(np.float32)
    given = {"kernel_shape": [3, 2], "dilations": [1, 2], "group": 2}
    given |= {"pads": [1, 0, 2, 1], "strides": [2, 1]}
    yield CHANNELS_LAST, "Conv", [x, w, bias], given, (2, 4, 5, 6)
    line = RNG.standard_normal((2, 9, 4)).astype(np.float32)
    narrow = RNG.standard_normal((3, 3, 4)).astype(np.float32)
    given = {"kernel_shape": [3], "dilations": [1], "group": 1, "pads": [1, 1], "strides": [1]}
    yield CHANNELS_LAST, "Conv", [line, narrow], given, (2, 9, 3)
    few = [np.abs(RNG.standard_normal(4)).astype(np.float32) for _ in range(4)]
    given = {"epsilon": 0.01, "momentum": 0.9, "training_mode": 0}
    yield CHANNELS_LAST, "BatchNormalization", [x, *few], given, x.shape
    given = {"kernel_shape": [2, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    yield CHANNELS_LAST, "MaxPool", [x], given, (2, 4, 3, 4)
    yield DOMAIN, "MaxPoolNHWC", [x], {**given, "ceil_mode": 0}, (2, 4, 3, 4)
    for size, stride, pads, dilations in (
        ([3, 2], [2, 1], [1, 0, 2, 1], [1, 2]),
        ([1, 1], [2, 3], [0, 0, 0, 0], [1, 1]),
        ([2, 3], [1, 2], [0, 0, 0, 0], [3, 1]),
    ):
        given = {"kernel_size": size, "stride": stride, "pad_amount": pads, "dilations": dilations}
        given |= {"input_shape": "(1,7,6,4)", "pad_value": 0}
        yield DOMAIN, "Im2Col", [x[:1]], given, ()  # qonnx mixes up several images
    whole = RNG.integers(0, 16, (2, 4, 6, 6)).astype(np.float32)
    for layout, obits, signed in (("NCHW", 4, 0), ("NHWC", 8, 1), ("NCHW", 2, 1)):
        given = {"kernel": 2, "stride": 2, "ibits": 4, "obits": obits, "signed": signed}
        shape = (2, 4, 3, 3) if layout == "NCHW" else (2, 2, 3, 6)
        yield DOMAIN, "QuantAvgPool2d", [whole - 8 * signed], given | {"data_layout": layout}, shape
    bits = RNG.integers(0, 2, (3, 9)).astype(np.float32)
    yield DOMAIN, "XnorPopcountMatMul", [bits, bits.T.copy()], {}, (3, 3)
    yield DOMAIN, "DebugMarker", [bits], {"export_debug_name": "seen"}, bits.shape


def save_layers(path: Path) -> None:
    """Write a model with a node for each layer; inputs but the first are weights."""
    wrapped = import_module("qonnx.core.modelwrapper").ModelWrapper
    types = import_module("qonnx.core.datatype").DataType
    run = import_module("qonnx.core.execute_custom_node").execute_custom_node
    nodes, weights, inputs, outputs, arrays = [], [], [], [], {}
    for i, (domain, op, given, attributes, shape) in enumerate(layers()):
        names = [f"s{i}_{j}" for j in range(len(given))]
        node = helper.make_node(op, names, [f"y{i}"], domain=domain, **attributes)
        info = helper.make_tensor_value_info(names[0], 1, given[0].shape)
        result = helper.make_tensor_value_info(f"y{i}", 1, None)
        alone = wrapped(helper.make_model(helper.make_graph([node], op, [info], [result])))
        alone.set_tensor_datatype(names[0], types["FLOAT32"])
        context = {**dict(zip(names, given, strict=True)), f"y{i}": np.zeros(shape, np.float32)}
        run(node, context, alone.graph, 17)
        nodes.append(node)
        inputs.append(info)
        outputs.append(result)
        weights += [numpy_helper.from_array(x, n) for n, x in list(context.items())[1 : len(given)]]
        arrays |= {f"input/{names[0]}": given[0], f"output/y{i}": context[f"y{i}"]}
    graph = helper.make_graph(nodes, "layers", inputs, outputs, weights)
    opsets = [helper.make_opsetid(name, 17) for name in ("", CHANNELS_LAST)]
    opsets.append(helper.make_opsetid(DOMAIN, 1))
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **arrays)


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
    save_layers(contrib.with_name(f"{contrib.name}_layers.onnx"))
    producers.mkdir(parents=True, exist_ok=True)
    for name, model, x, y in networks():
        onnx.save(model, producers / f"{name}.onnx")
        weights = {each.name for each in model.graph.initializer}
        (given,) = (each.name for each in model.graph.input if each.name not in weights)
        arrays = {f"input/{given}": x, f"output/{model.graph.output[0].name}": y}
        np.savez_compressed(producers / f"{name}.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
