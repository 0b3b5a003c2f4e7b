"""Write small networks with random weights, quantized by onnxruntime's quantizers; see `MADE`.

    pip install onnxruntime onnx-ir
    python -m tercet.tools.workshop.quantized_files tests/producers/quantized

Each network is quantized in every suitable way, and some are also saved as onnxruntime optimises
them. Next to each file is an .npz file with inputs and the results of onnxruntime's CPU provider.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = Any
Feeds = dict[str, Array]
Writer = Callable[[Path, Path, Feeds], None]
WIDTH, HEADS, WORDS = 32, 2, 40


class Network:
    """A graph to which nodes are added, each under the name of its result."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._held: list[Any] = []

    def weight(self, *shape: int) -> str:
        """Add random weights that keep the size of what they are multiplied with."""
        count = int(np.prod(shape[1:] if len(shape) > 2 else shape[:1]))
        data = self._random.standard_normal(shape) / np.sqrt(count)
        return self.constant(data.astype(np.float32))

    def constant(self, data: Array) -> str:
        """Add a constant."""
        name = f"c{len(self._held)}"
        self._held.append(numpy_helper.from_array(np.asarray(data), name))
        return name

    def __call__(self, op: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its result."""
        name = result or f"v{len(self._nodes)}"
        node = helper.make_node(op, inputs, [name], name=f"{op}{len(self._nodes)}", **attributes)
        self._nodes.append(node)
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        """Add a product with weights, and a bias."""
        return self("Add", self("MatMul", x, self.weight(rows, columns)), self.weight(columns))

    def model(self, inputs: Any, outputs: Any) -> onnx.ModelProto:
        """Return the model of the nodes added."""
        first, last = (
            [helper.make_tensor_value_info(name, *type_) for name, type_ in each.items()]
            for each in (inputs, outputs)
        )
        graph = helper.make_graph(self._nodes, "g", first, last, self._held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def mlp() -> tuple[onnx.ModelProto, Feeds]:
    """Return three layers, one of them a Gemm."""
    n = Network(1)
    y = n("Relu", n.linear("x", WIDTH, 48))
    y = n("Sigmoid", n("Gemm", y, n.weight(24, 48), n.weight(24), transB=1))
    n("MatMul", y, n.weight(24, 10), result="y")
    x = np.random.default_rng(2).standard_normal((4, WIDTH)).astype(np.float32)
    return n.model({"x": (FLOAT, ["n", WIDTH])}, {"y": (FLOAT, ["n", 10])}), {"x": x}


def cnn() -> tuple[onnx.ModelProto, Feeds]:
    """Return convolutions with a residual, pools, a concatenation and a layer."""
    n = Network(3)
    y = n("Relu", n("Conv", "x", n.weight(8, 3, 3, 3), n.weight(8), pads=[1] * 4))
    side = n("LeakyRelu", n("Conv", y, n.weight(8, 4, 3, 3), pads=[1] * 4, group=2), alpha=0.1)
    y = n("Add", y, side)
    y = n("Concat", n("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2]),
          n("MaxPool", side, kernel_shape=[2, 2], strides=[2, 2]), axis=1)  # fmt: skip
    y = n("Mul", y, n("Sigmoid", y))
    y = n("Flatten", n("GlobalAveragePool", y))
    n("Gemm", y, n.weight(16, 5), n.weight(5), result="y")
    x = np.random.default_rng(4).standard_normal((2, 3, 8, 8)).astype(np.float32)
    return n.model({"x": (FLOAT, ["n", 3, 8, 8])}, {"y": (FLOAT, ["n", 5])}), {"x": x}


def _attended(n: Network, x: str, bias: str) -> str:
    """Add attention over [batch, words, WIDTH]."""
    shape = n.constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
    q, k, v = (
        n("Transpose", n("Reshape", n.linear(x, WIDTH, WIDTH), shape), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scale = n.constant(np.float32((WIDTH / HEADS) ** -0.5))
    scores = n("Add", n("Mul", n("MatMul", q, k), scale), bias)
    y = n("Transpose", n("MatMul", n("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = n("Reshape", y, n.constant(np.array([0, 0, WIDTH])))
    return n.linear(joined, WIDTH, WIDTH)


def bert() -> tuple[onnx.ModelProto, Feeds]:
    """Return an embedding and a block of an encoder."""
    n = Network(5)
    x = n("Gather", n.weight(WORDS, WIDTH), "ids")
    ones = n("Unsqueeze", n("Cast", "mask", to=FLOAT), n.constant(np.array([1, 2])))
    one, low = n.constant(np.float32(1)), n.constant(np.float32(-10000))
    bias = n("Mul", n("Sub", one, ones), low)

    def normal(x: str) -> str:
        unit, zero = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
        return n("LayerNormalization", x, n.constant(unit), n.constant(zero), axis=-1)

    x = normal(n("Add", x, _attended(n, x, bias)))
    half = n.constant(np.float32(0.5))
    hidden = n.linear(x, WIDTH, 64)
    erf = n("Erf", n("Mul", hidden, n.constant(np.float32(0.5**0.5))))
    gelu = n("Mul", n("Mul", hidden, n("Add", erf, one)), half)
    n("Identity", normal(n("Add", x, n.linear(gelu, 64, WIDTH))), result="y")
    ids = np.random.default_rng(6).integers(0, WORDS, (2, 5))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    ends = {"ids": (INT64, ["b", "s"]), "mask": (INT64, ["b", "s"])}
    return n.model(ends, {"y": (FLOAT, ["b", "s", WIDTH])}), {"ids": ids, "mask": mask}


def decoder() -> tuple[onnx.ModelProto, Feeds]:
    """Return a block of a decoder, whose past is concatenated, and its head."""
    n = Network(7)
    x = n("Gather", n.weight(WORDS, WIDTH), "ids")

    def normal(x: str) -> str:
        mean = n("ReduceMean", n("Mul", x, x), n.constant(np.array([-1])))
        return n("Div", x, n("Sqrt", n("Add", mean, n.constant(np.float32(1e-6)))))

    y, shape = normal(x), n.constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
    q, k, v = (
        n(
            "Transpose",
            n("Reshape", n("MatMul", y, n.weight(WIDTH, WIDTH)), shape),
            perm=[0, 2, 1, 3],
        )
        for _ in range(3)
    )
    k = n("Concat", "past_key", k, axis=2, result="present_key")
    v = n("Concat", "past_value", v, axis=2, result="present_value")
    scores = n("MatMul", q, n("Transpose", k, perm=[0, 1, 3, 2]))
    weights = n("Softmax", n("Mul", scores, n.constant(np.float32(0.25))), axis=-1)
    joined = n("Transpose", n("MatMul", weights, v), perm=[0, 2, 1, 3])
    joined = n("Reshape", joined, n.constant(np.array([0, 0, WIDTH])))
    x = n("Add", x, n("MatMul", joined, n.weight(WIDTH, WIDTH)))
    y = normal(x)
    gate, up = (n("MatMul", y, n.weight(WIDTH, 64)) for _ in range(2))
    hidden = n("Mul", n("Mul", gate, n("Sigmoid", gate)), up)
    x = n("Add", x, n("MatMul", hidden, n.weight(64, WIDTH)))
    n("MatMul", normal(x), n.weight(WIDTH, WORDS), result="logits")
    state = ["b", HEADS, "p", WIDTH // HEADS]
    grown = ["b", HEADS, "t", WIDTH // HEADS]
    inputs = {"ids": (INT64, ["b", 1]), "past_key": (FLOAT, state), "past_value": (FLOAT, state)}
    outputs = {"logits": (FLOAT, ["b", 1, WORDS])}
    outputs |= {"present_key": (FLOAT, grown), "present_value": (FLOAT, grown)}
    random = np.random.default_rng(8)
    past = random.standard_normal((2, 2, HEADS, 3, WIDTH // HEADS)).astype(np.float32)
    feeds = {"ids": np.array([[3], [17]]), "past_key": past[0], "past_value": past[1]}
    return n.model(inputs, outputs), feeds


NETWORKS = {"mlp": mlp, "cnn": cnn, "bert": bert, "decoder": decoder}

# ── how they are quantized ───────────────────────────────────────────────────────────────────────


def dynamic(kind: str, **options: Any) -> Writer:
    """Return quantize_dynamic with weights of a kind."""

    def write(source: Path, target: Path, feeds: Feeds) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(source, target, weight_type=QuantType[kind], **options)

    return write


def static(form: str, activations: str, weights: str, **options: Any) -> Writer:
    """Return quantize_static in a form, calibrated by the inputs themselves."""

    def write(source: Path, target: Path, feeds: Feeds) -> None:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            QuantFormat,
            QuantType,
            quantize_static,
        )

        class OneFeed(CalibrationDataReader):
            def __init__(self) -> None:
                self._left: Iterator[Feeds] = iter([feeds])

            def get_next(self) -> Feeds:
                return next(self._left, {})

        quantize_static(
            source,
            target,
            OneFeed(),
            quant_format=QuantFormat[form],
            activation_type=QuantType[activations],
            weight_type=QuantType[weights],
            **options,
        )

    return write


def nbits(
    bits: int, form: str = "QOperator", *, names: tuple[str, ...] = ("MatMul",), **options: Any
) -> Writer:
    """Return MatMulNBitsQuantizer with its own algorithm."""

    def write(source: Path, target: Path, feeds: Feeds) -> None:
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization.matmul_nbits_quantizer import (
            DefaultWeightOnlyQuantConfig,
            MatMulNBitsQuantizer,
        )

        config = DefaultWeightOnlyQuantConfig(
            bits=bits, quant_format=QuantFormat[form], op_types_to_quantize=names, **options
        )
        quantizer: Any = MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(str(target))

    return write


def bnb4(kind: int) -> Writer:
    """Return MatMulBnb4Quantizer."""

    def write(source: Path, target: Path, feeds: Feeds) -> None:
        from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer

        quantizer: Any = MatMulBnb4Quantizer(onnx.load(source), kind, 32)
        quantizer.process()
        quantizer.model.save_model_to_file(str(target))

    return write


def saved(writer: Writer) -> Writer:
    """Return a writer whose result onnxruntime optimises and saves."""

    def write(source: Path, target: Path, feeds: Feeds) -> None:
        between = target.with_suffix(".before.onnx")
        writer(source, between, feeds)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(target)
        onnxruntime.InferenceSession(between, options, providers=["CPUExecutionProvider"])

    return write


_QDQ = static("QDQ", "QUInt8", "QInt8")
#: Ways to quantize, and the networks that they suit.
MADE: dict[str, tuple[Writer, str]] = {
    "dynamic_int8": (dynamic("QInt8"), "mlp bert decoder"),
    "dynamic_uint8_channels": (dynamic("QUInt8", per_channel=True), "mlp cnn bert"),
    "dynamic_saved": (saved(dynamic("QInt8")), "mlp bert decoder"),
    "qdq": (_QDQ, "mlp cnn bert decoder"),
    "qdq_int8_channels": (static("QDQ", "QInt8", "QInt8", per_channel=True), "mlp cnn"),
    "qdq_int16": (static("QDQ", "QUInt16", "QInt8"), "mlp cnn"),
    "qdq_saved": (saved(_QDQ), "mlp cnn bert"),
    "qoperator": (static("QOperator", "QUInt8", "QUInt8"), "mlp cnn bert"),
    "qoperator_channels": (static("QOperator", "QUInt8", "QInt8", per_channel=True), "cnn"),
    "int4": (nbits(4, block_size=16), "mlp bert decoder"),
    "int4_asymmetric": (nbits(4, block_size=32, is_symmetric=False), "mlp decoder"),
    "int4_qdq": (nbits(4, "QDQ", block_size=32), "decoder"),
    "int4_tables": (nbits(4, block_size=16, names=("MatMul", "Gather")), "bert decoder"),
    "int8_blocks": (nbits(8, block_size=32), "decoder"),
    "bnb4_fp4": (bnb4(0), "mlp decoder"),
    "bnb4_nf4": (bnb4(1), "mlp decoder"),
}


def results(path: Path, feeds: Feeds) -> Feeds:
    """Return what onnxruntime's CPU computes of a file."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def write(name: str, way: str, folder: Path) -> None:
    """Write one network, quantized in one way, with inputs and results."""
    model, feeds = NETWORKS[name]()
    target = folder / f"{name}_{way}.onnx"
    with tempfile.TemporaryDirectory() as temporary:
        source, made = Path(temporary) / "source.onnx", Path(temporary) / target.name
        onnx.save(model, source)
        MADE[way][0](source, made, feeds)
        found = results(made, feeds)
        target.write_bytes(made.read_bytes())
    given = {f"input/{key}": data for key, data in feeds.items()}
    wanted = {f"output/{key}": data for key, data in found.items()}
    np.savez_compressed(target.with_suffix(".npz"), **given, **wanted)


def main(folder: Path) -> int:
    """Write every file that `MADE` lists, or say why not; return the exit code."""
    logging.disable(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for way, (_, names) in MADE.items():
        for name in names.split():
            try:
                write(name, way, folder)
            except Exception as error:  # quantizers raise anything; the other files are made
                print(f"{name}_{way}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                failed += 1
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
