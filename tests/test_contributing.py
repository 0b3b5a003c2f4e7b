"""The operator of CONTRIBUTING.md: its pieces, appended to the files that they belong in, work."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.backends.cuda.gemm.atoms import ATOMS, Atom
from tercet.backends.numpy import evaluate
from tercet.runtime.ir import dtypes as all_dtypes
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Abs, Add, Div
from tercet.runtime.options import Options
from tercet.runtime.passes import Pass, Rewrites, optimise

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = {
    kind: [
        textwrap.dedent(block)
        for block in re.findall(rf"^ *```{kind}\n(.*?)```", TEXT, re.M | re.S)
    ]
    for kind in ("python", "cuda")
}
MODULES = (
    "tercet.runtime.ops.norm",
    "tercet.backends.numpy.ops.norm",
    "tercet.backends.cuda.ops.norm",
)

#: Appends pieces to modules, in a separate process: operators are registered for good.
APPEND = """
import importlib, sys
import numpy as np

def append(module, piece):
    target = vars(importlib.import_module(module))
    target.update(declared)
    exec(compile(piece, f"CONTRIBUTING.md ({module})", "exec"), target)
    if "RowEnergy" in target:
        declared["RowEnergy"] = target["RowEnergy"]

declared = {}
for module, piece in PIECES:
    append(module, piece)

from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ir.dtypes import float32

x = np.random.default_rng(0).standard_normal((5, 301), np.float32)
wanted = (x.astype(np.float64) ** 2).sum(-1, keepdims=True) * 0.5
graph = Graph("energy")
value = graph.add_input("x", TensorType(float32, ("rows", 301)))
graph.set_outputs({"y": graph.insert(declared["RowEnergy"](scale=0.5), [value], ["y"]).output})
infer(graph)
assert graph.outputs["y"].type == TensorType(float32, ("rows", 1))
"""

ON_NUMPY = """
from tercet.importers.onnx.writing.save import save
import tercet
save(graph, "energy.onnx")
with tercet.load("energy.onnx", backend="numpy") as model:
    np.testing.assert_allclose(model(x)[0], wanted, rtol=1e-5)
"""

ON_CUDA = """
from pathlib import Path
from tercet.backends.cuda.recipe import source as kernel_source
from tercet.backends.cuda.recipe.targets import H200
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.infer import specialise
from tercet.runtime.session.model import Model
from tests.kernels.cubins import assert_arguments
from tests.kernels.dry import launches, planned
from tests.kernels.emulator import COMPILER, open_emulated
from tests.kernels.samples import OPTIONS

kernel_source.KERNELS = Path("kernels")
static = specialise(graph, {"x": TensorType(float32, x.shape)})
found = launches(planned(static))
assert [launch.entry for launch in found] == ["row_energy"]
assert_arguments(found, H200, Path("cache"))
if COMPILER:
    emulated = open_emulated(Path(LIBRARIES), setattr)
    with Model(static.clone(), [emulated], OPTIONS, evaluate) as model:
        np.testing.assert_allclose(model.run({"x": x})["y"], wanted, rtol=1e-5)
"""


def run(script: str, modules: tuple[str, ...], folder: Path) -> None:
    """Execute a script behind the pieces for some modules."""
    pieces = list(zip(modules, BLOCKS["python"], strict=False))
    text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nPIECES = {pieces!r}\n{APPEND}{script}"
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_each_piece_has_its_file() -> None:
    assert len(BLOCKS["python"]) == len(MODULES) + 1
    for module in MODULES:
        assert f"`{module.removeprefix('tercet.').replace('.', '/')}.py`" in TEXT


def test_the_operator_runs_on_numpy(tmp_path: Path) -> None:
    run(ON_NUMPY, MODULES[:2], tmp_path)


def test_the_operator_runs_on_cuda(tmp_path: Path, libraries: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    shutil.copytree(ROOT / "backends" / "cuda" / "kernels", tmp_path / "kernels")
    (kernel,) = BLOCKS["cuda"]
    (name,) = re.findall(r"`backends/cuda/kernels/([\w/]+\.cu)`", TEXT)
    (tmp_path / "kernels" / name).write_text(kernel, encoding="utf-8")
    run(f"LIBRARIES = {str(libraries)!r}\n{ON_CUDA}", MODULES, tmp_path)


#: Adds an elementwise operator, in a separate process, to the module and to both tables.
ELEMENTWISE = """
import numpy as np
from tercet.backends.cuda.codegen import elementwise as on_cuda
from tercet.backends.numpy import evaluate
from tercet.backends.numpy.numerics import elementwise as on_numpy
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops import elementwise as ops
from tests.kernels.dry import launches, planned

exec(f"@op\\n{DECLARED}:\\n    'The cube root.'", vars(ops))
on_numpy.ELEMENTWISE |= eval("{" + ROWS[0] + "}", vars(on_numpy))
on_cuda.ROWS |= eval("{" + ROWS[1] + "}", vars(on_cuda))
graph = Graph("roots")
x = graph.add_input("x", TensorType(float32, (2, 3)))
root = graph.insert(ops.Cbrt(), [x]).output
graph.set_outputs({"y": graph.insert(ops.Relu(), [root], ["y"]).output})
infer(graph)
data = np.float32([[8, 27, -1], [0, 1, 64]])
(y,) = evaluate(ops.Cbrt(), [data], 1)
np.testing.assert_allclose(y, np.cbrt(data.astype(float)), rtol=1e-6)
(launch,) = launches(planned(graph))
assert "cbrt(x)" in launch.code
assert launch.note == "Cbrt+Relu"
"""


def test_an_elementwise_operator_is_three_rows(tmp_path: Path) -> None:
    (declared,) = re.findall(r"`(class Cbrt\(Unary\))`", TEXT)
    rows = re.findall(r"`(ops\.Cbrt: [^`]*)`", TEXT)
    text = (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nDECLARED, ROWS = {declared!r}, {rows!r}\n"
    )
    command = [sys.executable, "-c", text + ELEMENTWISE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_dtype_of_products_is_one_row() -> None:
    """NVRTC compiles every row of the table in `tests/kernels/test_atoms.py`."""
    (row,) = re.findall(r"`(\(float8\w+, float8\w+\): Atom\(.*\))`", TEXT)
    ((dtypes, atom),) = eval("{" + row + "}", {"Atom": Atom, **vars(all_dtypes)}).items()
    assert dtypes not in ATOMS
    assert "wgmma.mma_async.sync.aligned.m64n64k32.f32.e5m2.e5m2" in atom.code(64)


def test_the_pass_runs() -> None:
    package = "tercet.runtime.passes.elementwise"
    names: dict[str, Any] = {"__name__": f"{package}.fuse_softsign", "__package__": package}
    exec(BLOCKS["python"][-1], names)
    graph = Graph("softsign")
    x = graph.add_input("x", TensorType(float32, (2, 3)))
    one = graph.constant(np.ones((), np.float32))
    below = graph.insert(Add(), [one, graph.insert(Abs(), [x]).output]).output
    graph.set_outputs({"y": graph.insert(Div(), [x, below], ["y"]).output})
    infer(graph)
    own = Pass("fuse_softsign", names["run"], "as in CONTRIBUTING.md")
    rewrites = Rewrites()
    optimise(graph, (own,), Options(), evaluate, rewrites)
    assert [node.kind for node in graph.nodes] == ["Softsign"]
