"""The element types that ONNX allows, by operator.

A signature has a word for every input, an arrow, and a word for every output. A word is a set of
dtypes, such as ``floats+bool``; ``T=floats`` also names the actual dtype, and every other ``T``
must be the same dtype. Dots mark a variadic parameter. A sequence or optional counts as its
element, a map as ``key:value``.

The sets are those of the newest opset, which contain those of all older ones. Only Erf,
ReduceLogSum and ReduceLogSumExp lost dtypes, and keep them here. SequenceAt also accepts the maps
of ZipMap, for which ONNX has no other consumer. tests/spec compares the table with the schemas in
the `onnx` package.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from ..base.record import record
from ..errors import ShapeError
from . import dtypes
from .dtypes import COMPLEX, FLOAT6S, FLOATS, INTEGERS, DType, name_of
from .op import OPERATORS, Op, input_names, per_operator
from .types import MapType, OptionalType, SequenceType, TensorType, ValueType

#: The domains that the table refers to.
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")

#: The element type of a value: a dtype, or those of a map's keys and values.
Element = DType | tuple[DType, DType]

_BYTES = frozenset({dtypes.int8, dtypes.uint8})
_INDICES = frozenset({dtypes.int32, dtypes.int64})
_WORDS = _INDICES | {dtypes.uint32, dtypes.uint64}
_SMALL = frozenset({dtypes.int2, dtypes.int4, dtypes.uint2, dtypes.uint4})
_WHOLE = INTEGERS - _SMALL
_FP8 = dtypes.FLOAT8S - {dtypes.float8e8m0}
_ATOMS = _SMALL | {dtypes.float4e2m1, dtypes.float8e8m0}
_PLAIN = FLOATS | _WHOLE | COMPLEX | {dtypes.bool_, dtypes.string}
_STORED = _PLAIN | _FP8 | _ATOMS

#: The map types of ONNX.
MAPS: frozenset[Element] = frozenset({
    *((dtypes.int64, value) for value in (dtypes.float32, dtypes.float64, dtypes.string)),
    *((dtypes.string, value) for value in (dtypes.float32, dtypes.float64, dtypes.int64)),
})  # fmt: skip

#: Named sets of dtypes; a dtype's own name is a set of one.
SETS: dict[str, frozenset[Element]] = {
    "floats": FLOATS,
    "integers": _WHOLE,
    "numbers": FLOATS | _WHOLE,
    "bytes": _BYTES,
    "words": _WORDS,
    "indices": _INDICES,
    "signed": dtypes.SIGNED - _SMALL,
    "halves": FLOATS - {dtypes.float64},
    "labels": frozenset({dtypes.int64, dtypes.string}),
    "ml": frozenset({dtypes.float32, dtypes.float64}) | _INDICES,
    "complexes": COMPLEX,
    "fp8": _FP8,
    "fp6": FLOAT6S,
    "small": _ATOMS,
    "codes": _FP8 | FLOAT6S | (_ATOMS - {dtypes.float8e8m0}) | (_WHOLE - _WORDS),
    "classic": _PLAIN - {dtypes.bfloat16},
    "plain": _PLAIN,
    "stored": _STORED,
    "all": _STORED | FLOAT6S,
    "maps": MAPS,
}

#: The operators of each signature; no two domains have a name in common.
SIGNATURES = {
    "T=classic... -> classic": "SequenceConstruct",
    "T=float16+float32+float64 -> T": "TreeEnsemble",
    "T=floats -> T": (
        "Acos Acosh Asin Asinh Atan Atanh AveragePool Ceil Celu Cos Cosh Det Elu Exp Floor "
        "Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool HardSigmoid HardSwish Hardmax LRN "
        "LeakyRelu Log LogSoftmax LpNormalization LpPool MeanVarianceNormalization Mish "
        "Reciprocal Round Selu Sigmoid Sin Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh "
        "ThresholdedRelu"
    ),
    "T=floats+bytes -> T int64": "MaxPool",
    "T=floats+signed -> T": "Neg Relu",
    "T=floats... -> T": "Mean Sum",
    "T=integers -> T": "BitwiseNot",
    "T=ml -> T": "Binarizer Imputer",
    "T=ml... -> float32": "FeatureVectorizer",
    "T=numbers -> T": "Abs Erf Sign",
    "T=numbers-bfloat16 -> T": "Shrink",
    "T=numbers... -> T": "Einsum Max Min",
    "T=plain -> T": "DepthToSpace SpaceToDepth",
    "T=plain -> T int64 int64 int64": "Unique",
    "T=plain... -> T": "Concat",
    "T=stored -> T": "Flatten Identity Transpose",
    "all -> all": "Optional OptionalGetElement",
    "all -> bool": "OptionalHasElement",
    "all-complex128-complex64 -> all-complex128-complex64": "Cast",
    "bool -> bool": "Not",
    "bool -> stored...": "If",
    "classic -> classic": "ConcatFromSequence",
    "classic -> int64": "SequenceLength",
    "classic... -> float16+float32+float64...": "Gradient",
    "float32 -> int64:float32+string:float32": "ZipMap",
    "float32 -> uint8 float32 uint8": "DynamicQuantizeLinear",
    "floats -> indices": "Multinomial",
    "floats -> numbers+bool": "Bernoulli",
    "floats+fp8 -> bool": "IsInf IsNaN",
    "indices -> numbers": "BlackmanWindow HammingWindow HannWindow",
    "indices+string -> float32": "TfIdfVectorizer",
    "int64 -> numbers+small+fp8+bool": "ConstantOfShape",
    "int64:float32+int64:string -> labels+float32": "CastMap",
    "labels -> labels": "CategoryMapper",
    "maps -> labels+float32+float64": "DictVectorizer",
    "ml -> float32": "LinearRegressor Normalizer SVMRegressor Scaler TreeEnsembleRegressor",
    "ml -> labels float32": "LinearClassifier SVMClassifier TreeEnsembleClassifier",
    "ml+int16+string -> ml+int16+string": "LabelEncoder",
    "ml+string -> float32": "OneHotEncoder",
    "numbers -> int64": "ArgMax ArgMin",
    "numbers+bool -> numbers+bool": "EyeLike",
    "plain -> floats": "RandomNormalLike RandomUniformLike",
    "plain -> int64": "NonZero",
    "stored -> int64": "Shape Size",
    "stored-string -> stored-string": "BitCast",
    "stored... -> stored...": "Scan",
    "string -> bool": "RegexFullMatch",
    "string -> string": "StringNormalizer",
    "string -> string int64": "StringSplit",
    "uint8 -> uint8": "ImageDecoder",
    "-> classic": "SequenceEmpty",
    "-> floats": "RandomNormal RandomUniform",
    "-> stored": "Constant",
    "T=classic classic... -> classic...": "SequenceMap",
    "T=classic indices -> T": "SequenceErase",
    "T=floats T -> T": "MaxRoiPool SwiGLU",
    "T=floats int64 -> T": "AffineGrid",
    "T=floats+indices numbers -> T": "Pow",
    "T=floats+words T -> T": "MatMul PRelu",
    "T=floats+words indices -> T": "CumProd CumSum",
    "T=floats+words int64 -> T": (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum "
        "ReduceSumSquare"
    ),
    "T=floats+words+bytes+bool int64 -> T": "ReduceMax ReduceMin",
    "T=integers T -> T": "BitShift BitwiseAnd BitwiseOr BitwiseXor",
    "T=ml+string int64 -> T": "ArrayFeatureExtractor",
    "T=numbers T -> T": "Add Div Mod Mul Sub",
    "T=numbers T -> bool": "Greater GreaterOrEqual Less LessOrEqual",
    "T=numbers int64 -> T int64": "TopK",
    "T=numbers+bool+string T -> bool": "Equal",
    "T=plain bool -> T": "Compress",
    "T=plain floats -> T": "GridSample",
    "T=plain indices -> T": "CenterCropPad Gather GatherElements",
    "T=plain int64 -> T": "Expand GatherND ReverseSequence Tile Trilu",
    "T=plain int64 -> T...": "Split",
    "T=stored int64 -> T": "Reshape Squeeze Unsqueeze",
    "bool bool -> bool": "And Or Xor",
    "classic+maps indices -> classic+maps": "SequenceAt",
    "floats T=floats -> T": "RMSNormalization",
    "plain indices -> plain": "SplitToSequence",
    "stored-complex128-complex64 T=stored-complex128-complex64 -> T": "CastLike",
    "string string -> string": "StringConcat",
    "T=classic classic indices -> T": "SequenceInsert",
    "T=codes+int32 halves+float8e8m0 T -> halves": "DequantizeLinear",
    "T=floats T T -> T": (
        "Conv ConvTranspose GroupNormalization InstanceNormalization FlexAttention"
    ),
    "T=floats T T -> T U=bfloat16+float32 U": "LayerNormalization",
    "T=floats T int64 -> T": "RoiAlign",
    "T=floats indices T -> T": "NegativeLogLikelihoodLoss",
    "T=floats indices T -> T T": "SoftmaxCrossEntropyLoss",
    "T=floats indices int64 -> T": "DFT",
    "T=floats int64 int64 -> T": "MaxUnpool",
    "T=floats+fp8 floats+fp8 bool -> T bool": "Dropout",
    "T=floats+indices+int16 T T -> T": "Range",
    "T=floats+words T T -> T": "Gemm",
    "T=numbers T T -> T": "Clip",
    "T=plain indices T -> T": "ScatterElements",
    "T=plain int64 T -> T": "ScatterND",
    "T=plain int64 int64 -> T": "Col2Im",
    "T=stored-int2-uint2 T int64 -> T": "TensorScatter",
    "bool T=plain T -> T": "Where",
    "float32+float64 int64 float32+float64... -> float32+float64...": "Adagrad Adam Momentum",
    "halves+int32 halves+float8e8m0+int32 T=codes -> T": "QuantizeLinear",
    "int64 bool stored... -> stored...": "Loop",
    "numbers-bfloat16 numbers-bfloat16 T=plain -> T": "OneHot",
    "T=bytes U=bytes T U -> int32": "ConvInteger MatMulInteger",
    "T=floats U=indices T U -> T": "STFT",
    "T=halves T T T -> T T": "CausalConvWithState",
    "T=halves T T int64 -> T": "RotaryEmbedding",
    "T=plain float16+float32+float64 float32 int64 -> T": "Resize",
    "T=stored int64 T indices -> T": "Pad",
    "T=floats T T T T -> T": "DeformConv",
    "T=floats U=floats U V=floats V -> T V V": "BatchNormalization",
    "T=indices T T U=floats U -> numbers": "MelWeightMatrix",
    "T=plain U=indices U U U -> T": "Slice",
    "float32 float32 int64 float32 float32 -> int64": "NonMaxSuppression",
    "T=floats T T T int32 T -> T T": "GRU RNN",
    "T=halves T T U=halves T T -> T U": "LinearAttention",
    "T=floats T U=floats numbers+bool T U int64 -> T T U T": "Attention",
    "T=floats T T T int32 T T T -> T T T": "LSTM",
    "T=fp8+bytes U=halves T V=fp8+bytes U V U W=fp8+bytes -> W": "QLinearMatMul",
    "T=bytes float32 T U=bytes float32 U float32 V=bytes int32 -> V": "QLinearConv",
}


@record
class Constraint:
    """The element types allowed for one input or output.

    Attributes:
        parameter: the name shared by values that must have the same dtype, or empty.
        allowed: the allowed dtypes.
        repeats: whether it applies to all further parameters as well.
    """

    parameter: str
    allowed: frozenset[Element]
    repeats: bool


@record
class Signature:
    """The element types allowed for the inputs and outputs of an operator, in order."""

    inputs: tuple[Constraint, ...]
    outputs: tuple[Constraint, ...]


_WIDE = ContextVar("wide", default=False)


@contextmanager
def float64_for_float32() -> Generator[None]:
    """Allow float64 wherever ONNX allows float32, to run a model in higher precision."""
    token = _WIDE.set(True)
    try:
        yield
    finally:
        _WIDE.reset(token)


def is_wide() -> bool:
    """Whether float64 may replace float32."""
    return _WIDE.get()


@per_operator
def signature_of(operator: type[Op]) -> Signature | None:
    """Return the signature of an operator; None for operators outside ONNX."""
    name = operator.__name__
    if operator.domain not in DOMAINS or OPERATORS.get((operator.domain, name)) is not operator:
        return None
    found = (text for text, names in SIGNATURES.items() if name in names.split())
    return next(map(_parsed, found), None)


def check_inputs(op: Op, types: Sequence[ValueType | None]) -> dict[str, Element]:
    """Check the dtypes of an operator's inputs; None stands for an omitted one.

    Returns:
        The actual dtype of each type parameter of the signature.

    Raises:
        ShapeError: ONNX does not allow these dtypes; the message names the input and the allowed
            dtypes.
    """
    bound: dict[str, Element] = {}
    signature = signature_of(type(op))
    if signature is not None:
        _check(op, signature.inputs, types, bound, input_names(type(op)))
    return bound


def takes(operator: type[Op], element: Element, place: int = 0) -> bool:
    """Return whether ONNX allows a dtype for an input of an operator, the first one by default."""
    signature = signature_of(operator)
    if signature is None:
        return True
    return element in signature.inputs[min(place, len(signature.inputs) - 1)].allowed


def check_outputs(op: Op, types: Sequence[ValueType | None], bound: dict[str, Element]) -> None:
    """Check the output dtypes, as attributes or the operator's rule chose them.

    Args:
        op: the operator.
        types: of its outputs; None if unknown.
        bound: the result of `check_inputs`.

    Raises:
        ShapeError: ONNX does not allow these dtypes.
    """
    signature = signature_of(type(op))
    if signature is not None:
        _check(op, signature.outputs, types, bound, ())


def _check(
    op: Op,
    constraints: Sequence[Constraint],
    types: Sequence[ValueType | None],
    bound: dict[str, Element],
    names: Sequence[str],
) -> None:
    for i, found in enumerate(types):
        if found is None:
            continue
        constraint = constraints[min(i, len(constraints) - 1)]
        element = _element_of(found)
        if element is None:
            continue
        # Statistics that ONNX defines as float32 are float64 if `stash_type` says so.
        if element not in constraint.allowed and not (
            element == dtypes.float64
            and dtypes.float32 in constraint.allowed
            and (not names or is_wide())
        ):
            raise ShapeError(
                f"{_title(names, i)} of {type(op).__name__} is {_text(element)}; "
                f"ONNX allows {_allowed(element, constraint, type(op).__name__)}"
            )
        if constraint.parameter:
            wanted = bound.setdefault(constraint.parameter, element)
            if wanted != element:
                raise ShapeError(
                    f"{_title(names, i)} is {_text(element)}, where the inputs before it are "
                    f"{_text(wanted)}: the dtypes must agree"
                    f"{_REMEDIES.get(frozenset({element, wanted}), '')}"
                )


def _allowed(found: Element, constraint: Constraint, operator: str) -> str:
    """Return what ONNX allows instead of an element type, and a remedy if there is one."""
    if found in _COMPLEX:
        return (
            "complex numbers only as pairs of floats, in a last axis of size 2: write the layer "
            "with real and imaginary parts, or with STFT or DFT"
        )
    allowed = ", ".join(sorted(map(_text, constraint.allowed)))
    if found == dtypes.float64 and dtypes.float32 in constraint.allowed:
        left_out = "; skl2onnx leaves it out with options={'zipmap': False}"
        more = left_out if operator == "ZipMap" else ""
        return f"{allowed} (put a Cast to float32 in front of it{more})"
    if found != dtypes.float16 or dtypes.float32 not in constraint.allowed:
        return allowed
    return (
        f"{allowed} (convert to float16 with '{operator}' in op_block_list, which keeps it in "
        "float32, and without disable_shape_infer)"
    )


def _title(names: Sequence[str], i: int) -> str:
    """Return what an input with a name is called, or an output."""
    return names[min(i, len(names) - 1)] if names else f"output {i}"


_COMPLEX = frozenset({dtypes.complex64, dtypes.complex128})
#: What writes files in which these dtypes meet, and what to do.
_REMEDIES: dict[frozenset[Element], str] = {
    frozenset({dtypes.float16, dtypes.float32}): (
        " (a conversion to float16 that leaves Casts to float32 as they are writes such files; "
        "that of onnxruntime.transformers.float16 does not)"
    ),
    frozenset({dtypes.float32, dtypes.float64}): (
        " (skl2onnx writes such files of some pipelines with float64 inputs; declare float32 ones)"
    ),
}


def _element_of(found: ValueType | None) -> Element | None:
    """Return the element type of a value, or None if unknown."""
    while isinstance(found, SequenceType | OptionalType):
        found = found.element
    if isinstance(found, MapType):
        inner = _element_of(found.element)
        return None if inner is None or isinstance(inner, tuple) else (found.key, inner)
    return found.dtype if isinstance(found, TensorType) else None


def _text(element: Element) -> str:
    if isinstance(element, tuple):
        return f"map({name_of(element[0])}, {name_of(element[1])})"
    return name_of(element)


# ── the notation ─────────────────────────────────────────────────────────────────────────────────


def _parsed(text: str) -> Signature:
    """Return the signature denoted by a key of `SIGNATURES`."""
    named: dict[str, frozenset[Element]] = {}
    inputs, outputs = text.split("->")
    return Signature(
        tuple(_constraint(word, named) for word in inputs.split()),
        tuple(_constraint(word, named) for word in outputs.split()),
    )


def _constraint(word: str, named: dict[str, frozenset[Element]]) -> Constraint:
    word, repeats = word.removesuffix("..."), word.endswith("...")
    name, is_new, chosen = word.partition("=")
    if is_new:
        named[name] = _set(chosen)
    is_named = name in named
    return Constraint(name if is_named else "", named[name] if is_named else _set(word), repeats)


def _set(text: str) -> frozenset[Element]:
    """Return the set denoted by sums and differences of names."""
    found: set[Element] = set()
    for part in text.split("+"):
        first, *less = part.split("-")
        found |= _named(first).difference(*map(_named, less))
    return frozenset(found)


def _named(name: str) -> frozenset[Element]:
    if ":" in name:
        key, value = map(_dtype, name.split(":"))
        return frozenset({(key, value)})
    return SETS[name] if name in SETS else frozenset({_dtype(name)})


def _dtype(name: str) -> DType:
    found: DType = getattr(dtypes, f"{name}_" if name == "bool" else name)
    return found
