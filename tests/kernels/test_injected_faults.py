"""Every call of the driver that a model makes fails once: at loading, planning, running, closing.

The driver is a fake that computes. Which calls there are is not listed: a first pass without a
fault counts them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from cuda.bindings import driver

import tercet
from tercet.backends.cuda.driver.device import DriverDevice
from tercet.runtime.errors import (
    BackendUnavailable,
    DeviceError,
    DeviceFault,
    DeviceOutOfMemory,
)

from .dry import normal
from .emulator import needs_compiler
from .fake_driver import FAKE, FakeCompiler, FakeGpu, Gate, plant

pytestmark = needs_compiler

#: Weights, two plans, branches that run side by side. No kernel has a barrier: those are slow here.
MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 6] x) => (float[6, n] y, float[n, 6] z) <float[6] w = {1, -2, 3, -4, 5, -6}> {
  h = Mul (x, w)  s = Transpose <perm = [1, 0]> (h)  t = Sigmoid (s)
  y = Add (s, t)  z = Neg (x)
}"""
#: (status, whether all later calls answer it too)
FAULTS = {
    "memory": ("OUT_OF_MEMORY", False),
    "refused": ("INVALID_VALUE", False),
    "sticky": ("ILLEGAL_ADDRESS", True),
    "lost": ("CONTEXT_IS_DESTROYED", True),
}
#: Calls that give something back: where one fails no error is raised, and the resource is lost.
FREES = {"cuMemFreeAsync", "cuMemFreeHost"}
X, OTHER = normal(5, 6), normal(3, 6)


@dataclass
class Life:
    """A model's life, as far as it comes."""

    gpu: FakeGpu
    model: Any = None

    def live(self) -> dict[str, Any]:
        """Load, run in all ways, and return the results."""
        self.model = tercet.load(parse_model(MODEL), "cuda")
        found = {
            "first": self.model.run({"x": X}),
            "again": self.model.run({"x": X}),
            "other": self.model.run({"x": OTHER}),
        }
        there = tercet.to_device(X)
        found["there"] = {n: d.numpy() for n, d in self.model.run([there], to="device").items()}
        with self.model.bind({"x": X.shape}) as bound:
            found["bound"] = {n: d.numpy() for n, d in bound.run({"x": X}).items()}
        return found

    def close(self) -> None:
        if self.model is not None:
            self.model.close()
            self.model = None


def expected() -> dict[str, Any]:
    with tercet.load(parse_model(MODEL), "numpy") as reference:
        mine, other = reference.run({"x": X}), reference.run({"x": OTHER})
    return {"first": mine, "again": mine, "other": other, "there": mine, "bound": mine}


def assert_right(found: dict[str, Any], wanted: dict[str, Any], *, where: object) -> None:
    for way, results in found.items():
        for name, data in results.items():
            np.testing.assert_allclose(data, wanted[way][name], 1e-5, 1e-6, err_msg=str(where))


@pytest.fixture(scope="module")
def compiler(libraries: Path) -> FakeCompiler:
    return FakeCompiler(libraries, FAKE)


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    return expected()


@pytest.fixture(autouse=True)
def finalizers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail for errors of finalizers, which are otherwise lost; collect only what a test makes."""
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: found.append(repr(event.exc_value)))
    gc.collect()
    gc.freeze()  # for good, as conftest.py does it: each test would look at everything again
    yield
    assert not found, found[:10]


def a_life(gate: Gate, compiler: FakeCompiler) -> tuple[Life, pytest.MonkeyPatch]:
    patch = pytest.MonkeyPatch()
    return Life(plant(compiler, gate, patch.setattr)), patch


@dataclass(frozen=True)
class Place:
    """A call of the driver in a life: the how manieth of its name."""

    name: str
    number: int


@pytest.fixture(scope="module")
def places(compiler: FakeCompiler) -> list[Place]:
    return places_of(compiler)


def places_of(compiler: FakeCompiler, below: CodeType | None = None) -> list[Place]:
    """Return the calls of a life without a fault, once for each way that leads to one.

    Args:
        compiler: that of the GPU.
        below: the function whose calls they are; None for all.
    """
    seen: dict[object, Place] = {}

    class Noting(Gate):
        def ask(self, name: str) -> Any:
            answer = super().ask(name)
            frame, way = sys._getframe(1), list[tuple[CodeType, int]]()
            while frame is not None:
                if (
                    "tercet" in frame.f_globals.get("__name__", "")
                    or frame.f_code.co_name == "live"
                ):
                    way.append((frame.f_code, frame.f_lineno))
                frame = frame.f_back
            if below is None or any(code is below for code, _ in way):
                seen.setdefault((name, *way), Place(name, self.calls[name]))
            return answer

    life, patch = a_life(Noting(), compiler)
    life.live()
    life.close()
    gc.collect()
    patch.undo()
    return list(seen.values())


def test_without_a_fault(compiler: FakeCompiler, wanted: dict[str, Any]) -> None:
    gate = Gate()
    life, patch = a_life(gate, compiler)
    assert_right(life.live(), wanted, where="no fault")
    life.close()
    gc.collect()
    assert not +life.gpu.held
    patch.undo()
    assert len(gate.calls) > 25


def complaints(place: Place, fault: str, compiler: FakeCompiler, wanted: Any) -> Iterator[str]:
    """Yield what is wrong with a life in which one call fails."""
    name, stays = FAULTS[fault]
    gate = Gate(place.name, place.number, driver.CUresult.__members__[f"CUDA_ERROR_{name}"], stays)
    life, patch = a_life(gate, compiler)
    try:
        try:
            assert_right(life.live(), wanted, where=place)
        except BackendUnavailable:
            if place.name != "cuInit":
                yield "calls the backend unavailable"
        except DeviceError as error:
            if stays and not isinstance(error, DeviceFault):
                yield f"is no DeviceFault: {error!r}"
            if name not in str(error) and not isinstance(error, DeviceOutOfMemory):
                yield f"does not name the status: {error!r}"
        except Exception as error:
            yield f"untyped: {error!r}"
        if gate.failed and stays:
            yield from _goes_on_failing(life)
        elif gate.failed and life.model is not None:
            gate.name = ""
            try:
                assert_right({"again": life.model.run({"x": X})}, wanted, where=place)
            except Exception as error:
                yield f"cannot run again: {error!r}"
        try:
            life.close()
        except Exception as error:
            yield f"cannot be closed: {error!r}"
        gc.collect()
        left = dict(+life.gpu.held)
        if left and not stays and place.name not in FREES:
            yield f"keeps {left}"
        if not gate.failed:
            yield "never failed"
    finally:
        patch.undo()


def _goes_on_failing(life: Life) -> Iterator[str]:
    if life.model is None:
        return
    try:
        life.model.run({"x": X})
        yield "runs on a device that is lost"
    except DeviceFault:
        return
    except Exception as error:
        yield f"the next run: {error!r}"


@pytest.mark.parametrize("fault", FAULTS)
def test_every_call_may_fail(
    fault: str, places: list[Place], compiler: FakeCompiler, wanted: dict[str, Any]
) -> None:
    assert_harmless(places, fault, compiler, wanted)


def assert_harmless(
    places: list[Place], fault: str, compiler: FakeCompiler, wanted: dict[str, Any]
) -> None:
    found = [
        f"{place.name} {place.number}: {complaint}"
        for place in places
        for complaint in complaints(place, fault, compiler, wanted)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("fault", FAULTS)
def test_loading_ahead_may_fail(fault: str, libraries: Path, wanted: dict[str, Any]) -> None:
    """Where it is no loss of the device, kernels are loaded again when they are needed."""
    compiler = FakeCompiler(libraries, FAKE, ahead=True)
    places = places_of(compiler, DriverDevice.preload.__code__)
    assert {place.name for place in places} >= {
        "cuDevicePrimaryCtxRetain",
        "cuLibraryLoadData",
        "cuLibraryGetKernelCount",
        "cuLibraryEnumerateKernels",
        "cuKernelGetFunction",
    }
    assert_harmless(places, fault, compiler, wanted)
