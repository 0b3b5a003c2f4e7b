"""Operators of the domain com.microsoft, held against onnxruntime, which defines them."""

import random
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import tercet
from tercet.runtime.ir.dtypes import TO_ONNX
from tercet.runtime.ir.op import OPERATORS, attributes, input_names
from tercet.runtime.ir.types import Array
from tercet.runtime.ops.contrib_text import DOMAIN

DECLARED = {name: kind for (domain, name), kind in OPERATORS.items() if domain == DOMAIN}
SCHEMAS = {s.name: s for s in get_all_operator_schema() if s.domain == DOMAIN}

PATTERNS = [r"\w+", r"[a-zA-Z0-9_]+", r"\b\w\w+\b", "a|ab|abc", "a*", r"\s+", " ", "a*?b", "(?i)a+"]
PATTERNS += [
    r"[^ ]+",
    "^a",
    "b$",
    ".",
    "[[:punct:]]",
    "é|ü",
    r"\p{L}+",
    "(ab)+",
    "x?",
    r"\n",
    ".+?",
]
LETTERS = "aabbc  ,.\tdogéü日xyz_19A\n"


def model(name: str, inputs: list[Array], result: int, **attributes: Any) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(name, names, ["y"], domain=DOMAIN, **attributes)
    infos = [
        helper.make_tensor_value_info(n, TO_ONNX[x.dtype], [None] * x.ndim)
        for n, x in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_tensor_value_info("y", result, None)]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def both(proto: onnx.ModelProto, inputs: list[Array]) -> tuple[Array, Array]:
    """Return the result of tercet and that of onnxruntime."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (expected,) = session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})
    assert isinstance(expected, np.ndarray)
    with tercet.load(proto) as loaded:
        (found,) = loaded(*inputs)
    return found, expected


@pytest.mark.parametrize("name", DECLARED)
def test_declarations_have_the_attributes_and_inputs_of_onnxruntime(name: str) -> None:
    kind = DECLARED[name]
    schema = SCHEMAS[name]
    newer = {"swiglu_limit_after_activation"}  # onnxruntime has it since 1.32
    assert set(attributes(kind)) - newer == set(schema.attributes) - newer
    assert [n.lower() for n in input_names(kind)] == [i.name.lower() for i in schema.inputs]


def texts(rng: random.Random, shape: tuple[int, ...]) -> Array:
    lengths = rng.choices([0, 1, 5, 20], k=int(np.prod(shape)))
    made = ["".join(rng.choices(LETTERS, k=length)) for length in lengths]
    return np.array(made, object).reshape(shape)


@pytest.mark.parametrize("seed", range(60))
def test_tokens(seed: int) -> None:
    rng = random.Random(seed)
    x = texts(rng, rng.choice([(1,), (3,), (2, 2), (3, 1)]))
    how = {"mark": rng.randrange(2), "mincharnum": rng.choice([1, 1, 2, 3]), "pad_value": "#"}
    kind = rng.choice(["tokenexp", "separators", "characters"])
    if kind == "tokenexp":
        how["tokenexp"] = rng.choice(PATTERNS)
    else:
        separators = rng.choices(PATTERNS, k=rng.choice([1, 2, 3]))
        how["separators"] = [""] if kind == "characters" else separators
    if kind == "characters" or how.get("tokenexp") == ".":
        how["mincharnum"] = 1
    found, expected = both(model("Tokenizer", [x], TensorProto.STRING, **how), [x])
    assert found.tolist() == expected.tolist(), how


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"mincharnum": 0, "tokenexp": "a"}, "mincharnum=0"),
        ({"mincharnum": 2, "separators": [""]}, "mincharnum=2"),
        ({"mincharnum": 1}, "one of separators and tokenexp"),
        ({"mincharnum": 1, "separators": ["a"], "tokenexp": "a"}, "one of separators and tokenexp"),
    ],
)
def test_tokens_that_cannot_be(how: dict[str, object], complaint: str) -> None:
    x = np.array(["a"], object)
    proto = model("Tokenizer", [x], TensorProto.STRING, mark=0, pad_value="#", **how)
    with pytest.raises(tercet.ModelError, match=complaint):
        tercet.load(proto)


def test_a_search_is_not_slow_for_patterns_that_ruin_backtracking() -> None:
    x = np.array(["a" * 2000], object)
    how = {"mark": 0, "mincharnum": 1, "pad_value": "#", "tokenexp": "(a|a)*(a|a)*"}
    with tercet.load(model("Tokenizer", [x], TensorProto.STRING, **how)) as loaded:
        assert loaded(x)[0].tolist() == [["a" * 2000]]


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize(("positive", "seed"), [(1, 0), (0, 42), (0, -5)])
def test_hashes_of_numbers(dtype: str, positive: int, seed: int) -> None:
    x = (np.random.default_rng(0).standard_normal((2, 3)) * 1000).astype(dtype)
    result = TensorProto.UINT32 if positive else TensorProto.INT32
    found, expected = both(model("MurmurHash3", [x], result, positive=positive, seed=seed), [x])
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_hashes_of_texts() -> None:
    rng = random.Random(0)
    x = np.array(["".join(rng.choices(LETTERS, k=size)) for size in range(20)], object)
    found, expected = both(model("MurmurHash3", [x], TensorProto.UINT32), [x])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(3, 4, 5), (1, 300, 7), (0, 2, 3), (5000, 80, 4)], ids=str)
def test_distances(metric: str, dtype: str, sizes: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, sizes[2])).astype(dtype) for rows in sizes[:2])
    proto = model("CDist", [a, b], TO_ONNX[a.dtype], metric=metric)
    found, expected = both(proto, [a, b])
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, 1e-4 if dtype == "float32" else 1e-10)


def test_distances_of_close_points() -> None:
    """Points near others, and far from zero: |a|² + |b|² - 2ab would be noise."""
    rng = np.random.default_rng(1)
    b = (rng.standard_normal((40, 6)) + 100).astype(np.float32)
    a = np.concatenate([b, np.nextafter(b, np.float32(200)), b + np.float32(1e-3)])
    proto = model("CDist", [a, b], TensorProto.FLOAT, metric="euclidean")
    with tercet.load(proto) as loaded:
        (found,) = loaded(a, b)
    exact = np.linalg.norm(a[:, np.newaxis].astype(float) - b, axis=-1)
    np.testing.assert_allclose(found, exact, 1e-6)
    assert (found[:40][np.eye(40, dtype=bool)] == 0).all()
