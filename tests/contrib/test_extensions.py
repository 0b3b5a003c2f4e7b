"""Operators of onnxruntime-extensions; results are those of its version 0.15.2."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tercet
from tercet.importers.onnx.contrib.catalogue import EXTENSIONS
from tercet.runtime.ir.dtypes import string
from tercet.runtime.ir.types import Array


def text(*words: str) -> Array:
    return np.array(words, string)


def split(*options: Any) -> dict[str, Any]:
    return {"separator": text(options[0]), "skip": np.array([options[1]])}


WORDS = text("Hello Wörld", "ÄÖ", "", "a,b,,c")
SQUARE = WORDS.reshape(2, 2)
NUMBERS = np.arange(6, dtype=np.float32).reshape(3, 2)
MATRIX = np.array([[1, 2], [3, 4]], np.float32)
#: Operator, data, constants and results.
SAMPLES: list[tuple[str, list[Array], dict[str, Array], list[Any]]] = [
    ("StringLower", [WORDS], {}, [["hello wörld", "äö", "", "a,b,,c"]]),
    ("StringLower", [SQUARE], {}, [[["hello wörld", "äö"], ["", "a,b,,c"]]]),
    ("StringConcat", [SQUARE[1], text("x", "y")], {}, [["x", "a,b,,cy"]]),
    ("StringEqual", [WORDS, WORDS[::-1]], {}, [[False] * 4]),
    ("StringEqual", [SQUARE, WORDS[:1]], {}, [[[True, False], [False, False]]]),
    (
        "StringJoin",
        [SQUARE],
        {"separator": text("-"), "axis": np.array([0])},
        [["Hello Wörld-", "ÄÖ-a,b,,c"]],
    ),
    (
        "StringJoin",
        [SQUARE],
        {"separator": text("-"), "axis": np.array([1])},
        [["Hello Wörld-ÄÖ", "-a,b,,c"]],
    ),
    (
        "StringSplit",
        [WORDS],
        split(",", True),
        [
            [[0, 0], [1, 0], [3, 0], [3, 1], [3, 2]],
            ["Hello Wörld", "ÄÖ", "a", "b", "c"],
            [4, 3],
        ],
    ),
    (
        "StringSplit",
        [WORDS],
        split(",", False),
        [
            [[0, 0], [1, 0], [3, 0], [3, 1], [3, 2], [3, 3]],
            ["Hello Wörld", "ÄÖ", "a", "b", "", "c"],
            [4, 4],
        ],
    ),
    ("MaskedFill", [WORDS, np.array([True, False, True, False])], {}, [["Hello Wörld", ""]]),
    (
        "NegPos",
        [np.array([[-1, 2, 0]], np.float32)],
        {},
        [[[-1, 0, 0]], [[0, 2, 0]]],
    ),
    ("Inverse", [MATRIX], {}, [[[-2, 1], [1.5, -0.5]]]),
    ("SegmentSum", [NUMBERS, np.array([0, 0, 1])], {}, [[[2, 4], [4, 5]]]),
]


def model(op: str, data: list[Array], constants: dict[str, Array], outputs: int) -> Any:
    names = [f"x{i}" for i in range(len(data))]
    infos = [
        helper.make_tensor_value_info(
            name,
            TensorProto.STRING if x.dtype == string else helper.np_dtype_to_tensor_dtype(x.dtype),
            x.shape,
        )
        for name, x in zip(names, data, strict=True)
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, [*names, *constants], results, "node", domain=EXTENSIONS)
    weights = [
        numpy_helper.from_array(x.astype(object) if x.dtype == string else x, name)
        for name, x in constants.items()
    ]
    ends = [onnx.ValueInfoProto(name=name) for name in results]
    graph = helper.make_graph([node], "g", infos, ends, weights)
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(EXTENSIONS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(
    ("op", "data", "constants", "wanted"),
    SAMPLES,
    ids=[f"{i} {sample[0]}" for i, sample in enumerate(SAMPLES)],
)
def test_samples(
    op: str, data: list[Array], constants: dict[str, Array], wanted: list[Any]
) -> None:
    with tercet.load(model(op, data, constants, len(wanted))) as loaded:
        found = loaded(*data)
    for mine, theirs in zip(found, wanted, strict=True):
        if isinstance(theirs[0], float) or op == "Inverse":
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
        else:
            assert mine.tolist() == theirs


@pytest.mark.parametrize(
    ("op", "constants", "outputs", "words"),
    [
        ("StringSplit", split(", ", True), 3, "', ' is not one character; replace the others"),
        ("StringUpper", {}, 1, "do that step outside of the model, of which `tercet extract`"),
    ],
)
def test_what_has_no_rule_is_refused(
    op: str, constants: dict[str, Array], outputs: int, words: str
) -> None:
    with pytest.raises(tercet.UnsupportedError, match=words):
        tercet.load(model(op, [WORDS], constants, outputs))


def test_what_must_be_a_constant() -> None:
    data = [SQUARE, text("-"), np.array([0])]
    with pytest.raises(tercet.UnsupportedError, match="axis is computed; export the model with it"):
        tercet.load(model("StringJoin", data, {}, 1))
