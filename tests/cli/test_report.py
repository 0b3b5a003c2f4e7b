"""`tercet report`: what the page holds, that it needs no other file, and how browsers show it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import parser
from PIL import Image

from tercet.runtime.errors import InputError, UsageError
from tercet.runtime.ops.elementwise import Relu, Sigmoid
from tercet.tools.bench.bench import Schedule, bench
from tercet.tools.common.console import finite
from tercet.tools.compare.compare import compare
from tercet.tools.compare.layers import compare_layers
from tercet.tools.profile.peaks import Peaks
from tercet.tools.profile.profiling import profile
from tercet.tools.report.report import Report, report
from tercet.tools.report.report_charts import Cell, Dot, heat_map, roofline, strip
from tercet.tools.report.report_graph import BOX, GraphNode, graph_picture, layers_of
from tercet.tools.report.report_markup import Markup, element, table
from tercet.tools.report.report_style import STYLE

from . import models
from .conftest import Tercet
from .test_profile import on_a_device

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FIGURES = {"latency": 2, "heat": 1, "strip": 1, "roofline": 1, "arena": 1, "graph": 1}
#: Elements that HTML closes implicitly.
EMPTY = {"meta", "wbr"}

Saved = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def saved() -> Saved:
    """What the four commands write."""
    graph, pair = models.classifier(), ["numpy", "onnxruntime"]
    profiled = profile(graph, repeat=3, peaks=False).to_dict()
    profiled["peaks"] = [Peaks("numpy", "cpu", "float32", 1, 1e10, 1e11).to_dict()]
    found: Saved = {
        "compare": compare(graph, pair, repeat=3).to_dict(),
        "layers": compare_layers(graph, pair).to_dict(),
        "profile": profiled,
        "bench": bench(graph, pair, schedule=Schedule(duration=0.02, warm_up=0)).to_dict(),
    }
    return {name: json.loads(json.dumps(finite(data))) for name, data in found.items()}


class Page(HTMLParser):
    """Checks that elements are closed in order; notes ids, links, texts and figures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.figures: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in EMPTY:
            self.open.append(tag)
        self.note(tag, given)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.note(tag, dict(attrs))

    def note(self, tag: str, given: dict[str, str | None]) -> None:
        self.tags[tag] += 1
        self.figures.update([given["data-kind"] or ""] if tag == "figure" else [])
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [value or "" for key, value in given.items() if key in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def pictures(found: Report) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", found.html, re.S)]


def test_has_every_figure_and_stands_alone(saved: Saved) -> None:
    found = report(list(saved.values()))
    page = Page(found.html)
    assert page.figures == FIGURES
    assert found.figures == sum(FIGURES.values())
    assert page.ids == ["compare", "layers", "profile", "bench"] == list(found.sections)
    assert page.links == [f"#{name}" for name in page.ids]
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", found.html)
    assert "prefers-color-scheme: dark" in found.html
    assert "default-src 'none'" in found.html.replace("&#x27;", "'")
    text = " ".join(page.texts)
    for words in ("Conv + Relu", "onnxruntime", "scores", "verdict:", "softmax"):
        assert words in text


def test_pictures_are_sound(saved: Saved) -> None:
    """Every mark is inside its picture, and all sizes and places are numbers."""
    found = pictures(report(list(saved.values())))
    assert len(found) == sum(FIGURES.values())
    for picture in found:
        width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
        for mark in picture.iter():
            if mark.tag.endswith("rect"):
                x, y, w, h = (float(mark.attrib[name]) for name in ("x", "y", "width", "height"))
                assert -0.5 <= x <= x + w <= width + 0.5
                assert -0.5 <= y <= y + h <= height + 0.5
            if mark.tag.endswith("text"):
                assert -0.5 <= float(mark.attrib["x"]) <= width
                assert -0.5 <= float(mark.attrib["y"]) <= height + 0.5


def test_a_model_cannot_write_into_the_page(saved: Saved) -> None:
    text = json.dumps(saved["profile"]).replace("conv", '<script>alert(1)</script>\\" onload=x')
    page = Page(report([json.loads(text)]).html)
    assert "script" not in page.tags
    assert any("<script>" in words for words in page.texts)


def test_any_part_and_several_of_one_kind(saved: Saved) -> None:
    for name, data in saved.items():
        assert report([data]).sections == (name,)
    found = report([saved["layers"], saved["layers"], saved["profile"], saved["profile"]])
    assert Page(found.html).figures == {
        "heat": 1,
        "strip": 2,
        "roofline": 2,
        "arena": 2,
        "graph": 2,
    }


def test_a_graph_with_copies_between_devices() -> None:
    """Relu runs on the fake device, Sigmoid on the host: what is read is what is there."""
    found = report([on_a_device(Relu(), Sigmoid(), Relu()).to_dict()])
    (graph,) = re.findall(r'data-kind="graph".*?</figure>', found.html, re.S)
    titles = re.findall(r"<title>(.*?)</title>", graph)
    assert [t for t in titles if t.startswith(("input", "output"))] == ["input x", "output n2"]
    assert graph.count('class="edge"') == len(titles) - 1, "a chain, copies included"


def test_infinities_are_null(saved: Saved) -> None:
    layers = json.loads(json.dumps(saved["layers"]))
    first = layers["layers"][0]
    first.update(excess=None, verdict="wrong")
    first["tensors"][0].update(excess=None, rel_l2=None, max_abs=None)
    layers.update(ok=False, first=1)
    text = report([layers]).html
    assert "∞" in text
    assert "the first step that is wrong is 1" in text


def test_what_is_known_besides_the_steps(saved: Saved) -> None:
    """The verdict may follow from whole graphs, of which no step is wrong."""
    layers = json.loads(json.dumps(saved["layers"]))
    finding = layers["layers"][0]["tensors"][0] | {"output": "scores", "reason": "off by 3"}
    layers.update(verdict="inconclusive", whole=[finding], nan="step 2, log (Log)")
    layers.update(imported=[finding], imported_in="fc", stopped="stopped after 1 s")
    layers["layers"][1]["refused"] = "no kernel"
    text = report([layers]).html
    assert "scores of the whole graph, of which no step is wrong alone: off by 3" in text
    assert "importing changes scores, first in fc: off by 3" in text
    assert f"the first NaN on {layers['runner']} is from step 2, log (Log)" in text
    assert "was not run: no kernel" in text
    assert "not complete: stopped after 1 s" in text
    assert text.count("image float32[1, 3, 8, 8], random, seed 0") == 1
    assert "first NaN" not in report([saved["layers"]]).html


def test_a_model_without_steps() -> None:
    """No table is empty."""
    graph = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[2] x) => (float[2] y) { y = Identity(x) }""")
    found = report([profile(graph, repeat=3, peaks=False), compare_layers(graph, ["numpy"] * 2)])
    page = Page(found.html)
    assert page.tags["table"] == 0
    assert not page.figures


def test_a_single_figure(saved: Saved) -> None:
    assert repr(report([saved["layers"]])) == "<tercet.Report layers; 1 figure>"


def test_a_damaged_result_names_the_command_that_writes_it(saved: Saved) -> None:
    with pytest.raises(InputError, match=r"of `tercet compare --layers` is damaged"):
        report([{"layers": 3, "mode": "alone"}])


def test_command(tercet: Tercet, saved: Saved) -> None:
    for name, data in saved.items():
        Path(f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    done = tercet("report", "bench.json", "compare.json", "-o", "r.html", "--title", "a <title>")
    assert done.code == 0
    assert "r.html: compare, bench; 2 figures" in done.out
    text = Path("r.html").read_text(encoding="utf-8")
    assert "<title>a &lt;title&gt;</title>" in text
    found = tercet("report", "profile.json", "--json").json
    assert found["sections"] == ["profile"]
    assert found["bytes"] == Path("report.html").stat().st_size


def test_wrong_usage(tercet: Tercet) -> None:
    Path("no.json").write_text('{"rows": 1}')
    Path("bad.json").write_text("[")
    Path("odd.json").write_text('{"rows": 1, "phases_ms": 2}')
    for name, words in (
        ("no.json", "no.json is neither a comparison nor a profile"),
        ("bad.json", "bad.json is not JSON"),
        ("none.json", "none.json"),
        ("odd.json", "a file of `tercet profile` is damaged"),
    ):
        done = tercet("report", name)
        assert done.code == 2
        assert words in done.err
    with pytest.raises(UsageError):
        report([])
    with pytest.raises(InputError):
        report([{}])


# ── parts ────────────────────────────────────────────────────────────────────────────────────────


def test_markup_is_escaped_once() -> None:
    inner = element("b", "a < b")
    assert element("p", inner, ["&", None, 1.50], title='"') == (
        '<p title="&quot;"><b>a &lt; b</b>&amp;1.5</p>'
    )
    assert element("rect", x=1.0, class_="k") == '<rect x="1" class="k"/>'
    assert isinstance(inner, Markup)


def test_a_long_name_keeps_its_share() -> None:
    assert "… 75%" in str(strip([("a", "x" * 99, 3.0), ("b", "y", 1.0)], "run"))


def test_layers_of_a_graph() -> None:
    assert layers_of(4, [(0, 1), (1, 3), (0, 3), (2, 3)]) == [0, 1, 0, 2]
    assert layers_of(0, []) == []


def test_boxes_of_a_graph_do_not_overlap() -> None:
    """A hundred random nodes, with edges over many layers."""
    rng = np.random.default_rng(0)
    edges = [(int(rng.integers(max(0, i - 12), i)), i) for i in range(1, 100) for _ in range(2)]
    nodes = [GraphNode(f"n{i}", "", f"node {i}") for i in range(100)]
    picture = ElementTree.fromstring(graph_picture(nodes, edges, "test"))
    boxes = [
        (float(mark.attrib["y"]), float(mark.attrib["x"]))
        for mark in picture.iter()
        if mark.tag.endswith("rect")
    ]
    assert len(boxes) == 100
    for (y, x), (below, beside) in zip(sorted(boxes), sorted(boxes)[1:], strict=False):
        assert y != below or beside - x >= BOX
    paths = [mark for mark in picture.iter() if mark.tag.endswith("path")]
    assert len(paths) == len(set(edges))
    assert graph_picture([], [], "nothing").startswith("<svg")


def test_edges_lead_down() -> None:
    nodes = [GraphNode(name, "", name) for name in "abc"]
    picture = ElementTree.fromstring(graph_picture(nodes, [(0, 1), (1, 2), (0, 2)], "test"))
    for path in (mark.attrib["d"] for mark in picture.iter() if mark.tag.endswith("path")):
        numbers = [float(number) for number in re.findall(r"[-\d.]+", path)]
        assert numbers[-1] > numbers[1]


def test_charts_of_nothing_and_of_extremes() -> None:
    cells = [Cell("a", None, True), Cell("b", 0.0, False), Cell("c", 1e-30, False)]
    assert heat_map({"x": cells}, "heat").count("<rect") == 3 + 11
    assert heat_map({}, "heat").startswith("<svg")
    many = [(f"n{i}", f"operator number {i} of many", 1.0) for i in range(9)]
    picture = ElementTree.fromstring(strip(many, "run"))
    assert float(picture.attrib["height"]) >= 90, "the legend takes two lines"
    dot = Dot("a", "Conv", 1e-6, 1.0, 0.5)
    ElementTree.fromstring(roofline([dot], 1e12, 1e14, "roof"))


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def browser() -> str:
    """The command of a browser that runs without a screen."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser ({', '.join(BROWSERS)}): install Chromium to see the page drawn")
    return found


#: A name without a place to break it.
KIND = "SkipSimplifiedLayerNormalization"


def browse(browser: str, home: Path, *options: str) -> str:
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    own = f"--user-data-dir={home / 'browser'}"
    command = (browser, *flags, own, "--window-size=1120,2600", *options)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


@pytest.mark.slow
def test_long_names_break_no_words(browser: str, tmp_path: Path) -> None:
    """Beside a node with a long name, every word of the other columns stays on one line."""
    name = " + ".join(f"/encoder/layers.{i}/intermediate_act_fn/Mul_{i}" for i in range(9))
    cells = table(["step", "nodes", "operators", "verdict"], [["22", name, KIND, "within"]], 4)
    count = """<script>document.body.dataset.lines = [...document.querySelectorAll(".text")].map(
        cell => { const all = document.createRange(); all.selectNodeContents(cell);
                  return new Set([...all.getClientRects()].map(box => box.top)).size; })</script>"""
    file = tmp_path / "table.html"
    file.write_text(f"<style>{STYLE}</style><body>{cells}{count}</body>")
    found = browse(browser, tmp_path, "--dump-dom", file.as_uri())
    (lines,) = re.findall(r'data-lines="([\d,]+)"', found)
    *titles, step, nodes, kind, verdict = map(int, lines.split(","))
    assert [*titles, step, kind, verdict] == [1] * 7
    assert nodes > 1


@pytest.mark.slow
def test_a_browser_shows_it(browser: str, saved: Saved, tmp_path: Path) -> None:
    """It has the figures, light and dark differ, and both have colours in them."""
    file = tmp_path / "report.html"
    report(list(saved.values())).write(file)
    page = Page(browse(browser, tmp_path, "--dump-dom", file.as_uri()))
    assert page.figures == FIGURES
    shots: dict[str, np.ndarray] = {}
    for name, scheme in (("dark", 0), ("light", 1)):
        shot = tmp_path / f"{name}.png"
        look = f"--blink-settings=preferredColorScheme={scheme}"
        browse(browser, tmp_path, look, f"--screenshot={shot}", file.as_uri())
        shots[name] = np.asarray(Image.open(shot).convert("RGB"), np.int16)
    assert shots["light"][2, 2].tolist() == [255, 255, 255]
    assert shots["dark"][2, 2].max() < 50
    for pixels in shots.values():
        spread = pixels.max(axis=2) - pixels.min(axis=2)
        assert (spread > 60).sum() > 5000
