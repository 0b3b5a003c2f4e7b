"""The cases of ONNX's test suite that come with the installed `onnx`; nothing is downloaded."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import ModelProto, OptionalProto, SequenceProto, TensorProto, TypeProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

#: Categories: ``node`` and ``model`` are made by Python code, the others are files.
CATEGORIES = ("node", "model", "simple", "pytorch-operator", "pytorch-converted", "light")

#: Inputs and expected outputs, each in the order of the graph's.
DataSet = tuple[Sequence[Any], Sequence[Any]]

_EXPANDED = re.compile(r"_expanded.*$")
_LIGHT = "onnx/backend/test/data/light/"


class Content(Protocol):
    """What a case consists of."""

    def read(self) -> tuple[ModelProto, Sequence[DataSet]]:
        """Return the model and its data."""
        ...


@dataclass(frozen=True, slots=True)
class ConformanceCase:
    """A model with data, as ONNX judges backends by it.

    Attributes:
        name: ONNX's name for it.
        category: one of `CATEGORIES`.
        operator: the operator that it is a test of, itself or the function that stands for it,
            such as ``Relu`` or ``ai.onnx.ml.Scaler``; empty for models of several.
        rtol: relative tolerance.
        atol: absolute tolerance.
        content: model and data.
    """

    name: str
    category: str
    operator: str
    rtol: float
    atol: float
    content: Content

    @property
    def id(self) -> str:
        """Category and name, as the same name may stand in two categories."""
        return f"{self.category}/{self.name}"


@cache
def all_cases() -> tuple[ConformanceCase, ...]:
    """Return every case, by category and name."""
    return tuple(
        case
        for category in CATEGORIES
        for case in sorted(_cases_of(category), key=lambda case: case.name)
    )


def _cases_of(category: str) -> Iterator[ConformanceCase]:
    if category in ("node", "model"):
        yield from _in_memory(category)
        return
    for test in load_model_tests(kind="real" if category == "light" else category):
        content = _content(test)
        if content is not None:
            yield ConformanceCase(test.name, category, "", test.rtol, test.atol, content)


def _in_memory(category: str) -> Iterator[ConformanceCase]:
    from onnx.backend.test.case import model as models

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx computes its expectations with overflows and all
        tests = load_model_tests(kind="node") if category == "node" else models.collect_testcases()
    made = [(test, test.model) for test in tests if test.model is not None]
    operators = {test.name: _operator(model) for test, model in made if category == "node"}
    for test, model in made:
        operator = operators.get(_EXPANDED.sub("", test.name), "")
        content = Made(model.SerializeToString(), tuple(test.data_sets or ()))
        yield ConformanceCase(test.name, category, operator, test.rtol, test.atol, content)


def _operator(model: ModelProto) -> str:
    node = model.graph.node[0]
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _content(test: TestCase) -> Content | None:
    if test.model_dir is not None:
        return Folder(Path(test.model_dir))
    if test.url is not None and test.url.startswith(_LIGHT):
        return Light(Path(onnx.__file__).parent.parent / test.url)
    return None  # a model that would have to be downloaded


# ── where models and data come from ──────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Made:
    """A case that ONNX's Python code makes.

    Attributes:
        model: the serialised model.
        data: what to feed and to expect; tensors that numpy has no type for are protos.
    """

    model: bytes
    data: tuple[DataSet, ...]

    def read(self) -> tuple[ModelProto, Sequence[DataSet]]:
        """Return the model and its data."""
        sets = [([*map(_array, inputs)], [*map(_array, outputs)]) for inputs, outputs in self.data]
        return ModelProto.FromString(self.model), sets


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with model.onnx and test_data_set_0, test_data_set_1, ..."""

    path: Path

    def read(self) -> tuple[ModelProto, Sequence[DataSet]]:
        """Return the model and its data."""
        model = onnx.load(self.path / "model.onnx")
        inputs = [value.type for value in model.graph.input]
        outputs = [value.type for value in model.graph.output]
        sets = [
            (_read_all(folder, "input", inputs), _read_all(folder, "output", outputs))
            for folder in sorted(self.path.glob("test_data_set*"))
        ]
        return model, sets


@dataclass(frozen=True, slots=True)
class Light:
    """A large network without its weights, fed with a ramp from 0 to 1; see ONNX's runner."""

    path: Path

    def read(self) -> tuple[ModelProto, Sequence[DataSet]]:
        """Return the model and its data."""
        model = onnx.load(self.path)
        constants = {tensor.name for tensor in model.graph.initializer}
        fed = [value for value in model.graph.input if value.name not in constants]
        files = sorted(self.path.parent.glob(f"{self.path.stem}_output_*.pb"))
        expected = [numpy_helper.to_array(onnx.load_tensor(file)) for file in files]
        return model, [([_ramp(value.type) for value in fed], expected)]


def _ramp(type_: TypeProto) -> Any:
    shape = tuple(d.dim_value or 1 for d in type_.tensor_type.shape.dim)
    size = int(np.prod(shape))
    return (np.arange(size).reshape(shape) / size).astype(np.float32)


def _read_all(folder: Path, kind: str, types: Sequence[TypeProto]) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    files = [folder / f"{kind}_{i}.pb" for i in range(count)]
    return [_read(file, type_) for file, type_ in zip(files, types, strict=False)]


def _read(file: Path, type_: TypeProto) -> Any:
    data = file.read_bytes()
    if type_.HasField("sequence_type"):
        return numpy_helper.to_list(SequenceProto.FromString(data))
    if type_.HasField("optional_type"):
        return numpy_helper.to_optional(OptionalProto.FromString(data))
    return numpy_helper.to_array(TensorProto.FromString(data))


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def suite_version() -> str:
    """Return the version of the `onnx` whose suite this is, with its newest opset."""
    return f"{onnx.__version__}, opset {onnx.defs.onnx_opset_version()}"


def operators_without_case() -> tuple[str, ...]:
    """Return the operators that ONNX has, and has no case for."""
    tested = {case.operator for case in all_cases()}
    known = {
        f"{schema.domain}.{schema.name}" if schema.domain else schema.name
        for schema in onnx.defs.get_all_schemas()
        if not schema.deprecated
    }
    return tuple(sorted(known - tested))
