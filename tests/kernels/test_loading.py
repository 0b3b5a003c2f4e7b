"""Kernels are loaded and their parameters compared once for all launches that are alike."""

from __future__ import annotations

from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from cuda.bindings import driver

import tercet
from tercet.runtime.errors import DeviceError

from .dry import normal
from .emulator import needs_compiler
from .fake_driver import FAKE, FakeCompiler, Gate, plant

pytestmark = needs_compiler

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g ({inputs}) => ({outputs}) {{ {nodes} }}"""


def calls_of(count: int, compiler: FakeCompiler) -> tuple[int, int]:
    """Return how often kernels and parameters are asked for by a model of equal Transposes."""
    places = range(count)
    text = MODEL.format(
        inputs=", ".join(f"float[5, 6] x{i}" for i in places),
        outputs=", ".join(f"float[6, 5] y{i}" for i in places),
        nodes=" ".join(f"y{i} = Transpose <perm = [1, 0]> (x{i})" for i in places),
    )
    feeds = {f"x{i}": normal(5, 6) + i for i in places}
    gate = Gate()
    with pytest.MonkeyPatch.context() as patch:
        plant(compiler, gate, patch.setattr)
        with tercet.load(parse_model(text), "cuda") as model:
            found = model.run(feeds)
    for i in places:
        np.testing.assert_array_equal(found[f"y{i}"], feeds[f"x{i}"].T)
    return gate.calls["cuLibraryGetKernel"], gate.calls["cuKernelGetParamInfo"]


def test_equal_launches_load_their_kernel_once(libraries: Path) -> None:
    compiler = FakeCompiler(libraries, FAKE)
    kernels, parameters = calls_of(1, compiler)
    assert kernels == 1
    assert parameters > 0
    assert calls_of(4, compiler) == (kernels, parameters)


def test_plans_are_made_while_the_context_starts(tmp_path: Path) -> None:
    """What fails then is said by the run that needs it; the next one tries again."""
    gate = Gate("cuDevicePrimaryCtxRetain", 1, driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    text = MODEL.format(inputs="float[5] x", outputs="float[5] y", nodes="y = Neg (x)")
    feeds = {"x": normal(5)}
    with pytest.MonkeyPatch.context() as patch:
        plant(FakeCompiler(tmp_path, FAKE), gate, patch.setattr)
        with tercet.load(parse_model(text), "cuda") as model:
            assert not gate.calls["cuDevicePrimaryCtxRetain"]
            with pytest.raises(DeviceError, match="opening GPU 0 failed with CUDA_ERROR_OUT_OF"):
                model.run(feeds)
            np.testing.assert_array_equal(model.run(feeds)["y"], -feeds["x"])


class Whose(Gate):
    """Notes which calls the thread that made it makes, and which are made by others."""

    def __init__(self) -> None:
        super().__init__()
        self.thread, self.mine, self.others = get_ident(), set[str](), set[str]()

    def ask(self, name: str) -> Any:
        """Note a call, too."""
        (self.mine if get_ident() == self.thread else self.others).add(name)
        return super().ask(name)


def test_kernels_are_loaded_by_the_threads_that_compile_them(libraries: Path) -> None:
    gate = Whose()
    text = MODEL.format(inputs="float[5] x", outputs="float[5] y", nodes="y = Neg (x)")
    feeds = {"x": normal(5)}
    with pytest.MonkeyPatch.context() as patch:
        plant(FakeCompiler(libraries, FAKE, ahead=True), gate, patch.setattr)
        with tercet.load(parse_model(text), "cuda") as model:
            np.testing.assert_array_equal(model.run(feeds)["y"], -feeds["x"])
    assert {"cuLibraryLoadData", "cuKernelGetFunction"} <= gate.others - gate.mine
    assert "cuLaunchKernel" in gate.mine
