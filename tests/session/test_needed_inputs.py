"""Requested outputs need only the inputs on which they depend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tercet
from tercet.runtime.errors import InputError, PrecisionWarning

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
two_parts (float[N, 4] image, float[N, 4] mask, float[M] words, bool flag)
    => (float[N, 4] masked, float[M] encoded, float[N, 4] chosen, int64[1] rows) {
    inner = Relu(image)
    masked = Mul(inner, mask)
    encoded = Neg(words)
    chosen = If (flag) <
        then_branch = yes () => (float[N, 4] a) { a = Neg(image) },
        else_branch = no () => (float[N, 4] b) { b = Neg(mask) }
    >
    rows = Shape <start = 0, end = 1> (image)
}
"""
GENERATOR = np.random.default_rng(7)
FEEDS = {
    "image": GENERATOR.normal(size=(3, 4)).astype(np.float32),
    "mask": GENERATOR.normal(size=(3, 4)).astype(np.float32),
    "words": GENERATOR.normal(size=5).astype(np.float32),
    "flag": np.array(True),
}


@pytest.fixture
def model() -> Iterator[tercet.Model]:
    with tercet.load(TEXT) as found:
        yield found


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        (["encoded"], ["words"]),
        (["inner"], ["image"]),
        (["encoded", "inner"], ["words", "image"]),
        (["masked"], ["image", "mask"]),
        (["rows"], ["image"]),
        (["chosen"], ["image", "mask", "flag"]),
    ],
)
def test_other_inputs_may_be_missing(
    model: tercet.Model, outputs: list[str], inputs: list[str]
) -> None:
    proto = onnx.parser.parse_model(TEXT)
    if "inner" in outputs:
        proto.graph.output.append(onnx.helper.make_tensor_value_info("inner", 1, ["N", 4]))
    expected = ReferenceEvaluator(proto).run(outputs, FEEDS)
    given = {name: FEEDS[name] for name in inputs}
    for feeds in (given, FEEDS, given):
        found = model.run(feeds, outputs=outputs)
        assert list(found) == outputs
        for data, wanted in zip(found.values(), expected, strict=True):
            np.testing.assert_array_equal(data, wanted)
    for name in inputs:
        rest = {each: data for each, data in FEEDS.items() if each != name}
        with pytest.raises(InputError, match=f"input '{name}' is missing"):
            model.run(rest, outputs=outputs)


def test_all_inputs_are_needed_for_the_outputs_of_the_model(model: tercet.Model) -> None:
    rest = {name: data for name, data in FEEDS.items() if name != "words"}
    with pytest.raises(InputError, match="input 'words' is missing"):
        model.run(rest)


def test_inputs_that_are_not_needed_are_checked(model: tercet.Model) -> None:
    with pytest.raises(InputError, match="input 'mask' has dtype float64"):
        model.run({**FEEDS, "mask": np.ones((3, 4))}, outputs=["inner"])
    with pytest.raises(InputError, match="no input 'masks'"):
        model.run({**FEEDS, "masks": np.ones((3, 4))}, outputs=["inner"])


def test_programs_take_the_needed_inputs_alone(model: tercet.Model) -> None:
    program = model.prepare({"image": (7, 4), "words": (2,)}, outputs=["inner"])
    assert [value.name for value in program.graph.inputs] == ["image"]
    with model.bind({"image": (2, 4)}, outputs=["inner"]) as bound:
        assert list(bound.inputs) == ["image"]
        found = bound.run({"image": FEEDS["image"][:2], "words": FEEDS["words"]})
        np.testing.assert_array_equal(found["inner"], np.maximum(FEEDS["image"][:2], 0))
    (found,) = model.map([{"words": FEEDS["words"]}], outputs=["encoded"])
    np.testing.assert_array_equal(found["encoded"], -FEEDS["words"])


def test_sizes_of_other_inputs_make_no_programs(model: tercet.Model) -> None:
    for count in (1, 2, 3):
        feeds = {**FEEDS, "words": np.zeros(count, np.float32)}
        model.run(feeds, outputs=["inner"])
    program = model.prepare({"image": (3, 4)}, outputs=["inner"])
    assert program is model.prepare({"image": (3, 4), "words": (9,)}, outputs=["inner"])


def test_overflow_is_found_without_the_other_inputs() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    parts (float[N, 2] image, float[N, 2] mask) => (float[N, 2] turned, float[N, 2] product)
    <float[2, 2] weights = {1, 2, 3, 4}> {
        turned = MatMul(image, weights)
        product = Mul(image, mask)
    }
    """
    with (
        tercet.load(text, precision="float16") as model,
        pytest.warns(PrecisionWarning, match="output 'turned'"),
    ):
        model.run({"image": np.full((3, 2), 1e5, np.float32)}, outputs=["turned"])
