"""Inputs for single operators: those of ONNX's own cases, and small ones where it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tercet.backends.numpy.numerics.convert import convert
from tercet.importers.onnx import load
from tercet.runtime.ir.dtypes import (
    bits_of,
    float32,
    int64,
    string,
    uint2,
    uint4,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tercet.runtime.ir.op import OPERATORS, Op, TensorAttribute

from .cases import array_of, cases_by_operator

Key = tuple[str, str]

ML, TRAINING = "ai.onnx.ml", "ai.onnx.preview.training"


@dataclass(frozen=True, eq=False)
class Sample:
    """An operator with inputs that it takes.

    Attributes:
        op: the operator.
        inputs: arrays, lists, maps; None where an input is left out.
        count: number of outputs.
    """

    op: Op
    inputs: Sequence[Any]
    count: int = 1


def sample_of(key: Key) -> Sample | None:
    """Return inputs for an operator: those written below, or of its first case; None if neither."""
    if key in SAMPLES:
        return SAMPLES[key]
    for case in cases_by_operator().get(key, ()):
        graph = load(case.model).graph
        values = dict(zip(graph.inputs, map(array_of, case.inputs), strict=False))
        for node in graph.nodes:
            reads = [v for v in node.inputs if v is not None and not v.is_constant]
            if isinstance(node.op, OPERATORS[key]) and all(v in values for v in reads):
                inputs = [v and (values[v] if v.data is None else v.data) for v in node.inputs]
                return Sample(node.op, inputs, len(node.outputs))
    return None


def _sample(name: str, *inputs: Any, count: int = 1, domain: str = "", **attributes: Any) -> None:
    SAMPLES[domain, name] = Sample(OPERATORS[domain, name](**attributes), inputs, count)


def _tree(dtype: Any) -> Mapping[str, Any]:
    """Return the attributes of one tree with one inner node."""
    return {
        "leaf_targetids": (0, 0),
        "leaf_weights": TensorAttribute(np.array([1, 2], dtype)),
        "nodes_falseleafs": (1,),
        "nodes_falsenodeids": (1,),
        "nodes_featureids": (0,),
        "nodes_modes": TensorAttribute(np.zeros(1, np.uint8)),
        "nodes_splits": TensorAttribute(np.ones(1, dtype)),
        "nodes_trueleafs": (1,),
        "nodes_truenodeids": (0,),
        "tree_roots": (0,),
    }


SAMPLES: dict[Key, Sample] = {}

_IMAGE = np.arange(32, dtype=float32).reshape(1, 2, 4, 4) / 4
_ROWS = np.arange(6, dtype=float32).reshape(2, 3)
_LIST = [_ROWS, _ROWS + 1]

_sample("CastLike", _ROWS, np.zeros(0, float32))
_sample("ConcatFromSequence", _LIST, axis=1)
_sample("Constant", value=TensorAttribute(_ROWS))
_sample("GlobalLpPool", _IMAGE)
_sample("MaxRoiPool", _IMAGE, np.array([[0, 0, 0, 3, 3]], float32), pooled_shape=(2, 2))
_sample("Multinomial", np.zeros((2, 3), float32), sample_size=4)
_sample("Optional", _ROWS)
_sample("OptionalGetElement", _ROWS)
_sample("OptionalHasElement", _ROWS)
_sample("RandomNormal", shape=(2, 3))
_sample("RandomNormalLike", _ROWS, dtype=float32)
_sample("RandomUniform", shape=(2, 3))
_sample("RandomUniformLike", _ROWS, dtype=float32)
_sample("Range", *(np.array(x, float32) for x in (1, 6, 2)))
_sample("SequenceAt", _LIST, np.array(1))
_sample("SequenceConstruct", *_LIST)
_sample("SequenceEmpty")
_sample("SequenceErase", _LIST, np.array(0))
_sample("SequenceInsert", _LIST, _ROWS, np.array(0))
_sample("SequenceLength", _LIST)
_sample("CastMap", {1: 2.0, 0: 1.0}, domain=ML)
_sample("CategoryMapper", np.array(["a", "b"], string), domain=ML,
        cats_int64s=(1, 2), cats_strings=("a", "b"))  # fmt: skip
_sample("DictVectorizer", {1: 2.0, 4: 1.0}, domain=ML, int64_vocabulary=(4, 1, 3))
_sample("FeatureVectorizer", _ROWS, _ROWS, domain=ML, inputdimensions=(3, 3))
_sample("Imputer", _ROWS, domain=ML, imputed_value_floats=(7.0,), replaced_value_float=2.0)
_sample("LinearClassifier", _ROWS, domain=ML, count=2,
        classlabels_ints=(0, 1), coefficients=(0.5, -1.0, 1.0, -0.5, 1.0, 0.0))  # fmt: skip
_sample("LinearRegressor", _ROWS, domain=ML, coefficients=(0.5, -1.0, 1.0))
_sample("Normalizer", _ROWS, domain=ML, norm="L2")
_sample("OneHotEncoder", np.array([1, 4]), domain=ML, cats_int64s=(1, 2, 4))
_sample("Scaler", _ROWS, domain=ML, offset=(1.0,), scale=(0.5,))
_sample("SVMClassifier", _ROWS, domain=ML, count=2,
        classlabels_ints=(0, 1), coefficients=(1.0, -1.0), rho=(0.5,), vectors_per_class=(1, 1),
        support_vectors=(0.0, 1.0, 1.0, 1.0, 0.0, 2.0), kernel_params=(1.0, 0.0, 1.0))  # fmt: skip
_sample("SVMRegressor", _ROWS, domain=ML, coefficients=(1.0, -1.0), rho=(0.5,), n_supports=2,
        support_vectors=(0.0, 1.0, 1.0, 1.0, 0.0, 2.0), kernel_params=(1.0, 0.0, 1.0))  # fmt: skip
_sample("TreeEnsemble", _ROWS, domain=ML, **_tree(float32))
_sample("TreeEnsembleRegressor", _ROWS, domain=ML,
        nodes_falsenodeids=(2, 0, 0), nodes_featureids=(0, 0, 0), nodes_nodeids=(0, 1, 2),
        nodes_modes=("BRANCH_LEQ", "LEAF", "LEAF"), nodes_treeids=(0, 0, 0),
        nodes_truenodeids=(1, 0, 0), nodes_values=(1.0, 0.0, 0.0), target_ids=(0, 0),
        target_nodeids=(1, 2), target_treeids=(0, 0), target_weights=(1.0, 2.0))  # fmt: skip
_sample("TreeEnsembleClassifier", _ROWS, domain=ML, count=2, classlabels_int64s=(0, 1),
        nodes_falsenodeids=(2, 0, 0), nodes_featureids=(0, 0, 0), nodes_nodeids=(0, 1, 2),
        nodes_modes=("BRANCH_LEQ", "LEAF", "LEAF"), nodes_treeids=(0, 0, 0),
        nodes_truenodeids=(1, 0, 0), nodes_values=(1.0, 0.0, 0.0), class_ids=(0, 1),
        class_nodeids=(1, 2), class_treeids=(0, 0), class_weights=(1.0, 2.0))  # fmt: skip
_sample("ZipMap", _ROWS, domain=ML, classlabels_int64s=(1, 2, 3))


def fitted(sample: Sample, dtype: Any) -> Op:
    """Return the operator with the attributes that have to be of its input's dtype changed."""
    op = sample.op
    kind: Any = type(op)
    match kind.__name__:
        case "TreeEnsemble":
            return kind(**_tree(dtype))
        case "LabelEncoder":
            keys = TensorAttribute(convert(np.arange(3), dtype))
            values, default = (
                TensorAttribute(np.arange(3, dtype=int64)),
                TensorAttribute(np.array([7])),
            )
            return kind(keys_tensor=keys, values_tensor=values, default_tensor=default)
        case "OneHotEncoder" if dtype == string:
            return kind(cats_strings=("1", "2", "4"))
        case "BitCast":
            same = {2: uint2, 4: uint4, 8: uint8, 16: uint16, 32: uint32, 64: uint64}
            return kind(to=same.get(bits_of(dtype), dtype))
        case _:
            return op
