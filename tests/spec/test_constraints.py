"""The dtypes that each operator takes and gives, against the schemas of the installed onnx."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import onnx.defs
import pytest
from onnx import TensorProto
from onnx.defs import OpSchema

from tercet.runtime import ops
from tercet.runtime.ir.constraints import (
    DOMAINS,
    MAPS,
    SIGNATURES,
    Constraint,
    Element,
    signature_of,
)
from tercet.runtime.ir.dtypes import BY_ONNX, DType
from tercet.runtime.ir.op import OPERATORS

assert ops  # importing it declares the operators

Option = OpSchema.FormalParameterOption
SCHEMAS = {
    (schema.domain, schema.name): schema
    for schema in onnx.defs.get_all_schemas()
    if (schema.domain, schema.name) in OPERATORS
}
HISTORY = defaultdict[tuple[str, str], list[OpSchema]](list)
for each in onnx.defs.get_all_schemas_with_history():
    HISTORY[each.domain, each.name].append(each)
#: Older opsets had other types for these, which the importer converts.
CONVERTED = {("Dropout", "mask"), ("Split", "split"), ("Tile", "tiles")}
#: What tercet takes besides.
WIDER = {("SequenceAt", "inputs", 0): MAPS, ("SequenceAt", "outputs", 0): MAPS}


def element_of(text: str) -> Element:
    """Return what ``seq(tensor(float))`` or ``map(int64,tensor(float))`` is made of."""
    while text.startswith(("seq(", "optional(", "tensor(")):
        text = text[text.index("(") + 1 : -1]
    if text.startswith("map("):
        key, value = text[4:-1].split(",")
        return dtype_of(key), dtype_of(value.strip().removeprefix("tensor(").rstrip(")"))
    return dtype_of(text)


def dtype_of(name: str) -> DType:
    return BY_ONNX[TensorProto.DataType.Value(name.upper())]


def older(key: tuple[str, str], position: int, kind: str) -> Iterator[str]:
    """Yield the types that any opset has allowed for one input or output."""
    for schema in HISTORY[key]:
        formals = getattr(schema, kind)[position : position + 1]
        if formals and (schema.name, formals[0].name) not in CONVERTED:
            yield from formals[0].types


def expected(key: tuple[str, str], kind: str) -> Iterator[tuple[set[Element], bool, str]]:
    schema = SCHEMAS[key]
    formals: Sequence[OpSchema.FormalParameter] = getattr(schema, kind)
    for i, formal in enumerate(formals):
        types = {*formal.types, *older(key, i, kind)}
        is_variadic = formal.option == Option.Variadic
        shared = "" if is_variadic and not formal.is_homogeneous else formal.type_str
        yield {element_of(each) for each in types}, is_variadic, shared


@pytest.mark.parametrize("kind", ["inputs", "outputs"])
@pytest.mark.parametrize("key", sorted(SCHEMAS), ids=lambda key: "::".join(filter(None, key)))
def test_signature(key: tuple[str, str], kind: str) -> None:
    signature = signature_of(OPERATORS[key])
    assert signature is not None, "no signature"
    found: Sequence[Constraint] = getattr(signature, kind)
    wanted = list(expected(key, kind))
    assert [c.repeats for c in found] == [repeats for _, repeats, _ in wanted]
    for i, (constraint, (allowed, _, _)) in enumerate(zip(found, wanted, strict=True)):
        wider = WIDER.get((key[1], kind, i), frozenset())
        assert constraint.allowed == allowed | wider, f"{kind} {i}"


@pytest.mark.parametrize("key", sorted(SCHEMAS), ids=lambda key: "::".join(filter(None, key)))
def test_values_of_one_dtype(key: tuple[str, str]) -> None:
    """Two values share a parameter exactly where the schema says that they are of one type."""
    signature = signature_of(OPERATORS[key])
    assert signature is not None
    found = [c.parameter for c in (*signature.inputs, *signature.outputs)]
    wanted = [shared for kind in ("inputs", "outputs") for _, _, shared in expected(key, kind)]
    pairs = defaultdict[str, list[int]](list)
    for i, constraint in enumerate((*signature.inputs, *signature.outputs)):
        if len(constraint.allowed) > 1:
            pairs[wanted[i]].append(i)
    for shared, places in pairs.items():
        if shared and len(places) > 1:
            assert len({found[i] for i in places} - {""}) == 1, shared
            assert all(found[i] for i in places), shared
    named = [name for name in found if name]
    assert all(len({wanted[i] for i, n in enumerate(found) if n == name}) == 1 for name in named)


def test_no_operator_is_listed_twice() -> None:
    listed = [name for names in SIGNATURES.values() for name in names.split()]
    assert len(listed) == len(set(listed))
    assert set(listed) == {name for domain, name in OPERATORS if domain in DOMAINS}
