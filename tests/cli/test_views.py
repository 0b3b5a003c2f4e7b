"""Results are data: their views are found by the names of their types."""

from __future__ import annotations

import io

import pytest

from tercet.tools.common.console import SafeConsole, print_table
from tercet.tools.common.views import VIEWS, view_of


@pytest.mark.parametrize("kind", VIEWS)
def test_every_result_has_its_view(kind: str) -> None:
    module, function = VIEWS[kind]
    view = view_of(type(kind, (), {}))
    assert (view.__module__, view.__name__) == (f"tercet.tools.{module}", function)


def shown(names: list[str], width: int) -> list[str]:
    """Return the lines of a table of nodes and numbers."""
    text = io.StringIO()
    console = SafeConsole(file=text, width=width, highlight=False, markup=False, emoji=False)
    rows = [(str(i), name, "LayerNormalization", "1.2e-07") for i, name in enumerate(names)]
    print_table(console, ("step", "nodes", "operator", "max abs"), rows, left=3)
    return text.getvalue().splitlines()


def test_long_names_have_lines_of_their_own() -> None:
    names = [f"/model/layers.{i}/self_attn/rotary_emb/query_projection" for i in range(3)]
    lines = shown(names, 60)
    assert [line for line in lines if line.startswith("/")] == names
    rows = [line.split() for line in lines if line.startswith("  ")]
    assert rows == [
        ["step", "operator", "max", "abs"],
        *([str(i), "LayerNormalization", "1.2e-07"] for i in range(3)),
    ]


@pytest.mark.parametrize(("names", "width"), [(["conv", "relu"], 60), (["long_names" * 5], 200)])
def test_others_are_columns(names: list[str], width: int) -> None:
    lines = shown(names, width)
    assert lines[0].split() == ["step", "nodes", "operator", "max", "abs"]
    assert [line.split()[1] for line in lines[2:]] == names


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_little_room_is_taken_from_gaps(missing: int) -> None:
    """Between four columns are three gaps, which give one column each."""
    names = ["n" * 22]
    wide = shown(names, 100)
    narrow = shown(names, len(wide[2]) - missing)
    assert [line.split() for line in narrow[::2]] == [line.split() for line in wide[::2]]
    assert max(map(len, narrow)) == len(wide[2]) - 3


def test_a_few_folds_take_fewer_lines() -> None:
    """One long name among many short ones is folded."""
    lines = shown([*"abcdefgh", "/model/layers.0/self_attn/rotary_emb/query"], 60)
    assert lines[0].split()[1] == "nodes"
    assert len(lines) < 2 * 9


@pytest.mark.parametrize("name", ["ab" * 40, "ab"])
def test_numbers_too_wide_for_a_line_continue_on_the_next(name: str) -> None:
    text = io.StringIO()
    console = SafeConsole(file=text, width=40, highlight=False, markup=False, emoji=False)
    numbers = [f"12345678{i}" for i in range(6)]
    print_table(console, ("name", *(f"number {i}" for i in range(6))), [(name, *numbers)] * 2)
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert [word for line in lines for word in line.split() if len(word) == 9] == numbers * 2


def test_names_stay_before_long_texts() -> None:
    text = io.StringIO()
    console = SafeConsole(file=text, width=60, highlight=False, markup=False, emoji=False)
    rows = [(f"lib{name}", "1.2", f"not loaded; lib{name} needs it") for name in ("a" * 30, "b")]
    print_table(console, ("library", "version", "file"), rows, left=3)
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert [lines[0], lines[3], lines[5]] == [
        ["library", "version"],
        [rows[0][0], "1.2"],
        ["libb", "1.2"],
    ]
    assert lines[6] == ["not", "loaded;", "libb", "needs", "it"]
