"""Attributes that are words: one that the specification does not have is refused by its name."""

import warnings

import pytest
from onnx import AttributeProto, ModelProto

import tercet
from tercet.runtime.errors import TercetError
from tercet.tools.fuzz.seeds import Seed, all_seeds
from tercet.tools.fuzz.trial import inputs_for

#: Attributes whose words are free: formulas, patterns, tokens, names, and texts of constants.
FREE = {
    *("equation", "pattern", "tokenexp", "value_string", "pad_value", "delimiter", "padding_char"),
    *("default_string", "locale", "cast_to", "start", "end", "replaced_value_string", "y"),
}


def cases() -> dict[str, tuple[Seed, str]]:
    """For every operator and attribute that is a word, one of ONNX's cases of it."""
    found: dict[str, tuple[Seed, str]] = {}
    for seed in all_seeds():
        if seed.is_case:
            (node, *_) = ModelProto.FromString(seed.data).graph.node
            for attribute in node.attribute:
                if attribute.type == AttributeProto.STRING and attribute.name not in FREE:
                    found.setdefault(f"{node.op_type}.{attribute.name}", (seed, attribute.name))
    return found


@pytest.mark.parametrize("word", ["none of these", "", "\x1b[2J"])
def test_unknown_words_are_refused(word: str) -> None:
    accepted = []
    for name, (seed, attribute_name) in cases().items():
        model = ModelProto.FromString(seed.data)
        for attribute in model.graph.node[0].attribute:
            if attribute.name == attribute_name:
                attribute.s = word.encode()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with tercet.load(model) as loaded:
                    loaded.run(inputs_for(loaded.inputs, seed.feeds) or {})
        except TercetError as error:
            assert model.graph.node[0].name in str(error)
            continue
        accepted.append(name)
    assert not accepted
