"""An operator's family has one file name in `runtime/ops`, in every backend, and in the tests.

A file may also be a part of a family: `attention_rows.py` is one of `attention`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DECLARED = ROOT / "runtime" / "ops"
BACKENDS = {"numpy": ROOT / "backends" / "numpy", "cuda": ROOT / "backends" / "cuda"}
#: What declares an implementation: a decorator with operators, or a menu's method.
DECORATORS = {"kernel", "builder"}

#: Operators that a file of another family runs, which does the same work already, and why.
ELSEWHERE = {
    ("cuda", "ArrayFeatureExtractor"): "gather",  # it is a Gather
    ("cuda", "MaxUnpool"): "gather",  # a scatter of the greatest elements
    ("cuda", "BitCast"): "movement",  # bytes are copied
    ("cuda", "Dropout"): "random",  # it draws numbers
    ("cuda", "Compress"): "counted",  # the data decide how many results there are
    ("cuda", "NonZero"): "counted",
    ("cuda", "Det"): "product",  # products of any strides
    ("cuda", "Einsum"): "product",
}


def families() -> dict[str, str]:
    """Operator → the file that declares it."""
    found: dict[str, str] = {}
    for file in DECLARED.glob("*.py"):
        for node in ast.parse(file.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and any(
                ast.unparse(each).split("(")[0] == "op" for each in node.decorator_list
            ):
                found[node.name] = file.stem
    return found


def implementations(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield operators and the files in which their implementations are."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            named: list[ast.expr] = []
            if isinstance(node, ast.FunctionDef):
                for each in node.decorator_list:
                    if isinstance(each, ast.Call) and ast.unparse(each.func) in DECORATORS:
                        named += each.args
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".register"):
                named += node.args
            yield from ((ast.unparse(one).rpartition(".")[2], file.stem) for one in named)


def test_families_are_read() -> None:
    found = families()
    assert len(found) > 180
    assert (found["Conv"], found["Softmax"], found["RoiAlign"]) == ("conv", "norm", "boxes")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_family_has_one_name(backend: str) -> None:
    family, wrong = families(), []
    implemented = [pair for pair in implementations(BACKENDS[backend]) if pair[0] in family]
    assert len(implemented) > 60
    for operator, file in implemented:
        expected = ELSEWHERE.get((backend, operator), family[operator])
        if file != expected and not file.startswith(f"{expected}_"):
            wrong.append(f"{operator} is in {file}.py, not in {expected}.py")
    assert not wrong


def test_exceptions_are_needed() -> None:
    family = families()
    found = {(name, *pair) for name in BACKENDS for pair in implementations(BACKENDS[name])}
    for (backend, operator), file in ELSEWHERE.items():
        assert (backend, operator, file) in found, operator
        assert family[operator] != file, operator


def test_tables_of_cases_are_named_after_families() -> None:
    known = set(families().values())
    for file in (ROOT / "tests" / "ops").glob("cases_*.py"):
        name = file.stem.removeprefix("cases_")
        assert any(name == one or name.startswith(f"{one}_") for one in known), file.name
