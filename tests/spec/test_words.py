"""Attributes that choose between words: the schema's words are taken, all others are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.defs
import pytest
from onnx.defs import OpSchema

from tercet.runtime import ops
from tercet.runtime.errors import ShapeError
from tercet.runtime.ir.dtypes import float32, int64
from tercet.runtime.ir.op import OPERATORS, Op
from tercet.runtime.ir.types import MapType, TensorType, ValueType, type_of

from .samples import Sample, sample_of

assert ops  # importing it declares the operators

ML, TRAINING = "ai.onnx.ml", "ai.onnx.preview.training"
AUTO_PAD = "NOTSET SAME_UPPER SAME_LOWER VALID"
DIRECTION = "forward reverse bidirectional"
REDUCTION = "none sum mean"
SCATTER = "none add mul max min"
TRANSFORM = "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT"
ACTIVATIONS = (
    "Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign "
    "Softplus"
)

WORDS = {
    **{("", name, "auto_pad"): AUTO_PAD for name in ("AveragePool", "Conv", "ConvInteger")},
    **{("", name, "auto_pad"): AUTO_PAD for name in ("ConvTranspose", "LpPool", "MaxPool")},
    ("", "QLinearConv", "auto_pad"): AUTO_PAD,
    ("", "BitShift", "direction"): "LEFT RIGHT",
    ("", "Cast", "round_mode"): "up down nearest",
    ("", "CastLike", "round_mode"): "up down nearest",
    ("", "CausalConvWithState", "activation"): "none silu swish",
    ("", "DepthToSpace", "mode"): "DCR CRD",
    ("", "SpaceToDepth", "mode"): "DCR CRD",
    **{("", name, "direction"): DIRECTION for name in ("GRU", "LSTM", "RNN")},
    **{("", name, "activations"): ACTIVATIONS for name in ("GRU", "LSTM", "RNN")},
    ("", "Gelu", "approximate"): "none tanh",
    ("", "GridSample", "mode"): "linear nearest cubic",
    ("", "GridSample", "padding_mode"): "zeros border reflection",
    ("", "ImageDecoder", "pixel_format"): "RGB BGR Grayscale",
    ("", "LinearAttention", "update_rule"): "linear gated delta gated_delta",
    ("", "NegativeLogLikelihoodLoss", "reduction"): REDUCTION,
    ("", "SoftmaxCrossEntropyLoss", "reduction"): REDUCTION,
    ("", "Pad", "mode"): "constant reflect edge wrap",
    ("", "Resize", "coordinate_transformation_mode"): "half_pixel half_pixel_symmetric "
    "pytorch_half_pixel align_corners asymmetric tf_crop_and_resize",
    ("", "Resize", "keep_aspect_ratio_policy"): "stretch not_larger not_smaller",
    ("", "Resize", "mode"): "nearest linear cubic",
    ("", "Resize", "nearest_mode"): "round_prefer_floor round_prefer_ceil floor ceil",
    ("", "RoiAlign", "coordinate_transformation_mode"): "half_pixel output_half_pixel",
    ("", "RoiAlign", "mode"): "avg max",
    ("", "ScatterElements", "reduction"): SCATTER,
    ("", "ScatterND", "reduction"): SCATTER,
    ("", "StringNormalizer", "case_change_action"): "LOWER UPPER NONE",
    ("", "TensorScatter", "mode"): "linear circular",
    ("", "TfIdfVectorizer", "mode"): "TF IDF TFIDF",
    (ML, "CastMap", "cast_to"): "TO_FLOAT TO_STRING TO_INT64",
    (ML, "CastMap", "map_form"): "DENSE SPARSE",
    **{
        (ML, name, "post_transform"): TRANSFORM
        for name in ("LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor")
    },
    (ML, "TreeEnsembleClassifier", "post_transform"): TRANSFORM,
    (ML, "TreeEnsembleRegressor", "post_transform"): TRANSFORM,
    (ML, "TreeEnsembleRegressor", "aggregate_function"): "SUM AVERAGE MIN MAX",
    (ML, "Normalizer", "norm"): "MAX L1 L2",
    (ML, "SVMClassifier", "kernel_type"): "LINEAR POLY RBF SIGMOID",
    (ML, "SVMRegressor", "kernel_type"): "LINEAR POLY RBF SIGMOID",
    (TRAINING, "Momentum", "mode"): "standard nesterov",
}
#: Attributes of any text, and Gradient's, which are names of tensors.
FREE = {
    *("default_string", "delimiter", "equation", "locale", "pattern", "pool_strings", "stopwords"),
    *("value_string", "value_strings", "xs", "y", "zs"),
}


def with_word(op: Op, attribute: str, word: str) -> Op:
    old = getattr(op, attribute)
    count = {"LSTM": 3, "GRU": 2}.get(type(op).__name__, 2) * 2
    value: Any = (word,) * count if isinstance(old, tuple) or attribute == "activations" else word
    return replace(op, **{attribute: value})


def typed(value: Any) -> ValueType | None:
    if isinstance(value, dict):
        return MapType(int64, TensorType(float32, ()))
    return None if value is None else type_of(value)


def infer(sample: Sample, op: Op) -> str:
    """Return why the operator refuses its sample's types, or an empty string."""
    types = [
        TensorType(x.dtype, x.shape, x) if isinstance(x, np.ndarray) else typed(x)
        for x in sample.inputs
    ]
    try:
        op.infer(*types)
    except ShapeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", WORDS, ids=".".join)
def test_words(key: tuple[str, str, str]) -> None:
    domain, name, attribute = key
    sample = sample_of((domain, name))
    assert sample is not None
    words = WORDS[key].split()
    for odd in ("bogus", "", words[0].swapcase()):
        said = infer(sample, with_word(sample.op, attribute, odd))
        assert attribute in said, f"'{odd}' is taken"
        assert all(word in said for word in words), said
    for word in words:
        said = infer(sample, with_word(sample.op, attribute, word))
        assert f"{attribute}=" not in said or "; ONNX has " not in said, said


@pytest.mark.parametrize("key", WORDS, ids=".".join)
def test_they_are_the_schemas_words(key: tuple[str, str, str]) -> None:
    domain, name, attribute = key
    schema = onnx.defs.get_schema(name, domain=domain)
    text = schema.attributes[attribute].description + (schema.doc or "")
    missing = [word for word in WORDS[key].split() if word not in text]
    assert missing == [word for word in missing if attribute == "activations"]


def test_no_attribute_of_words_is_left_out() -> None:
    texts = (OpSchema.AttrType.STRING, OpSchema.AttrType.STRINGS)
    found = {
        (schema.domain, schema.name, name)
        for schema in onnx.defs.get_all_schemas()
        for name, attribute in schema.attributes.items()
        if attribute.type in texts and not schema.deprecated
        if (schema.domain, schema.name) in OPERATORS
    }
    data = {"cats_strings", "classlabels_strings", "string_vocabulary", "nodes_modes"}
    left = {key for key in found - set(WORDS) if key[2] not in FREE | data}
    assert {key for key in left if not key[2].startswith(("keys_", "values_"))} == set()
