"""`inspect`: the graph as text before and after passes, as a picture, and node by node."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import tercet as api
from tercet.runtime.options import Options
from tercet.tools.inspect.graph_file import parts_of, write_graph
from tercet.tools.inspect.inspection import inspect
from tercet.tools.inspect.pass_texts import differences_of, pass_texts
from tercet.tools.report.report_style import mixed

from .conftest import Tercet
from .test_inspect import light


def test_each_pass_that_changed_something(folder: Path) -> None:
    found = inspect(folder / "classifier.onnx", passes=True).passes
    assert found is not None
    names = [text.name for text in found.texts]
    assert names[0] == "imported"
    assert "fold_batchnorm" in names
    assert sum(text.rewrites for text in found.texts) == len(found.rewrites)
    assert "BatchNormalization" in found.texts[0].text
    assert "BatchNormalization" not in found.texts[-1].text


def test_texts_end_where_a_model_does(folder: Path) -> None:
    with api.load("classifier.onnx") as model:
        texts = pass_texts(model.imported, Options())
        assert texts[-1].text == str(model.graph)


def test_differences_are_unified(tercet: Tercet) -> None:
    done = tercet("inspect", "classifier.onnx", "--passes", "--diff")
    assert done.code == 0
    for words in ("--- ", "+++ 0", "@@ ", "fold_batchnorm"):
        assert words in done.out
    assert any(line.startswith("-") and "BatchNorm" in line for line in done.out.splitlines())


def test_files_are_for_a_diff_of_ones_own(tercet: Tercet, folder: Path) -> None:
    assert tercet("inspect", "classifier.onnx", "--passes", "--ir", "texts").code == 0
    files = sorted((folder / "texts").iterdir())
    assert files[0].name == "00-imported.txt"
    assert [int(file.name[:2]) for file in files] == list(range(len(files)))
    patched = files[0].read_text()
    with api.load("classifier.onnx") as model:
        texts = pass_texts(model.imported, Options())
    assert patched == texts[0].text + "\n"
    assert len(differences_of(texts)) == len(texts) - 1


def test_options_that_belong_together(tercet: Tercet) -> None:
    for option in (["--diff"], ["--ir", "texts"]):
        done = tercet("inspect", "classifier.onnx", *option)
        assert done.code == 2
        assert "need --passes" in done.err
    done = tercet("inspect", "classifier.onnx", "--graph", "graph.png")
    assert done.code == 2
    assert ".svg, .html, .dot" in done.err


def test_pictures(tercet: Tercet, folder: Path) -> None:
    for name in ("g.svg", "g.html", "g.dot"):
        assert tercet("inspect", "classifier.onnx", "--graph", name).code == 0
    drawn = ElementTree.parse(folder / "g.svg").getroot()
    boxes = drawn.findall(".//{http://www.w3.org/2000/svg}g")
    assert len(boxes) == 7 + 2
    for name in ("g.svg", "g.html", "g.dot"):
        text = (folder / name).read_text()
        assert "MaxPool" in text
        assert "float32[1,4,8,8]" in text
    assert tercet("inspect", "classifier.onnx", "--passes", "--graph", "p.svg").code == 0
    assert "BatchNormalization" in (folder / "g.svg").read_text()
    assert "BatchNormalization" not in (folder / "p.svg").read_text()


BODIES = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[2] x, bool c) => (float[2] y) {
  a = Relu (x)
  y = If (c) <
    then_branch = then () => (float[2] p) { p = Exp (a) },
    else_branch = other () => (float[2] q) {
      q = If (c) <
        then_branch = inner () => (float[2] r) { r = Sin (a) },
        else_branch = outer () => (float[2] s) { s = Cos (a) }
      >
    }
  >
}
"""


def test_bodies_are_drawn(folder: Path) -> None:
    with api.load(BODIES) as model:
        for name in ("g.svg", "g.html", "g.dot"):
            write_graph(folder / name, model.imported, "bodies")
    page, dot = ((folder / name).read_text() for name in ("g.html", "g.dot"))
    assert page.count("<figure") == dot.count("subgraph") + 1 == 5
    for text in (page, dot):
        assert all(each in text for each in ("Exp", "Sin", "Cos", "else_branch of y (If)"))
        assert "outer value a" in text
    assert "Exp" not in (folder / "g.svg").read_text()


def test_names_are_escaped(folder: Path) -> None:
    model = onnx.load("classifier.onnx")
    for node in model.graph.node:
        if node.name == "conv":
            node.name = 'a"<b>&\\'
    with api.load(model) as loaded:
        write_graph(folder / "g.dot", loaded.imported, "t")
        write_graph(folder / "g.svg", loaded.imported, "t")
        nodes, edges = parts_of(loaded.imported)
    assert len(nodes) == 9
    assert len(edges) == 8
    ElementTree.parse(folder / "g.svg")
    assert 'a\\"<b>&\\\\' in (folder / "g.dot").read_text()


def test_graphviz_reads_it(folder: Path) -> None:
    with api.load("classifier.onnx") as model:
        write_graph(folder / "g.dot", model.imported, "classifier")
    try:
        subprocess.run(["dot", "-Tsvg", "g.dot", "-o", "g.svg"], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("Graphviz is not installed: dot draws .dot files")


def test_what_a_node_costs(tercet: Tercet, folder: Path) -> None:
    done = tercet("inspect", "classifier.onnx", "--cost", "--dim", "batch=2")
    assert done.code == 0
    found = inspect(folder / "classifier.onnx", cost=True, dims=["batch=2"])
    by_name = {node.name: node for node in found.nodes}
    conv = by_name["conv"]
    assert (conv.number, conv.macs, conv.parameters) == (1, 2 * 4 * 64 * 27, 108)
    assert conv.nbytes == 4 * (2 * 3 * 64 + 108 + 2 * 4 * 64)
    assert sum(node.macs or 0 for node in found.nodes) == found.macs
    assert sum(node.parameters for node in found.nodes) == found.constants.parameters


@pytest.mark.parametrize("name", ["resnet50", "inception_v2"])
def test_costs_of_nodes_add_up(name: str) -> None:
    found = inspect(Path(light(name)), cost=True)
    assert sum(node.macs or 0 for node in found.nodes) == found.macs
    assert sum(node.parameters for node in found.nodes) == found.constants.parameters


def test_images_have_colours_for_programs_that_know_only_plain_ones(
    tercet: Tercet, folder: Path
) -> None:
    """Neither variables nor media queries: Inkscape and converters to PNG draw black for these."""
    assert tercet("inspect", "classifier.onnx", "--graph", "g.svg").code == 0
    image = ElementTree.parse(folder / "g.svg").getroot()
    (style,) = (each.text or "" for each in image if each.tag.endswith("style"))
    plain, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    assert "(" not in plain
    assert "var(--heat)" in dark
    boxes = [each for each in image.iter() if each.tag.endswith("rect")]
    fills = [each.get("fill") for each in boxes if "heat" in each.get("class", "")]
    assert len(fills) == len(boxes) - 2
    assert {mixed(0), mixed(0.6)} <= {*fills}
    assert (mixed(0), mixed(1)) == ("#ffffff", "#c2331f")
