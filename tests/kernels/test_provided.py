"""Families of the cuda backend are imported when a graph has one of their operators."""

import json
import subprocess
import sys

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

# Prints which files of `ops` are imported to plan a graph of one Relu.
OF_RELU = """
import sys
import numpy as np
from tests.kernels.dry import planned, single
planned(single("Relu", [np.ones((2, 3), np.float32)]))
print([name for name in sys.modules if ".backends.cuda.ops." in name])
"""


def printed(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def test_every_operator_is_registered_by_a_file_of_its_family() -> None:
    assert json.loads(printed(LACKING)) == {}


def test_a_network_imports_no_families_that_it_lacks() -> None:
    assert printed(OF_RELU) == "['tercet.backends.cuda.ops.movement']"
