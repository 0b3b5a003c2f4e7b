"""Write the page on operators of com.microsoft: which are supported, and what to do otherwise.

    python -m tercet.tools.workshop.contrib_page docs/results/contrib.md

Every operator of the installed onnxruntime has a row. The samples of tests/contrib are run on numpy
against onnxruntime's CPU provider, and planned for cuda (sm_90a) without a GPU. The second table
does the same with the files of tests/producers/transformers.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ...backends.cuda.families import KERNELS, provide
from ...importers.onnx.contrib.catalogue import find
from ...importers.onnx.contrib.recipes import recipe
from ...runtime.errors import TercetError
from ...runtime.ir.op import OPERATORS, body_names
from ..common.markdown import head, table

DOMAIN = "com.microsoft"
ROOT = Path(__file__).resolve().parents[2]
#: Samples of each operator, on numpy and for cuda.
SAMPLES, PLANNED = 32, 6
TARGET = "sm_90a"
#: Tests of searches, where they have one of their own.
_SEARCHED = {"WhisperBeamSearch": "test_search_encoded.py"}


@dataclass(frozen=True)
class PageRow:
    """One line of a table.

    Attributes:
        name: operator or file.
        numpy: the result there.
        cuda: likewise, as planned.
        onnxruntime: whether its CPU provider runs it.
        note: why not, and what to do; for a file, its operators.
    """

    name: str
    numpy: str
    cuda: str
    onnxruntime: str
    note: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of the page's table."""
        return self.name, self.numpy, self.cuda, self.onnxruntime, self.note


def samples() -> ModuleType:
    """Return the module of tests/contrib that has the table of draws."""
    sys.path.insert(0, str(ROOT))
    return import_module("tests.contrib.test_contrib")


def operators() -> list[PageRow]:
    """Return a row for every operator that onnxruntime declares."""
    table = samples()
    draws: dict[str, list[Any]] = {}
    for name, draw in table.DRAWS.items():
        draws.setdefault(name.partition(",")[0], []).append(draw)
    bindings = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    kernels = {each.op_name for each in bindings.get_all_opkernel_def() if each.domain == DOMAIN}
    declared = {each.name for each in bindings.get_all_operator_schema() if each.domain == DOMAIN}
    names = sorted(declared | {"SimplifiedLayerNormalization"})
    kernels.add("SimplifiedLayerNormalization")
    return [operator(name, draws.get(name, []), table, name in kernels) for name in names]


def operator(name: str, draws: list[Any], table: ModuleType, on_cpu: bool) -> PageRow:
    """Return the row of one operator."""
    cpu = "yes" if on_cpu else "no kernel"
    own = OPERATORS.get((DOMAIN, name))
    if own is not None and not draws:
        if body_names(own):
            test = f"tests/contrib/{_SEARCHED.get(name, 'test_search.py')}"
            return PageRow(name, "32 searches", "bodies", cpu, test)
        provide(own)
        cuda = "yes" if own in KERNELS else "host"
        return PageRow(name, "yes", cuda, cpu, "tests/numpy/test_contrib.py")
    if own is None and find(DOMAIN, name) is None and find("", name) is None:
        return PageRow(name, "refused", "refused", cpu, recipe(DOMAIN, name))
    numpy, cuda = "", ""
    for draw in draws:
        drawn = [draw(np.random.default_rng(seed)) for seed in range(SAMPLES)]
        try:
            wanted = table.expected(drawn)
            table.against(drawn, wanted, symbolic=True)
            table.against(drawn, wanted, stop_at=0)
            numpy = numpy or f"{SAMPLES} samples"
        except (AssertionError, TercetError) as error:
            numpy = f"wrong: {str(error)[:80]}"
        left = table.unclaimed(drawn[:PLANNED])
        cuda = "host" if left else cuda or "yes"
    return PageRow(name, numpy or "stated", cuda or "stated", cpu)


def files() -> list[PageRow]:
    """Return a row for every file of a producer."""
    import tercet

    rows: list[PageRow] = []
    for path in sorted((ROOT / "tests" / "producers" / "transformers").glob("*.onnx")):
        proto = onnx.load(path)
        kinds = sorted({node.op_type for node in proto.graph.node if node.domain == DOMAIN})
        with np.load(path.with_suffix(".npz")) as held:
            feeds = {key[6:]: held[key] for key in held.files if key.startswith("input/")}
            wanted = {key[7:]: held[key] for key in held.files if key.startswith("output/")}
        with tercet.load(path) as model:
            found = model.run(feeds)
        wide = {n: (found[n].astype(np.float64), x.astype(np.float64)) for n, x in wanted.items()}
        error = max(float(np.abs(a - b).max(initial=0)) for a, b in wide.values())
        shapes = {
            dim.dim_param: size
            for each in proto.graph.input
            for dim, size in zip(
                each.type.tensor_type.shape.dim, feeds[each.name].shape, strict=True
            )
            if dim.dim_param
        }
        placed = tercet.inspect(path, placement="cuda", target=TARGET, dims=shapes).placement or ()
        host = [row for row in placed if row.backend != "plan" and "cuda" not in row.backend]
        cuda = f"{len(host)} on the host" if host else "yes"
        rows.append(PageRow(path.stem, f"error {error:.0e}", cuda, "yes", ", ".join(kinds)))
    return rows


def page(rows: list[PageRow], made: list[PageRow]) -> str:
    """Return the page."""
    run = [row for row in rows if row.numpy != "refused"]
    on_cpu = [row for row in rows if row.onnxruntime == "yes"]
    both = [row for row in run if row.onnxruntime == "yes"]
    text = (
        f"Of the {len(rows)} operators that onnxruntime {onnxruntime.__version__} declares in "
        f"com.microsoft, its CPU provider runs {len(on_cpu)}; tercet runs {len(both)} of those and "
        f"{len(run) - len(both)} more. Each is compared with onnxruntime's CPU provider on "
        f"{SAMPLES} samples over attributes, shapes, dtypes and optional inputs, with symbolic "
        "dimensions and without passes; `cuda` is the plan for "
        f"{TARGET}, made without a GPU. Operators without a kernel in onnxruntime's CPU provider "
        "are compared with the formula of its documentation. `stated`: there are no samples yet. "
        "`host`: run by the host between two plans; of searches, the `bodies` run on the device. "
        "`refused`: an error with the recipe in the last column.\n\n"
        "Written by `python -m tercet.tools.workshop.contrib_page docs/results/contrib.md`."
    )
    files_text = (
        "Small networks with random weights (`tools/workshop/transformer_files.py`); the error is "
        "the maximum difference from onnxruntime's CPU provider."
    )
    places = ("numpy", "cuda", "onnxruntime CPU")
    lines = [
        *head("Operators of onnxruntime", text),
        *table(("operator", *places, "instead"), (row.cells for row in rows)),
        *("", "## Files of producers", "", files_text, ""),
        *table(("file", *places, "operators"), (row.cells for row in made)),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(operators(), files()))
