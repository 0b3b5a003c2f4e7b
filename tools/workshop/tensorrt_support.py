r"""Check the claims of the tensorrt backend with TensorRT's parser and builder; needs no GPU.

    python -m tercet.tools.workshop.tensorrt_support
    python -m tercet.tools.workshop.tensorrt_support --models FOLDER --networks FOLDER \\
        --output docs/results

Every region that the backend forms in ONNX's own suite, the nine light models, real models
(--models, as for tercet.tools.workshop.model_table) and exported networks (--networks,
``NAME.onnx`` files) goes through the parser and the builder of TensorRT-RTX; so does every kind of
single node of the suite, of those that the backend declines, and of regions that cannot be built. A
crash of the library ends only a worker process, and counts as a refusal. The exit code is 1 if the
backend claims what the library refuses, or declines what it supports without another reason.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ...backends.tensorrt.build import EngineBuilder
from ...backends.tensorrt.library import load
from ...importers import onnx as importer
from ...runtime.errors import BackendUnavailable, UsageError
from ...runtime.ir.graph import Graph
from ..common.console import open_console
from ..common.environment import environment
from ..common.results import write
from .arguments import parser as make_parser
from .light_models import NAMES, light_model
from .tensorrt_page import SupportTable, page
from .tensorrt_survey import Survey, look_at
from .tensorrt_worker import SectionBuilder

#: What engines are built for where nothing else is requested.
CAPABILITY = "8.9"

Feeds = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """A model to look at: its name, how it is read, and what it is run on or planned for."""

    name: str
    graph: Graph
    feeds: Feeds | None
    shapes: Mapping[str, tuple[int, ...]] | None = None


def suite(pattern: str) -> Iterator[Source]:
    """Yield the cases of ONNX's suite whose name has a pattern, but for the light models."""
    from ..conformance.suite import all_cases

    wanted = re.compile(pattern)
    for case in all_cases():
        if case.category != "light" and wanted.search(case.id):
            model, sets = case.content.read()
            constants = {tensor.name for tensor in model.graph.initializer}
            names = [v.name for v in model.graph.input if v.name not in constants]
            for inputs, _ in sets[:1]:
                feeds = dict(zip(names, inputs, strict=False))
                yield Source(case.id, importer.load(model).graph, feeds)


def light() -> Iterator[Source]:
    """Yield the nine light models with random weights."""
    for name in NAMES:
        yield Source(f"light/{name}", importer.load(light_model(name)).graph, None)


def real(folder: Path) -> Iterator[Source]:
    """Yield the models of a folder, with their inputs."""
    for file in sorted(folder.glob("*/model.onnx")):
        found = (file.with_name(name) for name in ("inputs.npz", "real_inputs.npz"))
        feeds: dict[str, Any] | None = None
        for inputs in [each for each in found if each.is_file()][:1]:
            with np.load(inputs) as data:
                feeds = {name: data[name] for name in data.files}
        yield Source(f"real/{file.parent.name}", importer.load(file).graph, feeds)


def exported(folder: Path) -> Iterator[Source]:
    """Yield the networks of a folder, the smaller files first, with the shapes of their inputs."""
    files = sorted(folder.glob("*.onnx"), key=_size)
    for file in files:
        graph = importer.load(file).graph
        found = (file.with_suffix(end) for end in (".npz", ".peer.npz"))
        shapes = None
        for inputs in [each for each in found if each.is_file()][:1]:
            with np.load(inputs) as data:
                sizes = [data[f"in{i}"].shape for i in range(len(graph.inputs))]
            shapes = dict(zip((v.name for v in graph.inputs), sizes, strict=True))
        yield Source(f"exported/{file.stem}", graph, None, shapes)


def _size(file: Path) -> int:
    external = file.with_name(f"{file.name}.data")
    return file.stat().st_size + (external.stat().st_size if external.is_file() else 0)


def sources(chosen: argparse.Namespace) -> Iterator[Source]:
    """Yield everything that is requested."""
    yield from suite(chosen.k)
    if not chosen.k:
        yield from light()
        if chosen.models is not None:
            yield from real(chosen.models)
        if chosen.networks is not None:
            yield from exported(chosen.networks)


def gather(chosen: argparse.Namespace, say: Any) -> SupportTable:
    """Ask about everything.

    Raises:
        BackendUnavailable: the library is not installed.
    """
    vendor = load()
    if not vendor.product.for_rtx:
        remedy = "TERCET_TENSORRT=tensorrt_rtx, and pip install 'tercet[tensorrt-rtx]'"
        raise BackendUnavailable("tensorrt", f"{vendor} builds for the GPU here alone", remedy)
    builder, start = EngineBuilder(vendor, chosen.capability), perf_counter()
    known: dict[str, bool] = {}

    def takes(operator: str) -> bool:
        if operator not in known:
            known[operator] = builder.takes(operator)
        return known[operator]

    failed: dict[str, str] = {}
    counts: dict[str, int] = {}
    with SectionBuilder(chosen.capability) as worker:
        survey = Survey(takes, worker.build, str(vendor))
        for source in sources(chosen):
            kind = source.name.split("/")[0]
            counts[kind] = counts.get(kind, 0) + 1
            before = perf_counter()
            survey.alone = kind not in ("light", "real", "exported")
            if reason := look_at(survey, source.name, source.graph, source.feeds, source.shapes):
                failed[source.name] = reason
            if not survey.alone:
                say(f"{source.name}: {perf_counter() - before:.1f} s")
        about = {
            **environment(("numpy", "onnx"), chosen.commit),
            "library": str(vendor),
            "built for": f"compute capability {chosen.capability}",
            "models": ", ".join(f"{n} {kind}" for kind, n in counts.items()),
            "crashes of the library": str(worker.crashes),
            "took": f"{perf_counter() - start:.0f} s, one process of the library",
            "command": f"python -m tercet.tools.workshop.tensorrt_support {chosen.said}".strip(),
        }
    return SupportTable(about, [*survey.nodes.values()], [*survey.parts.values()], failed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, print and write; return the exit code."""
    parser = make_parser("tensorrt_support", __doc__)
    parser.add_argument(
        "-k", default="", metavar="PATTERN", help="only these cases of ONNX's suite, no models"
    )
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="real models")
    parser.add_argument("--networks", type=Path, metavar="FOLDER", help="exported networks")
    parser.add_argument(
        "--capability", default=CAPABILITY, metavar="8.9", help="compute capability to build for"
    )
    chosen = parser.parse_args(arguments)
    named = {"models": chosen.models, "networks": chosen.networks}
    said = [f"-k '{chosen.k}'"] if chosen.k else []
    chosen.said = " ".join((*said, *(f"--{name} FOLDER" for name, value in named.items() if value)))
    console = open_console()
    for value in named.values():
        if value is not None and not value.is_dir():
            raise UsageError(f"there is no folder {value}")
    try:
        found = gather(chosen, console.print)
    except BackendUnavailable as error:
        console.print(f"{error.missing}\n{error.remedy}")
        return 5
    text, wrong = page(found)
    console.print(text.split("\n## ")[0], markup=False)
    if chosen.output is not None:
        write(chosen.output, {"tensorrt_support.md": text})
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
