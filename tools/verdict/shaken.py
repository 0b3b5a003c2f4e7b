"""The same model in float64, every result moved as rounding would move it, or far more.

What a runtime rounds is moved here by chance: every tensor that a node computes by a random share
of its unit in the last place, and so is what goes into a sum, the further the more terms it has.
What is exact stays: whole numbers and all that the dtype can hold as they are, so counts, sizes,
indices and masks do not flip. Nor does rounding touch what only moves, selects or compares numbers.

*Fair* runs move numbers about as far as a runtime does, *rough* ones far further: what does not
move even there is not rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from math import sqrt
from typing import Any

import numpy as np

from ...runtime.ir.custom import CustomOperator, declare
from ...runtime.ir.dtypes import DType, bfloat16, float16, float32, float64
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import Array, HostValue, TensorType
from ..common.cost import macs
from .float64_reference import Oracle

ROUGH, FAIR = "rough", "fair"
#: How many times as far as rounding to nearest numbers are moved. Accumulators of half precision
#: are float32 nearly everywhere, so the formats themselves are all that makes it rough.
STRENGTH = {
    ROUGH: {"float64": 16.0, "float32": 16.0, "tf32": 4.0, "float16": 4.0, "bfloat16": 4.0},
    FAIR: {"float64": 2.0, "float32": 2.0, "tf32": 1.0, "float16": 1.0, "bfloat16": 1.0},
}
#: Bits of a number that count.
BITS = {"float64": 53, "float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}
_NAMES: Mapping[DType, str] = {
    float64: "float64",
    float32: "float32",
    float16: "float16",
    bfloat16: "bfloat16",
}
_BYTES = frozenset({np.dtype(np.uint8), np.dtype(np.int8)})
#: Terms of a sum whose length is not known.
_TERMS = 64
#: Functions that end at one: libraries compute small results from numbers of that size.
_BOUNDED = {
    "Celu",
    "Elu",
    "Selu",
    "Softplus",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Sin",
    "Cos",
    "HardSigmoid",
}
_BOUNDED |= {"TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier"}
#: Functions that multiply their input by one of those, or subtract from it.
_GATED = {"Gelu", "HardSwish", "LogSoftmax", "Mish", "SwiGLU", "Swish"}
#: Arithmetic that every processor rounds in the same way.
_BASIC = {"Add", "Cast", "CastLike", "DequantizeLinear", "Div", "Mul", "Sqrt", "Sub"}
#: Operators that add up a row of their input for each row of their result.
_NORMS = {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax"}
_NORMS |= {"LpNormalization", "MeanVarianceNormalization", "RMSNormalization", "Softmax"}
#: Operators that compare what they read with their thresholds, and add up something else.
_COMPARING = {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
#: Operators that raise to a power.
_POWERS = {"LRN", "Pow"}
#: Operators that divide before they round to whole numbers.
_QUANTIZING = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}
_NAMES_OF_EXACT = """
    Abs And ArgMax ArgMin ArrayFeatureExtractor Binarizer BitCast CategoryMapper Ceil CenterCropPad
    Clip Compress Concat ConcatFromSequence Constant ConstantOfShape DepthToSpace DictVectorizer
    Dropout Equal Expand EyeLike FeatureVectorizer Flatten Floor Gather GatherElements GatherND
    GlobalMaxPool Greater GreaterOrEqual Hardmax Identity If Imputer IsInf IsNaN LabelEncoder Less
    LessOrEqual Loop Max MaxPool MaxRoiPool MaxUnpool Min Neg NonMaxSuppression NonZero Not OneHot
    OneHotEncoder Optional OptionalGetElement Or Pad ReduceMax ReduceMin Relu Reshape
    ReverseSequence Round Scan ScatterElements ScatterND SequenceAt SequenceConstruct SequenceInsert
    SequenceMap Shape Sign Size Slice SpaceToDepth Split SplitToSequence Squeeze TensorScatter
    ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where Xor ZipMap
"""
_NAMES_OF_DECIDING = """
    ArgMax ArgMin Binarizer Cast CastLike Ceil Compress Equal Floor Greater GreaterOrEqual
    GridSample Hardmax If ImageDecoder LabelEncoder Less LessOrEqual LinearClassifier Loop
    MaxUnpool Mod NonMaxSuppression NonZero Resize RoiAlign Round SVMClassifier Shrink Sign
    ThresholdedRelu TopK TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor Unique
"""
#: Those of them that do so only where their result is of bytes or of other whole numbers.
_DECIDING_WHOLE = {"Cast", "CastLike", "Resize"}
#: Operators that round nothing.
_EXACT = frozenset(_NAMES_OF_EXACT.split())
#: Operators by which a little noise may become a step.
_DECIDING = _QUANTIZING | frozenset(_NAMES_OF_DECIDING.split())
#: A table of noise of a prime length, read from a random place on.
_PRIME = 1_000_003


def decides(graph: Graph) -> bool:
    """Whether a graph rounds, compares or selects, so that a step may hinge on noise."""
    return any(_plain(node) in _DECIDING and not _stays_float(node) for node in graph.walk())


def _stays_float(node: Node) -> bool:
    """Whether a node merely rounds although others of its kind make whole numbers."""
    type_ = node.output.type if _plain(node) in _DECIDING_WHOLE else None
    return isinstance(type_, TensorType) and type_.dtype in _NAMES


@lru_cache(maxsize=4)
def _drawn(seed: int) -> tuple[Array, Any]:
    """Return a table of noise, and the state of the generator that drew it."""
    generator = np.random.default_rng(seed)
    return generator.uniform(-1, 1, _PRIME), generator.bit_generator.state


class _Noise:
    """Random numbers between -1 and 1, as many as one wants at next to no cost.

    An even seed and the next one give the same numbers with opposite signs: of two that are nearly
    equal each is the greater one in one of both.
    """

    def __init__(self, seed: int) -> None:
        table, state = _drawn(seed // 2)
        self._generator = np.random.default_rng()
        self._generator.bit_generator.state = state
        self._table, self._sign = table, -1.0 if seed % 2 else 1.0

    def __call__(self, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        start = int(self._generator.integers(_PRIME))
        if start + size <= _PRIME:
            found = self._table[start : start + size]
        else:
            found = np.resize(np.roll(self._table, -start), size)
        return (self._sign * found).reshape(shape)


def moved(
    noise: _Noise,
    x: Array,
    like: Array | None = None,
    *,
    amount: float = 0.0,
    bits: int = 0,
    floor: float = 0.0,
    steps: bool = True,
) -> Array:
    """Return numbers moved by at most a share of themselves.

    Args:
        noise: where random numbers come from.
        x: any dtype; of what is not float64, bytes move by a step and all else stays.
        like: numbers of whose magnitude the share is taken where it is greater.
        amount: the share.
        bits: numbers of so many bits stay; whole ones where 0.
        floor: the least magnitude that the share is taken of; where there is one nothing stays.
        steps: whether bytes move.
    """
    if like is not None and like.shape != x.shape:
        like = None
    if x.dtype != float64:
        return _stepped(noise, x) if amount and steps and x.dtype in _BYTES else x
    with np.errstate(all="ignore"):
        size = x if like is None else np.maximum(np.abs(x), np.abs(like))
        size = np.maximum(np.abs(size), floor) if floor else size
        step = np.multiply(size, noise(x.shape), out=np.empty(x.shape))
        step *= amount
        if not floor and like is None:
            step *= ~_exact(x, bits)
        step += x
    np.copyto(step, x, where=~np.isfinite(x))
    return step


def _stepped(noise: _Noise, x: Array) -> Array:
    """Return bytes some of which are one more or less: fixed-point weights have few bits."""
    limits = np.iinfo(x.dtype)
    steps = np.rint(noise(x.shape) * 0.75).astype(np.int16)
    return np.clip(x + steps, limits.min, limits.max).astype(x.dtype)


def _exact(x: Array, bits: int) -> Array:
    if not bits:
        return np.asarray(np.rint(x) == x)
    if bits == BITS["float32"]:
        return np.asarray(x.astype(float32) == x)
    part, _ = np.frexp(x)
    part = np.ldexp(part, bits)
    return np.asarray(np.rint(part) == part)


class Shaken:
    """A graph in float64 with noise; see `Oracle`.

    Args:
        graph: an imported graph, its shapes known or not; stays as it is.
        precision: arithmetic of float32 tensors.
        kind: `ROUGH` or `FAIR`.
        seed: another one gives other noise.
    """

    def __init__(self, graph: Graph, precision: str, kind: str, seed: int) -> None:
        noise = _Noise(seed + (1000 if kind == FAIR else 0))
        self._shake = _Shake(noise, precision, STRENGTH[kind])
        self._graph = graph

    def run(self, inputs: Mapping[str, HostValue]) -> dict[str, HostValue]:
        """Return the results by name."""
        shake = self._shake
        oracle = Oracle(shake.applied(self._graph), shake.constant, shake.input)
        try:
            return oracle.run(dict(inputs))
        finally:
            oracle.close()


class _Shake:
    """Puts noise into a graph."""

    def __init__(self, noise: _Noise, precision: str, strength: Mapping[str, float]) -> None:
        self._noise, self._precision, self._strength = noise, precision, strength
        function = CustomOperator(partial(moved, noise), lambda x, like=None, **_: x)
        self._op: Any = declare("tercet.noise", "Noise", function)

    def _name(self, value: Value | None) -> str:
        """Return the arithmetic of a tensor, empty for what is not a float."""
        if value is None or not isinstance(value.type, TensorType):
            return ""
        name = _NAMES.get(value.type.dtype, "")
        return self._precision if name == "float32" else name

    def _fixed_point(self, node: Node, value: Value) -> str:
        """Return whether bytes are interpolated, which libraries do with weights of few bits."""
        resized = node.kind == "Resize" and getattr(node.op, "mode", "") != "nearest"
        type_ = value.type
        bytes_ = isinstance(type_, TensorType) and type_.dtype in _BYTES
        return "float32" if resized and bytes_ and self._strength is STRENGTH[ROUGH] else ""

    def _amount(self, name: str) -> float:
        return self._strength[name] * 2.0 ** -BITS[name]

    def _is_rounded(self, value: Value) -> bool:
        """Whether a runner rounds a tensor, or anything that it computes of it."""
        coarse = BITS[self._precision] < BITS["float32"]
        return coarse or _reaches_rounding(value)

    def constant(self, value: Value) -> Array:
        """Move constants that passes may fold into others: all but single numbers and limits."""
        assert value.data is not None
        return self._moved(value.data) if self._is_rounded(value) else value.data.astype(float64)

    def input(self, data: Array) -> Array:
        """Move inputs that runners narrow; all others are what both of them read."""
        coarser = data.dtype == float32 and BITS[self._precision] < BITS["float32"]
        return self._moved(data) if coarser else data.astype(float64)

    def _moved(self, data: Array) -> Array:
        wide = data.astype(float64)
        if data.size < 2 or not any(data.strides):
            return wide
        name = _NAMES[data.dtype]
        name = self._precision if name == "float32" else name
        return moved(self._noise, wide, amount=self._amount(name))

    def applied(self, graph: Graph) -> Graph:
        """Return a copy in which noise goes into every sum and comes out of all that rounds."""
        copy = graph.clone()
        for each in _with_bodies(copy):
            for node in list(each.nodes):
                if _rounds(node):
                    self._shake_inputs(each, node)
                    self._shake_outputs(each, node)
        return copy

    def _shake_inputs(self, graph: Graph, node: Node) -> None:
        quantizing = node.kind in _QUANTIZING
        growth = _growth(node)
        if node.kind in _BASIC or _plain(node) in _COMPARING:
            return
        inputs = list(node.inputs)
        for i, value in enumerate(inputs):
            name = self._name(value)
            coarse = name not in ("float32", "float64") and not quantizing
            if value is None or value.data is not None or not name or coarse:
                continue
            chosen = {"floor": 1e-300} if quantizing else {}
            op = self._op(amount=growth * self._amount(name), **chosen)
            noisy = graph.insert(op, [value], before=node).output
            noisy.type, inputs[i] = value.type, noisy
        graph.set_inputs(node, inputs)

    def _shake_outputs(self, graph: Graph, node: Node) -> None:
        after = graph.nodes.index(node) + 1
        follower = graph.nodes[after] if after < len(graph.nodes) else None
        floor = 1.0 if _plain(node) in _BOUNDED else 0.0
        growth = _growth(node)
        narrow = node.op.domain == "ai.onnx.ml" or node.kind == "DynamicQuantizeLinear"
        for value in node.outputs:
            is_known = value.type is not None  # of a custom operator's result only a run knows
            name = self._name(value) or self._fixed_point(node, value)
            name = name if is_known else self._precision
            if not name:
                continue
            coarse = name not in ("float32", "float64")
            amount = self._amount(name) * (1.0 if coarse else growth)
            bits = 0 if narrow else BITS[name]
            op = self._op(amount=amount, bits=bits, floor=floor, steps=is_known)
            gated = node.kind in _GATED and node.inputs[0]
            reads = [value, node.inputs[0]] if gated else [value]
            noisy = graph.insert(op, reads, before=follower)
            noisy.output.type = value.type
            graph.redirect(value, noisy.output)
            graph.set_inputs(noisy, reads)


def _plain(node: Node) -> str:
    return node.kind.rpartition("::")[2]


def _rounds(node: Node) -> bool:
    op = node.op
    own = op.domain != "tercet.noise"
    return own and op.deterministic and not op.graphs() and _plain(node) not in _EXACT


def _reaches_rounding(value: Value) -> bool:
    """Whether anything rounds what it reads of a value, moved or selected on its way or not.

    All else compares it, such as the limits of bins, or gives it as it is.
    """
    seen, waiting = {value}, [value]
    while waiting:
        for node in waiting.pop().consumers:
            if node.op.graphs() or not (_plain(node) in _EXACT or _plain(node) in _COMPARING):
                return True
            below = {out for out in node.outputs if _may_be_float(out)} - seen
            below = set() if _plain(node) in _COMPARING else below
            seen |= below
            waiting += below
    return False


def _may_be_float(value: Value) -> bool:
    return not isinstance(value.type, TensorType) or value.type.dtype in _NAMES


def _with_bodies(graph: Graph) -> Iterator[Graph]:
    yield graph
    for node in graph.walk():
        yield from node.op.graphs()


def coarsest(graph: Graph, precision: str) -> str:
    """Return the arithmetic of a graph that has the fewest bits."""
    types = (value.type for value in graph.values.values())
    names = {_NAMES.get(each.dtype, "") for each in types if isinstance(each, TensorType)} - {""}
    names = {precision if name == "float32" else name for name in names}
    return min(names, key=lambda name: BITS[name], default="float64")


def _growth(node: Node) -> float:
    """Return how much further than one operation a node rounds: sums of many terms do.

    Products of matrices are summed in blocks, reductions by some one after the other. A power is
    an exponential of a logarithm, whose rounding it multiplies.
    """
    if node.kind in _POWERS:
        return 2.0
    return max(1.0, sqrt(terms(node)) / (4 if node.op.dense else 2))


def terms(node: Node) -> int:
    """Return how many terms a node adds up for each element of its result, as far as known."""
    types = [value.type for value in (*node.reads, *node.outputs)]
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in types):
        return _TERMS if node.op.dense else 1
    if node.kind in _NORMS:
        return max((1, *node.output.tensor.dims[-1:]))
    size = max(1, node.output.tensor.size)
    maximum = max((value.tensor.size for value in node.reads if value.data is None), default=1)
    return max(1, (macs(node) or 0) // size, maximum // size)
