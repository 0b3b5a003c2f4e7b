"""The CUDA device: memory, copies between formats, graphs, errors; and shared arrays."""

from __future__ import annotations

import gc
import threading
from math import inf
from pathlib import Path

import numpy as np
import pytest

import tercet
from tercet.backends import open_backends
from tercet.backends.cuda.gemm.f16x3 import in_halves, scales_of
from tercet.backends.cuda.gemm.pack import InParts
from tercet.backends.cuda.gemm.pack_rows import FilterPacking, MatrixPacking, SumPacking
from tercet.backends.cuda.gemm.pack_scaled import ScaledColumns, ScaledRows
from tercet.runtime.errors import DeviceOutOfMemory, InputError
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import View
from tercet.runtime.plan.format import Format
from tercet.runtime.plan.host import HOST, array
from tercet.tools.workshop.light_models import light_inputs, light_model

from ..kernels.dry import normal

pytestmark = pytest.mark.gpu

MODELS = ("squeezenet", "resnet50", "vgg19", "shufflenet")


@pytest.fixture(scope="module")
def device():
    return open_backends("cuda", Options())[0].device


def test_it_says_what_it_is(device) -> None:
    assert device.name == "cuda:0"
    assert "sm_" in device.description
    assert open_backends("cuda", Options())[0].device is device


# ── memory ───────────────────────────────────────────────────────────────────────────────────────


def test_memory_is_counted_and_given_back(device) -> None:
    before = device.allocated
    buffers = [device.allocate(n) for n in (0, 1, 1000, 1 << 24)]
    assert device.allocated - before == 1001 + (1 << 24)
    assert all(buffer.pointer % 256 == 0 for buffer in buffers)
    for buffer in buffers * 2:
        buffer.close()
    assert device.allocated == before


@pytest.mark.parametrize(
    "order", [in_halves, scales_of, InParts(2)], ids=["halves", "scales", "parts"]
)
def test_weights_that_a_kernel_packs_have_the_bits_of_the_hosts(device, order) -> None:
    filters, matrix = normal(430, 70, 3, 3), normal(1030, 260)
    transposed = MatrixPacking(1.0, transposed=True, arrange=order)
    plain = MatrixPacking(1.0, transposed=False, arrange=order)
    packings = ((FilterPacking(1, 70, 1, order), filters), (transposed, matrix), (plain, matrix))
    for pack, source in packings:
        copies = dict[int, View]()
        view = device.packed(pack, [source], copies)
        assert view is not None
        assert fetch(device, view).tobytes() == pack(source).tobytes()
        for each in (view, *copies.values()):
            each.buffer.close()


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_weights_that_a_kernel_scales_are_those_of_the_host(device, dtype, transposed) -> None:
    b, scale, shift = normal(300, 260), normal(260 if transposed else 300), normal(300)
    b, scale, shift = (x.astype(dtype) for x in (b, scale, shift[: scale.size]))
    if dtype == np.float32:
        rows, sums = MatrixPacking(1.0, transposed, in_halves), SumPacking(1.0, transposed)
    else:
        rows, sums = ScaledRows(1.0, transposed), ScaledColumns(1.0, transposed)
    copies = dict[int, View]()
    packed = device.packed(rows, [b, scale], copies)
    columns = device.packed(sums, [b, scale, shift], copies)
    assert len(copies) == 3
    assert fetch(device, packed).tobytes() == rows(b, scale).tobytes()
    expected = sums(b, scale, shift)
    np.testing.assert_allclose(fetch(device, columns), expected, rtol=1e-6, atol=1e-5)
    for each in (packed, columns, *copies.values()):
        each.buffer.close()


def test_too_much_memory_is_a_typed_error_and_no_harm(device) -> None:
    """R13: the message has what was asked for and what is free; the next allocation works."""
    with pytest.raises(DeviceOutOfMemory, match=rf"{1 << 45} bytes: \d+ of \d+ are free"):
        device.allocate(1 << 45)
    view = device.upload(normal(1000))
    assert np.array_equal(fetch(device, view), normal(1000))
    view.buffer.close()


@pytest.mark.parametrize("share", [0, 0.1, 0.25, 0.5, 1])
def test_a_model_survives_a_refused_allocation(
    share: float, device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13: from one on, allocations fail; nothing leaks, and the model runs with memory.

    A constant that cannot be stored in advance is tried once more where a step needs it.
    """
    proto = light_model("squeezenet")
    feeds = light_inputs(proto)
    allocate, sizes = device.allocate, list[int]()
    last = inf  # of those that succeed

    def scarce(nbytes: int):
        sizes.append(nbytes)
        return allocate(nbytes if len(sizes) <= last else 1 << 50)

    monkeypatch.setattr(device, "allocate", scarce)
    with tercet.load(proto, "cuda") as model:
        want = model.run(feeds)
    last = round(share * (len(sizes) - 1))
    sizes.clear()
    with tercet.load(proto, "cuda") as model:
        with pytest.raises(DeviceOutOfMemory):
            model.run(feeds)
        monkeypatch.undo()
        got = model.run(feeds)
    assert all(np.array_equal(got[name], want[name]) for name in want)
    gc.collect()
    assert device.allocated == 0


@pytest.mark.alone
@pytest.mark.parametrize("name", MODELS)
def test_close_returns_every_byte(name: str, device) -> None:
    from cuda.bindings import driver

    proto = light_model(name)
    feeds = light_inputs(proto)

    def cycle() -> int:
        with tercet.load(proto, "cuda") as model:
            model.run(feeds)
            assert device.allocated > 0
        assert device.allocated == 0
        return driver.cuMemGetInfo()[1]

    assert cycle() - cycle() <= 0  # the second time nothing is loaded for the first time


# ── copies ───────────────────────────────────────────────────────────────────────────────────────


def fetch(device, view: View) -> Array:
    """Return the elements of a view as they lie on the device, through pinned memory."""
    staging = device.staging(view.nbytes)
    host = View(HOST, staging, 0, view.type, view.format)
    stream = device.stream()
    device.copier(host, view)(stream)
    stream.synchronize()
    found = array(host).copy()
    staging.close()
    return found


#: Rows of float32 in halves are tested in test_cuda_in_halves.py.
OF_ANY_DTYPE = [Format.CONTIGUOUS, Format.CHANNELS_LAST]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int64])
@pytest.mark.parametrize(
    "dims", [(2, 3, 5, 7), (1, 64, 33, 31), (3, 8, 9), (1, 1, 4, 4), (2, 13, 2, 2, 2)]
)
@pytest.mark.parametrize("source", OF_ANY_DTYPE)
@pytest.mark.parametrize("target", OF_ANY_DTYPE)
def test_formats(
    device, dtype: type, dims: tuple[int, ...], source: Format, target: Format
) -> None:
    data = np.arange(np.prod(dims)).reshape(dims).astype(dtype)
    start = device.upload(in_format(data, source))
    src = View(device, start.buffer, 0, TensorType(data.dtype, dims), source)
    dst = View(device, device.allocate(src.type.nbytes), 0, src.type, target)
    stream = device.stream()
    device.copier(dst, src)(stream)
    stream.synchronize()
    np.testing.assert_array_equal(fetch(device, dst), in_format(data, target))
    src.buffer.close()
    dst.buffer.close()


def in_format(data: Array, format: Format) -> Array:
    if format is Format.CONTIGUOUS:
        return data
    moved = np.zeros(format.physical(data.shape), data.dtype)
    moved[..., : data.shape[1]] = np.moveaxis(data, 1, -1)
    return moved


def test_a_part_of_a_buffer(device) -> None:
    data = normal(1000)
    view = device.upload(data)
    part = View(device, view.buffer, 400, TensorType(data.dtype, (300,)))
    np.testing.assert_array_equal(fetch(device, part), data[100:400])
    view.buffer.close()


# ── graphs and threads ───────────────────────────────────────────────────────────────────────────


def test_a_plan_is_one_graph() -> None:
    proto = light_model("squeezenet")
    with tercet.load(proto, "cuda") as model:
        (plan,) = model.prepare().plans
        assert len(plan._runs) <= 3  # the graph, the wait, at most one reformat on the host


def test_runs_are_bitwise_equal() -> None:
    """R17: split sums are added in a fixed order."""
    proto = light_model("resnet50")
    feeds = light_inputs(proto)
    with tercet.load(proto, "cuda") as model:
        first = model.run(feeds)
        for _ in range(20):
            again = model.run(feeds)
            assert all(np.array_equal(first[name], again[name]) for name in first)


def test_checking_each_step_gives_the_same() -> None:
    proto = light_model("squeezenet")
    feeds = light_inputs(proto)
    with tercet.load(proto, "cuda") as fast, tercet.load(proto, "cuda", check_each=True) as slow:
        for a, b in zip(fast.run(feeds).values(), slow.run(feeds).values(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_threads_get_plans_of_their_own() -> None:
    proto = light_model("squeezenet")
    feeds = [light_inputs(proto, seed) for seed in range(4)]
    with tercet.load(proto, "cuda") as model:
        want = [model.run(feed) for feed in feeds]
        got: dict[int, list[dict[str, Array]]] = {}

        def work(i: int) -> None:
            got[i] = [model.run(feeds[i]) for _ in range(10)]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i, results in got.items():
        assert all(np.array_equal(r[n], want[i][n]) for r in results for n in r)


def test_compiled_kernels_are_kept_on_disk(tmp_path: Path) -> None:
    with tercet.load(light_model("squeezenet"), "cuda", cache=tmp_path) as model:
        model.prepare()
    files = list((tmp_path / "cuda").iterdir())
    assert files
    assert all(path.suffix == ".cubin" for path in files)


# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_])
def test_device_arrays_come_back_exactly(device, dtype: type) -> None:
    from tercet.backends.cuda.interop.array import DeviceArray

    data = normal(3, 5, 7).astype(dtype)
    with tercet.to_device(data) as there:
        np.testing.assert_array_equal(there.numpy(), data)
        assert tercet.to_device(there) is there
    before = device.allocated
    with DeviceArray.upload(device, data) as there:
        assert (there.shape, there.dtype) == (data.shape, data.dtype)
        np.testing.assert_array_equal(there.numpy(), data)
    assert device.allocated == before


def test_device_arrays_are_shared_with_torch(device) -> None:
    from tercet.backends.cuda.interop.array import DeviceArray

    torch = pytest.importorskip("torch")
    data = normal(4, 6)
    with DeviceArray.upload(device, data) as there:
        np.testing.assert_array_equal(torch.from_dlpack(there).cpu().numpy(), data)
        np.testing.assert_array_equal(torch.as_tensor(there, device="cuda").cpu().numpy(), data)
    theirs = torch.arange(12, device="cuda", dtype=torch.float32).reshape(3, 4)
    ours = tercet.to_device(theirs)
    assert ours.__cuda_array_interface__["data"][0] == theirs.data_ptr()
    np.testing.assert_array_equal(ours.numpy(), theirs.cpu().numpy())
    with pytest.raises(InputError, match=r"the array has shape \[4, 3\] and strides"):
        tercet.to_device(theirs.t())
