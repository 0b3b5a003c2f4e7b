"""docs/results/planted_faults.md has every fault that is planted here, and all are found."""

from __future__ import annotations

import re
from pathlib import Path

from . import test_kernels, test_passes
from .edits import FAULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "planted_faults.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\S+) \| (found|\*\*missed\*\*) \| (.*?) \|", TEXT, re.MULTILINE)


def test_it_has_them_all() -> None:
    planted = [*FAULTS, *test_kernels.PLANTED, *test_kernels.PLANTED, *test_passes.PLANTED]
    assert [row[0] for row in ROWS] == [str(fault) for fault in planted]


def test_all_are_found_and_nothing_else_is() -> None:
    assert {row[1] for row in ROWS} == {"found"}
    assert "alarms: 0." in TEXT
