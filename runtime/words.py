"""The words that ONNX allows for attributes, where an operator's own rule does not check them."""

from __future__ import annotations

from .errors import ShapeError
from .op import Op

_POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_REDUCTIONS = ("none", "add", "mul", "max", "min")
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")

#: By operator and attribute.
WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "BitShift": {"direction": ("LEFT", "RIGHT")},
    "CDist": {"metric": ("sqeuclidean", "euclidean")},
    "CastMap": {
        "cast_to": ("TO_FLOAT", "TO_STRING", "TO_INT64"),
        "map_form": ("DENSE", "SPARSE"),
    },
    "DepthToSpace": {"mode": ("DCR", "CRD")},
    "Gelu": {"approximate": ("none", "tanh")},
    "LinearClassifier": {"post_transform": _POST_TRANSFORMS},
    "LinearRegressor": {"post_transform": _POST_TRANSFORMS},
    "Normalizer": {"norm": ("MAX", "L1", "L2")},
    "Pad": {"mode": ("constant", "reflect", "edge", "wrap")},
    "SVMClassifier": {"kernel_type": _KERNELS, "post_transform": _POST_TRANSFORMS},
    "SVMRegressor": {"kernel_type": _KERNELS, "post_transform": _POST_TRANSFORMS},
    "ScatterElements": {"reduction": _REDUCTIONS},
    "ScatterND": {"reduction": _REDUCTIONS},
    "SpaceToDepth": {"mode": ("DCR", "CRD")},
    "StringNormalizer": {"case_change_action": ("NONE", "LOWER", "UPPER")},
    "TensorScatter": {"mode": ("linear", "circular")},
    "TfIdfVectorizer": {"mode": ("TF", "IDF", "TFIDF")},
    "TreeEnsembleClassifier": {"post_transform": _POST_TRANSFORMS},
    "TreeEnsembleRegressor": {
        "aggregate_function": ("AVERAGE", "SUM", "MIN", "MAX"),
        "post_transform": _POST_TRANSFORMS,
    },
}


def check_words(op: Op) -> None:
    """Raise ShapeError for an attribute with a word that ONNX does not have."""
    for name, choices in WORDS.get(type(op).__name__, {}).items():
        value = getattr(op, name)
        if value not in choices:
            raise ShapeError(f"{name}={value!r}; ONNX has {', '.join(choices)}")
