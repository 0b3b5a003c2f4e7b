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
from dataclasses import dataclass
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
#: Significant bits, from the finest format to the coarsest: float16 underflows where tf32 does not.
BITS = {"float64": 53, "float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}
#: The smallest normal number of formats that results may come near: below, all are as far apart.
SMALLEST = {"float16": 2.0**-14}
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
_BOUNDED |= {"GRU", "LSTM", "RNN"}
#: Functions that multiply their input by one of those, or subtract from it.
_GATED = {"Gelu", "HardSwish", "LogSoftmax", "Mish", "SwiGLU", "Swish"}
#: Arithmetic that every processor rounds in the same way.
_BASIC = {"Add", "Cast", "CastLike", "DequantizeLinear", "Div", "Mul", "Sqrt", "Sub"}
#: Operators that add up a row of their input for each row of their result.
_NORMS = {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax"}
_NORMS |= {"LpNormalization", "MeanVarianceNormalization", "RMSNormalization", "Softmax"}
#: Operators that compare what they read with their thresholds, and add up something else.
_COMPARING = {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
#: Operators that compute positions between the pixels of their first input.
_SAMPLING = {"DeformConv", "GridSample", "RoiAlign"}
#: Operators that add up, or multiply, what lies in front of each element along an axis.
_CUMULATIVE = {"CumProd", "CumSum"}
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
#: How far from a pixel others may be that libraries add to it and subtract again: Winograd's
#: transforms of tiles of six by six.
_TILE = 3
#: A table of noise of a prime length, read from a random place on.
_PRIME = 1_000_003


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What is known of everything that a tensor is computed from.

    Attributes:
        decides: whether it rounds, compares or selects, so that a step may hinge on noise.
        coarsest: the last of its formats in the order of `BITS`.
    """

    decides: bool
    coarsest: str


def ancestries(graph: Graph, precision: str) -> dict[str, Ancestry]:
    """Return the ancestry of every tensor that a graph computes, by name.

    Args:
        graph: imported, its nodes in order.
        precision: compute precision of float32 tensors.
    """
    finest_first = list(BITS)
    found: dict[str, Ancestry] = {}
    for node in graph.nodes:
        within = [node, *(inner for body in node.op.graphs() for inner in body.walk())]
        types = [v.type for each in within for v in (*each.reads, *each.outputs)]
        names = {_NAMES.get(t.dtype, "") for t in types if isinstance(t, TensorType)} - {""}
        names = {precision if name == "float32" else name for name in names}
        above = [found[value.name] for value in node.reads if value.name in found]
        own = any(_plain(each) in _DECIDING and not _stays_float(each) for each in within)
        decides = own or any(each.decides for each in above)
        names |= {each.coarsest for each in above}
        coarsest = max(names, key=finest_first.index, default="float64")
        found |= {value.name: Ancestry(decides, coarsest) for value in node.outputs}
    return found


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
    smallest: float = 0.0,
    floor: float = 0.0,
    radius: int = 0,
    coordinates: float = 0.0,
    rows: bool = False,
    steps: bool = True,
) -> Array:
    """Return numbers moved by at most a share of themselves.

    Args:
        noise: where random numbers come from.
        x: any dtype; of what is not float64, bytes move by a step and all else stays.
        like: numbers of whose magnitude the share is taken where it is greater.
        amount: the share.
        bits: numbers of so many bits stay; whole ones where 0.
        smallest: the least magnitude that the share is taken of, where a number does not stay.
        floor: the least magnitude that the share is taken of; where there is one nothing stays.
        radius: how far away, along all axes but the first two, the greatest magnitude is looked
            for that the share is taken of; nothing stays.
        coordinates: the share of their indices by which elements are moved towards neighbours.
        rows: whether rows along the last axis are moved as a whole, too.
        steps: whether bytes move.
    """
    if like is not None and like.shape != x.shape:
        like = None
    if x.dtype != float64:
        return _stepped(noise, x) if amount and steps and x.dtype in _BYTES else x
    with np.errstate(all="ignore"):
        size = x if like is None else np.maximum(np.abs(x), np.abs(like))
        size = np.maximum(np.abs(size), max(floor, smallest)) if floor or smallest else size
        size = _greatest_near(np.abs(size), radius) if radius else size
        step = np.multiply(size, noise(x.shape), out=np.empty(x.shape))
        if rows:
            step += size * noise((*x.shape[:-1], 1))
        step *= amount
        if not (floor or radius or coordinates) and like is None:
            step *= ~_exact(x, bits)
        if coordinates:
            step += _slopes(x) * noise(x.shape) * coordinates
        step += x
    np.copyto(step, x, where=~np.isfinite(x))
    return step


def _greatest_near(size: Array, radius: int) -> Array:
    """Return the greatest of the elements up to so far away along all axes but the first two."""
    width = 2 * radius + 1
    for axis in range(2, size.ndim):
        length = size.shape[axis]
        ends = [(radius, radius) if i == axis else (0, 0) for i in range(size.ndim)]
        found, covered = np.moveaxis(np.pad(size, ends), axis, 0), 1
        while 2 * covered <= width:
            found, covered = np.maximum(found[:-covered], found[covered:]), 2 * covered
        rest = width - covered
        size = np.moveaxis(np.maximum(found[:length], found[rest : rest + length]), 0, axis)
    return size


def _slopes(x: Array) -> Array:
    """Return how far elements are from their neighbours times their indices, over all axes."""
    found = np.zeros(x.shape)
    for axis, length in enumerate(x.shape):
        if length > 1:
            away = np.abs(np.diff(x, axis=axis))
            steep = np.maximum(np.insert(away, 0, 0, axis), np.insert(away, length - 1, 0, axis))
            shape = [length if i == axis else 1 for i in range(x.ndim)]
            found += np.arange(length, dtype=float64).reshape(shape) * steep
    return found


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
        precision: compute precision of float32 tensors.
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
        type_ = value.type
        bytes_ = isinstance(type_, TensorType) and type_.dtype in _BYTES
        is_rough = self._strength is STRENGTH[ROUGH]
        return "float32" if is_rough and bytes_ and _interpolates(node) else ""

    def _amount(self, name: str) -> float:
        return self._strength[name] * 2.0 ** -BITS[name]

    def _is_rounded(self, value: Value) -> bool:
        """Whether a runner rounds a tensor, or anything that it computes of it."""
        coarse = BITS[self._precision] < BITS["float32"]
        return coarse or _reaches_rounding(value)

    def constant(self, value: Value) -> Array:
        """Move constants that passes may fold into others, or that a narrower format rounds.

        Single numbers are not folded, and limits are only compared with.
        """
        assert value.data is not None
        return self._moved(value.data) if self._is_rounded(value) else value.data.astype(float64)

    def input(self, data: Array) -> Array:
        """Move inputs that runners narrow; all others are what both of them read."""
        coarser = data.dtype == float32 and BITS[self._precision] < BITS["float32"]
        return self._moved(data) if coarser else data.astype(float64)

    def _moved(self, data: Array) -> Array:
        wide = data.astype(float64)
        name = _NAMES[data.dtype]
        name = self._precision if name == "float32" else name
        if data.size > 1 and any(data.strides):
            return moved(self._noise, wide, amount=self._amount(name))
        if BITS[name] == BITS["float32"]:
            return wide
        return moved(self._noise, wide, amount=self._amount(name), bits=BITS[name])

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
        own = _of_inputs(node)
        for i, value in enumerate(inputs):
            name = self._name(value)
            coarse = name not in ("float32", "float64") and not quantizing
            if value is None or value.data is not None or not name or coarse:
                continue
            amount, reach = growth * self._amount(name), 0 if i else _reach(node)
            chosen = {"floor": 1e-300} if quantizing or reach else own.get(i, {})
            op = self._op(amount=max(amount, reach * self._amount("float32")), **chosen)
            noisy = graph.insert(op, [value], before=node).output
            noisy.type, inputs[i] = value.type, noisy
        graph.set_inputs(node, inputs)

    def _shake_outputs(self, graph: Graph, node: Node) -> None:
        after = graph.nodes.index(node) + 1
        follower = graph.nodes[after] if after < len(graph.nodes) else None
        growth = _growth(node)
        floor = 1.0 / growth if _plain(node) in _BOUNDED else 0.0
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
            coordinates = self._amount("float32") if _interpolates(node) else 0.0
            chosen = {"bits": bits, "smallest": SMALLEST.get(name, 0.0), "floor": floor}
            op = self._op(amount=amount, coordinates=coordinates, steps=is_known, **chosen)
            gated = node.kind in _GATED and node.inputs[0]
            reads = [value, node.inputs[0]] if gated else [value]
            noisy = graph.insert(op, reads, before=follower)
            noisy.output.type = value.type
            graph.redirect(value, noisy.output)
            graph.set_inputs(noisy, reads)


def _of_inputs(node: Node) -> dict[int, dict[str, Any]]:
    """Return what is special about the noise of a node's inputs, by position; see `moved`."""
    if node.kind == "Conv" and set(getattr(node.op, "strides", ()) or (1,)) == {1}:
        return {0: {"radius": _TILE}}
    # Keys are only seen in scores, which have a rounding of their own.
    return {1: {"rows": True}} if node.kind in ("Attention", "FlexAttention") else {}


def _reach(node: Node) -> int:
    """Return the greatest position that a node computes between pixels; 0 if it computes none.

    A position is rounded by its own magnitude, and what is read there by as much of the difference
    of neighbours, whole numbers or not.
    """
    if _plain(node) not in _SAMPLING or getattr(node.op, "mode", "") == "nearest":
        return 0
    type_ = node.inputs[0].type if node.inputs[0] else None
    if not isinstance(type_, TensorType) or not type_.is_static:
        return _TERMS
    return max((1, *type_.dims[2:]))


def _interpolates(node: Node) -> bool:
    return node.kind == "Resize" and getattr(node.op, "mode", "") != "nearest"


def _plain(node: Node) -> str:
    return node.kind.rpartition("::")[2]


def _rounds(node: Node) -> bool:
    op = node.op
    own = op.domain != "tercet.noise"
    return own and op.deterministic and _plain(node) not in _EXACT


def _reaches_rounding(value: Value) -> bool:
    """Whether anything rounds what it reads of a value, moved or selected on its way or not.

    All else compares it, such as the limits of bins, or gives it as it is.
    """
    seen, waiting = {value}, [value]
    while waiting:
        read = waiting.pop()
        for node in read.consumers:
            if node.kind == "Resize" and read not in node.inputs[:1]:
                continue
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
    if node.kind in _CUMULATIVE:
        return max((1, *node.output.tensor.dims))
    size = max(1, node.output.tensor.size)
    maximum = max((value.tensor.size for value in node.reads if value.data is None), default=1)
    return max(1, (macs(node) or 0) // size, maximum // size)
