"""Shape rules on what makes no sense: a type, or a `ShapeError`, and nothing else."""

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from random import Random
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from tercet.runtime import ops
from tercet.runtime.errors import ModelError, ShapeError
from tercet.runtime.ir.constraints import SETS
from tercet.runtime.ir.dtypes import BY_ONNX, DType, int64
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.op import OPERATORS, Op, TensorAttribute, arity, input_kinds
from tercet.runtime.ir.types import (
    Array,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
)
from tercet.runtime.ops.elementwise import Add
from tercet.runtime.ops.shapes import MAX_RANK

from ..spec.cases import cases_by_operator
from ..spec.test_inference import graph_of, with_constants

assert ops  # importing it declares the operators

ROUNDS = 40
CASES = 8
MUTATIONS = 8
DTYPES = tuple(BY_ONNX.values())
USUAL_DTYPES = tuple(BY_ONNX[number] for number in (1, 7, 7, 9))
SIZES: tuple[Dim, ...] = (0, 1, 2, 3, 4, 6, 2**31, 2**62, 2**63 - 1, "n", "m", None)
USUAL_SIZES: tuple[Dim, ...] = (1, 2, 2, 4, "n")
INTEGERS = (-(2**63), -9, -2, -1, 0, 1, 1, 2, 3, 2**31 - 1, 2**63 - 1)
NUMBERS = (float("nan"), float("inf"), -1.0, 0.0, 0.5, 1.0, 2.0, 1e30)
TEXTS = ("", "none", "NOTSET", "SAME_UPPER", "VALID", "sum", "ij,jk->ik", "...", "->", "\0", "é")


class Rolls:
    """Random types and attributes, more of them plausible than not."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)

    def some(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def input_type(self, kinds: tuple[type, ...], depth: int = 0) -> ValueType | None:
        kind = self.some(*kinds)
        if kind is TensorType or depth > 2:
            return self.tensor()
        if kind is SequenceType:
            return SequenceType(self.tensor())
        if kind is OptionalType:
            return OptionalType(self.some(None, self.tensor(), SequenceType(self.tensor())))
        return MapType(int64, self.tensor()) if kind is MapType else None

    def tensor(self) -> TensorType:
        dtype = self.some(*(USUAL_DTYPES if self.random.random() < 0.8 else DTYPES))
        sizes = USUAL_SIZES if self.random.random() < 0.7 else SIZES
        rank = self.some(0, 1, 1, 1, 2, 2, 3, 4, 4, 5, self.some(MAX_RANK, None, 6))
        if rank is None:
            return TensorType(dtype)
        found = TensorType(dtype, tuple(self.some(*sizes) for _ in range(rank)))
        if not found.is_static or max(found.dims, default=0) > 64 or found.size > 64:
            return found
        if self.random.random() < 0.2:
            return found
        return TensorType(dtype, found.shape, self.elements(dtype, found.dims))

    def elements(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        values = np.empty(shape, object)
        vague = dtype.kind in "iu" and self.random.random() < 0.3
        for at in np.ndindex(shape):
            integer = self.some(*INTEGERS) if self.random.random() < 0.3 else self.some(0, 1, 2)
            values[at] = {"f": self.some(*NUMBERS), "O": "text"}.get(dtype.kind, integer)
            if vague and self.random.random() < 0.5:
                values[at] = self.some("n", None)
        if vague:
            return values
        with np.errstate(all="ignore"):
            if dtype.kind in "iu":
                wrapped = np.array([v % 2**64 for v in values.flat], np.uint64)
                return wrapped.astype(dtype).reshape(shape)
            return values if dtype.kind == "O" else values.astype(np.float64).astype(dtype)

    def attribute(self, hint: Any) -> Any:
        if NoneType in get_args(hint) and self.random.random() < 0.3:
            return None
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        if NoneType in get_args(hint):
            return self.attribute(kinds[0])
        if kinds and hint != DType:
            count = self.some(0, 1, 2, 3, 4, 4, self.some(8, 70))
            return tuple(self.attribute(kinds[0]) for _ in range(count))
        if hint is Graph:
            return self.body()
        if hint is TensorAttribute:
            return TensorAttribute(self.elements(int64, self.some((), (1,), (2, 2), (0,))))
        plain = {int: INTEGERS, float: NUMBERS, str: TEXTS}
        if hint in plain:
            is_usual = hint is int and self.random.random() < 0.7
            return self.some(0, 1, 2) if is_usual else self.some(*plain[hint])
        return self.some(*DTYPES) if hint == DType else self.tensor()

    def body(self) -> Graph:
        body = Graph("body")
        values = [body.add_input(f"in{i}", self.tensor()) for i in range(self.some(0, 1, 2, 3, 4))]
        added = values and self.random.random() < 0.5
        if added and values[-1].tensor.dtype in SETS["numbers"]:
            node = body.insert(Add(), [values[-1], values[-1]])
            values.append(node.output)
            infer(body)
        body.set_outputs({v.name: v for v in values[: self.some(1, 2, 3)]})
        return body

    def operator(self, operator: type[Op]) -> Op:
        hints = get_type_hints(operator)
        given = {
            field.name: self.attribute(hints[field.name])
            for field in fields(operator)
            if field.default is MISSING or self.random.random() < 0.6
        }
        return operator(**given)

    def inputs(self, operator: type[Op]) -> list[ValueType | None]:
        minimum, maximum = arity(operator)
        kinds = input_kinds(operator)
        count = self.random.randint(minimum, maximum if maximum is not None else minimum + 3)
        wanted = [kinds[min(i, len(kinds) - 1)] for i in range(count)]
        if self.random.random() < 0.3:
            same = self.tensor()
            return [same if TensorType in kind else self.input_type(kind) for kind in wanted]
        return [self.input_type(kind) for kind in wanted]

    def mutation(self, node: Node) -> tuple[Op, list[ValueType | None]]:
        """Return a node's operator and input types with one or two things wrong."""
        op, inputs = node.op, [value and value.type for value in node.inputs]
        hints = get_type_hints(type(op))
        for _ in range(self.some(1, 2)):
            names = [f.name for f in fields(op)]
            tensors = [i for i, t in enumerate(inputs) if isinstance(t, TensorType)]
            if names and (not tensors or self.random.random() < 0.5):
                name = self.some(*names)
                op = replace(op, **{name: self.attribute(hints[name])})
            elif tensors:
                i = self.some(*tensors)
                inputs[i] = self.similar(inputs[i])
        return op, inputs

    def similar(self, x: Any) -> TensorType:
        """Return a tensor type with another dtype, size, rank or element."""
        what, shape = self.some("dtype", "size", "size", "rank", "value", "value"), x.shape or ()
        if what == "dtype":
            return TensorType(self.some(*DTYPES), x.shape)
        if what == "rank":
            return TensorType(x.dtype, self.some(None, (), shape[1:], (*shape, 1), (2, *shape)))
        if what == "size" and shape:
            axis = self.random.randrange(len(shape))
            return TensorType(x.dtype, (*shape[:axis], self.some(*SIZES), *shape[axis + 1 :]))
        if not x.is_static or not 0 < x.size < 64:
            return TensorType(x.dtype, x.shape)
        old = self.elements(x.dtype, x.dims) if x.value is None else x.value
        value, other = old.copy(), self.elements(x.dtype, x.dims)
        if value.dtype != other.dtype:
            return TensorType(x.dtype, x.shape, other)
        at = self.random.randrange(x.size)
        value.flat[at] = other.flat[at]
        return TensorType(x.dtype, x.shape, value)


@pytest.mark.parametrize("key", sorted(OPERATORS), ids="::".join)
def test_infer_gives_types_or_refuses(key: tuple[str, str]) -> None:
    operator = OPERATORS[key]
    rolls = Rolls("::".join(key))
    for _ in range(ROUNDS):
        op, inputs = rolls.operator(operator), rolls.inputs(operator)
        check(op, inputs)


@pytest.mark.parametrize("key", sorted(OPERATORS), ids="::".join)
def test_infer_takes_cases_with_one_thing_wrong(key: tuple[str, str]) -> None:
    rolls = Rolls("::".join(key))
    for case in cases_by_operator().get(key, ())[:CASES]:
        for node in graph_of(with_constants(case.model, case.inputs)).nodes[:3]:
            for _ in range(MUTATIONS):
                check(*rolls.mutation(node))


def check(op: Op, inputs: Sequence[ValueType | None]) -> None:
    """Infer, and check that the results can exist."""
    try:
        op.body_inputs(*inputs)
        found = op.infer(*inputs)
    except ShapeError:
        return
    for result in found if isinstance(found, tuple) else (found,):
        if isinstance(result, TensorType):
            check_tensor(result, f"{op} of {inputs}")


def check_tensor(found: TensorType, where: str) -> None:
    for size in found.shape or ():
        assert not isinstance(size, int) or 0 <= size < 2**63, f"{where}: {found}"
    assert found.rank is None or found.rank <= MAX_RANK, f"{where}: {found}"
    if found.value is not None:
        assert found.value.shape == found.shape, f"{where}: {found}"
        assert found.value.dtype in (found.dtype, object), f"{where}: {found}"


@pytest.mark.parametrize("given", [SequenceType(TensorType(int64)), OptionalType(), None])
def test_what_is_no_tensor_is_refused(given: ValueType | None) -> None:
    graph = Graph()
    x = graph.add_input("x", TensorType(int64, (2,)))
    other = graph.add_input("other", given) if given else None
    graph.insert(Add(), [other, x])
    with pytest.raises(ModelError, match=r"node 'Add' \(Add\): a is .*; expected a tensor"):
        infer(graph)
