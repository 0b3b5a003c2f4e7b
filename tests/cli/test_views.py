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


def test_a_few_folds_take_fewer_lines() -> None:
    """One long name among many short ones is folded."""
    lines = shown([*"abcdefgh", "/model/layers.0/self_attn/rotary_emb/query"], 60)
    assert lines[0].split()[1] == "nodes"
    assert len(lines) < 2 * 9


def test_numbers_too_wide_for_a_terminal_stay_in_columns() -> None:
    """Nothing is left to fold beside them."""
    text = io.StringIO()
    console = SafeConsole(file=text, width=40, highlight=False, markup=False, emoji=False)
    numbers = ["123456789"] * 6
    print_table(console, ("name", *(f"number {i}" for i in range(6))), [("ab" * 40, *numbers)] * 2)
    assert text.getvalue().count("12") == 12
