"""The table of reliability: it has every row, and its commands lead to tests that are there."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tercet.tools.workshop import reliability
from tercet.tools.workshop import reliability_measures as measures
from tercet.tools.workshop.reliability import ROWS, main, markdown

ROOT = Path(__file__).resolve().parents[2]


def test_it_has_every_row_and_each_leads_somewhere() -> None:
    assert [row.name for row in ROWS] == [f"R{number:02}" for number in range(1, 27)]
    for row in ROWS:
        for word in row.command.split():
            assert not word.startswith("tests/") or (ROOT / word).exists(), row


def test_rows_are_measured_one_by_one_and_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (
        reliability.ReliabilityRow("R01", "one", lambda: ("1 of 1", True)),
        reliability.ReliabilityRow("R02", "two", lambda: ("0 of 1", False), note="why"),
    )
    monkeypatch.setattr(reliability, "ROWS", rows)
    output = ("--output", str(tmp_path), "--commit", "abc")
    assert main(("--only", "R01", *output)) == 0
    assert "not measured yet" in (tmp_path / "reliability.md").read_text()
    assert main(("--only", "R02", *output)) == 1
    page = (tmp_path / "reliability.md").read_text()
    assert "| R01 | one | 1 of 1 | pass |" in page
    assert "| R02 | two | 0 of 1; why | FAIL |" in page
    assert "(abc)" in page


@pytest.mark.parametrize(("scale", "lost"), [(1.0, 0), (1e5, 2)])
def test_what_half_precision_loses_is_counted(tmp_path: Path, scale: float, lost: int) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
      g (float[2,3] x) => (float[2,1] y) <float[3,1] w = {1, 1, 1}> { y = MatMul (x, w) }"""
    (tmp_path / "one").mkdir()
    onnx.save(onnx.parser.parse_model(text), tmp_path / "one" / "model.onnx")
    np.savez(tmp_path / "one" / "inputs.npz", x=np.full((2, 3), scale, np.float32))
    figure, passed = measures.half(tmp_path)
    assert f"1 models, 1 sets of inputs, 2 numbers: {lost} are" in figure
    assert passed == (lost == 0)


def test_a_suite_counts_its_tests() -> None:
    row = reliability.suite("R00", "nothing", "tests/fuzz/test_reliability.py", "-k", "no_such")
    figure, passed = row.measure()
    assert not passed
    assert "deselected" in figure or "no tests" in figure
    assert "not measured yet" in markdown({})


def test_a_row_that_reads_a_record_says_where_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = reliability.ReliabilityRow("R01", "one", lambda: ("1", True), record="fuzz.json")
    monkeypatch.setattr(reliability, "ROWS", (row,))
    monkeypatch.setattr(reliability, "RESULTS", tmp_path)
    (tmp_path / "fuzz.json").write_text('{"environment": {"tercet": "0.1.0 (then)", "CPU": "one"}}')
    main(("--only", "R01", "--output", str(tmp_path), "--commit", "now"))
    assert "(then), one" in (tmp_path / "reliability.md").read_text()
