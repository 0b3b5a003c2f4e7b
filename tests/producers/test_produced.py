"""The registry of producers: what is absent is skipped, what is there is made and tried."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tercet import UsageError
from tercet.tools.workshop import produced
from tercet.tools.workshop.produced import PRODUCERS, RECORDED, SOURCES, Producer, rewriter, run
from tercet.tools.workshop.produced_page import brief, page, tried
from tercet.tools.workshop.produced_rewrites import ONNX, called

pytest.importorskip("onnxruntime")


def test_sources_are_recorded() -> None:
    assert all((RECORDED / f"{name}.onnx").exists() for name in SOURCES)


def nothing() -> Iterator[tuple[str, produced.Write]]:
    yield from ()


def test_what_is_absent_is_skipped_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(each.imports and each.distributions for each in PRODUCERS.values())
    some = {
        "here": Producer(("onnx",), ("onnx",), nothing),
        "absent": Producer(("onnx", "no_such_package"), ("no-such-package",), nothing),
    }
    monkeypatch.setattr(produced, "PRODUCERS", some)
    for name, producer in some.items():
        produced.report(tmp_path, name, partial(run, producer, tmp_path / name))
    found = json.loads((tmp_path / produced.REPORT).read_text())
    versions = {"onnx": onnx.__version__}
    here = {"versions": versions, "failed": {}, "skipped": "", "environment": ""}
    assert found["here"] == here
    assert found["absent"]["skipped"] == "not installed: no_such_package"


def test_files_are_made_and_failures_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produced, "SOURCES", ("tf2onnx_cnn",))
    ways = {"opset22": ONNX["opset22"], "failing": called("onnx.inliner", "no_such_function")}
    found = run(rewriter(ways, "onnx"), tmp_path)
    assert found["versions"] == {"onnx": onnx.__version__}
    assert list(found["failed"]) == ["tf2onnx_cnn_failing"]
    assert "no_such_function" in found["failed"]["tf2onnx_cnn_failing"]
    assert [path.name for path in tmp_path.glob("*.onnx")] == ["tf2onnx_cnn_opset22.onnx"]
    assert onnx.load(tmp_path / "tf2onnx_cnn_opset22.onnx").opset_import[0].version == 22


def test_a_producer_runs_in_the_first_environment_that_has_it(tmp_path: Path) -> None:
    """One that ends its process is told so, and leaves the rest of the report."""
    without, ending = tmp_path / "without.py", tmp_path / "ending.py"
    told = {"versions": {}, "failed": {}, "skipped": "not installed: onnx", "environment": ""}
    report = tmp_path / "made" / produced.REPORT
    without.write_text(
        f"#!{sys.executable}\nopen({str(report)!r}, 'w').write({json.dumps({'onnx': told})!r})\n"
    )
    ending.write_text(f"#!{sys.executable}\nraise SystemExit(7)\n")
    for script in (without, ending):
        script.chmod(0o755)
    given = Namespace(folder=tmp_path / "made", producers=["onnx"], seconds=60.0)
    given.python = [f"a={without}", f"b={ending}", f"c={without}"]
    produced.make(given)
    (entry,) = json.loads(report.read_text()).values()
    assert entry["environment"] == "b"
    assert entry["failed"] == {"all": "the process ended with 7; files are missing"}
    with pytest.raises(UsageError, match="no producer is called nobody"):
        produced.make(Namespace(**{**vars(given), "producers": ["nobody"]}))


def test_the_page_tells_files_without_reference_from_refused_ones(tmp_path: Path) -> None:
    """onnxruntime runs the first of three; tercet knows QONNX's operator as well."""
    folder = tmp_path / "some"
    folder.mkdir()
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy")
    feeds: dict[str, Any] = {"input/x": np.ones(3, np.float32)}
    for op, domain in (("Add", ""), ("BipolarQuant", "onnx.brevitas"), ("Unheard", "of.nobody")):
        node = helper.make_node(op, ["x", "x"], ["y"], domain=domain)
        opsets = [helper.make_opsetid(name, 1 if name else 21) for name in sorted({"", domain})]
        graph = helper.make_graph([node], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.save(model, folder / f"{op}.onnx")
        np.savez(folder / f"{op}.npz", **feeds)
    (folder / "left.onnx").write_bytes(b"of a producer that was ended")
    result = tried(folder)
    assert (result.right, result.no_reference, result.refused) == (1, 1, 1)
    known = {
        "some": {
            "versions": {"some": "1.0"},
            "failed": {"c": "why"},
            "skipped": "",
            "environment": "env",
        },
        "other": {"versions": {}, "failed": {}, "skipped": "not installed: other"},
    }
    (tmp_path / produced.REPORT).write_text(json.dumps(known))
    lines = list(page(tmp_path, version="0.1 (abc)"))
    assert any("not installed: other" in line for line in lines)
    (row,) = (line for line in lines if "some 1.0" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:] == ["env", "3", "1", "0", "0", "1", "1", "2", "1", "0.1 (abc)"]
    (note,) = (line for line in lines if line.startswith("- "))
    assert note.startswith("- some, Unheard, unplanned: of.nobody::Unheard: ")


def test_rows_of_producers_that_did_not_run_stay(tmp_path: Path) -> None:
    """Also those of pages without the column of versions."""
    row = "| other (a\\|b 2.0) | env | 4 | 3 | 0 | 0 | 0 | 1 | 3 | 0 |"
    note = "- other, one, unplanned: NonZero: the shape of 'y' depends on the data"
    skipped = {"versions": {}, "failed": {}, "skipped": "not installed: it"}
    known = {name: skipped for name in ("other", "third")}
    (tmp_path / produced.REPORT).write_text(json.dumps(known))
    lines = list(page(tmp_path, f"# Page\n\n- about, it\n\n{row}\n\n{note}\n", "0.1 (abc)"))
    assert lines.count(f"{row} unknown |") == lines.count(note) == 1
    assert not any("about" in line for line in lines)
    assert any("third | | not installed" in line.replace("  ", " ") for line in lines)
    assert list(page(tmp_path, "\n".join(lines), "0.2 (def)")) == lines


def test_only_paths_in_reasons_lose_the_folder() -> None:
    folder = Path("f")
    why = "f/nncf/conv.onnx: node 'half/conv' of g/f/x and /f/y; it fails; it fails"
    assert brief(why, folder) == "nncf/conv.onnx: node 'half/conv' of g/f/x and /f/y; it fails"
