"""Small changes of the source of functions: another number, comparison, operator or branch."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[2]
#: A file and the number of a line.
Line = tuple[str, int]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
}
#: Names of functions and operators, and what stands in their place.
_NAMES = {
    **{"floor": "ceil", "ceil": "floor", "rint": "trunc", "round": "trunc", "trunc": "rint"},
    **{"maximum": "minimum", "minimum": "maximum", "max": "min", "min": "max", "sum": "mean"},
    **{"mean": "sum", "any": "all", "all": "any", "argmax": "argmin", "cumsum": "cumprod"},
    **{"float32": "float16", "float64": "float32", "int64": "int32", "uint8": "int8"},
    **{"Add": "Sub", "Sub": "Add", "Mul": "Div", "Div": "Mul", "Less": "Greater", "Max": "Min"},
    **{"ReduceSum": "ReduceMean", "ReduceMean": "ReduceSum", "Unsqueeze": "Squeeze"},
}


@dataclass(frozen=True, slots=True)
class Error:
    """A changed function.

    Attributes:
        file: where it is.
        function: its qualified name, and the line where it begins.
        line: the line that is changed.
        before: what is there.
        after: what is in its place.
        module: the module with the change.
    """

    file: str
    function: tuple[str, int]
    line: int
    before: str
    after: str
    module: ast.Module

    def __str__(self) -> str:
        file = Path(self.file).relative_to(ROOT)
        return f"{file}:{self.line} {self.function[0]}: {self.before} -> {self.after}"

    def plant(self) -> None:
        """Give the function the changed code, in this process."""
        module = compile(ast.fix_missing_locations(self.module), self.file, "exec")
        (code,) = (each for each in _codes(module) if _place(each) == self.function)
        gc.unfreeze()  # what is frozen is not among the objects
        for one in gc.get_objects():
            own = one.__code__ if isinstance(one, FunctionType) else None
            if own and own.co_filename == self.file and _place(own) == self.function:
                one.__code__ = code


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a module's functions, not of those inside of them."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & 2:  # fast locals: a function
                yield each
            else:
                yield from _codes(each)


def error_at(lines: Sequence[Line], dice: Random) -> Error | None:
    """Draw an error on one of these lines; None if there is nothing to change."""
    file, line = dice.choice(lines)
    module = ast.parse(Path(file).read_text(encoding="utf-8"))
    owner = next(
        (f for f in _functions(module) if f[1].lineno <= line <= (f[1].end_lineno or 0)), None
    )
    if owner is None:
        return None
    name, function = owner
    types = {id(each) for node in ast.walk(function) for each in _annotations(node)}
    able = [
        node
        for statement in function.body
        for node in ast.walk(statement)
        if getattr(node, "lineno", 0) == line and id(node) not in types and _can_change(node)
    ]
    if not able:
        return None
    node = dice.choice(able)
    before = ast.unparse(node)
    _change(node, dice)
    first = min(each.lineno for each in (function, *function.decorator_list))
    after = ast.unparse(node)
    if after == before:
        return None
    return Error(file, (name, first), line, before[:90], after[:90], module)


def _functions(
    node: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef]]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef):
            yield prefix + each.name, each
        elif isinstance(each, ast.ClassDef):
            yield from _functions(each, f"{prefix}{each.name}.")


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what the types of a node consist of, which no run reads."""
    for found in filter(None, (getattr(node, name, None) for name in ("annotation", "returns"))):
        yield from ast.walk(found)


def _can_change(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[op]):
            return type(op) in _COMPARISONS
        case ast.BinOp(op=op):
            return type(op) in _ARITHMETIC
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Call(args=[_, _, *_]) | ast.Tuple(elts=[_, _, *_]) | ast.List(elts=[_, _, *_]):
            return not isinstance(getattr(node, "ctx", None), ast.Store)
        case ast.UnaryOp(op=ast.USub() | ast.Not()) | ast.IfExp() | ast.If():
            return True
        case ast.BoolOp():
            return True
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in _NAMES
        case _:
            return False


def _change(node: Any, dice: Random) -> None:
    match node:
        case ast.Compare():
            node.ops[0] = _COMPARISONS[type(node.ops[0])]()
        case ast.BinOp():
            if dice.random() < 0.3:
                node.left, node.right = node.right, node.left
            else:
                node.op = _ARITHMETIC[type(node.op)]()
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int(number)):
            node.value = number + dice.choice((1, -1))
        case ast.Constant(value=float(number)):
            node.value = number * dice.choice((1.01, 2, -1))
        case ast.Call(args=elements) | ast.Tuple(elts=elements) | ast.List(elts=elements):
            at = dice.randrange(len(elements) - 1)
            elements[at], elements[at + 1] = elements[at + 1], elements[at]
        case ast.UnaryOp():
            node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
            if isinstance(node.op, ast.Not):
                node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.IfExp() | ast.If():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.BoolOp():
            if dice.random() < 0.5:
                node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            else:
                at = dice.randrange(len(node.values))
                node.values[at] = ast.Constant(isinstance(node.op, ast.And))
        case ast.Attribute():
            node.attr = _NAMES[node.attr]
        case _:
            node.id = _NAMES[node.id]
