"""Models in older opsets: what can be said there is, and onnxruntime computes the same of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnxruntime
import pytest
from onnx import ModelProto, parser
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplemented_

import tercet
from tercet.importers.onnx import load
from tercet.importers.onnx.writing.expand import expanded
from tercet.importers.onnx.writing.export import export
from tercet.runtime.ir.types import Array
from tercet.tools.common.nested import flat

from ..spec.cases import Case, array_of, cases_by_operator
from ..spec.test_inference import with_constants

#: Operators that opset 13 lacks or has in another form, of which it can say a case or more.
SAID = {
    "Attention", "BatchNormalization", "BlackmanWindow", "CastLike", "CenterCropPad", "Gelu",
    "GroupNormalization", "HammingWindow", "HannWindow", "HardSwish", "LayerNormalization", "Mish",
    "Pad", "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare", "Reshape", "Resize",
    "RotaryEmbedding", "SequenceMap", "Shape", "Split", "SwiGLU", "Swish",
}  # fmt: skip
#: Operators that opset 19 has in another form than the newest one.
SAID_19 = {"DFT", "GridSample", "GroupNormalization", "Gelu"}
#: Random numbers, and a case that onnxruntime is known to compute in another way.
OTHERS = {"Bernoulli", "MaxUnpool", "MeanVarianceNormalization"}


def younger(opset: int) -> Iterator[str]:
    """Yield the operators that changed after an opset."""
    for schema in onnx.defs.get_all_schemas():
        is_plain = not schema.domain and not schema.deprecated and schema.name not in OTHERS
        if is_plain and schema.since_version > opset:
            yield schema.name


def said(case: Case, opset: int) -> ModelProto | None:
    """Return a case in an opset, whole numbers as constants; None where it cannot be said."""
    graph = load(with_constants(case.model, case.inputs, "iu")).graph
    try:
        return export(expanded(graph, opset), opsets={"": opset})
    except tercet.UnsupportedError:
        return None


def by_onnxruntime(model: ModelProto, case: Case) -> Mapping[str, Array] | None:
    """Return what onnxruntime computes, None where it lacks the operator for a dtype."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return numbered(session.run(None, feeds_of(model, case)))
    except (RuntimeError, Fail, InvalidGraph, NotImplemented_):
        return None


def feeds_of(model: ModelProto, case: Case) -> dict[str, Any]:
    names = {info.name for info in model.graph.input}
    given = zip((info.name for info in case.model.graph.input), case.inputs, strict=False)
    return {name: array_of(value) for name, value in given if name in names}


def numbered(values: Iterable[Any]) -> Mapping[str, Array]:
    return flat({str(i): array_of(value) for i, value in enumerate(values)})


def check(model: ModelProto, case: Case) -> bool:
    """Hold a model against the case; return whether onnxruntime ran it."""
    onnx.checker.check_model(model, full_check=True)
    ours = numbered(tercet.load(model).run(feeds_of(model, case)).values())
    agree(ours, numbered(case.outputs))
    theirs, before = by_onnxruntime(model, case), by_onnxruntime(case.model, case)
    if theirs is not None:  # where it differs, the opset makes no difference
        agree(theirs, numbered(case.outputs) if before is None else before)
    return theirs is not None


def agree(got: Mapping[str, Array], want: Mapping[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, wanted in want.items():
        if wanted.dtype.kind in "OU" or wanted.dtype == bool:
            np.testing.assert_array_equal(got[name], wanted)
        else:
            wide = (array.astype(np.complex128) for array in (got[name], wanted))
            np.testing.assert_allclose(*wide, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("opset", "operator"),
    [(13, name) for name in sorted(younger(13))] + [(19, name) for name in sorted(SAID_19)],
)
def test_cases_in_an_older_opset(opset: int, operator: str) -> None:
    cases = cases_by_operator().get(("", operator), ())
    models = ((said(case, opset), case) for case in cases[:6])
    ran = [check(model, case) for model, case in models if model is not None]
    assert any(ran) or operator not in (SAID if opset == 13 else SAID_19)


FORMS = {
    "bounds of Shape": ("y = Shape <end = 1> (x)", 13, {"Shape", "Slice"}),
    "unequal parts": ("y, z = Split <axis = 1, num_outputs = 2> (x)", 13, {"Split"}),
    "axes of Pad": (
        "p = Constant <value_ints = [1, 2]> () e = Constant <value_ints = [-1]> ()"
        "y = Pad (x, p, , e)",
        13,
        {"Pad"},
    ),
    "axes of Resize": (
        "s = Constant <value_floats = [2.0]> ()"
        "y = Resize <axes = [1], mode = 'linear'> (x, , s)".replace("'", '"'),
        13,
        {"Resize"},
    ),
    "no axes": ("y = ReduceMax <noop_with_empty_axes = 1> (x)", 13, {"Identity"}),
    "no axes, squared": ("y = ReduceSumSquare <noop_with_empty_axes = 1> (x)", 13, {"Mul"}),
    "a size that is not 0": (
        "s = Constant <value_ints = [5, -1]> () y = Reshape <allowzero = 1> (x, s)",
        13,
        {"Reshape"},
    ),
    "in a body": (
        """c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = t () => (float[n, 5] u) { u = Mish (x) },
                    else_branch = f () => (float[n, 5] v) { v = Gelu (x) }>""",
        17,
        {"If"},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_an_older_opset_lacks(name: str) -> None:
    body, opset, kinds = FORMS[name]
    outputs = "y, z" if "z = " in body or "y, z" in body else "y"
    text = (
        f'<ir_version: 10, opset_import: ["" : 22]> g (float[n, 5] x) => ({outputs}) {{ {body} }}'
    )
    model = parser.parse_model(text)
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    older = export(expanded(load(model).graph, opset), opsets={"": opset})
    onnx.checker.check_model(older, full_check=True)
    assert {node.op_type for node in older.graph.node} == kinds
    found = onnxruntime.InferenceSession(older.SerializeToString()).run(None, {"x": x})
    for got, want in zip(found, expected, strict=True):
        assert isinstance(got, np.ndarray)
        assert isinstance(want, np.ndarray)
        np.testing.assert_allclose(got, want, 1e-6)


@pytest.mark.parametrize(
    ("opset", "body", "reason"),
    [
        (13, "y = ReduceMean (x, a)", "axes is an attribute there, and 'a' is not a constant"),
        (13, "y = RoiAlign (x, r, i)", "coordinate_transformation_mode=half_pixel is not there"),
        (13, "y = BitwiseNot (i)", "there is no BitwiseNot in opset 13"),
        (7, "y = Max (x, r)", "it does not broadcast, and operands may differ in shape"),
        (11, "d = Cast <to = 11> (r) y = Pow (x, d)", "'Y' cannot be .*double. next to .*float"),
    ],
)
def test_what_cannot_be_said_has_a_reason(opset: int, body: str, reason: str) -> None:
    text = '<ir_version: 10, opset_import: ["" : 22]>'
    text += "g (float[1, 1, 4, 4] x, int64[1] a, float[1, 4] r, int64[1] i) => (y)"
    graph = load(parser.parse_model(f"{text} {{ {body} }}")).graph
    with pytest.raises(tercet.UnsupportedError, match=reason):
        export(expanded(graph, opset), opsets={"": opset})


def test_operands_of_one_shape_need_no_broadcast() -> None:
    text = '<ir_version: 10, opset_import: ["" : 22]> g (float[n, 5] x) => (y) { y = Sum (x, x) }'
    older = export(load(parser.parse_model(text)).graph, opsets={"": 7})
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    (found,) = onnxruntime.InferenceSession(older.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(np.asarray(found), 2 * x)
