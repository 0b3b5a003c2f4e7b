"""The table of ways to run a stream of batches."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from tercet.tools.workshop.pipeline import PipelineTimes, main, show_pipeline

TIMES = PipelineTimes(
    batches=8,
    sent=50_000_000,
    received=25_000_000,
    upload=1e-3,
    compute=0.75e-3,
    download=0.5e-3,
    together=8.4e-3,
    totals={"pageable": 80e-3, "pinned": 18e-3, "overlapped": 9.65e-3, "staged": 40e-3},
    weights=89_000_000,
    reupload=1.8e-3,
    reupload_pageable=8.7e-3,
)


def test_what_follows_from_the_times() -> None:
    assert TIMES.floor == pytest.approx(9.65e-3)
    assert TIMES.ratio == pytest.approx(1)
    assert TIMES.hidden == pytest.approx(1)
    assert replace(TIMES, together=7e-3).floor == pytest.approx(9.25e-3)  # measured too low
    assert json.loads(json.dumps(TIMES.to_dict()))["totals"]["pinned"] == 18e-3


def test_the_table() -> None:
    text = io.StringIO()
    show_pipeline(Console(file=text, width=120), TIMES)
    for words in (
        "upload 50.00 1.00 50.0",
        "compute 0.750",
        "download 25.00 0.500 50.0",
        "memory 80.0 8.29",
        "memory 18.0 1.87",
        "page-locked memory 9.65 1.00",
        "floor 9.65 ms: all stages side by side",
        "100% of what can be hidden is hidden",
        "89.0 MB would take 1.80 ms per run from page-locked memory, 8.70 ms from ordinary memory",
    ):
        assert words in " ".join(text.getvalue().split()), words


def test_the_host_has_nothing_to_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "numpy"]) == 2
    assert "nothing to overlap" in capsys.readouterr().err
