"""The studies: what they compute besides times, and their report."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.ops.conv import CONV
from tercet.runtime.errors import BackendUnavailable
from tercet.runtime.options import Options
from tercet.tools.workshop import studies, studies_attention, studies_lab, studies_sums
from tercet.tools.workshop.studies_attention import COMMON, LONG, StudiedAttention
from tercet.tools.workshop.studies_convolution import WAYS, winograd
from tercet.tools.workshop.studies_lab import Lab, StudiedConv, Taken, floor_seconds
from tercet.tools.workshop.studies_layouts import LAYOUTS, folding
from tercet.tools.workshop.studies_products import seven_loops
from tercet.tools.workshop.studies_report import Curves, Study, StudyReport, picture


class Paper(Lab):
    """A GPU that takes a microsecond for everything, and computes ones."""

    def __init__(self) -> None:
        self.say = lambda text: None

    def take(self, model, feeds, of="", *, fetch=True, between=(), **options) -> Taken:
        n, height, width, _ = next(iter(feeds.values())).shape
        if not model.graph.initializer:
            return Taken(1e-6, 2e-6, 0, "paper", ("NCHW", "NCHW"), 1, 1, None)
        (w,) = model.graph.initializer
        filters = w.dims[0]
        last = any(node.op_type == "Transpose" for node in model.graph.node)
        dims = (n, height, width, filters) if last else (n, filters, height, width)
        if not last:
            dims = (n, filters, *next(iter(feeds.values())).shape[2:])
        return Taken(1e-6, 2e-6, 0, "paper", ("NCHW", "NHWC"), 1, 1, np.ones(dims))


def error(case: StudiedConv, y: np.ndarray) -> float:
    found = case.error(y)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "case",
    [
        StudiedConv((2, 5, 9, 11), 7, 3),
        StudiedConv((1, 4, 16, 12), 6, 5, 2, last=True),
        StudiedConv((1, 3, 13, 13), 4, 7, 2),
    ],
    ids=lambda case: case.title,
)
def test_errors_are_those_of_the_convolution(case: StudiedConv) -> None:
    feeds = case.feeds
    with tercet.load(case.model(feeds)) as model:
        (y,) = model.run(feeds).values()
    assert y.size == np.prod(case.y)
    assert error(case, y) <= 1e-6
    assert error(case, y + np.abs(y).max() / 10) > 1e-2


def test_the_figures_of_the_talk() -> None:
    """Work, bytes and floors of its convolutions."""
    three, eleven = (StudiedConv((1, 128, 128, 128), 128, kernel) for kernel in (3, 11))
    assert (three.flops / 1e9, eleven.flops / 1e9) == pytest.approx((4.832, 64.961), abs=1e-3)
    floors = [1e6 * floor_seconds(c.flops, c.nbytes) for c in (three, eleven)]
    assert floors == pytest.approx([72.1, 969.6], abs=0.1)
    assert len(LAYOUTS) == 14
    for size, channels, gflop in ((2048, 8, 4.83), (1024, 32, 19.33)):
        case = StudiedConv((1, channels, size, size), channels, 3, 1, np.float16)
        assert case.flops / 1e9 == pytest.approx(gflop, abs=0.01)
        assert case.nbytes / 1e6 == pytest.approx(134, abs=0.5)
    for images, size, mib in ((1, 64, 2), (32, 256, 1024)):
        assert 4 * np.prod(StudiedConv((images, 128, size, size), 128, 3).y) == mib << 20
    assert {"naive", "naive_nhwc", "fft", "winograd_f4", "tensor_cores"} <= set(WAYS)
    assert set(WAYS) <= {each.name for each in CONV.algorithms}


def test_sums_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case runs with sums in float32 and, asked for by name, in float16."""
    asked: list[dict[str, object]] = []

    class Asked(Paper):
        def take(self, model, feeds, of="", **options) -> Taken:
            asked.append(options)
            return super().take(model, feeds, of)

    judged = {"model": "net", "sums": "float16", "error": 1e-3, "top1": 0.5}
    monkeypatch.setattr(studies_sums, "_network", lambda lab, name: [judged])
    study = studies_sums.sums(Asked())
    layers, networks = study.tables
    assert [row["terms"] for row in layers.rows] == [16, 64, 576, 1152, 2304, 4608, 18432]
    assert len(networks.rows) == len(studies_sums.NETWORKS)
    assert asked[::2] == [{}] * 7
    assert all("half_sums" in str(options["algorithms"]) for options in asked[1::2])
    assert "50%" in study.findings[1]


def test_seven_loops() -> None:
    """A convolution as seven nested loops, which teaching begins with."""
    case = StudiedConv((2, 3, 5, 4), 4, 3)
    y = seven_loops(case.image, case.weights)
    assert error(case, y) <= 1e-6


@pytest.fixture(scope="module")
def on_paper() -> Study:
    return winograd(Paper())


def test_multiplications_of_winograd(on_paper: Study) -> None:
    """36 / 16 and 144 / 36 where tiles fit."""
    rows = on_paper.tables[0].rows
    saved = {row["case"]: row["saved"] for row in rows}
    assert saved["128x128x128 → 128, 3x3, F2"] == 2.25
    assert saved["128x128x128 → 128, 3x3, F4"] == 4
    assert saved["7x7x512 → 512, 3x3, F4"] < 4


def test_the_report(on_paper: Study, tmp_path: Path) -> None:
    report = StudyReport({"GPU": "paper"}, [on_paper], {"winograd": 1.0}, {"fft": "no"})
    written = studies.save(report, tmp_path)
    page, data = (next(p for p in written if p.suffix == end) for end in (".md", ".json"))
    text = page.read_text("utf-8")
    assert max(map(len, text.splitlines())) <= 100
    assert "failed: no" in text
    assert page.name == "studies_winograd.md"  # of its own, not in place of all
    found = json.loads(data.read_text("utf-8"))
    assert len(found["studies"]["winograd"]["tables"]["kernels alone"]) == 10


def test_curves_are_pictures() -> None:
    lines = {f"line {i}": [(1, i + 1.0), (32, 80.0 * i + 1)] for i in range(7)}
    root = ElementTree.fromstring(picture(Curves("n", "title", "images", "TFLOP/s", lines)))
    kinds = [node.tag.rpartition("}")[2] for node in root.iter()]
    assert kinds.count("circle") == 14
    assert kinds.count("path") == 14


def test_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert studies.main(["--list"]) == 0
    assert all(name in capsys.readouterr().out for name in ("ladder",))
    assert studies.main(["ladderr"]) == 2
    assert "did you mean 'ladder'?" in " ".join(capsys.readouterr().err.split())


def test_a_gpu_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, options: Options) -> None:
        raise BackendUnavailable(name, "no GPU", "plug one in")

    monkeypatch.setattr(studies_lab, "open_backends", refuse)
    assert studies.main(["folding"]) == 5
    assert "backend 'cuda' cannot run here" in " ".join(capsys.readouterr().err.split())


@pytest.mark.gpu
def test_a_study(tmp_path: Path) -> None:
    """A call writes what it found."""
    assert folding.__name__ in studies.STUDIES
    assert studies.main(["folding", "kernels", "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "studies_folding_kernels.json").read_text("utf-8"))
    (rows,) = found["studies"]["folding"]["tables"].values()
    assert [row["mb"] for row in rows] == pytest.approx([134, 134], abs=1)
    assert all(row["us"] >= 0.9 * row["floor"] and row["error"] <= 1e-3 for row in rows)
    for table in found["studies"]["kernels"]["tables"].values():
        assert all(0 < row["occupancy"] <= 1 and row["registers"] for row in table)


@pytest.mark.parametrize(
    "case",
    [StudiedAttention(2, 4, 33, 64, causal=True, groups=2), StudiedAttention(1, 3, 20, 32)],
    ids=lambda case: case.title,
)
def test_errors_are_those_of_the_attention(case: StudiedAttention) -> None:
    feeds = case.feeds
    with tercet.load(case.model(feeds)) as model:
        (y,) = model.run(feeds).values()
    assert case.error(feeds, y) <= 1e-3
    assert case.error(feeds, np.roll(y, 1, axis=2)) > 0.1


def test_work_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As FlashAttention counts it; rates are compared where PyTorch has a kernel."""
    assert [case.flops for case in LONG[:2]] == [4 * 16384 * n * 2048 for n in (512, 1024)]
    assert LONG[6].flops == LONG[0].flops / 2
    monkeypatch.setattr(studies_attention, "LONG", LONG[:1])
    monkeypatch.setattr(studies_attention, "COMMON", COMMON[:1])
    ours = [("cudnn", 2e-6, np.zeros(1)), ("flash", 4e-6, np.zeros(1))]
    monkeypatch.setattr(studies_attention, "vendors", lambda case, feeds: ours)
    monkeypatch.setattr(StudiedAttention, "error", lambda case, feeds, found: 0.0)
    study = studies_attention.attention(Paper())
    (row,) = study.tables[0].rows
    assert row["rate"] == pytest.approx(LONG[0].flops / 1e6)
    assert row["ratio"] == 2
    assert "2.00 of the better" in study.findings[0]
