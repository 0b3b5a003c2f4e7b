"""Attributes that are words: one that the specification does not have is refused by its name."""

import warnings
from dataclasses import fields

import pytest
from onnx import AttributeProto, ModelProto

import tercet
from tercet.runtime.errors import TercetError
from tercet.runtime.op import OPERATORS
from tercet.runtime.words import WORDS
from tercet.tools.fuzz.seeds import Seed, all_seeds
from tercet.tools.fuzz.trial import inputs_for

#: Attributes whose words are free: formulas, patterns, names, and texts of constants.
FREE = {
    *("delimiter", "default_string", "equation", "locale", "name", "pad_value", "pattern"),
    *("tokenexp", "value_string", "what", "y"),
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


def error_of(model: ModelProto, seed: Seed) -> str:
    """The error that loading and running a model ends in; empty if there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with tercet.load(model) as loaded:
                loaded.run(inputs_for(loaded.inputs, seed.feeds) or {})
        except TercetError as error:
            return str(error)
    return ""


def test_unknown_words_are_refused_with_the_node_and_the_word() -> None:
    found = cases()
    assert len(found) > 30
    for name, (seed, attribute_name) in found.items():
        for word in ("none of these", "", "\x1b[2J"):
            model = ModelProto.FromString(seed.data)
            for attribute in model.graph.node[0].attribute:
                if attribute.name == attribute_name:
                    attribute.s = word.encode()
            said = error_of(model, seed)
            assert f"'{model.graph.node[0].name}'" in said, (name, word, said)
            assert repr(word) in said, (name, word, said)


def test_the_table_names_attributes_that_there_are() -> None:
    by_name = {cls.__name__: cls for cls in OPERATORS.values()}
    for operator, words in WORDS.items():
        own = {field.name: field.default for field in fields(by_name[operator])}
        for name, choices in words.items():
            assert own[name] in choices or not isinstance(own[name], str)


@pytest.mark.parametrize("operator", sorted(WORDS))
def test_the_table_has_what_the_schemas_default_to(operator: str) -> None:
    import onnx

    domains = ("", "ai.onnx.ml")
    for domain in domains:
        if onnx.defs.has(operator, domain):
            schema = onnx.defs.get_schema(operator, domain)
            for name, choices in WORDS[operator].items():
                default = schema.attributes[name].default_value.s.decode()
                assert not default or default in choices
