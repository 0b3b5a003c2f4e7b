"""Declarations of onnxruntime's operators, held against its schemas."""

import inspect
from dataclasses import MISSING, fields

import pytest
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from tercet.importers.onnx.contrib.catalogue import find, names
from tercet.runtime.ir.dtypes import name_of
from tercet.runtime.ir.op import OPERATORS, body_names

SCHEMAS = {(s.domain, s.name): s for s in get_all_operator_schema()}
#: ONNX's names of dtypes that numpy calls otherwise.
WORDS = {
    "float": "float32",
    "double": "float64",
    "float4e2m1": "float4_e2m1fn",
    "float8e8m0": "float8_e8m0fnu",
    **{f"float8{kind}": f"float8_{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")},
}


#: Gone from onnxruntime, too: the documentation of ONNX 1.4 is all that there is.
GONE = {("", "ConstantFill")}


#: What onnxruntime has had since 1.32: operators, inputs and attributes.
NEWER: dict[str, set[str]] = {
    "CausalConvWithState": {
        *("input_channel_offset", "input_channels", "state_channels_last", "state_length"),
        *("state_update", "state_update_capacity"),
    },
    "GatedAdd": {"gate_weight"},
    "GatedDeltaNet": {"gate_lower_bound"},
    "GatherPacked": set(),
    "GroupQueryAttention": {"k_norm_epsilon", "q_norm_epsilon", "query_seqlens"},
    "HyperConnectionLowRankMix": set(),
    "MatMulNBitsQLoRA": set(),
    "MatMulPacked": set(),
    "MoEGroupRouter": set(),
    "RouterGateUpProj": set(),
    "SwiGLU": set(),
    "VarlenCausalConvWithState": {
        *("delta_offset", "group_size", "kernel_delta", "previous_mask"),
    },
}
KNOWN = [key for key in sorted({*names()} - GONE) if key in SCHEMAS or key[1] not in NEWER]


@pytest.mark.parametrize("key", KNOWN, ids=lambda key: "::".join(key))
def test_a_declaration_is_onnxruntimes(key: tuple[str, str]) -> None:
    """Attributes, which are required, their defaults; inputs, which are optional; outputs; dtypes.

    A schema that gives no default leaves it to the text, which no program reads.
    """
    declared = find(*key)
    schema = SCHEMAS.get(key) or SCHEMAS["", key[1]]  # exporters write the one in both domains
    assert declared is not None
    newer = NEWER.get(key[1], set())
    assert set(declared.attributes) - newer == set(schema.attributes) - newer
    for name, attribute in schema.attributes.items():
        default = declared.attributes[name][1]
        assert (default is inspect.Parameter.empty) == attribute.required, name
        if attribute._default_value:
            proto = type(helper.make_attribute("a", 1)).FromString(attribute._default_value)
            value = helper.get_attribute_value(proto)
            value = value.decode() if isinstance(value, bytes) else value
            assert default == (tuple(value) if isinstance(value, list) else value), name
    options = [str(i.option).rpartition(".")[2] for i in schema.inputs]
    inputs = declared.inputs[: len(options)] if newer else declared.inputs
    assert {i.name for i in declared.inputs[len(inputs) :]} <= newer
    assert [i.optional for i in inputs] == [option == "Optional" for option in options]
    assert [i.variadic for i in inputs] == [option == "Variadic" for option in options]
    most = schema.max_output + ("state_update" in newer and len(schema.outputs) == 2)
    assert declared.outputs == (schema.min_output, most)
    for mine, theirs in zip(inputs, schema.inputs, strict=True):
        allowed = {each.removeprefix("tensor(").rstrip(")") for each in theirs.types}
        allowed = {WORDS.get(each, each) for each in allowed}
        found = set(map(name_of, mine.kind.dtypes))
        assert allowed <= found or found <= allowed, (mine.name, allowed, found)


@pytest.mark.parametrize("name", sorted(name for d, name in OPERATORS if d == "com.microsoft"))
def test_an_operator_of_the_ir_requires_what_onnxruntime_requires(name: str) -> None:
    """What has a default here is left out of exported files where it has that value."""
    operator, attributes = (
        OPERATORS["com.microsoft", name],
        SCHEMAS["com.microsoft", name].attributes,
    )
    given = {field.name: field.default for field in fields(operator)}
    for each in given.keys() & attributes.keys() - set(body_names(operator)):
        assert (given[each] is MISSING) == attributes[each].required, each
