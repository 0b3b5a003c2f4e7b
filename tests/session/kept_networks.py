"""Small networks of plans that are kept on disk, and all that a user can ask of one."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser

from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import Target
from tercet.runtime.session.model import Model

#: Networks in ONNX's language, without the header, and whether plans of them are kept.
NETWORKS = {
    "mlp": (
        """g (float[n, 8] x) => (float[n, m] y) <float[8, 6] w, float[6] b> {
            h = MatMul(x, w) s = Add(h, b) y = Relu(s) }""",
        True,
    ),
    "gemm": (
        """g (float[4, 8] x) => (float[4, 6] y) <float[6, 8] w, float[6] b> {
            y = Gemm<transB = 1>(x, w, b) }""",
        True,
    ),
    "convolutions": (
        """g (float[1, 3, 8, 8] x) => (float[1, 4, 1, 1] y)
            <float[4, 3, 3, 3] w, float[4] s, float[4] b, float[4] m, float[4] v> {
            c = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization(c, s, b, m, v)
            r = Relu(n) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
            y = GlobalAveragePool(p) }""",
        True,
    ),
    "attention": (
        """g (float[1, 4, 16] x) => (float[1, 4, 16] y)
            <float[16, 16] w, float[16] g, float[16] b> {
            q = MatMul(x, w) k = Transpose<perm = [0, 2, 1]>(q) s = MatMul(q, k)
            p = Softmax(s) a = MatMul(p, x) r = Add(a, x) y = LayerNormalization(r, g, b) }""",
        True,
    ),
    "slices": (
        """g (float[2, 8, 4, 4] x) => (float[2, 8, 4, 4] y) <int64[2] n = {4, 4}> {
            a, b = Split<axis = 1>(x, n) t = Tanh(a) u = Exp(b) y = Concat<axis = 1>(u, t) }""",
        True,
    ),
    "shapes": (
        """g (float[n, 3, 4] x) => (float[n, 12] y, int64[3] z) <int64[2] a = {0, -1}> {
            z = Shape(x) r = Reshape(x, a) y = Neg(r) }""",
        True,
    ),
    "quantized": (
        """g (float[4, 8] x) => (float[4, 6] y)
            <uint8[8, 6] w, float s = {0.5}, uint8 z = {3}> {
            d = DequantizeLinear(w, s, z) y = MatMul(x, d) }""",
        True,
    ),
    "integers": (
        """g (int64[5] x) => (int64[5] y, bool[5] z) <int64 k = {2}> {
            y = Mul(x, k) z = Greater(x, k) }""",
        True,
    ),
    "constant results": (
        """g (float[2] x) => (float[2] y, float[3] z) <float[3] c = {1.0, 2.0, 3.0}> {
            y = Abs(x) z = Identity(c) }""",
        True,
    ),
    "recurrent": (
        """g (float[3, 1, 4] x) => (float[3, 1, 1, 5] y)
            <float[1, 20, 4] w, float[1, 20, 5] r> {
            y = LSTM<hidden_size = 5>(x, w, r) }""",
        True,
    ),
    "gathered": (
        """g (int64[2, 3] i) => (float[2, 3, 4] y) <float[7, 4] t> { y = Gather(t, i) }""",
        True,
    ),
    "views": (
        """g (float[2, 3] x) => (float[3, 2] y, float[6] z) <int64[1] a = {6}> {
            y = Transpose<perm = [1, 0]>(x) z = Reshape(x, a) }""",
        True,
    ),
    "orders": (
        """g (float[3, 2, 6] x) => (float[3, 2, 5] y, float[3, 2, 6] z, float[4, 7] u)
            <float[3, 5, 6] w, float[1, 7] c, int64[2] n = {4, 7}> {
            d = Mul(w, w) t = Transpose<perm = [0, 2, 1]>(d) y = MatMul(x, t) z = Neg(x)
            u = Expand(c, n) }""",
        True,
    ),
    "no elements": (
        """g (float[2, 4] x) => (float[2, 4] y, float[0, 4] z) <float[0, 4] e, float[2, 4] w> {
            s = Mul(x, w) y = Concat<axis = 0>(e, s) z = Identity(e) }""",
        True,
    ),
    "declared otherwise": (
        """g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }""",
        True,
    ),
    "scales": (
        """g (float[1, 1, 4, 4] x, float[4] s) => (float[1, 1, n, m] y) {
            y = Resize<mode = "nearest">(x, , s) }""",
        False,
    ),
    "branches": (
        """g (float[4] x, bool c) => (float[4] y) {
            y = If(c) <then_branch = t () => (a) { a = Neg(x) },
                       else_branch = e () => (b) { b = Abs(x) }> }""",
        False,
    ),
    "counted": ("""g (float[4] x) => (int64[1, n] y) { y = NonZero(x) }""", False),
}
_HEADER = '<ir_version: 10, opset_import: ["" : 21], producer_name: "tests">\n'


class Compiler:
    """Compiles nothing."""

    def __init__(self, target: Target) -> None:
        self.target, self.sources = target, set[KernelSource]()

    def submit(self, source: KernelSource, **_: object) -> Future[bytes]:
        self.sources.add(source)
        code = Future[bytes]()
        code.set_result(b"")
        return code


def written(folder: Path, name: str, *, external: bool = False) -> Path:
    """Write a network with random weights; return its path."""
    proto = onnx.parser.parse_model(_HEADER + NETWORKS[name][0])
    rng = np.random.default_rng(0)
    for info in proto.graph.value_info:
        kind, sizes = info.type.tensor_type.elem_type, info.type.tensor_type.shape.dim
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        data = (1 + rng.random([size.dim_value for size in sizes])).astype(dtype)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(data, info.name))
    del proto.graph.value_info[:]
    path = folder / f"{name}.onnx"
    onnx.save(
        proto, path, save_as_external_data=external, location=f"{name}.data", size_threshold=0
    )
    return path


def sizes_of(model: Model, others: int = 1) -> dict[str, tuple[int, ...]]:
    """Return sizes of all inputs, with this one for symbols."""
    return {
        each.name: tuple(d if isinstance(d, int) else others for d in each.shape or ())
        for each in model.inputs
    }


def told(model: Model, shapes: dict[str, tuple[int, ...]]) -> list[object]:
    """Return all that a user can ask, and the launches."""
    program = model.prepare(shapes)
    steps = [row.step for row in program.rows if row.step is not None]
    compiler: Any = model.backends[0].device
    constants = {
        name: (value.data.strides, value.data.tobytes())
        for name, value in program.graph.values.items()
        if value.data is not None
    }
    about = model.source
    return [
        str(model.placement(shapes)),
        model.memory(shapes),
        model.rewrites.log,
        model.rewrites.refused,
        repr(model.imported),
        repr(model.graph),
        repr(program.graph),
        str(model.placement(shapes, [model.imported.nodes[0].output.name])),
        constants,
        (about.file, about.opsets, about.ir_version, about.producer, about.metadata),
        [each.name for each in about.mapped],
        repr(model.inputs),
        repr(model.outputs),
        repr([getattr(step, "launches", None) for step in steps]),
        [(row.kind, row.title, row.stream, row.apart, row.kernel) for row in program.rows],
        [(step.kernel, step.scratch, getattr(step, "estimate", None)) for step in steps],
        sorted(map(repr, compiler.compiler.sources)),
    ]


def entries(folder: Path, kind: str) -> list[Path]:
    """Return the entries of a kind."""
    return sorted((folder / "cache" / "plans").glob(f"*.{kind}"))
