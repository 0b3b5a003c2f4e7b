"""The demo passes on what is shipped, and fails when anything in it is not what it must be."""

import io
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tercet import BackendUnavailable, DeviceError, UnsupportedError
from tercet.tools.demo import demo

from .conftest import Tercet

ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[[Path, str, np.ndarray], demo.Answer]


class Screen:
    """A console of 80 columns that keeps what is shown."""

    def __init__(self, encoding: str = "utf-8", color: bool = False) -> None:
        self._bytes = io.BytesIO()
        self.console = Console(
            file=io.TextIOWrapper(self._bytes, encoding=encoding, write_through=True),
            width=80,
            force_terminal=color,
            color_system="truecolor" if color else None,
        )

    @property
    def text(self) -> str:
        return self._bytes.getvalue().decode()

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEADY_RUNS", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped files, to be tampered with."""
    return Path(shutil.copytree(demo.DEMO, tmp_path / "demo"))


def tamper(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    with np.load(folder / "digits.npz") as shipped:
        arrays = dict(shipped)
    change(arrays)
    np.savez(folder / "digits.npz", **arrays)  # pyright: ignore[reportArgumentType] - arrays only


def test_passes() -> None:
    screen = Screen()
    assert demo.run_demo(screen.console, ["numpy"]) == 0
    assert "numpy 16 of 16" in screen.words
    assert "BatchNormalization 2 0" in screen.words
    assert "conv1 + bn1" in screen.words
    assert "PASS: numpy read 16 of 16 digits right" in screen.text.splitlines()[-1]


def test_wrong_label_fails(folder: Path) -> None:
    def plant(arrays: dict[str, np.ndarray]) -> None:
        arrays["labels"][3] = 7

    tamper(folder, plant)
    screen = Screen()
    assert demo.run_demo(screen.console, ["numpy"], folder) == 1
    assert "3! 94." in screen.text
    assert "numpy reads 15 digits right; it must be 16" in screen.text
    assert screen.text.splitlines()[-1].startswith("FAIL")


def test_other_probabilities_fail(folder: Path) -> None:
    def shift(arrays: dict[str, np.ndarray]) -> None:
        arrays["probabilities"][5, 2] += 2e-5

    tamper(folder, shift)
    screen = Screen()
    assert demo.run_demo(screen.console, ["numpy"], folder) == 1
    assert "numpy and PyTorch differ by 2.0e-05" in screen.text


@pytest.mark.parametrize(
    ("error", "complaint"),
    [(1e-4, "differ by 1.0e-04"), (np.nan, "differ by nan")],
)
def test_perturbed_backend_fails(
    monkeypatch: pytest.MonkeyPatch, error: float, complaint: str
) -> None:
    ask: Ask = demo.ask

    def perturbed(file: Path, backend: str, image: np.ndarray) -> demo.Answer:
        answer = ask(file, "numpy", image)
        shift = np.float32(error if backend == "cuda" else 0)
        return replace(answer, backend=backend, probabilities=answer.probabilities + shift)

    monkeypatch.setattr(demo, "ask", perturbed)
    screen = Screen()
    assert demo.run_demo(screen.console, ["numpy", "cuda"]) == 1
    assert f"numpy and cuda {complaint}" in screen.text
    assert f"cuda and PyTorch {complaint}" in screen.text
    assert "numpy and PyTorch" not in screen.text


def test_wrong_folding_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    unfold = demo.unfold

    def wrong(*args: object) -> demo.Fold:
        fold = unfold(*args)  # type: ignore[arg-type] - handed through
        return replace(fold, after=fold.before, difference=0.5)

    monkeypatch.setattr(demo, "unfold", wrong)
    screen = Screen()
    assert demo.run_demo(screen.console, ["numpy"]) == 1
    assert "folding the batch-norms changes the answers by 5.0e-01" in screen.text
    assert "2 batch-norms are left after folding" in screen.text


def without_gpu(error: Exception) -> Ask:
    ask: Ask = demo.ask

    def only_numpy(file: Path, backend: str, image: np.ndarray) -> demo.Answer:
        if backend != "numpy":
            raise error
        return ask(file, backend, image)

    return only_numpy


def test_absent_backends_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    error = BackendUnavailable("cuda", "no CUDA driver was found", "pip install something")
    monkeypatch.setattr(demo, "ask", without_gpu(error))
    screen = Screen()
    assert demo.run_demo(screen.console) == 0
    assert "cuda, cudnn" in screen.text
    assert "not available here: no CUDA driver was found" in screen.text
    assert "  pip install something" in screen.text


@pytest.mark.parametrize(("name", "code"), [("other", 0), ("cuda", 1)])
def test_a_backend_of_another_package_may_decline(
    monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    error = UnsupportedError("no backend runs Conv")
    monkeypatch.setattr(demo, "ask", without_gpu(error))
    monkeypatch.setattr(demo, "all_backends", lambda: ("numpy", name))
    screen = Screen()
    assert demo.run_demo(screen.console) == code
    said = "declines the network" if name == "other" else "failed"
    assert f"{name}: {said}: no backend runs Conv" in screen.text
    with pytest.raises(UnsupportedError, match="runs Conv"):
        demo.run_demo(Screen().console, ["numpy", name])


def test_asking_for_an_absent_backend_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = BackendUnavailable("cuda", "no CUDA driver was found", "pip install something")
    monkeypatch.setattr(demo, "ask", without_gpu(error))
    with pytest.raises(BackendUnavailable, match="no CUDA driver"):
        demo.run_demo(Screen().console, ["numpy", "cuda"])


def test_a_backend_that_nobody_knows_is_wrong_usage(tercet: Tercet) -> None:
    done = tercet("demo", "--backend", "nunpy")
    assert done.code == 2
    assert "did you mean 'numpy'" in done.err


def test_broken_backend_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ask", without_gpu(DeviceError("the launch of 'relu1' failed")))
    screen = Screen()
    assert demo.run_demo(screen.console) == 1
    assert "the launch of 'relu1' failed" in screen.text
    assert "numpy 16 of 16" in screen.words
    assert "- cuda failed" in screen.text


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_plain_output_fits_80_columns(encoding: str) -> None:
    screen = Screen(encoding)
    demo.run_demo(screen.console, ["numpy"])
    assert max(map(len, screen.text.splitlines())) <= 80
    assert "\x1b" not in screen.text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen(color=True)
    demo.run_demo(screen.console, ["numpy"])
    assert "38;2;" not in screen.text


def test_color_draws_two_pixels_in_a_character() -> None:
    screen = Screen(color=True)
    demo.run_demo(screen.console, ["numpy"])
    assert screen.text.count("▀") == 16 * 8 * 8 / 2


def test_command_line() -> None:
    """The exit code is the verdict's."""
    command = [sys.executable, "-m", "tercet", "demo", "--backend", "numpy"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("PASS")
