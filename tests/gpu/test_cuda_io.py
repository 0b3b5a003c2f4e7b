"""Arrays on the GPU in and out, streams of callers, and batches in a pipeline; with PyTorch."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import tercet
from tercet.backends import open_backends
from tercet.runtime.errors import InputError, UsageError
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.tools.workshop.lifecycle import STEADY, trace_lifecycle
from tercet.tools.workshop.light_models import light_inputs, light_model
from tercet.tools.workshop.pipeline import balanced_model, measure_pipeline

from ..threads import together

pytestmark = pytest.mark.gpu

torch: Any = None


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import torch where these tests run: that takes seconds, and every worker collects them."""
    global torch
    torch = pytest.importorskip("torch")


def source_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 22]>\n{text}')


MLP = """
g (float[n,64] x, float[64,64] w) => (float[n,64] y) {
  a = MatMul (x, w)
  b = Relu (a)
  y = Add (b, x)
}"""


@pytest.fixture
def device() -> Iterator[Any]:
    found: Any = open_backends("cuda", Options())[0].device
    gc.collect()
    before = found.allocated
    yield found
    gc.collect()
    torch.cuda.synchronize()
    assert found.allocated <= before, "some memory is not back"


def arrays(seed: int, n: int = 8) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((n, 64), np.float32),
        "w": rng.standard_normal((64, 64), np.float32),
    }


def on_gpu(feeds: dict[str, Array]) -> dict[str, Any]:
    return {name: torch.from_numpy(data).cuda() for name, data in feeds.items()}


# ── arrays ───────────────────────────────────────────────────────────────────────────────────────


def test_torch_in_torch_out_is_bitwise_the_same(device) -> None:
    with tercet.load(source_of(MLP), "cuda") as model:
        for seed in range(3):
            feeds = arrays(seed)
            want = model.run(feeds)["y"]
            there = model.run(on_gpu(feeds), to="device")["y"]
            assert (there.shape, there.dtype, there.device) == (want.shape, want.dtype, "cuda:0")
            np.testing.assert_array_equal(there.numpy(), want)
            np.testing.assert_array_equal(torch.from_dlpack(there).cpu().numpy(), want)
            np.testing.assert_array_equal(torch.as_tensor(there, device="cuda").cpu(), want)
            np.testing.assert_array_equal(model.run(on_gpu(feeds))["y"], want)
            np.testing.assert_array_equal(model.run(feeds, to="device")["y"].numpy(), want)
            mixed = {"x": feeds["x"], "w": on_gpu(feeds)["w"]}
            np.testing.assert_array_equal(model.run(mixed)["y"], want)


@pytest.mark.parametrize("name", ["squeezenet", "resnet50"])
def test_light_models_from_torch(name: str, device) -> None:
    proto = light_model(name)
    feeds = light_inputs(proto)
    with tercet.load(proto, "cuda") as model:
        want = model.run(feeds)
        there = model.run(on_gpu(feeds), to="device")
        for key, data in want.items():
            np.testing.assert_array_equal(there[key].numpy(), data)
        last = {k: v.to(memory_format=torch.channels_last) for k, v in on_gpu(feeds).items()}
        for key, data in model.run(last).items():
            np.testing.assert_allclose(data, want[key], rtol=1e-4, atol=1e-6)


TYPES = [
    ("float32", np.float32),
    ("float16", np.float16),
    ("float64", np.float64),
    ("bfloat16", ml_dtypes.bfloat16),
    ("int8", np.int8),
    ("uint8", np.uint8),
    ("int32", np.int32),
    ("int64", np.int64),
    ("bool", np.bool_),
]


def bytes_of(data: Any) -> bytes:
    if not data.numel():
        return b""
    return data.reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


@pytest.mark.parametrize(("theirs", "ours"), TYPES, ids=str)
def test_every_dtype_goes_there_and_back(theirs: str, ours: Any, device) -> None:
    """Exact in both directions, and for arrays without elements or axes."""
    for shape in ((3, 5), (), (0, 4), (1, 1, 7)):
        data = torch.randint(0, 2, shape, device="cuda").to(getattr(torch, theirs))
        array = tercet.to_device(data)
        assert (array.dtype, array.shape) == (np.dtype(ours), tuple(shape))
        back = torch.from_dlpack(array)
        assert back.dtype == getattr(torch, theirs)
        assert torch.equal(back, data)
        assert array.numpy().tobytes() == bytes_of(data)
        again = tercet.to_device(array.numpy())
        assert torch.equal(torch.from_dlpack(again), data)


def test_float8_goes_through_the_model_and_dlpack(device) -> None:
    text = "g (float8e4m3fn[n] x) => (float8e4m3fn[n] y) { y = Identity (x) }"
    data = np.arange(64, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    with tercet.load(source_of(text), "cuda") as model:
        x = tercet.to_device(torch.arange(64, dtype=torch.uint8, device="cuda"))
        y = model.run({"x": x.view(ml_dtypes.float8_e4m3fn)}, to="device")["y"]
        assert y.numpy().tobytes() == data.tobytes()
        shared = torch.from_dlpack(y.view("uint8"))
        assert shared.cpu().numpy().tobytes() == data.tobytes()
        from tercet.runtime.session.dlpack import see

        assert see(y, 1).dtype == y.dtype


def test_bfloat16_of_the_host_comes_from_torch() -> None:
    text = "g (bfloat16[n] x) => (bfloat16[n] y) { y = Identity (x) }"
    data = torch.arange(5, dtype=torch.bfloat16)
    for backend in ("numpy", "cuda"):
        with tercet.load(source_of(text), backend) as model:
            np.testing.assert_array_equal(model.run({"x": data})["y"].astype(np.float32), range(5))


def test_results_live_as_long_as_they_are_held(device) -> None:
    before = device.allocated
    with tercet.load(source_of(MLP), "cuda") as model:
        feeds = arrays(0)
        want = model.run(feeds)["y"]
        shared = torch.from_dlpack(model.run(on_gpu(feeds), to="device")["y"])
        for seed in range(1, 20):
            model.run(on_gpu(arrays(seed)), to="device")
        np.testing.assert_array_equal(shared.cpu().numpy(), want)
    np.testing.assert_array_equal(shared.cpu().numpy(), want)
    del shared
    assert device.allocated == before
    uploaded = torch.from_dlpack(tercet.to_device(want))
    filler = [tercet.to_device(np.zeros_like(want)) for _ in range(8)]
    np.testing.assert_array_equal(uploaded.cpu().numpy(), want)
    del filler, uploaded


def test_inputs_may_be_let_go_at_once(device) -> None:
    """PyTorch hands the memory of a tensor that is gone to the next one, on another stream, too."""
    with tercet.load(source_of(MLP), "cuda") as model:
        sets = [arrays(i, 2048) for i in range(8)]
        want = [model.run(feeds)["y"] for feeds in sets]
        side = torch.cuda.Stream()
        got = []
        with torch.cuda.stream(side):
            for feeds in sets:
                got.append(model.run(on_gpu(feeds), to="device")["y"])
                for _ in range(3):
                    torch.full((2048, 64), 7.0, device="cuda")
        for y, expected in zip(got, want, strict=True):
            np.testing.assert_array_equal(y.numpy(), expected)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_what_does_not_fit_is_refused(device) -> None:
    with tercet.load(source_of(MLP), "cuda") as model:
        feeds = on_gpu(arrays(0, 64))
        with pytest.raises(InputError, match=r"input 'x' has shape \[64, 64\] and strides"):
            model.run({**feeds, "x": feeds["x"].t()})
        with pytest.raises(InputError, match=r"input 'x' requires a gradient.*detach"):
            model.run({**feeds, "x": feeds["x"].clone().requires_grad_()})
        with pytest.raises(InputError, match="input 'x' has dtype float64"):
            model.run({**feeds, "x": feeds["x"].double()})
        with pytest.raises(UsageError, match="is not a CUDA stream"):
            model.run(feeds, stream="mine")
        y = model.run(feeds, to="device")["y"]
        with pytest.raises(TypeError, match=r"array.numpy\(\)"):
            np.asarray(y)
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.graph(graph),
            pytest.raises(UsageError, match="capturing a CUDA graph"),
        ):
            model.run(feeds, to="device", stream=torch.cuda.current_stream())
    with (
        tercet.load(source_of(MLP)) as model,
        pytest.raises(InputError, match="input 'x' is on cuda:0; this model runs on the host"),
    ):
        model.run(feeds)


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.alone
def test_the_host_does_not_wait(device, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    with tercet.load(source_of(MLP), "cuda") as model:
        feeds = on_gpu(arrays(0))
        want = model.run(feeds)["y"]
        stream = torch.cuda.Stream()
        model.run(feeds, to="device", stream=stream)
        torch.cuda.synchronize()
        waits: list[str] = []
        for name in ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"):
            call = getattr(driver, name)
            monkeypatch.setattr(driver, name, lambda *a, n=name, c=call: waits.append(n) or c(*a))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(400_000_000)
        begin = time.perf_counter()
        results = [model.run(feeds, to="device", stream=stream)["y"] for _ in range(8)]
        took = time.perf_counter() - begin
        assert not stream.query(), "the stream still sleeps"
        assert waits == []
        assert took < 0.1
        for y in results:
            np.testing.assert_array_equal(y.numpy(), want)


def test_a_run_is_in_the_order_of_the_stream(device) -> None:
    """What the stream writes before is seen, what it writes behind is not."""
    with tercet.load(source_of(MLP), "cuda") as model:
        first, second = arrays(1), arrays(2)
        want = [model.run(first)["y"], model.run(second)["y"]]
        model.run(on_gpu(first), to="device")
        for stream in (torch.cuda.Stream(), torch.cuda.current_stream()):
            with torch.cuda.stream(stream):
                x, w = (torch.zeros_like(data) for data in on_gpu(first).values())
                stream.synchronize()
                got = []
                for feeds in (first, second):
                    there = on_gpu(feeds)
                    torch.cuda._sleep(20_000_000)
                    x.copy_(there["x"])
                    w.copy_(there["w"])
                    got.append(model.run({"x": x, "w": w}, to="device", stream=stream)["y"])
                sums = [torch.from_dlpack(y).clone() for y in got]
                x.zero_()
            for y, total, expected in zip(got, sums, want, strict=True):
                np.testing.assert_array_equal(y.numpy(), expected)
                np.testing.assert_array_equal(total.cpu().numpy(), expected)


def test_streams_of_every_kind(device) -> None:
    cuda_core = pytest.importorskip("cuda.core")
    with tercet.load(source_of(MLP), "cuda") as model:
        feeds = arrays(0)
        want = model.run(feeds)["y"]
        theirs = torch.cuda.Stream()
        core = cuda_core.Device(0)
        core.set_current()
        for stream in (theirs, theirs.cuda_stream, core.create_stream(), 0, None):
            y = model.run(on_gpu(feeds), to="device", stream=stream)["y"]
            np.testing.assert_array_equal(y.numpy(), want)
            np.testing.assert_array_equal(model.run(feeds, stream=stream)["y"], want)


def test_threads_with_streams_of_their_own(device) -> None:
    with tercet.load(source_of(MLP), "cuda") as model:
        sets = [arrays(i, 64) for i in range(4)]
        want = [model.run(feeds)["y"] for feeds in sets]
        wrong: list[int] = []

        def work(number: int) -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(40):
                    k = (number + i) % 4
                    y = model.run(on_gpu(sets[k]), to="device", stream=stream)["y"]
                    if not np.array_equal(torch.from_dlpack(y).cpu().numpy(), want[k]):
                        wrong.append(number)

        together(work, 6)
    assert not wrong


def test_cupy_in_cupy_out(device) -> None:
    cupy = pytest.importorskip("cupy")
    with tercet.load(source_of(MLP), "cuda") as model:
        feeds = arrays(0)
        want = model.run(feeds)["y"]

        class Interface:  # the older protocol alone
            def __init__(self, array: Any) -> None:
                self.__cuda_array_interface__ = array.__cuda_array_interface__
                self.array = array

        with cupy.cuda.Stream(non_blocking=True) as stream:
            there = {name: cupy.asarray(data) for name, data in feeds.items()}
            for given in (there, {name: Interface(data) for name, data in there.items()}):
                y = model.run(given, to="device", stream=stream)["y"]
                np.testing.assert_array_equal(cupy.asnumpy(cupy.from_dlpack(y)), want)
                np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(y)), want)


# ── bound ────────────────────────────────────────────────────────────────────────────────────────


def test_bound_without_a_copy(device) -> None:
    with tercet.load(source_of(MLP), "cuda") as model:
        sets = [arrays(i) for i in range(3)]
        want = [model.run(feeds)["y"] for feeds in sets]
        with model.bind({"x": (8, 64)}) as bound:
            allocated = device.allocated
            x, w = (torch.from_dlpack(bound.inputs[name]) for name in ("x", "w"))
            y = torch.from_dlpack(bound.outputs["y"])
            for feeds, expected in zip(sets, want, strict=True):
                there = on_gpu(feeds)
                x.copy_(there["x"])
                w.copy_(there["w"])
                bound.run()
                np.testing.assert_array_equal(y.cpu().numpy(), expected)
                np.testing.assert_array_equal(bound.run(feeds)["y"].numpy(), expected)
                np.testing.assert_array_equal(bound.run(there)["y"].numpy(), expected)
            assert device.allocated == allocated
            del x, w, y


# ── pipeline ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("copy", [True, False])
def test_batches_come_out_in_order(copy: bool, device) -> None:
    with tercet.load(source_of(MLP), "cuda") as model:
        sets = [arrays(i, 1 + i % 3 * 7) for i in range(20)]
        want = [model.run(feeds)["y"] for feeds in sets]
        got = [result["y"].copy() for result in model.map(sets, copy=copy)]
    for y, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(y, expected)


def test_pinned_batches_are_not_copied(device) -> None:
    with tercet.load(source_of(MLP), "cuda") as model:
        sets = []
        for i in range(6):
            feeds = {n: tercet.pinned(a.shape, a.dtype) for n, a in arrays(i).items()}
            for name, data in arrays(i).items():
                feeds[name][:] = data
            sets.append(feeds)
        want = [model.run(feeds)["y"] for feeds in sets]
        for result, expected in zip(model.map(sets, copy=False), want, strict=True):
            np.testing.assert_array_equal(result["y"], expected)
        results = model.map([on_gpu(feeds) for feeds in sets])
        for result, expected in zip(results, want, strict=True):
            np.testing.assert_array_equal(result["y"], expected)


def test_a_bad_batch_and_an_early_end_free_everything(device) -> None:
    with tercet.load(source_of(MLP), "cuda") as model:
        good = [arrays(i) for i in range(8)]
        want = [model.run(feeds)["y"] for feeds in good]
        allocated = device.allocated
        bad = {**good[3], "x": np.zeros((8, 63), np.float32)}
        rest = iter([*good[:3], bad, *good[4:]])
        got = []
        with pytest.raises(InputError, match="batch 3: input 'x' has shape"):
            got.extend(result["y"] for result in model.map(rest))
        assert len(got) == 3
        got += [result["y"] for result in model.map(rest)]
        for y, expected in zip(got, [*want[:3], *want[4:]], strict=True):
            np.testing.assert_array_equal(y, expected)
        results = model.map(good)
        next(results)
        results.close()
        model.prepare({"x": (8, 64)}, to="device")
    assert device.allocated == 0 or device.allocated <= allocated


@pytest.mark.alone
def test_three_stages_overlap() -> None:
    """Eight batches take at most 1.15 times their stages side by side, and the others once."""
    with tercet.load(balanced_model(), "cuda") as model:
        x = np.random.default_rng(0).standard_normal((8192, 1024), np.float32)
        found = measure_pipeline(model, {"x": x})
    assert found.ratio <= 1.15
    assert found.totals["overlapped"] < found.totals["pinned"] < found.totals["pageable"]


def test_a_steady_run_is_copy_compute_copy(device) -> None:
    """Memory and weights are the first run's."""
    feeds = arrays(0)
    events = trace_lifecycle(lambda: tercet.load(source_of(MLP), "cuda"), feeds, runs=3)
    for run in (2, 3):
        assert tuple(event.phase for event in events if event.run == run) == STEADY
    assert events[-1].phase == "free"
