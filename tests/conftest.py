"""What every test may ask for: the optional large models, and a GPU if there is one."""

import gc
import os
import shutil
import sys
import tempfile
import typing
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: What $TERCET_TEST_CACHE holds, and how many bytes of it; one state of the sources has 60 MB.
KINDS = ("cases/*", "libraries/*", "cubins/*/*")
MAX_KEPT = 500_000_000
#: The number of GPU tests that are not run, as no GPU can be used.
LEFT_OUT = pytest.StashKey[int]()
# Names a pass that leaves a broken graph. Of the passes that have nothing to rewrite, every eighth
# is run, others in graphs of other sizes; tests of passes run all of them.
os.environ["TERCET_VERIFY_PASSES"] = "8"
# For numpy, which nothing here may import earlier: threads of OpenBLAS sleep while they wait. By
# default they take a core from another process's tests meanwhile, for 2**26 ticks.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
if sys.version_info < (3, 12):  # which looks up the attributes of a protocol only once
    typing.__dict__["_get_protocol_attrs"] = cache(typing.__dict__["_get_protocol_attrs"])


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of optional models: $TERCET_MODELS, or shared/models beside the checkout."""
    named = os.environ.get("TERCET_MODELS")
    folder = Path(named) if named else ROOT.parent / "shared" / "models"
    if not folder.is_dir():
        pytest.skip(f"the optional models are not in {folder}; TERCET_MODELS names their folder")
    return folder


@pytest.fixture(scope="session")
def light_models() -> Path:
    """The folder of the nine light models that the `onnx` package ships."""
    import onnx.backend.test

    return Path(onnx.backend.test.__file__).parent / "data" / "light"


@pytest.fixture(scope="session")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what NVRTC makes of kernels for tests, each source once."""
    return _kept(tmp_path_factory, "cubins")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of kernels for the emulator, likewise."""
    return _kept(tmp_path_factory, "libraries")


def _kept(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder in $TERCET_TEST_CACHE, for later runs too, or one for the workers of this."""
    if kept := os.environ.get("TERCET_TEST_CACHE"):
        folder = Path(kept).resolve() / name  # libraries refer to one another
    else:
        own = tmp_path_factory.getbasetemp()
        folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(0o700, parents=True, exist_ok=True)  # others may not write there, or none is kept
    return folder


def pytest_configure() -> None:
    """Keep ONNX's cases in $TERCET_TEST_CACHE."""
    if folder := os.environ.get("TERCET_TEST_CACHE"):
        from . import kept_cases

        kept_cases.keep(Path(folder).resolve() / "cases")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Use $TERCET_TEST_CACHE until the session ends."""
    kept = os.environ.get("TERCET_TEST_CACHE")
    if kept and not hasattr(session.config, "workerinput"):
        session.config.add_cleanup(in_use(Path(kept)))


def in_use(folder: Path, room: int = MAX_KEPT) -> Callable[[], None]:
    """Begin to use a folder of compiled kernels; return what ends it.

    Where too many have piled up, those that no session has used for longest are removed first,
    unless another session uses the folder.

    Args:
        folder: may not exist yet.
        room: bytes that it may hold.
    """
    import fcntl

    folder.mkdir(0o700, parents=True, exist_ok=True)
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        kept = [each for kind in KINDS for each in folder.glob(kind)]
        for entry in sorted(kept, key=_last_use, reverse=True):
            with suppress(FileNotFoundError):  # a process that outlives its session is writing it
                room -= sum(file.stat().st_size for file in _files(entry))
                if room < 0:
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    fcntl.flock(users, fcntl.LOCK_SH)
    return lambda: os.close(users)


def _last_use(entry: Path) -> float:
    """Return when an entry was last read or written, so that its next reading is seen, too.

    File systems note only the first reading after a change, and one a day.
    """
    last = 0.0
    with suppress(FileNotFoundError):
        for file in _files(entry):
            found = file.stat()
            if found.st_atime > found.st_mtime:
                os.utime(file, (found.st_atime, found.st_atime))
            last = max(last, found.st_atime, found.st_mtime)
    return last


def _files(entry: Path) -> list[Path]:
    return [*entry.iterdir()] if entry.is_dir() else [entry]


@pytest.fixture(
    params=[
        "numpy",
        pytest.param("cuda", marks=pytest.mark.gpu),
        pytest.param("cudnn", marks=pytest.mark.gpu),
        # tools/workshop/tensorrt_check.py asks for it, where TensorRT is.
        *(["tensorrt"] if os.environ.get("TERCET_TEST_TENSORRT") else []),
        # Trials of every node take minutes: they run only on request.
        *(["openvino"] if os.environ.get("TERCET_TEST_OPENVINO") else []),
    ]
)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend; a test that asks for it runs on each, those of the GPU if it can."""
    return request.param


@cache
def why_no_gpu() -> str:
    """Why no GPU can be used here; empty if one can."""
    try:
        import cuda.bindings.driver as driver

        (status,) = driver.cuInit(0)
        if status == driver.CUresult.CUDA_SUCCESS:
            status, count = driver.cuDeviceGetCount()
            return "" if count else "no GPU is visible to the CUDA driver"
    except (ImportError, RuntimeError) as error:
        return f"the CUDA driver cannot be loaded: {error}"
    return f"the CUDA driver answers {status.name}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave GPU tests out where no GPU can be used; `make gpu-test` ends there instead.

    If there are no others, they are skipped. Of the tests that are selected, $TERCET_TEST_PART,
    such as ``3/16``, takes every 16th.
    """
    if chosen := os.environ.get("TERCET_TEST_PART"):
        number, count = map(int, chosen.split("/"))
        config.hook.pytest_deselected(items=[x for i, x in enumerate(items) if i % count != number])
        items[:] = items[number::count]
    elsewhere, on_gpu = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (on_gpu if item.get_closest_marker("gpu") else elsewhere).append(item)
    if not on_gpu or not why_no_gpu():
        return
    if os.environ.get("TERCET_REQUIRE_GPU"):
        pytest.exit(why_no_gpu(), returncode=pytest.ExitCode.USAGE_ERROR)
    if not elsewhere:
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))
        return
    items[:] = elsewhere
    config.hook.pytest_deselected(items=on_gpu)
    config.stash[LEFT_OUT] = len(on_gpu)
    getattr(config, "workeroutput", {})["left_out"] = len(on_gpu)  # of pytest-xdist


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take note of what a worker has left out, which is the same for all."""
    if count := getattr(node, "workeroutput", {}).get("left_out"):
        node.config.stash[LEFT_OUT] = count


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests were left out, and why."""
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests need a GPU, and were left out: {why_no_gpu()}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have no garbage collections while tests are found, of which none is garbage, and then few.

    Planning makes many objects that a test keeps until it ends. The first collection would look at
    all that has been found.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def what_stays_is_looked_at_once() -> None:
    """Spare garbage collections twenty thousand tests and what earlier modules have kept."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Let a test draw the same numbers whatever ran before it."""
    from .randomness import restart

    restart()


@pytest.fixture(autouse=True)
def place_on_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let GPU tests of several processes run side by side, and one marked `alone` without others.

    The gate is held while a test waits for the others to finish, so that none begins meanwhile.
    """
    if not request.node.get_closest_marker("gpu"):
        yield
        return
    import fcntl

    folder = Path(tempfile.gettempdir())
    is_alone = request.node.get_closest_marker("alone") is not None
    names = (f"tercet-tests-{os.getuid()}.{part}" for part in ("gate", "gpu"))
    gate, gpu = (os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600) for name in names)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(gpu, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
        _leave_a_lost_context(request.node.nodeid)
    finally:
        os.close(gpu)
        os.close(gate)


def _leave_a_lost_context(test: str) -> None:
    """End a process whose CUDA context has failed: its further tests would fail as well.

    pytest-xdist starts another in its place, and names the test.
    """
    import cuda.bindings.driver as driver

    (status,) = driver.cuCtxSynchronize()
    usable = {"CUDA_SUCCESS", "CUDA_ERROR_NOT_INITIALIZED", "CUDA_ERROR_INVALID_CONTEXT"}
    if status.name in usable:
        return
    reason = f"{test} left the CUDA context unusable: {status.name}"
    if "PYTEST_XDIST_WORKER" in os.environ:
        print(reason, file=sys.__stderr__, flush=True)
        os._exit(1)
    pytest.exit(reason, returncode=pytest.ExitCode.TESTS_FAILED)
