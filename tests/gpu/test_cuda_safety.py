"""What must hold however long a GPU is used and whatever it is asked for."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.parser import parse_model

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from cuda.bindings import driver

import tercet
from tercet.backends import open_backends
from tercet.backends.cuda.driver.status import check
from tercet.runtime.errors import DeviceOutOfMemory
from tercet.runtime.options import Options, Precision
from tercet.tools.workshop.light_models import light_inputs, light_model

from ..kernels.dry import normal

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

Array = np.ndarray[Any, Any]
HEADER = '<ir_version: 10, opset_import: ["" : 21]>\n'
FULLY_CONVOLUTIONAL = """
g (float[1, 3, h, w] x) => (y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, w1)
  b = Relu (a)
  c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (b, w2)
  d = Add (c, c)
  e = GlobalAveragePool (d)
  f = Flatten (e)
  y = Softmax (f)
}"""


@pytest.fixture(scope="module")
def device() -> Any:
    return open_backends("cuda", Options())[0].device


def model_of(text: str, **constants: Array) -> Any:
    model = parse_model(HEADER + text)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return model


def fully_convolutional() -> Any:
    return model_of(FULLY_CONVOLUTIONAL, w1=normal(16, 3, 3, 3), w2=normal(32, 16, 3, 3))


def free_bytes() -> int:
    return check("cuMemGetInfo", driver.cuMemGetInfo())[0]


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def test_a_model_survives_a_full_device(device: Any) -> None:
    """The memory is really gone, not only said to be."""
    proto = light_model("resnet50")
    feeds = light_inputs(proto)
    with tercet.load(proto, "cuda") as model:
        want = model.run(feeds)
    hoard = device.allocate(free_bytes() - (64 << 20))
    with tercet.load(proto, "cuda") as model:
        with pytest.raises(DeviceOutOfMemory, match=r"has no \d+ bytes: \d+ of \d+ are free"):
            model.run(feeds)
        hoard.close()
        got = model.run(feeds)
    assert all(np.array_equal(got[name], want[name]) for name in want)


def test_a_thousand_runs_over_fifty_shapes_leave_nothing_behind(device: Any) -> None:
    shapes = [(8 + 3 * i, 40 - i // 2) for i in range(50)]
    inputs = [normal(1, 3, *shape) for shape in shapes]
    held: dict[int, tuple[int, int]] = {}
    with tercet.load(fully_convolutional(), "cuda") as model:
        for run in range(1, 1001):
            model(inputs[run % 50])
            if run in (100, 1000):
                gc.collect()
                held[run] = free_bytes(), device.allocated
    assert held[1000][1] == held[100][1]
    assert held[1000][0] >= held[100][0]
    assert device.allocated == 0


def test_a_steady_state_allocates_and_copies_nothing(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over 1,000 runs no memory of device or pinned host, and no weight, is touched again."""
    x = normal(1, 3, 32, 32)
    with tercet.load(fully_convolutional(), "cuda") as model:
        want = model(x)
        calls: list[str] = []
        for name in ("allocate", "staging", "upload", "record", "load"):
            monkeypatch.setattr(device, name, lambda *_, name=name: calls.append(name))
        for name in ("cuMemcpyHtoD_v2", "cuMemcpyHtoD", "cuMemAlloc", "cuMemHostAlloc"):
            if hasattr(driver, name):
                monkeypatch.setattr(driver, name, lambda *_, name=name: calls.append(name))
        free, held = free_bytes(), device.allocated
        same = all(np.array_equal(model(x)[0], want[0]) for _ in range(1000))
        assert calls == []
        assert (free_bytes(), device.allocated) == (free, held)
        assert same
        monkeypatch.undo()


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
def test_a_hundred_runs_are_bitwise_equal(precision: Precision) -> None:
    proto = light_model("resnet50")
    feeds = light_inputs(proto)
    with tercet.load(proto, "cuda", precision=precision) as model:
        first = model.run(feeds)
        assert all(np.isfinite(result).all() for result in first.values())
        for _ in range(100):
            again = model.run(feeds)
            assert all(np.array_equal(first[name], again[name]) for name in first)


# ── faults ───────────────────────────────────────────────────────────────────────────────────────


def test_a_fault_names_node_and_kernel() -> None:
    """A fault ends the process's context, so that it happens in a separate process."""
    script = Path(__file__).with_name("planted.py")
    done = subprocess.run(
        [sys.executable, str(script), "far"], capture_output=True, text=True, timeout=120
    )
    assert "broken (cuda, elementwise Sigmoid)" in done.stdout, done.stdout + done.stderr
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done.stdout


def test_a_kernel_prints() -> None:
    script = Path(__file__).with_name("planted.py")
    done = subprocess.run(
        [sys.executable, str(script), "print"], capture_output=True, text=True, timeout=120
    )
    assert "element 0 is -0.98999" in done.stdout, done.stdout + done.stderr  # cos(-3)


def test_recording_survives_a_garbage_collection(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection in the middle of it may free anything that other models have left."""

    class Loop:
        """Garbage that only a collection finds."""

        def __init__(self, *things: Any) -> None:
            self.itself, self.things = self, things

    def litter() -> None:
        stream = device.stream()
        graph = device.record(device.copier(view, view))
        pinned = device.staging(1 << 20)
        Loop(device.allocate(1 << 20), stream, graph, pinned)

    view = device.upload(normal(1000))
    copy = device.copier(view, view)

    def run(stream: Any) -> None:
        copy(stream)
        gc.collect()
        copy(stream)

    gc.collect()
    gc.disable()
    try:
        litter()
        replay = device.record(run)
    finally:
        gc.enable()
    stream = device.stream()
    replay(stream)
    stream.synchronize()
    view.buffer.close()


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────

#: A little more than 2^31 elements, in rows and columns that no power of two divides.
ROWS, COLUMNS = 32771, 65539
WHERE = np.array([0, 1, 32765, 32766, 32767, ROWS - 2, ROWS - 1])


def int8_rows() -> tuple[Array, Array]:
    """Return a column and a row whose sums stay within int8."""
    rng = np.random.default_rng(0)
    return (
        rng.integers(-60, 60, (ROWS, 1), np.int8),
        rng.integers(-60, 60, (1, COLUMNS), np.int8),
    )


def run_large(text: str, feeds: dict[str, Array], **constants: Array) -> list[Array]:
    with tercet.load(model_of(text, **constants), "cuda") as model:
        return list(model.run(feeds).values())


def test_elementwise_and_gather_beyond_31_bits() -> None:
    a, b = int8_rows()
    text = f"""
    g (int8[{ROWS}, 1] a, int8[1, {COLUMNS}] b) => (y, z) {{
      sum = Add (a, b)
      y = Gather <axis = 0> (sum, where)
      more = Sub (sum, b)
      z = Gather <axis = 1> (more, ends)
    }}"""
    ends = np.array([0, 1, COLUMNS - 1])
    y, z = run_large(text, {"a": a, "b": b}, where=WHERE, ends=ends)
    np.testing.assert_array_equal(y, a[WHERE] + b)
    np.testing.assert_array_equal(z, np.broadcast_to(a, (ROWS, 3)))


def test_reductions_beyond_31_bits() -> None:
    a, b = int8_rows()
    text = f"""
    g (int8[{ROWS}, 1] a, int8[1, {COLUMNS}] b) => (high, low, down) {{
      sum = Add (a, b)
      high = ReduceMax <keepdims = 0> (sum, last)
      low = ReduceMin <keepdims = 0> (sum, both)
      down = ReduceMax <keepdims = 0> (sum, first)
    }}"""
    axes = {"last": [1], "both": [0, 1], "first": [0]}
    constants = {name: np.array(axis) for name, axis in axes.items()}
    high, low, down = run_large(text, {"a": a, "b": b}, **constants)
    np.testing.assert_array_equal(high, a[:, 0] + b.max())
    assert low == a.min() + b.min()
    np.testing.assert_array_equal(down, a.max() + b[0])


def test_a_sum_of_a_billion_numbers_is_accurate() -> None:
    """Over 2^30 float32 numbers."""
    rng = np.random.default_rng(0)
    a, b = (rng.random((1 << 15, 1), np.float32), rng.random((1, 1 << 15), np.float32))
    text = """
    g (float[32768, 1] a, float[1, 32768] b) => (y, z) {
      sum = Add (a, b)
      y = ReduceSum <keepdims = 0> (sum)
      z = Gather <axis = 0> (sum, where)
    }"""
    y, _ = run_large(text, {"a": a, "b": b}, where=np.array([0]))
    want = (1 << 15) * (a.sum(dtype=np.float64) + b.sum(dtype=np.float64))
    assert abs(y - want) <= 2e-6 * want


def test_shapes_beyond_31_bits() -> None:
    """Concat, Transpose, Slice and Split of int8."""
    a, b = int8_rows()
    half = ROWS // 2
    text = f"""
    g (int8[{ROWS}, 1] a, int8[1, {COLUMNS}] b) => (y, t, s, p) {{
      upper = Slice (a, zero, half, zero)
      lower = Slice (a, half, rows, zero)
      sum1 = Add (upper, b)
      sum2 = Add (lower, b)
      sum = Concat <axis = 0> (sum1, sum2)
      y = Gather <axis = 0> (sum, where)
      turned = Transpose <perm = [1, 0]> (sum)
      t = Gather <axis = 1> (turned, where)
      s = Slice (sum, from, rows, zero)
      p1, p2 = Split <axis = 0, num_outputs = 2> (sum)
      p = Gather <axis = 0> (p2, ends)
    }}"""
    y, t, s, p = run_large(
        text,
        {"a": a, "b": b},
        where=WHERE,
        zero=np.array([0]),
        half=np.array([half]),
        rows=np.array([ROWS]),
        **{"from": np.array([ROWS - 3])},
        ends=np.array([0, -1]),
    )
    np.testing.assert_array_equal(y, a[WHERE] + b)
    np.testing.assert_array_equal(t, (a[WHERE] + b).T)
    np.testing.assert_array_equal(s, a[-3:] + b)
    np.testing.assert_array_equal(p, a[[-(-ROWS // 2), -1]] + b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float"])
def test_products_beyond_31_bits(dtype: str) -> None:
    """A result of 2^31 numbers, and a sum over an operand of 2^31."""
    m, n = 65537, 32776
    ones = np.ones((16, n), np.float32) / 16
    text = f"""
    g (float[{m}, 16] a, float[16, {n}] b) => (y) {{
      left = Cast <to = {_number(dtype)}> (a)
      right = Cast <to = {_number(dtype)}> (b)
      product = MatMul (left, right)
      some = Gather <axis = 0> (product, where)
      y = Cast <to = 1> (some)
    }}"""
    a = (np.arange(m * 16) % 61 - 30).astype(np.float32).reshape(m, 16)
    where = np.array([0, 1, 65520, 65535, m - 1])
    (y,) = run_large(text, {"a": a, "b": ones}, where=where)
    np.testing.assert_allclose(y, a[where] @ ones, atol=0.5 if dtype != "float" else 1e-4)


def _number(dtype: str) -> int:
    return TensorProto.DataType.Value(dtype.upper())


def test_pooling_beyond_31_bits() -> None:
    side = 46342  # its square is a little more than 2^31
    rng = np.random.default_rng(0)
    a = rng.integers(0, 100, (1, 1, side, 1)).astype(np.float16)
    b = rng.integers(0, 100, (1, 1, 1, side)).astype(np.float16)
    text = f"""
    g (float16[1, 1, {side}, 1] a, float16[1, 1, 1, {side}] b) => (y) {{
      sum = Add (a, b)
      pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (sum)
      y = Gather <axis = 2> (pooled, where)
    }}"""
    where = np.array([0, 1, side // 2 - 1])
    (y,) = run_large(text, {"a": a, "b": b}, where=where)
    rows, columns = a.reshape(-1, 2).max(1), b.reshape(-1, 2).max(1)
    np.testing.assert_array_equal(y[0, 0], rows[where, None] + columns)


@pytest.mark.parametrize("count", [0, 1, 1 << 20, (1 << 31) + 1])
def test_saxpy(count: int) -> None:
    """saxpy, y = 2.5 x + y, over any number of elements."""
    text = f"""
    g (float[1] x, float[1] y, int64[{4 if count else 0}] where) => (some) {{
      xs = Expand (x, count)
      ys = Expand (y, count)
      product = Mul (xs, factor)
      sum = Add (product, ys)
      some = Gather (sum, where)
    }}"""
    where = np.array([0, count // 2, max(count - 2, 0), count - 1] if count else [], np.int64)
    feeds = {"x": np.array([3], np.float32), "y": np.array([0.25], np.float32), "where": where}
    constants = {"count": np.array([count]), "factor": np.array([2.5], np.float32)}
    (some,) = run_large(text, feeds, **constants)
    np.testing.assert_array_equal(some, np.full(len(where), 7.75, np.float32))


@pytest.mark.parametrize("batch", [0, 1])
def test_a_network_on_nothing(batch: int) -> None:
    text = FULLY_CONVOLUTIONAL.replace("float[1, 3, h, w]", "float[n, 3, h, w]")
    proto = model_of(text, w1=normal(16, 3, 3, 3), w2=normal(32, 16, 3, 3))
    with tercet.load(proto, "cuda") as model, tercet.load(proto) as reference:
        x = normal(batch, 3, 8, 8)
        np.testing.assert_allclose(model(x)[0], reference(x)[0], atol=1e-6)


def test_scalars() -> None:
    text = """
    g (float x, float y) => (sum, bigger, root) {
      sum = Add (x, y)
      bigger = Greater (x, y)
      root = Sqrt (sum)
    }"""
    with tercet.load(model_of(text), "cuda") as model:
        results = model(np.float32(3), np.float32(1))
    assert [r.shape for r in results] == [(), (), ()]
    assert [r.item() for r in results] == [4, True, 2]
