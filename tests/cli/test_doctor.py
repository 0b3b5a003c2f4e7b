"""`tercet doctor`: what is here, what is missing, within three seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import tercet as api
from tercet import backends
from tercet.backends import Availability
from tercet.tools.doctor import doctor

from .conftest import Tercet


@pytest.fixture(autouse=True)
def _whatever_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports may take longer than users wait, where other work has the processor."""
    diagnose = doctor.diagnose
    monkeypatch.setattr(
        doctor, "diagnose", lambda patience=600.0, **given: diagnose(patience, **given)
    )


def test_names_what_is_here(tercet: Tercet) -> None:
    done = tercet("doctor")
    assert done.code == 0
    out = " ".join(done.out.split())
    for words in ("Python", "numpy", "onnx", "NVIDIA driver", "NVRTC", "cuDNN", "numpy ok cpu"):
        assert words in out
    for found in api.available():
        if not found:
            assert "cannot run here" in done.out


def test_json(tercet: Tercet) -> None:
    found = tercet("doctor", "--json").json
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["Python"]["ok"]
    assert all(check["ok"] or check["remedy"] for check in checks.values())
    assert {entry["name"]: entry["ok"] for entry in found["backends"]} == {
        entry.name: bool(entry) for entry in api.available()
    }


@pytest.mark.parametrize("where", ["", "new/cache"])
def test_where_kernels_are_kept(
    tercet: Tercet, folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    file = folder / "file"
    file.touch()
    for base, said in (
        (folder, f"kernels kept in {folder / where}"),
        (file, f"{file} is no folder"),
    ):
        monkeypatch.setenv("TERCET_CACHE", str(base / where))
        (found,) = (
            each for each in tercet("doctor", "--json").json["checks"] if "kernels" in each["found"]
        )
        assert said in found["found"]
    monkeypatch.setattr("os.access", lambda path, mode: mode == os.F_OK and Path(path).exists())
    assert doctor._kept(folder / where).startswith("kernels not kept: no permission to write in ")


def test_libraries_have_a_file_or_say_what_is_off(tercet: Tercet) -> None:
    found = tercet("doctor", "--json").json["libraries"]
    assert [entry["name"] for entry in found] == [
        "libcuda", "libnvrtc", "libcudnn", "libcublasLt", "libcudart", "libnvinfer",
        "libtensorrt_rtx", "nvidia-cudnn-frontend",
    ]  # fmt: skip
    for entry in found:
        assert entry["purpose"]
        assert bool(entry["file"]) == bool(entry["version"])
        assert not entry["file"] or Path(entry["file"]).is_file()


def test_require(tercet: Tercet, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tercet("doctor", "--require", "numpy").code == 0
    gone = Availability("cuda", "", "there is no driver", "install one")
    here = backends.availability
    monkeypatch.setattr(
        backends, "availability", lambda name: gone if name == "cuda" else here(name)
    )
    done = tercet("doctor", "--require", "cuda")
    assert done.code == 5
    assert "there is no driver" in done.err
    assert "install one" in done.err
    wrong = tercet("doctor", "--require", "nunpy")
    assert (wrong.code, wrong.out) == (2, "")
    assert "did you mean 'numpy'?" in wrong.err


def test_something_that_hangs_is_not_waited_for(
    tercet: Tercet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_driver", lambda: time.sleep(60))
    monkeypatch.setattr(doctor, "PATIENCE", 0.5)
    found = {check.name: check for check in doctor.diagnose(0.5).checks}
    assert "no answer" in found["NVIDIA driver"].found
    assert found["Python"].ok


def test_numpy_answers_while_others_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_nvrtc", lambda remedy: time.sleep(60))
    found = {each.name: each for each in doctor.diagnose(0.5).backends}
    assert found["numpy"]
    assert not found["cuda"]
    assert "no answer" in found["cuda"].missing
    assert "run it again" in found["cuda"].remedy


def test_what_is_missing_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_libcuda", lambda: None)

    def missing(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", missing)
    checks = {check.name: check for check in doctor.diagnose().checks}
    for name, remedy in {
        "NVIDIA driver": "https://www.nvidia.com/drivers",
        "GPU": "https://www.nvidia.com/drivers",
        "cuda-core": "pip install 'tercet[cuda13]'",
        "onnxruntime": "pip install onnxruntime",
        "Pillow": "pip install 'tercet[image]'",
        "tokenizers": "pip install 'tercet[generate]'",
        "onnx": "pip install onnx",
    }.items():
        assert not checks[name].ok
        assert remedy in checks[name].remedy


class FakeDriver:
    """NVIDIA's driver, as ctypes calls it, with two equal GPUs."""

    def __init__(self, version: int, capability: tuple[int, int], status: int = 0) -> None:
        self.version, self.capability, self.status = version, capability, status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDriverGetVersion(self, number: Any) -> None:
        number._obj.value = self.version

    def cuDeviceGetCount(self, number: Any) -> None:
        number._obj.value = 2

    def cuDeviceGet(self, device: Any, ordinal: int) -> None:
        device._obj.value = ordinal

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> None:
        name.value = b"NVIDIA Fake"

    def cuDeviceTotalMem_v2(self, number: Any, device: Any) -> None:
        number._obj.value = 150_000_000_000

    def cuDeviceGetAttribute(self, number: Any, attribute: int, device: Any) -> None:
        number._obj.value = self.capability[attribute - 75]


@pytest.mark.parametrize(
    ("driver", "ok", "extra", "words"),
    [
        (FakeDriver(13020, (9, 0)), (True, True), "cuda13", ["CUDA 13.2", "sm_90, 150 GB"]),
        (FakeDriver(12040, (8, 0)), (True, True), "cuda12", ["CUDA 12.4", "NVIDIA Fake"]),
        (
            FakeDriver(12040, (7, 5)),
            (True, False),
            "cuda12",
            ["sm_75", "sm_80 is the minimum", "8.0 (Ampere)"],
        ),
        (FakeDriver(13000, (9, 0), 100), (False, False), "cuda13", ["status 100", "none"]),
    ],
)
def test_gpus(
    monkeypatch: pytest.MonkeyPatch,
    driver: FakeDriver,
    ok: tuple[bool, bool],
    extra: str,
    words: list[str],
) -> None:
    monkeypatch.setattr(doctor, "_libcuda", lambda: driver)
    checks = {check.name: check for check in doctor.diagnose().checks}
    found = checks["NVIDIA driver"], checks["GPU"]
    assert tuple(check.ok for check in found) == ok
    said = " ".join(f"{check.found} {check.remedy}" for check in found)
    assert all(word in said for word in words), said
    assert f"tercet[{extra}]" in checks["cuDNN"].remedy or checks["cuDNN"].ok
