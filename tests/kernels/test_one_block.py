"""Small steps as one kernel of one block: what joins, its results, and that sizes are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.driver.compile import Compiler
from tercet.backends.cuda.driver.joined_step import JoinedStep
from tercet.backends.cuda.recipe.one_block import BlockSource, pays, refusal
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.types import Array
from tercet.runtime.options import Options
from tercet.runtime.plan.layout import lay_out
from tercet.runtime.plan.rows import Layout
from tercet.runtime.session.model import Model
from tercet.runtime.session.placement import describe
from tercet.tools.profile.row_timing import _Watched

from .dry import DryDevice, dry_backend, launches, normal, planned, single, stores
from .emulator import needs_compiler

#: Axes and places that the graphs below name.
KNOWN = {"last": [-1], "first": [0], "two": [2], "turn": [3, 0, 2, 1], "rows": [[1], [0]]}
GRAPHS: dict[str, str] = {
    # Reductions by a block, two kernels of one step with a workspace, copies to parts of a tensor.
    "quantized softmax": """(float[n, m] x, float[m] b) => (float[n, k] y, float s) {
        a = Add(x, b)
        r = ReduceMax<keepdims=1>(a, last)
        c = Sub(a, r)
        e = Exp(c)
        t = ReduceSum<keepdims=1>(e, last)
        p = Div(e, t)
        q, scale, zero = DynamicQuantizeLinear(p)
        d = DequantizeLinear(q, scale, zero)
        y = Concat<axis=1>(d, a)
        s = ReduceMean<keepdims=0>(y)
    }""",
    # Chains that nothing connects, which warps share out, and what all of them give.
    "branches": """(float[n, m] x, float[m] b) => (float[n, k] y, float[m, n] z) {
        a = Sin(x)
        c = Sub(x, b)
        d = Relu(x)
        e = Mul(d, b)
        f = Concat<axis=1>(a, c, e, d)
        g = Transpose<perm=[1, 0]>(c)
        y = Tanh(f)
        h = Mul(g, g)
        z = Neg(h)
    }""",
    # A tensor that is changed in place, and read before.
    "written": """(float[n, m] x, float[m] b) => (float[n, m] y, float[n, m] z) {
        a = Add(x, b)
        u = Gather<axis=0>(x, first)
        w = Unsqueeze(b, first)
        v = Concat<axis=0>(u, w)
        y = ScatterND(a, rows, v)
        z = Mul(a, y)
    }""",
    # Elements that warps compare and add up.
    "searched": """(float[n, m] x, float[m] b) => (float[n, 2] y, int64[n, 2] i, int64[n] j) {
        a = Mul(x, b)
        y, i = TopK(a, two)
        c = ArgMax<axis=1, keepdims=0>(a)
        d = Softmax(a)
        l = ArgMin<axis=1, keepdims=0>(d)
        j = Add(c, l)
    }""",
}


def model(name: str) -> onnx.ModelProto:
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> g {GRAPHS[name]}')
    arrays = (numpy_helper.from_array(np.array(data), key) for key, data in KNOWN.items())
    proto.graph.initializer.extend(arrays)
    return proto


def feeds(rows: int, columns: int) -> dict[str, Array]:
    return {"x": normal(rows, columns), "b": normal(columns)}


def laid_out(name: str, rows: int, columns: int, device: DryDevice, **options: Any) -> Layout:
    with tercet.load(model(name)) as host:
        shapes = {key: data.shape for key, data in feeds(rows, columns).items()}
        (plan,) = host.prepare(shapes).plans
        backends, made = [dry_backend(device)], stores(device)
        return lay_out(plan.graph.clone(), backends, Options(**options), made)[0]


def joined(layout: Layout) -> list[list[str]]:
    """Return the kernels that each kernel of one block stands for."""
    steps = [row.step for row in layout.rows if isinstance(row.step, JoinedStep)]
    return [[launch.entry for launch in step.launch.parts] for step in steps]


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (5, 64), (9, 130)])
def test_results(name: str, rows: int, columns: int, emulated: CudaBackend) -> None:
    given = feeds(rows, columns)
    session = onnxruntime.InferenceSession(model(name).SerializeToString())
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, map(np.asarray, session.run(None, given)), strict=True))
    found: list[Mapping[str, Array]] = []
    with tercet.load(model(name)) as host:
        graph = host.imported.clone()
    for check_each in (False, True):
        options = Options(check_each=check_each)
        with Model(graph.clone(), [emulated], options, evaluate) as one:
            found.append(one.run(given))
            plan = one.prepare({key: data.shape for key, data in given.items()})
            assert any(isinstance(row.step, JoinedStep) for row in plan.rows) is not check_each
    for key, array in wanted.items():
        np.testing.assert_array_equal(found[0][key], found[1][key], "as by themselves")
        # A quantized number may be the next one.
        limit = 5e-3 if name == "quantized softmax" else 1e-5
        np.testing.assert_allclose(found[0][key], array, rtol=limit, atol=limit)


@pytest.mark.parametrize("name", GRAPHS)
def test_sizes_are_arguments(name: str) -> None:
    """The machine code of all sizes that the same steps have the same words for is the same."""
    device = DryDevice()
    found = [joined(laid_out(name, n, m, device)) for n in (3, 5) for m in (17, 19, 23)]
    assert all(each == found[0] for each in found)
    texts = {s.text() for s in device.compiler.sources if isinstance(s, BlockSource)}
    assert len(texts) == len(found[0])


def test_a_hundred_sizes_take_few_kernels() -> None:
    """They differ in the width of words, and in how wide a reduction is, as kernels do anyway."""
    together, apart = DryDevice(), DryDevice()
    for columns in range(1, 101):
        laid_out("quantized softmax", 1, columns, together)
        laid_out("quantized softmax", 1, columns, apart, check_each=True)
    assert len(together.compiler.sources) < len(apart.compiler.sources) / 2


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_compile(name: str, target: Target, cache: Path) -> None:
    device = DryDevice()
    laid_out(name, 4, 12, device)
    sources = [s for s in device.compiler.sources if isinstance(s, BlockSource)]
    assert sources
    for source in sources:
        assert Compiler(target, cache).code(source)


# ── which rows join ──────────────────────────────────────────────────────────────────────────────

#: Nodes, and how many kernels each kernel of one block stands for.
PLANS: dict[str, tuple[str, list[int]]] = {
    "what has to wait anyway": (
        "p = MatMul(x, w) a = Softmax(p) b = Softmax(c) y = Add(a, b)",
        [3],
    ),
    "another stream would wait": (
        "p = MatMul(x, w) a = Softmax(p) b = Softmax(c) q = MatMul(b, w) s = Softmax(q)"
        " y = Sub(a, s)",
        [2],
    ),
    "over a step between": (
        "a = Softmax(c) p = MatMul(a, w) b = Softmax(x) q = MatMul(b, w) y = Add(p, q)",
        [2],
    ),
    "not over what is needed": (
        "a = Softmax(c) p = MatMul(a, w) b = Softmax(p) y = Sub(a, b)",
        [2],
    ),
    "too many threads": ("p = Expand(c, large) q = Sin(p) y = Softmax(q)", []),
}


@pytest.mark.parametrize("name", PLANS)
def test_rows_that_join(name: str) -> None:
    nodes, counts = PLANS[name]
    text = f"g (float[1, 256] x, float[1, 256] c) => (float[r, 256] y) {{ {nodes} }}"
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]> {text}')
    arrays = {"w": normal(256, 256), "large": np.array([4096, 256])}
    proto.graph.initializer.extend(numpy_helper.from_array(a, key) for key, a in arrays.items())
    with tercet.load(proto) as host:
        (plan,) = host.prepare({}).plans
        device = DryDevice()
        layout, _ = lay_out(plan.graph.clone(), [dry_backend(device)], Options(), stores(device))
    assert [len(each) for each in joined(layout)] == counts


def test_placements_list_the_parts() -> None:
    layout = laid_out("branches", 3, 17, DryDevice())
    (row,) = (row for row in describe(layout.rows, ()) if row.kernel.startswith("one block"))
    assert row.kernel == "one block of elementwise, transpose, concat"
    first, *parts = row.details
    assert "elements" in first
    assert [part.partition(": ")[0] for part in parts][:2] == ["elementwise Sin", "elementwise Sub"]


def test_profiles_time_what_runs_as_one() -> None:
    """Their rows run one by one, which by itself would join none."""
    device = DryDevice()
    assert not joined(laid_out("branches", 3, 17, device, check_each=True))
    with tercet.load(model("branches")) as host:
        shapes = {key: data.shape for key, data in feeds(3, 17).items()}
        (plan,) = host.prepare(shapes).plans
        watched: Any = _Watched(dry_backend(device))
        options = Options(check_each=True)
        layout, _ = lay_out(plan.graph.clone(), [watched], options, stores(device))
    assert joined(layout)


#: Why a kernel cannot be part of one: operators, inputs, constants among them.
REFUSED: dict[str, tuple[str, list[Any], tuple[int, ...]]] = {
    "asm volatile": ("MatMul", [normal(1, 64), normal(64, 64)], (1,)),
    "blocks of": ("Tanh", [normal(4096, 64)], ()),
    "share memory": ("ReduceMax", [normal(8, 300), np.array([1])], (1,)),
    "": ("Tanh", [normal(40, 64)], ()),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_reasons(reason: str) -> None:
    operator, inputs, constants = REFUSED[reason]
    (launch,) = launches(planned(single(operator, inputs, constants)))
    found = refusal(launch)
    assert reason in found if reason else not found


def test_turns_of_a_block_cost_what_launches_do() -> None:
    """4,095 elements, an odd number, have a thread each: four turns of 1,024 threads."""
    (wide,) = launches(planned(single("Tanh", [normal(63, 65)], ())))
    (small,) = launches(planned(single("Tanh", [normal(3, 5)], ())))
    assert pays([small, small])
    assert not pays([small])
    assert not pays([wide, *[small] * 3])
    assert pays([wide, *[small] * 4])
