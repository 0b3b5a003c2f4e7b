"""What is entered on the way from a call to its kernel: the files that a reader has to know."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np

import tercet
from tercet.importers.onnx.writing.save import save
from tercet.runtime.ir.dtypes import DType, float16, float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv
from tercet.runtime.ops.elementwise import Relu

from .dry import planned

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def network(dtype: DType, channels: int, size: int, images: int) -> Graph:
    """A convolution of 3 x 3 windows with a bias, and a Relu."""
    graph = Graph("walk")
    x = graph.add_input("x", TensorType(dtype, (images, channels, size, size)))
    weights = np.random.default_rng(0).standard_normal((channels, channels, 3, 3)).astype(dtype)
    constants = [graph.constant(weights), graph.constant(np.zeros(channels, dtype))]
    conv = graph.insert(Conv(pads=(1, 1, 1, 1)), [x, *constants]).output
    graph.set_outputs({"y": graph.insert(Relu(), [conv], ["y"]).output})
    infer(graph)
    return graph


def entered(act: Callable[[], object]) -> list[str]:
    """The files of tercet whose functions a call enters, in order; what is cached is not."""
    act()
    found: dict[str, None] = {}

    def watch(frame: FrameType, event: str, argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(ROOT) and frame.f_code.co_name != "<module>":
            found.setdefault(file.relative_to(ROOT).as_posix())

    gc.collect()
    gc.disable()  # what is left of other tests is closed at some other time
    sys.setprofile(watch)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return [file for file in found if not file.startswith(("tests/", ".venv/"))]


def test_a_convolution_enters_the_files_that_the_documentation_lists() -> None:
    graph = network(float16, 64, 56, 8)
    files = [file for file in entered(lambda: planned(graph)) if file.startswith("backends/cuda/")]
    text = PAGE.read_text(encoding="utf-8").partition("### One convolution, file by file")[2]
    listed = re.findall(r"^\| `([\w/]+\.py)`", text.partition("\n## ")[0], re.MULTILINE)
    assert listed == [file.removeprefix("backends/cuda/") for file in files]


def test_a_steady_run_is_short(tmp_path: Path) -> None:
    save(network(float32, 8, 14, 1), tmp_path / "walk.onnx")
    x = np.zeros((1, 8, 14, 14), np.float32)
    with tercet.load(tmp_path / "walk.onnx", "numpy") as loaded:
        loaded.run({"x": x})
        files = set(entered(lambda: loaded.run({"x": x})))
    # How a product is cut, so that all of its sums are alike, depends on the processor.
    cuts = {f"backends/numpy/numerics/{name}.py" for name in ("margins", "products")}
    assert len(files - cuts) <= 18, files
