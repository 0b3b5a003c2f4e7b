"""Families and patterns of the cuda backend are imported where a graph has their operators."""

import json
import subprocess
import sys
from inspect import signature

import pytest

from tercet.backends.cuda import patterns

# Prints which modules register each operator that has no kernel when its own family alone is there.
LACKING = """
import json, sys
from tercet import api  # declares the operators
from tercet.backends.cuda.algorithms import registry, selection

def noted(kernel, *operators, register=registry.register):
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] in (registry.__name__, selection.__name__):
        frame = frame.f_back
    at.update(dict.fromkeys(operators, frame.f_globals["__name__"].split(".cuda.")[1]))
    return register(kernel, *operators)

at = {}
registry.register = selection.register = noted
from tercet.backends.cuda import families
families.provide_all()
assert at.keys() == registry.KERNELS.keys() and len(at) > 100
print(json.dumps({
    operator.__name__: file
    for operator, file in at.items()
    if file not in (*families.files_of(operator.__module__.split(".")[-1]), "custom")
}))
"""

# Prints which files of families with many kernels are imported to plan a graph of one node.
OF_ONE = """
import json, sys
import numpy as np
from tests.kernels.dry import planned, single
shapes = {{"Relu": [(2, 3)], "Conv": [(1, 8, 9, 9), (8, 8, 3, 3)], "Div": [(2, 3), (2, 3)]}}
arrays = [np.ones(shape, np.float16) for shape in shapes["{operator}"]]
planned(single("{operator}", arrays, (1,) if "{operator}" == "Conv" else ()))
names = (name.partition(".backends.cuda.")[2] for name in sys.modules)
print(json.dumps([n for n in names if n.startswith(("ops.", "attention.", "norm.", "conv."))]))
"""
# What each graph imports of these besides what convolutions in branches and judging products need.
ALWAYS = {"conv.branches"}
PLANNED = {
    "Relu": {"ops.movement"},
    "Div": {
        "ops.movement",
        *("attention.relu_linear", "attention.channels"),
        *("norm.head_rows", "norm.unit_rows", "norm.norm_rows"),
    },
}


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def test_every_operator_is_registered_by_a_file_of_its_family() -> None:
    assert json.loads(printed(LACKING)) == {}


def imported(operator: str) -> set[str]:
    found: list[str] = json.loads(printed(OF_ONE.format(operator=operator)))
    return set(found) - ALWAYS


@pytest.mark.parametrize("operator", PLANNED)
def test_a_network_imports_no_families_that_it_lacks(operator: str) -> None:
    assert imported(operator) == PLANNED[operator]


def test_a_convolution_imports_no_attention() -> None:
    found = imported("Conv")
    assert {"ops.conv", "conv.inverted_residual"} <= found
    assert not [name for name in found if name.startswith(("attention.", "norm."))]


TABLES = (patterns.WHOLE, patterns.LAST)
FINDERS = dict.fromkeys(f for table in TABLES for finders in table.values() for f in finders)


@pytest.mark.parametrize("finder", FINDERS, ids=lambda finder: finder.name)
def test_finders_take_what_they_are_given(finder: patterns.Finder) -> None:
    graph, _, *names = signature(finder.function).parameters
    assert graph == "graph"
    assert names == ["free", *finder.needs]
