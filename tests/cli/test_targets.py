"""Planning for a GPU that is not there: placements, capabilities and algorithms by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import tercet as api

from . import models
from .conftest import Tercet

pytest.importorskip("cuda.bindings", reason="the CUDA packages for Python are not installed")

from tercet.backends.cuda.recipe.targets import TARGETS, named_target
from tercet.tools.inspect.inspection import inspect
from tercet.tools.inspect.paper import paper_rows

from ..kernels.dry import DryCompiler, DryDevice, planned_model

DIGITS = Path(api.__file__).parent / "demo" / "digits.onnx"


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("options", [{}, {"precision": "float16"}], ids=["float32", "float16"])
def test_kernels_are_those_of_a_plan_for_that_gpu(name: str, options: Any) -> None:
    target = named_target(name)
    with api.load(DIGITS, **options) as model:
        layout = planned_model(model, DryDevice(compiler=DryCompiler(target)))
        expected = [(row.kind, row.kernel) for row in layout.rows if row.kind == "step"]
        found = [(row.kind, row.kernel) for row in paper_rows(model, target) if row.kind == "step"]
    assert expected
    assert found == expected


def test_multiprocessors_can_be_named() -> None:
    assert named_target("sm_86:46").processors == 46
    assert named_target("sm_90") == TARGETS["sm_90a"]
    for wrong in ("sm_33", "h200", "sm_90a:0", "sm_90a:", "", "sm_86:1e3"):
        with pytest.raises(api.UsageError, match=r"target='.*: expected one of"):
            named_target(wrong)


@pytest.mark.parametrize(
    ("gpu", "arch"),
    [("H100", "sm_90a"), ("rtx4090", "sm_89"), ("NVIDIA A100-SXM4", "sm_80"), ("a10g", "sm_86")],
)
def test_the_target_of_a_gpu_is_named(gpu: str, arch: str) -> None:
    with pytest.raises(api.UsageError, match=f"did you mean '{arch}'"):
        named_target(gpu)


MIXED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[n, 4] x, bool c) => (float[n, 4] y) {
  a = Relu (x)
  z = NonZero (a)
  t = Cast <to = 1> (z)
  s = ReduceSum <keepdims = 0> (t)
  b = If (c) <
    then_branch = then () => (float[n, 4] p) { p = Exp (a) },
    else_branch = other () => (float[n, 4] q) { q = Neg (a) }
  >
  y = Add (b, s)
}
"""


def test_memory_is_that_of_the_cuda_backend() -> None:
    with pytest.raises(api.UsageError, match="its engines are not loaded"):
        inspect(DIGITS, memory=True, placement="tensorrt", target="sm_89")
    with pytest.raises(api.UsageError, match="must be cuda or tensorrt, not numpy"):
        inspect(DIGITS, memory=True, target="sm_89")


def test_control_flow_and_unknown_sizes_end_a_plan() -> None:
    found = api.inspect(parse_model(MIXED), placement="cuda", target="sm_80", dims={"n": 2})
    assert found.placement is not None
    by_operator = {row.operators: row.backend for row in found.placement if row.operators}
    assert by_operator["Relu"] == "cuda"
    assert by_operator["If"] == "host"
    assert found.backend == "cuda on sm_80, 108 multiprocessors"


def test_what_nobody_runs_is_named() -> None:
    proto = parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>\n'
        "g (float[n, 4] x) => (float[n, 4] y) { a = Relu (x)\n"
        'y = ai.onnx.ml.Normalizer <norm = "L1"> (a) }'
    )
    found = api.inspect(proto, capability="cuda", target="sm_90a")
    assert found.capabilities is not None
    assert {each.operator: each.backend for each in found.capabilities}["Relu"] == "cuda"
    with_numpy = api.inspect(proto, capability="cuda", target="sm_90a", fallback="numpy")
    assert with_numpy.capabilities is not None
    assert all(each.ok for each in with_numpy.capabilities)


STRINGS = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[3] x, string[3] s) => (float[3] y, string[3] t) {
  y = Relu (x)
  t = StringConcat (s, s)
}
"""


def test_strings_are_not_on_a_gpu() -> None:
    proto = parse_model(STRINGS)
    with pytest.raises(api.UnsupportedError, match=r"StringConcat 't'.*holds strings"):
        api.inspect(proto, placement="cuda", target="sm_90a")
    found = api.inspect(proto, placement="cuda", target="sm_90a", fallback="numpy").placement
    assert found is not None
    assert {row.operators: row.backend for row in found if row.operators and row.nodes} == {
        "Relu": "cuda",
        "StringConcat": "numpy",
    }
    able = api.inspect(proto, capability="cuda", target="sm_90a").capabilities
    assert able is not None
    assert {each.operator: each.ok for each in able} == {"Relu": True, "StringConcat": False}


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("inspect classifier.onnx --placement cuda --target sm_90a", 0, "sm_90a, 132"),
        ("inspect classifier.onnx --capability cuda --target sm_86:46", 0, "sm_86, 46"),
        ("inspect classifier.onnx --algorithms --target sm_80", 0, "sm_80, 108"),
        ("tune classifier.onnx --show-space --target sm_89", 0, "sm_89, 142"),
        ("inspect classifier.onnx --placement cuda --target sm_9", 2, "sm_90a"),
        ("inspect classifier.onnx --placement numpy --target sm_80", 2, "target"),
        ("inspect classifier.onnx --algorithms -b cudnn --target sm_80", 2, "--target"),
        ("tune classifier.onnx --target sm_80", 2, "--show-space"),
    ],
)
def test_commands(tercet: Tercet, folder: Path, command: str, code: int, words: str) -> None:
    models.write(models.classifier(), folder / "classifier.onnx")
    done = tercet(*command.split())
    assert done.code == code, done.err
    assert words in (done.err if code else done.out)


def test_memory_needs_no_gpu(tercet: Tercet, folder: Path) -> None:
    pytest.importorskip("cuda.core", reason="cuda.core is not installed")
    models.write(models.classifier(), folder / "classifier.onnx")
    options = ("--placement", "cuda", "--memory", "--target", "sm_80")
    done = tercet("inspect", "classifier.onnx", *options)
    assert done.code == 0, done.err
    assert "memory, cuda on sm_80" in done.out


def test_a_capability_needs_no_gpu(tercet: Tercet) -> None:
    done = tercet("inspect", "classifier.onnx", "--capability", "cuda", "--json")
    here = any(found for found in api.available() if found.name == "cuda")
    assert done.code == 0
    assert done.json["backend"] == ("cuda" if here else "cuda on sm_90a, 132 multiprocessors")


@pytest.mark.parametrize(
    ("precision", "factors", "rate"),
    [
        ("float32", "float32", 989e12 / 3),
        ("tf32", "float32", 494e12),
        ("float16", "float16", 989e12),
    ],
)
def test_limits_are_those_of_the_data_sheet(precision: str, factors: str, rate: float) -> None:
    """An H200 multiplies 989e12 float16 a second, and 330e12 float32; it moves 4.8e12 bytes."""
    weights = numpy_helper.from_array(np.zeros((2048, 2048), np.float32), "w")
    model = parse_model("""
        <ir_version: 10, opset_import: ["" : 23]>
        g (float[2048,2048] x, float[64,8] s, int64[2,1] i, float[2,8] u)
            => (float[2048,2048] z, float[64,8] t) {
          y = MatMul(x, w)  z = Softmax(y)
          r = Exp(s)  t = ScatterND(r, i, u)
        }""")
    model.graph.initializer.append(weights)
    flops, whole = 2 * 2048**3, 2048 * 2048
    found = inspect(model, placement="cuda", target="sm_90a", precision=precision)
    costs = {each.row.operators: each for each in found.costs if each.kind == "step"}
    product = next(each for name, each in costs.items() if "MatMul" in name)
    assert (product.macs, product.factors, product.bound) == (flops // 2, (factors,), "compute")
    assert product.limit == pytest.approx(flops / rate)
    assert product.row.estimate is not None
    assert product.row.estimate > flops / rate
    softmax = next(each for name, each in costs.items() if "Softmax" in name)
    assert softmax.bound == "memory"
    assert softmax.limit == pytest.approx(softmax.nbytes / 4.8e12)
    assert softmax.nbytes in (8 * whole, 6 * whole, 4 * whole)
    scatter = costs["ScatterND"]  # in place, two rows of eight, and where they belong
    assert (scatter.nbytes, scatter.bound) == (2 * 4 * 2 * 8 + 2 * 8, "launch")
    assert scatter.row.work.launches == 1
    assert all(each.limit is None for each in found.costs if each.kind == "copy")
    entry = next(row for row in found.to_dict()["placement"] if row["operators"] == "ScatterND")
    assert entry["limit_ms"] == pytest.approx(0.5e-3)
    assert entry["work"]["launches"] == 1
    half = inspect(model, placement="cuda", target="sm_90a:66", precision=precision).costs
    assert max(each.limit or 0 for each in half) == pytest.approx(2 * flops / rate)


AWAITED = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[4, 8] x, bool[4] c, float[8, 8] w) => (float[a, 8] y) {
  s = Compress <axis = 0> (x, c)
  r = Relu (s)
  h = MatMul (r, w)
  y = Add (h, r)
}
"""


def test_what_waits_for_sizes_is_shown_as_planned_later(tercet: Tercet) -> None:
    """On a GPU all behind Compress, on the host from the product on."""
    with api.load(AWAITED) as model:
        on_paper = [
            (row.backend, row.kind, *row.nodes) for row in paper_rows(model, TARGETS["sm_90a"])
        ]
        on_host = [(row.backend, row.kind, *row.nodes) for row in model.placement()]
        shapes = {"x": np.zeros((4, 8), np.float32), "c": np.ones(4, bool)}
        model.run({**shapes, "w": np.zeros((8, 8), np.float32)})
        after = [row.kind for row in model.placement()]
    later = [("when run", "later", name) for name in "rhy"]
    assert on_paper == [("numpy", "host", "s"), *later]
    assert on_host == [("numpy", "host", "s"), ("numpy", "host", "r"), *later[1:]]
    assert after == ["host", "host", "step"]
    Path("m.onnxtxt").write_text(AWAITED)
    done = tercet("inspect", "m.onnxtxt", "--placement", "cuda", "--target", "sm_90a")
    words = " ".join(done.out.split())
    assert "the shape of 'h' depends on the data: float32[?,8]" in words
    assert "3 nodes planned when they first run" in words
