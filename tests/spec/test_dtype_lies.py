"""ONNX's own cases with one input of another dtype: a typed error, or what ONNX allows.

Every input is given other dtypes, once as an input of the model and once as a constant, which
passes then work on. $TERCET_SAMPLES says how many cases of each operator are tried with every
dtype; from 1000 on it is all of them, which takes a CPU a quarter of an hour. $TERCET_COUNTS names
a folder where each process writes what became of them.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TypeProto, defs, numpy_helper

import tercet
from tercet.runtime.ir.dtypes import BY_ONNX, FLOAT6S, TO_ONNX, DType, name_of

from .cases import Case, array_of, cases_by_operator
from .test_dtypes import cast

# The declared results keep the old dtype, of which tercet warns.
pytestmark = pytest.mark.filterwarnings("ignore::tercet.TercetWarning")

SAMPLES = int(os.environ.get("TERCET_SAMPLES", "1"))
DTYPES = [dtype for dtype in BY_ONNX.values() if dtype not in FLOAT6S]
#: Operators that take more than their schema, and why.
WIDER = {
    "Identity": "sequences of the short dtypes, which If, Loop and Optional may give",
    "Upsample": "Resize, which it becomes, takes bfloat16",
}
#: One of each kind, where not every dtype is tried.
FEW = [BY_ONNX[number] for number in (1, 7, 8, 9, 14)]


def tensor_of(type_: TypeProto) -> TypeProto.Tensor:
    """Return what a value, or what is in it, is declared as."""
    while not type_.HasField("tensor_type"):
        if type_.HasField("sequence_type"):
            type_ = type_.sequence_type.elem_type
        elif type_.HasField("optional_type"):
            type_ = type_.optional_type.elem_type
        else:
            type_ = type_.map_type.value_type
    return type_.tensor_type


def lies(case: Case, dtypes: Sequence[DType]) -> Iterator[tuple[str, ModelProto, list[Any]]]:
    """Yield models with one input of another dtype, each with its inputs and what was changed."""
    inputs = list(map(array_of, case.inputs))
    for i, value in enumerate(inputs):
        declared = tensor_of(case.model.graph.input[i].type)
        for dtype in dtypes:
            if TO_ONNX[dtype] == declared.elem_type or value is None or isinstance(value, dict):
                continue
            model = ModelProto()
            model.CopyFrom(case.model)
            tensor_of(model.graph.input[i].type).elem_type = TO_ONNX[dtype]
            with np.errstate(all="ignore"):
                changed = [*inputs[:i], cast(value, dtype), *inputs[i + 1 :]]
            text = f"{case.name}: input {i} as {name_of(dtype)}"
            yield text, model, changed
            if isinstance(value, np.ndarray) and value.size:
                yield f"{text}, constant", *with_constant(model, i, changed)


def with_constant(model: ModelProto, i: int, inputs: Sequence[Any]) -> tuple[ModelProto, list[Any]]:
    """Return a model whose input `i` is an initializer."""
    made = ModelProto()
    made.CopyFrom(model)
    data = inputs[i].astype(str) if inputs[i].dtype == object else inputs[i]
    made.graph.initializer.append(numpy_helper.from_array(data, made.graph.input[i].name))
    del made.graph.input[i]
    return made, [x for j, x in enumerate(inputs) if j != i]


def is_allowed(model: ModelProto) -> bool:
    """Whether any version of the schema takes what the node gets, if there is but one."""
    if len(model.graph.node) > 1 or model.functions or model.graph.node[0].op_type in WIDER:
        return True
    (node,), types = model.graph.node, type_texts(model)
    found = [types.get(name) for name in node.input]
    return any(accepts(schema, found) for schema in schemas()[node.domain, node.op_type])


@cache
def schemas() -> dict[tuple[str, str], list[defs.OpSchema]]:
    """Return every version of every schema by domain and name; making the list takes a while."""
    made: dict[tuple[str, str], list[defs.OpSchema]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        made[schema.domain, schema.name].append(schema)
    return made


def accepts(schema: defs.OpSchema, types: Sequence[str | None]) -> bool:
    bound: dict[str, str] = {}
    for formal, type_ in zip_longest(schema.inputs, types, fillvalue=None):
        if type_ is None:
            continue
        formal = formal or schema.inputs[-1]
        if type_ not in formal.types:
            return False
        is_shared = formal.is_homogeneous and bound.setdefault(formal.type_str, type_) != type_
        if is_shared:
            return False
    return True


def type_texts(model: ModelProto) -> dict[str, str]:
    """Return the types of the inputs and the constants as schemas write them."""
    found = {
        tensor.name: f"tensor({onnx_name(tensor.data_type)})" for tensor in model.graph.initializer
    }
    for info in model.graph.input:
        found[info.name] = type_text(info.type)
    return found


def type_text(type_: TypeProto) -> str:
    if type_.HasField("sequence_type"):
        return f"seq({type_text(type_.sequence_type.elem_type)})"
    if type_.HasField("optional_type"):
        return f"optional({type_text(type_.optional_type.elem_type)})"
    return f"tensor({onnx_name(type_.tensor_type.elem_type)})"


def onnx_name(number: int) -> str:
    name = name_of(BY_ONNX[number])
    usual = {"float32": "float", "float64": "double", "float8_e8m0fnu": "float8e8m0"}
    return usual.get(name, name.removesuffix("fn") if name.startswith("float4") else name).replace(
        "_", ""
    )


def outcome(model: ModelProto, inputs: Sequence[Any]) -> str:
    """Load and run a model; return the class of the error, or ``computed``."""
    try:
        with tercet.load(model) as loaded:
            loaded(*inputs)
    except tercet.TercetError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "computed"


def problems(cases: Sequence[Case], dtypes: Sequence[DType], counts: Counter[str]) -> Iterator[str]:
    for case in cases:
        for text, model, inputs in lies(case, dtypes):
            found = outcome(model, inputs)
            if found not in ("refused", "computed"):
                counts["untyped"] += 1
                yield f"{text}: {found}"
            elif found == "computed" and not is_allowed(model):
                counts["forbidden"] += 1
                yield f"{text}: computed, and ONNX forbids it"
            else:
                counts[found] += 1


@pytest.fixture(scope="module")
def counts() -> Iterator[Counter[str]]:
    """What became of all of them."""
    found: Counter[str] = Counter()
    yield found
    if folder := os.environ.get("TERCET_COUNTS"):
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.parametrize("key", sorted(cases_by_operator()), ids="::".join)
def test_no_untyped_error(key: tuple[str, str], counts: Counter[str]) -> None:
    cases = cases_by_operator()[key]
    dtypes = DTYPES if SAMPLES > 1 else FEW
    found = list(problems(cases if SAMPLES >= 1000 else cases[:SAMPLES], dtypes, counts))
    assert not found, "\n" + "\n".join(found)


def test_what_the_schemas_accept() -> None:
    """The other tests judge by this, so it must not be that it takes anything."""
    add, where = defs.get_schema("Add"), defs.get_schema("Where")
    assert accepts(add, ["tensor(float)", "tensor(float)"])
    assert not accepts(add, ["tensor(float)", "tensor(double)"])
    assert not accepts(add, ["tensor(bool)", "tensor(bool)"])
    assert not accepts(where, ["tensor(float)", "tensor(float)", "tensor(float)"])
    used = {text for schema in (add, where) for i in schema.inputs for text in i.types}
    assert used <= {f"tensor({onnx_name(number)})" for number in BY_ONNX}
