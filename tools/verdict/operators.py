"""Which operators round, and how: what noise in place of rounding has to know of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, prod, sqrt
from typing import Any

import numpy as np

from ...importers.onnx.contrib.builder import OPEN, UNSPECIFIED
from ...runtime.ir.dtypes import FLOATS, INTEGERS, DType, bfloat16, float16, float32, float64
from ...runtime.ir.graph import Graph, Node, Value
from ...runtime.ir.types import TensorType
from ...runtime.ops.forest import ensemble_of
from ...runtime.ops.ml import SVMClassifier, SVMRegressor
from ...runtime.ops.ml_trees import NodeLists, TreeEnsemble
from ...runtime.ops.signal import DFT, STFT
from ...runtime.plan.macs import macs

#: Significant bits, from the finest format to the coarsest: float16 underflows where tf32 does not.
BITS = {"float64": 53, "float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}
#: The smallest normal number of formats that results may come near: below, all are as far apart.
SMALLEST = {"float16": 2.0**-14}
#: The greatest numbers of formats.
GREATEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120, "float32": 2.0**128 - 2.0**104}
NAMES: Mapping[DType, str] = {
    float64: "float64",
    float32: "float32",
    float16: "float16",
    bfloat16: "bfloat16",
}
BYTES = frozenset({np.dtype(np.uint8), np.dtype(np.int8)})
#: Terms of a sum whose length is not known.
TERMS = 64
#: Functions that end at one: libraries compute small results from numbers of that size.
BOUNDED = {
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
BOUNDED |= {"TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier"}
RECURRENT = {"GRU", "LSTM", "RNN"}
BOUNDED |= RECURRENT
#: Those of them whose results no library makes negative, however it approximates them.
NEVER_NEGATIVE = {"HardSigmoid", "Sigmoid", "Softplus"}
#: Functions that multiply their input by one of those, or subtract from it.
GATED = {"Gelu", "HardSwish", "LogSoftmax", "Mish", "SwiGLU", "Swish"}
#: Arithmetic that every processor rounds in the same way.
BASIC = {"Add", "Cast", "CastLike", "DequantizeLinear", "Div", "Mul", "Sqrt", "Sub"}
#: Arithmetic whose result every library gets right where a format holds it: terms and products are
#: whole multiples of one number. A quotient, a mean or a function may come from an approximation.
_FAITHFUL = {"Add", "Cast", "CastLike", "Conv", "ConvInteger", "ConvTranspose", "CumSum", "Einsum"}
_FAITHFUL |= {"DequantizeLinear", "DynamicQuantizeLinear", "Gemm", "MatMul", "MatMulInteger", "Mul"}
_FAITHFUL |= {"QuantizeLinear", "ReduceSum", "ReduceSumSquare", "Resize", "ScatterElements"}
_FAITHFUL |= {"ScatterND", "Sub", "Sum"}
#: Operators between whose products there is a result of its own, which runtimes may round to the
#: format of their inputs.
COMPOSED = {"Attention", "FlexAttention"}
#: Operators that add up terms which they round: see `rounds_terms`.
_ROUNDING = COMPOSED | {"DFT", "Det", "MatMulBnb4", "MatMulNBits", "QMoE", "STFT"}
#: Operators that add up windows of their input.
_POOLING = {"AveragePool", "LpPool"}
#: Operators that add up a row of their input for each row of their result.
_NORMS = {"GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax"}
_NORMS |= {"LpNormalization", "MeanVarianceNormalization", "RMSNormalization", "Softmax"}
#: Norms that libraries compute as x · scale + shift, whose terms may be far larger than the result.
SHIFTED = {"BatchNormalization", "GroupNormalization", "InstanceNormalization"}
SHIFTED |= {"LayerNormalization", "MeanVarianceNormalization"}
#: Operators that compare what they read with their thresholds, and add up something else.
COMPARING = {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
#: Operators that compute positions between the pixels of their first input.
_SAMPLING = {"DeformConv", "GridSample", "RoiAlign"}
#: The greatest number that Keys' polynomials round on the way to a cubic weight: (d - 5) * d at a
#: distance of 2.
_KEYS = 6
#: Operators that add up, or multiply, what lies in front of each element along an axis.
_CUMULATIVE = {"CumProd", "CumSum"}
#: Operators whose only products are those of their inputs.
PRODUCTS = {"Conv", "ConvTranspose", "DeformConv", "Einsum", "Gemm", "MatMul"}
#: Operators whose terms add up to their result, of floats that are all positive.
_ADDING = PRODUCTS - {"DeformConv"} | {"CumSum", "ReduceSum", "Sum"}
#: Those that divide a sum by the number of its terms.
_AVERAGING = {"AveragePool", "GlobalAveragePool", "Mean", "ReduceMean"}
#: Operators that raise to a power.
_POWERS = {"LRN", "Pow"}
#: What onnxruntime's quantizers and decoder builders write by default.
_ACCURACY_OF_BYTES = 4
#: In place of how many elements a block has: all of them are one.
WHOLE = -1
#: Operators that divide before they round to whole numbers.
QUANTIZING = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}
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
    GridSample Hardmax If ImageDecoder InBytes LabelEncoder Less LessOrEqual LinearClassifier Loop
    MaxUnpool Mod NonMaxSuppression NonZero Resize RoiAlign Round SVMClassifier Shrink Sign
    ThresholdedRelu TopK TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor Unique
"""
#: Those of them that do so only where their result is of bytes or of other whole numbers.
_DECIDING_WHOLE = {"Cast", "CastLike", "Resize"}
#: Those of them whose results are whole: a runner's may take their place.
_WHOLE = QUANTIZING | {"ArgMax", "ArgMin", "Binarizer", "Cast", "CastLike", "Ceil", "Equal"}
_WHOLE |= {"Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual", "Round"}
_WHOLE |= {"Sign", "TopK"}
#: Those of them that decide nothing once what they read is decided.
_FOLLOWING = {"Compress", "NonZero"}
#: Of those, the ones whose results have the type of what they read.
_WHOLE_FLOATS = {"Ceil", "Floor", "Hardmax", "Round", "Sign"}
#: Operators that read nothing but a shape.
_OF_SHAPES = {"Shape", "Size"}
#: Operators that round nothing.
_EXACT = frozenset(_NAMES_OF_EXACT.split())
#: Operators by which a little noise may become a step.
_DECIDING = QUANTIZING | frozenset(_NAMES_OF_DECIDING.split())


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What is known of everything that a tensor is computed from.

    Attributes:
        decides: whether it rounds, compares or selects, so that a step may hinge on noise.
        coarsest: the last of its formats in the order of `BITS`.
        flips: whether the node that computes it does so itself, by what noise reaches.
    """

    decides: bool
    coarsest: str
    flips: bool = False


def ancestries(graph: Graph, precision: str) -> dict[str, Ancestry]:
    """Return the ancestry of every tensor that a graph computes, by name.

    Args:
        graph: imported, its nodes in order.
        precision: compute precision of float32 tensors.
    """
    finest_first = list(BITS)
    found: dict[str, Ancestry] = {}
    exact: set[Value] = set()
    for node in graph.nodes:
        within = [node, *(inner for body in node.op.graphs() for inner in body.walk())]
        types = [v.type for each in within for v in (*each.distinct_reads, *each.outputs)]
        names = {NAMES.get(t.dtype, "") for t in types if isinstance(t, TensorType)} - {""}
        narrows = precision != "tf32" or any(each.op.dense for each in within)
        names = {precision if name == "float32" and narrows else name for name in names}
        above = [found[value.name] for value in node.distinct_reads if value.name in found]
        own = any(plain_kind(each) in _DECIDING and not _stays_float(each) for each in within)
        is_exact = all(v in exact or _is_exact(v) for v in node.distinct_reads)
        if plain_kind(node) in _OF_SHAPES or (is_exact and node.op.deterministic):
            exact.update(value for value in node.outputs if not _may_be_float(value))
        flips = own and not is_exact
        decides = flips or any(each.decides for each in above)
        names |= {each.coarsest for each in above}
        coarsest = max(names, key=finest_first.index, default="float64")
        found |= {value.name: Ancestry(decides, coarsest, flips) for value in node.outputs}
    return found


def decisions(graph: Graph, known: Mapping[str, Ancestry]) -> list[Value] | None:
    """Return the whole numbers that noise may flip, in order, of a graph without bodies that do.

    Args:
        graph: imported, its nodes in order.
        known: its `ancestries`.

    Returns:
        None if noise may flip something else: which part of a model runs, how many boxes there are.
    """
    found: list[Value] = []
    for node in graph.nodes:
        if not known[node.output.name].flips or plain_kind(node) in _FOLLOWING:
            continue
        if plain_kind(node) not in _WHOLE or node.op.graphs():
            return None
        is_whole = plain_kind(node) in _WHOLE_FLOATS
        found += [value for value in node.outputs if is_whole or not _may_be_float(value)]
    return found


def _is_exact(value: Value) -> bool:
    """Whether a value is no result, and of whole numbers or the like: no noise reaches it."""
    return value.producer is None and not _may_be_float(value)


def _stays_float(node: Node) -> bool:
    """Whether a node merely rounds although others of its kind make whole numbers."""
    type_ = node.output.type if plain_kind(node) in _DECIDING_WHOLE else None
    return isinstance(type_, TensorType) and type_.dtype in NAMES


def greatest_position(node: Node) -> int:
    """Return the greatest position that a node computes between pixels; 0 if it computes none.

    A position is rounded by its own magnitude, and what is read there by as much of the difference
    of neighbours, whole numbers or not.
    """
    if plain_kind(node) not in _SAMPLING or getattr(node.op, "mode", "") == "nearest":
        return 0
    type_ = node.inputs[0].type if node.inputs[0] else None
    if not isinstance(type_, TensorType) or not type_.is_static:
        return TERMS
    return max((_KEYS if is_cubic(node) else 1, *type_.dims[2:]))


def is_cubic(node: Node) -> bool:
    """Whether a node weighs four pixels along each axis."""
    return getattr(node.op, "mode", "") == "cubic"


def interpolates(node: Node) -> bool:
    """Whether a node computes numbers between its input's."""
    return node.kind == "Resize" and getattr(node.op, "mode", "") != "nearest"


def transformed_axes(node: Node) -> tuple[int, ...]:
    """Return the axes of a Fourier transform's result along which it has mixed everything.

    A coefficient is rounded by the magnitude of the others: libraries factor the transform in
    their own ways, and the sine of a multiple of pi is 0 only for some.
    """
    if node.kind == "STFT":
        return (-2, -1)
    if node.kind != "DFT":
        return ()
    axis = node.inputs[2] if len(node.inputs) > 2 else None
    if axis is None:
        return (-2, -1)
    return (-1,) if axis.data is None else (axis.data.item(), -1)


def plain_kind(node: Node) -> str:
    """Return the operator's name without its domain."""
    return node.kind.rpartition("::")[2]


def rounds(node: Node) -> bool:
    """Whether a node computes what a runner has to round."""
    op = node.op
    own = op.domain != "tercet.noise"
    return own and op.deterministic and not _passes_on(node)


def _passes_on(node: Node) -> bool:
    """Whether a node's results are elements of its inputs, or none that it has to round."""
    reduces = getattr(node.op, "reduction", "none") in ("add", "mul")  # what is scattered
    return plain_kind(node) in _EXACT and not reduces


def is_faithful(node: Node) -> bool:
    """Whether every library gives a node's result as it is where the format holds it."""
    return plain_kind(node) in _FAITHFUL or node.op.domain == "ai.onnx.ml"


def before_decisions(graph: Graph) -> set[Value]:
    """Return the values by which anything rounds, compares or selects, sooner or later."""
    found: set[Value] = set()
    for node in reversed(graph.nodes):
        decides = plain_kind(node) in _DECIDING and not _stays_float(node)
        if decides or node.op.graphs() or found.intersection(node.outputs):
            found.update(node.distinct_reads)
    return found


def byte_operands(node: Node) -> Mapping[int, int]:
    """Return which operands a runner may round to eight bits, in blocks of how many elements.

    That is what a product with packed weights multiplies, where the file allows it, or where the
    weights are dequantized in blocks, which onnxruntime makes such a product of; and all that a
    recurrent layer multiplies, whose weights are integers with a scale.
    """
    if getattr(node.op, "accuracy_level", 0) == _ACCURACY_OF_BYTES:
        return {0: int(getattr(node.op, "block_size", 1))}
    weights = node.inputs[1].producer if node.kind == "MatMul" and node.inputs[1] else None
    if weights is not None and weights.kind == "DequantizeLinear":
        block = int(getattr(weights.op, "block_size", 0))
        return {0: block} if block else {}
    if node.kind in RECURRENT and _was_integer(node.inputs[1]):
        return {0: WHOLE, 1: 1, 2: 1}
    return {}


def allows_bytes(graph: Graph) -> bool:
    """Whether a runner may round operands of a graph to eight bits; see `byte_operands`."""
    return any(byte_operands(node) for node in graph.walk())


def _was_integer(value: Value | None) -> bool:
    """Whether a value is computed, step by step, from integers that are constant."""
    while value is not None and value.producer is not None:
        value = next(iter(value.producer.inputs), None)
    return value is not None and value.data is not None and value.data.dtype in INTEGERS


def is_unspecified(value: Value) -> bool:
    """Whether a constant stands for numbers that an operator's documentation leaves open."""
    return UNSPECIFIED in value.name and value.tensor.dtype not in INTEGERS


def leaves_rows_open(node: Node | None) -> bool:
    """Whether a node appends to caches whose rows behind the new ones an operator leaves open."""
    if node is None or node.kind != "TensorScatter":
        return False
    padded = node.inputs[0]
    pads = None if padded is None or padded.producer is None else padded.producer.inputs[1]
    widths = None if pads is None else pads.producer
    return widths is not None and any(UNSPECIFIED in v.name for v in widths.distinct_reads)


def opens(node: Node) -> bool:
    """Whether a node only says which elements of its second input an operator leaves open."""
    return node.kind == "Where" and OPEN in node.operands[2].name


def becomes_integer(node: Node) -> bool:
    """Whether a node makes integers of floats: ONNX leaves open which, of those out of range."""
    if node.kind not in ("Cast", "CastLike"):
        return False
    x, y = node.operands[0].type, node.output.type
    is_float = isinstance(x, TensorType) and x.dtype in FLOATS
    return is_float and isinstance(y, TensorType) and y.dtype in INTEGERS


def is_size(value: Value) -> bool:
    """Whether a value is read as factors or limits of a Resize alone, which no runner narrows."""
    readers = [node for node in value.consumers if node.op.graphs() or value in node.inputs]
    return bool(readers) and all(
        node.kind == "Resize" and value not in node.inputs[:1] for node in readers
    )


def reaches_rounding(value: Value) -> bool:
    """Whether anything rounds what it reads of a value, moved or selected on its way or not.

    All else compares it, such as the limits of bins, or gives it as it is.
    """
    seen, waiting = {value}, [value]
    while waiting:
        read = waiting.pop()
        for node in read.consumers:
            if node.kind == "Resize" and read not in node.inputs[:1]:
                continue
            kind = plain_kind(node)
            if node.op.graphs() or not (_passes_on(node) or kind in COMPARING):
                return True
            below = {out for out in node.outputs if _may_be_float(out)} - seen
            below = set() if kind in COMPARING else below
            seen |= below
            waiting += below
    return False


def _may_be_float(value: Value) -> bool:
    return not isinstance(value.type, TensorType) or value.type.dtype in NAMES


def sums_by_result(node: Node) -> int:
    """Return the sum behind a result by that result, where all terms are positive; 0 for others."""
    kind = plain_kind(node)
    if kind in _AVERAGING:
        return len(node.inputs) if kind == "Mean" else terms(node)
    return int(kind in _ADDING)


def rounds_terms(node: Node) -> bool:
    """Whether the terms that a node adds up are rounded even if it reads whole numbers.

    It multiplies quotients, sines, functions of what it reads, or weights that it scales first.
    """
    if isinstance(node.op, SVMClassifier | SVMRegressor):
        return node.op.kernel_type != "LINEAR"
    return plain_kind(node) in _ROUNDING


def divides_exactly(node: Node) -> bool:
    """Whether a node divides by powers of two alone, as those of Vitis and QONNX do."""
    scale = node.inputs[1] if node.kind == "QuantizeLinear" else None
    if scale is None or scale.data is None:
        return False
    return bool((np.abs(np.frexp(scale.data.astype(np.float64))[0]) == 0.5).all())


def least_magnitude(node: Node) -> float:
    """Return the least magnitude that a node's results are rounded by; 0 where it is their own.

    Functions that end at one come from numbers of that size. A sum of leaves is rounded by the
    greatest of them, however small it is itself.
    """
    bounded = 1.0 / noise_growth(node) if plain_kind(node) in BOUNDED else 0.0
    if not isinstance(node.op, NodeLists | TreeEnsemble):
        return bounded
    ensemble = ensemble_of(node.op)
    if isinstance(ensemble, str) or ensemble.aggregate in ("MIN", "MAX"):
        return bounded
    leaves = np.abs([*ensemble.forest.weight, *ensemble.base])
    is_sum = len(ensemble.forest.roots) + ensemble.base.size > 1
    return max(bounded, leaves.max(initial=0.0) if is_sum else 0.0)


def noise_growth(node: Node) -> float:
    """Return how much further than one operation a node rounds: sums of many terms do.

    Products of matrices are summed in blocks, reductions by some one after the other. A power is
    an exponential of a logarithm, whose rounding it multiplies.
    """
    if node.kind in _POWERS:
        return 2.0
    if isinstance(node.op, DFT | STFT):
        return _angle(node.op, node)
    return max(1.0, sqrt(terms(node)) / (4 if node.op.dense else 2))


def _angle(op: DFT | STFT, node: Node) -> float:
    """Return by how much more than an operation the factors of a Fourier transform are rounded.

    Those of a power of two are multiplied stage by stage. Others are sines of angles that grow with
    the length, whether of the definition or of a chirp (Bluestein), and each angle is rounded by
    its own magnitude.
    """
    types: list[Any] = [None if value is None else value.tensor for value in node.inputs]
    length = op.length(*types)
    n = length if isinstance(length, int) else TERMS
    return max(1.0, n if n & (n - 1) else log2(n))


def terms(node: Node) -> int:
    """Return how many terms a node adds up for each element of its result, as far as known."""
    types = [value.type for value in (*node.distinct_reads, *node.outputs)]
    if not all(isinstance(type_, TensorType) and type_.is_static for type_ in types):
        return TERMS if node.op.dense else 1
    if node.kind in _NORMS:
        return max((1, *node.output.tensor.dims[-1:]))
    if node.kind in _CUMULATIVE:
        return max((1, *node.output.tensor.dims))
    if node.kind in _POOLING:
        return max(1, prod(getattr(node.op, "kernel_shape", ())))
    size = max(1, node.output.tensor.size)
    maximum = max(
        (value.tensor.size for value in node.distinct_reads if value.data is None), default=1
    )
    return max(1, (macs(node) or 0) // size, maximum // size)
