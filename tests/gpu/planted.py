"""Kernels with faults, planted on purpose; run as a program, in a process of its own.

python tests/gpu/planted.py far      # an unmapped address: the device notices
python tests/gpu/planted.py near     # memory that is not allocated yet: compute-sanitizer notices
python tests/gpu/planted.py print    # a kernel that prints what it computes
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from onnx.parser import parse_model

import tercet
from tercet.backends.cuda.driver import step
from tercet.backends.cuda.recipe import source as kernel_source
from tercet.backends.cuda.recipe.launch import Launch
from tercet.runtime.errors import DeviceError

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[40, 50] x, float[40, 50] w) => (y, z, broken) {
  z = Cos (x)
  broken = Sigmoid (w)
  y = Transpose <perm = [1, 0]> (x)
}"""
#: How many bytes behind its place each fault writes its result.
DISTANCE = {"far": 1 << 40, "near": 1 << 20}
STORE = "    *(Words<R>*)(y +"
PRINT = '    if (i < 3) printf("element %d is %g\\n", (int)i, (float)results.at[0]);\n'
#: What is written in the place of what, in which file, by the kind of fault.
EDITS = {
    "print": ("elementwise/elementwise.cu", STORE, PRINT + STORE),
    "race": ("move/transpose.cu", "    __syncthreads();\n", ""),
}


def misplace(distance: int) -> None:
    """Make the Sigmoid write behind its result."""
    bound = step.bind_launch

    def planted(
        device: Any, recipe: Launch, code: Any, pointers: Mapping[str, int]
    ) -> Callable[[Any], None]:
        if "Sigmoid" in recipe.title:
            pointers = {**pointers, "y": pointers["y"] + distance}
        return bound(device, recipe, code, pointers)

    step.bind_launch = planted


def edit(folder: Path, name: str, old: str, new: str) -> None:
    """Take kernels from a copy of their files, in one of which a line is another."""
    shutil.copytree(kernel_source.KERNELS, folder, dirs_exist_ok=True)
    file = folder / name
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    kernel_source.KERNELS = folder


def main(kind: str) -> None:
    """Run the model with a fault, and print the error."""
    x = np.linspace(-3, 3, 2000, dtype=np.float32).reshape(40, 50)
    with TemporaryDirectory() as folder:
        if kind in EDITS:
            edit(Path(folder), *EDITS[kind])
        else:
            misplace(DISTANCE[kind])
        try:
            with tercet.load(parse_model(TEXT), "cuda", check_each=True) as model:
                model(x, x)
        except DeviceError as error:
            print(error)


if __name__ == "__main__":
    main(sys.argv[1])
