"""Runs under compute-sanitizer: what is printed and saved, with other text in its place."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tercet.tools.workshop import sanitize
from tercet.tools.workshop.sanitize import SanitizerRun

#: What compute-sanitizer prints; it does not end the last time.
TEXTS = {
    "clean": "5 passed in 1 s\n========= ERROR SUMMARY: 0 errors\n",
    "found": "========= ERROR SUMMARY: 30 errors\n"
    "========= ERROR SUMMARY: 10 errors were not printed. Use --print-limit option\n",
    "hangs": "========= Invalid __global__ write of size 4 bytes\n=========     at relu.cu:7\n",
}
RUNS = (
    SanitizerRun("memcheck", "kernels", ("clean",)),
    SanitizerRun("memcheck", "a planted bug", ("found",), planted=True),
    SanitizerRun("synccheck", "kernels", ("hangs",)),
)


#: What the processes of a run print that share its tests.
SHARES = {
    "0/3": "5 passed in 1 s\n========= ERROR SUMMARY: 0 errors\n",
    "1/3": "1 failed, 3 passed in 1 s\n========= ERROR SUMMARY: 2 errors\n",
    "2/3": "4 passed in 1 s\n========= ERROR SUMMARY: 0 errors\n",
}


def ended(command: list[str], *, timeout: float, **_: Any) -> subprocess.CompletedProcess[str]:
    text = TEXTS[command[-1]]
    if command[-1] == "hangs":
        raise subprocess.TimeoutExpired(command, timeout, output=text.encode())
    return subprocess.CompletedProcess(command, 0, text, "")


def test_each_run_is_printed_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitize, "CHECKS", RUNS)
    monkeypatch.setattr(sanitize, "sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(sanitize, "_about", lambda *_: {"GPU": "one"})
    monkeypatch.setattr(sanitize.subprocess, "run", ended)
    assert sanitize.main(["--output", str(tmp_path)]) == 1
    clean, found, cut, *report = capsys.readouterr().out.splitlines()
    assert (clean.split()[-1], found.split()[-1], cut.split()[-1]) == ("clean", "found", "WRONG")
    assert "not finished after 0 s" in cut
    first = [line.strip() for line in report]
    assert first == ["Invalid __global__ write of size 4 bytes", "at relu.cu:7"]
    page = (tmp_path / "sanitizer.md").read_text(encoding="utf-8")
    assert "| memcheck | kernels | 5 | 0 errors |" in page
    assert "at relu.cu:7" in page
    assert sanitize.main(["--tool", "memcheck"]) == 0


@pytest.mark.parametrize("cut", ["", "2/3"])
def test_tests_are_shared(cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What all processes find counts, and each of them must come to its end."""

    def ended(command: list[str], *, env: dict[str, str], **_: Any) -> Any:
        part = env["TERCET_TEST_PART"]
        text = SHARES[part].partition("=")[0] if part == cut else SHARES[part]
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setattr(sanitize.subprocess, "run", ended)
    check = SanitizerRun("memcheck", "kernels", ("pytest",), parts=3)
    finding = sanitize.run("compute-sanitizer", check, 1.0, workers=16)
    assert (finding.tests, finding.failed, finding.ok) == (12, 1, False)
    assert finding.reported == (-1 if cut else 2)


def test_why_a_run_did_not_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\n\nCUDA_ERROR_NO_DEVICE\n")

    monkeypatch.setattr(sanitize.subprocess, "run", ended)
    check = SanitizerRun("memcheck", "a planted bug", ("planted.py",), planted=True)
    finding = sanitize.run("compute-sanitizer", check, 1.0)
    assert not finding.ok
    assert finding.first == "Traceback\nCUDA_ERROR_NO_DEVICE"


def test_calls_that_the_driver_refuses_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "1 passed in 1 s\n"
        "========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) on CUDA API call to cuMemFree.\n"
        "=========     at close (memory.py:7)\n"
        "========= ERROR SUMMARY: 1 error\n"
    )
    monkeypatch.setattr(
        sanitize.subprocess, "run", lambda c, **_: subprocess.CompletedProcess(c, 0, text, "")
    )
    finding = sanitize.run("compute-sanitizer", SanitizerRun("memcheck", "kernels", ("k",)), 1.0)
    assert not finding.ok
    assert finding.first.startswith("Program hit CUDA_ERROR_INVALID_VALUE")
