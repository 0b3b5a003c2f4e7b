"""Which files must be checked again after a change: their types may have changed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tercet.tools.workshop import changed_types
from tercet.tools.workshop.changed_types import FileFacts, outdated

#: A project: `b` and `c` read `a`, `d` reads `b`, `e` reads `d`, `f` reads nothing.
TEXTS = {
    "p": "",
    "p.a": '''
def size(x: int) -> int:
    """Text."""
    return x + 1


def guess(x: int):
    return x


class Box:
    def __init__(self, x: int) -> None:
        self.x = x

    def double(self) -> int:
        return 2 * self.x


LIMIT = 5
''',
    "p.b": "from .a import Box, size\n\nclass Bag(Box):\n    pass\n\ndef f() -> int: ...\n",
    "p.c": "from . import a\n\ndef g() -> int:\n    return a.size(1) + a.LIMIT\n",
    "p.d": "from .b import Bag, size\n\ndef h(x: Bag) -> int:\n    return size(x.x)\n",
    "p.e": "from .d import h\n\ndef i() -> None:\n    h(None)\n",
    "p.f": "from os import path\n\nHERE = path.sep\n",
}


def facts(texts: dict[str, str]) -> dict[str, FileFacts]:
    return {name: FileFacts.of(text, name, is_package=name == "p") for name, text in texts.items()}


CASES = {
    "nothing": ("p.a", "", "", ""),
    "a comment": ("p.a", "LIMIT = 5", "LIMIT = 5  # five", "a"),
    "a docstring": ("p.a", "Text.", "Other text.", "a"),
    "a body": ("p.a", "return x + 1", "return x - 1", "a"),
    "an import for a body": ("p.a", "    return x + 1", "    import os\n    return 1", "a"),
    "a result": ("p.a", "size(x: int) -> int", "size(x: int) -> str", "abcde"),
    "a body that infers the result": ("p.a", "return x\n", "return 'x'\n", "abcde"),
    "an attribute that a method declares": ("p.a", "self.x = x", "self.x = str(x)", "abcde"),
    "a constant": ("p.a", "LIMIT = 5", "LIMIT = '5'", "abcde"),
    "a class that others name": ("p.b", "    pass", "    y = 1", "bde"),
    "a parameter": ("p.d", "x: Bag", "x: Bag | None", "de"),
    "what passes on a name": ("p.b", "import Box, size", "import Box, guess as size", "bde"),
    "what is not read": ("p.e", "def i()", "def j()", "e"),
    "another package's name": ("p.f", "HERE = path.sep", "HERE = path.curdir", "f"),
    "rules of a file": ("p.e", "def i()", "# pyright: strict\ndef i()", "e"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_change_reaches(case: str) -> None:
    module, before, after, expected = CASES[case]
    assert before in TEXTS[module]
    changed = TEXTS | {module: TEXTS[module].replace(before, after, 1)}
    assert outdated(facts(TEXTS), facts(changed)) == {f"p.{letter}" for letter in expected}


def test_files_come_and_go() -> None:
    whole, part = facts(TEXTS), facts({n: t for n, t in TEXTS.items() if n != "p.d"})
    assert outdated(whole, part) == {"p.e"}
    assert outdated(part, whole) == {"p.d", "p.e"}
    assert outdated({}, whole) == set(whole)


def test_a_submodule_may_hide_a_name_of_its_package() -> None:
    before = facts({"p": "x = 1", "p.b": "from p import x\n\ny = x\n"})
    after = facts({"p": "x = 1", "p.b": "from p import x\n\ny = x\n", "p.x": ""})
    assert outdated(before, after) == {"p.x", "p.b"}


def test_a_file_with_errors_is_checked_again() -> None:
    """And no other: its interface has not changed."""
    assert outdated(changed_types.kept(facts(TEXTS), {"p.a"}), facts(TEXTS)) == {"p.a"}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    record = tmp_path / "build" / "types.json"
    changed_types._write(record, "here", facts(TEXTS))
    assert changed_types._read(record, "here") == facts(TEXTS)
    assert not changed_types._read(record, "elsewhere")
    record.write_text("{}")
    assert not changed_types._read(record, "here")


def test_all_checked_files_are_found() -> None:
    """Those of the layout that `make types` makes, and the tests."""
    assert changed_types._modules()["tests.workshop.test_changed_types"] == Path(__file__).resolve()
