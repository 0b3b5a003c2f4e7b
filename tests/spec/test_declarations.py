"""Every declared operator against the newest specification that the installed onnx knows."""

import sys
from dataclasses import MISSING, Field, FrozenInstanceError, fields, replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import onnx.defs
import onnx.helper
import pytest
from onnx.defs import OpSchema

from tercet.runtime import ops
from tercet.runtime.ir.dtypes import BY_ONNX, DType
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.op import OPERATORS, Op, TensorAttribute, arity, input_kinds
from tercet.runtime.ir.types import ValueType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Cast

assert ops  # importing it declares the operators

Option = OpSchema.FormalParameterOption
Kind = OpSchema.AttrType

PYTHON_TYPES: dict[Any, tuple[Any, ...]] = {
    Kind.INT: (int, DType),
    Kind.FLOAT: (float,),
    Kind.STRING: (str,),
    Kind.INTS: (tuple[int, ...], tuple[DType, ...]),
    Kind.FLOATS: (tuple[float, ...],),
    Kind.STRINGS: (tuple[str, ...],),
    Kind.TENSOR: (TensorAttribute,),
    Kind.SPARSE_TENSOR: (TensorAttribute,),
    Kind.GRAPH: (Graph,),
    Kind.TYPE_PROTO: (ValueType,),
}


# What is deprecated may be declared; the importer rewrites it into what took its place.
SCHEMAS = [
    pytest.param(schema, id="::".join(filter(None, (schema.domain, schema.name))))
    for schema in sorted(onnx.defs.get_all_schemas(), key=lambda s: (s.domain, s.name))
    if not schema.deprecated or (schema.domain, schema.name) in OPERATORS
]


@pytest.fixture
def operator(schema: OpSchema) -> type[Op]:
    assert (schema.domain, schema.name) in OPERATORS, "not declared"
    return OPERATORS[schema.domain, schema.name]


def default_of(attribute: OpSchema.Attribute, is_dtype: bool) -> Any:
    """Return the specification's default as a field should have it."""
    if attribute.required:
        return MISSING
    if not attribute.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if is_dtype:
        return BY_ONNX.get(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
    return value


def is_same_default(field: Field[Any], expected: Any) -> bool:
    if isinstance(expected, float):
        value = field.default
        return isinstance(value, float) and np.float32(value) == np.float32(expected)
    if expected is MISSING or expected is None:
        return field.default is expected
    return type(field.default) is type(expected) and field.default == expected


@pytest.mark.parametrize("schema", SCHEMAS)
def test_attributes(schema: OpSchema, operator: type[Op]) -> None:
    found = {field.name: field for field in fields(operator)}
    assert set(found) == set(schema.attributes)
    hints = get_type_hints(operator)
    for name, attribute in schema.attributes.items():
        bare = hints[name]
        if NoneType in get_args(bare):
            bare = without_none(bare)
        assert bare in PYTHON_TYPES[attribute.type], f"{name}: {hints[name]}"
        expected = default_of(attribute, bare == DType)
        assert is_same_default(found[name], expected), f"{name} = {expected}"


def without_none(hint: Any) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return union


@pytest.mark.parametrize("schema", SCHEMAS)
def test_inputs(schema: OpSchema, operator: type[Op]) -> None:
    is_variadic = any(i.option == Option.Variadic for i in schema.inputs)
    assert arity(operator) == (schema.min_input, None if is_variadic else schema.max_input)
    optional = [NoneType in kinds for kinds in input_kinds(operator)]
    expected = [i.option == Option.Optional for i in schema.inputs]
    # The first of at least one variadic input is a separate parameter.
    if is_variadic and schema.inputs[-1].min_arity == 1:
        expected.append(False)
    assert optional == expected


@pytest.mark.parametrize("schema", SCHEMAS)
def test_outputs(schema: OpSchema, operator: type[Op]) -> None:
    is_variadic = any(o.option == Option.Variadic for o in schema.outputs)
    assert operator.outputs == (schema.min_output, None if is_variadic else schema.max_output)


#: Every operator that ONNX has ever defined, previews and ai.onnx.ml among them.
SPECIFIED = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
ONNX_DOMAINS = {domain for domain, _ in SPECIFIED}


def test_every_declaration_is_in_the_specification() -> None:
    assert {key for key in OPERATORS if key[0] in ONNX_DOMAINS} <= SPECIFIED


@pytest.mark.parametrize(
    "operator", [key for key in sorted(OPERATORS) if key[0] not in ONNX_DOMAINS], ids="::".join
)
def test_other_domains_say_where_they_come_from(operator: tuple[str, str]) -> None:
    """ONNX has no schema to compare them with; a reader must at least find their definition."""
    kind = OPERATORS[operator]
    assert operator[0] in f"{kind.__doc__} {sys.modules[kind.__module__].__doc__}"


def test_declarations_are_values() -> None:
    """Equal attributes make equal operators with equal hashes, which caches rely on."""
    for operator in OPERATORS.values():
        required = {field.name: 1 for field in fields(operator) if field.default is MISSING}
        one, other = operator(**required), operator(**required)
        assert one == other
        assert hash(one) == hash(other)


def test_operators_are_values() -> None:
    """Equal attributes make equal operators, which nothing changes, and none can be left out."""
    conv = Conv(strides=(2, 2))
    assert conv == Conv(strides=(2, 2)) == replace(Conv(), strides=(2, 2))
    assert hash(conv) == hash(Conv(strides=(2, 2)))
    assert conv != Conv()
    assert Conv() != ConvTranspose()
    with pytest.raises(FrozenInstanceError, match="'strides'"):
        conv.strides = (1, 1)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(FrozenInstanceError, match="'strides'"):
        del conv.strides  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="Conv does not have the attributes stride"):
        Conv(stride=(2, 2))  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="Cast lacks the attributes to"):
        Cast()  # pyright: ignore[reportCallIssue]
