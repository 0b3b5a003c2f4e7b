"""OpenVINO, where it is installed: the extra `openvino` brings it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.backends.openvino import library
from tercet.backends.openvino.backend import OpenvinoBackend
from tercet.backends.openvino.compiler import RegionCompiler
from tercet.importers import onnx as importer
from tercet.runtime.base.cache import Cache
from tercet.runtime.options import Options
from tercet.runtime.session.model import Model


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> RegionCompiler:
    """One for all tests, so that equal nodes are tried once."""
    return RegionCompiler(library.load(), Cache(tmp_path_factory.mktemp("openvino")))


@pytest.fixture
def opened(compiler: RegionCompiler) -> Callable[..., Model]:
    """Return what loads a model on OpenVINO, which takes single nodes, too, with numpy behind."""

    def load(
        model: Any, *, minimum: int = 1, own: RegionCompiler | None = None, **options: Any
    ) -> Model:
        chain = (OpenvinoBackend(own or compiler, minimum), NumpyBackend())
        return Model(importer.load(model).graph, chain, Options(**options), evaluate)

    return load


@pytest.fixture
def parsed() -> Callable[[str], Any]:
    """Return what reads a graph in ONNX's text form."""
    import onnx.parser

    return lambda text: onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> {text}')


def on_openvino(model: Model, **shapes: tuple[int, ...]) -> str:
    """Return the operators that OpenVINO runs, in order."""
    rows = model.placement(shapes or None)
    return ", ".join(row.operators for row in rows if row.backend == "openvino")


def reasons(model: Model) -> str:
    """Return why the others are not run by it."""
    return "; ".join(row.reason for row in model.placement())
