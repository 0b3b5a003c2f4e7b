"""What a model may take of a GPU: its plans and weights count, and idle plans go first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.numpy.backend import evaluate
from tercet.runtime.errors import LimitError
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model

from .emulator import needs_compiler

if TYPE_CHECKING:
    from tercet.backends.cuda.backend import CudaBackend

pytestmark = needs_compiler

#: A row of 256 takes 1 KiB in and out of a plan.
ROWS = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 256] x, float[256] b) => (float[n, 256] y) { a = Add (x, b)  y = Softmax (a) }
"""
SHIFT = np.linspace(0, 1, 256, dtype=np.float32)
KIB = 1 << 10


class Meter:
    """The bytes that a device has given and not got back."""

    def __init__(self, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        self._allocate = device.allocate
        monkeypatch.setattr(device, "allocate", self.allocate)

    def allocate(self, nbytes: int) -> Any:
        buffer = self._allocate(nbytes)
        self.now += nbytes
        self.most = max(self.most, self.now)
        release = buffer._release

        def released(start: int, size: int, is_shared: bool) -> None:
            self.now -= size
            release(start, size, is_shared)

        buffer._release = released
        return buffer


def opened(backend: CudaBackend, limit: int | None, **freeze: np.ndarray) -> Model:
    with tercet.load(ROWS, freeze=freeze) as model:
        graph = model.imported.clone()
    return Model(graph, [backend], Options(max_device_bytes=limit), evaluate)


def run(model: Model, rows: int) -> None:
    x = np.linspace(-1, 1, rows * 256, dtype=np.float32).reshape(rows, 256)
    exact = np.exp(np.float64(x) + SHIFT)
    found = model.run({"x": x, "b": SHIFT})["y"]
    np.testing.assert_allclose(found, exact / exact.sum(1, keepdims=True), rtol=1e-5)


def test_idle_plans_make_room(emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = Meter(emulated.device, monkeypatch)
    with opened(emulated, None) as model:
        for rows in range(4, 10):
            run(model, rows)
    everything = meter.most
    meter.most = 0
    limit = 40 * KIB
    with opened(emulated, limit) as model:
        for rows in (*range(4, 10), *range(4, 10)):
            run(model, rows)
    assert meter.most <= limit < everything
    assert meter.now == 0


def test_what_is_too_large_is_refused_first(
    emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(emulated.device, monkeypatch)
    with opened(emulated, 40 * KIB) as model:
        run(model, 4)
        held = meter.now
        with pytest.raises(LimitError, match=r"max_device_bytes.*gives 'x' float32\[400,256\]"):
            run(model, 400)
        assert meter.now == meter.most == held
        run(model, 4)


def test_weights_count(emulated: CudaBackend) -> None:
    x = {"x": np.zeros((1, 256), np.float32)}
    with opened(emulated, None, b=SHIFT) as model:
        model.run(x)
        memory = model.memory()
    plan, weights = (sum(each.values()) for each in (memory.activations, memory.weights))
    plan -= memory.activations["cpu"]
    assert weights == KIB
    with opened(emulated, plan + weights, b=SHIFT) as model:
        assert model.run(x)["y"].argmax() == 255
    with (
        opened(emulated, plan + weights - 1, b=SHIFT) as model,
        pytest.raises(LimitError, match=r"packed constants.*max_device_bytes"),
    ):
        model.run(x)
