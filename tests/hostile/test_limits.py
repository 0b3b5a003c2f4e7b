"""Models that want too much time or memory end soon, with an error that says so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import tercet

ROOT = Path(__file__).resolve().parents[2]
P = 1 << 44
X = np.ones((1, 1, 3), np.float32)


def loaded(text: str, **options: Any) -> tercet.Model:
    opsets = '["" : 21, "ai.onnx.ml" : 5]'
    return tercet.load(parse_model(f"<ir_version: 10, opset_import: {opsets}>\n{text}"), **options)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────

ENDLESS = """g (int64 m, float[1] x) => (y) {
  yes = Constant <value = bool {1}> ()
  y = Loop (m, yes, x) <body = b (i, c, v) => (d, w) { d = Identity (c)  w = Add (v, v) }> }"""
NESTED = """g (int64 m, float[n] x) => (y) {
  y = Loop (m, , x) <body = b (i, c, v) => (d, w) {
    d = Identity (c)  w = Loop (m, , v) <body = e (j, k, u) => (f, t) {
      f = Identity (k)  t = Neg (u) }> }> }"""
SEQUENCE = """g (int64 m, float[1] x) => (y) {
  s = SequenceEmpty ()  e = SequenceInsert (s, x)
  r = Loop (m, , e) <body = b (i, c, v) => (d, w) {
    d = Identity (c)  p = SequenceErase (v)  w = SequenceInsert (p, x) }>
  y = SequenceLength (r) }"""


@pytest.mark.parametrize("text", [ENDLESS, NESTED, SEQUENCE], ids=["plan", "nested", "sequence"])
@pytest.mark.parametrize("where", ["the main thread", "another thread"])
def test_a_run_that_never_ends(text: str, where: str) -> None:
    found: list[BaseException] = []

    def run(model: tercet.Model) -> None:
        try:
            model.run({"m": np.array(1 << 60), "x": X[0, 0, :1]}, timeout=0.2)
        except BaseException as error:
            found.append(error)

    with loaded(text) as model:
        if where == "another thread":
            thread = threading.Thread(target=run, args=(model,))
            thread.start()
            thread.join()
        else:
            run(model)
        assert isinstance(found[0], tercet.TimeLimitError), found[0]
        assert "not done after 0.2 s" in str(found[0])
        model.run({"m": np.array(3), "x": X[0, 0, :1]}, timeout=60)


def test_loading_in_no_time() -> None:
    nodes = "".join(f"x{i + 1} = Relu (x{i}) " for i in range(300))
    text = f"g (float[n] x0) => (x300) {{ {nodes} }}"
    with pytest.raises(tercet.TimeLimitError, match="not done after 1e-06 s"):
        loaded(text, timeout=1e-6)
    with loaded(text, timeout=60) as model, pytest.raises(tercet.TimeLimitError):
        model.run({"x0": X[0, 0]}, timeout=1e-6)


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_that_is_none(seconds: float) -> None:
    text = "g (float[n] x) => (y) { y = Relu (x) }"
    with pytest.raises(tercet.UsageError, match=r"timeout=.* > 0"):
        loaded(text, timeout=seconds)
    with loaded(text) as model, pytest.raises(tercet.UsageError, match=r"timeout=.* > 0"):
        model.run({"x": X[0, 0]}, timeout=seconds)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────

#: Sizes that follow from constants and attributes of a few bytes; x is float[1,1,3].
BOMBS = {
    "ConstantOfShape": """n = Constant <value_ints = [9223372036854775807]> ()
        y = ConstantOfShape (n)""",
    **{
        operator: f"n = Constant <value_ints = [{P}, {P}]> () c = ConstantOfShape (n) "
        f"y = {operator} (c)"
        for operator in ("EyeLike", "Trilu", "RandomNormalLike", "Neg", "NonZero", "ReduceSum")
    },
    "Gather": f"""n = Constant <value_ints = [{P}]> ()
        c = ConstantOfShape <value = int64[1] {{0}}> (n) y = Gather (x, c)""",
    "CumSum": "n = Constant <value_ints = [9223372036854775807]> () c = ConstantOfShape (n) "
    "a = Constant <value_int = 0> () y = CumSum (c, a)",
    "Where": f"""n = Constant <value_ints = [{P}]> () a = Constant <value_int = 0> ()
        c = ConstantOfShape <value = bool[1] {{1}}> (n) y = Where (c, a, a)""",
    "Conv": f"y = Conv <pads = [{P}, 0]> (x, x)",
    "Conv of few results": f"y = Conv <pads = [{P}, 0], strides = [{P}]> (x, x)",
    "AveragePool": f"y = AveragePool <kernel_shape = [{P}], pads = [{P - 1}, {P - 1}], "
    f"strides = [{P}]> (x)",
    "MaxPool": f"y = MaxPool <kernel_shape = [{P}], pads = [{P - 1}, {P - 1}], strides = [{P}]>(x)",
    "LpPool": f"y = LpPool <kernel_shape = [{P}], pads = [{P - 1}, {P - 1}], strides = [{P}]> (x)",
    "LRN": f"y = LRN <size = {P + 1}> (x)",
    "ConvTranspose": f"y = ConvTranspose <strides = [{P}]> (x, x)",
    "Pad": f'p = Constant <value_ints = [0, 0, {P}, 0, 0, {-P}]> () y = Pad <mode = "edge"> (x, p)',
    "RoiAlign": """i = Constant <value_ints = [0]> () z = Unsqueeze (x, i)
        r = Constant <value_floats = [0.0, 0.0, 1.0, 1.0]> () q = Unsqueeze (r, i)
        y = RoiAlign <sampling_ratio = 1000000> (z, q, i)""",
    "RoiAlign of a large region": """i = Constant <value_ints = [0]> () z = Unsqueeze (x, i)
        r = Constant <value_floats = [0.0, 0.0, 1e12, 1e12]> () q = Unsqueeze (r, i)
        y = RoiAlign (z, q, i)""",
    "Multinomial": f"a = Flatten (x) y = Multinomial <sample_size = {P}> (a)",
    "TreeEnsembleRegressor": """a = Flatten (x) y = ai.onnx.ml.TreeEnsembleRegressor <
        n_targets = 1125899906842624, nodes_falsenodeids = [2, 0, 0], nodes_featureids = [0, 0, 0],
        nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_nodeids = [0, 1, 2],
        nodes_treeids = [0, 0, 0], nodes_truenodeids = [1, 0, 0], nodes_values = [1.0, 0.0, 0.0],
        target_ids = [0, 0], target_nodeids = [1, 2], target_treeids = [0, 0],
        target_weights = [1.0, 2.0]> (a)""",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    with (
        pytest.raises(tercet.LimitError, match=r"[\d,]{11,} bytes.*\(max_bytes, --max-bytes\)"),
        loaded(f"g (float[1,1,3] x) => (y) {{ {BOMBS[name]} }}") as model,
    ):
        model.run({"x": X})


def test_results_count_together() -> None:
    names = [f"y{i}" for i in range(64)]
    nodes = "".join(f"{name} = Expand (x, n) " for name in names)
    results = ", ".join(names)
    text = f"g (float[1] x) => ({results}) {{ n = Constant <value_ints = [8192]> () {nodes} }}"
    with loaded(text, max_bytes=8 << 20) as model:
        assert len(model(X[0, 0, :1])) == 64
    constant = text.replace("float[1] x", "").replace("Expand (x, n)", "ConstantOfShape (n)")
    for each, feeds in ((text, (X[0, 0, :1],)), (constant, ())):
        with (
            loaded(each, max_bytes=1 << 20) as model,
            pytest.raises(tercet.LimitError, match="bytes for the plan are over the limit"),
        ):
            model(*feeds)


def test_idle_plans_go_before_a_run_is_refused() -> None:
    with loaded("g (float[n] x) => (y) { y = Relu (x) }", max_bytes=1 << 20) as model:
        for size in range(40_000, 40_020):
            assert model(np.ones(size, np.float32))[0].size == size


@pytest.mark.parametrize("results", ["y", "y, z"])
def test_no_plan_goes_for_what_can_never_fit(results: str) -> None:
    """`y`, or `y` and `z` together, are the square of where the 1 is: too large at the end."""
    text = f"""g (float[n] x) => ({results}) {{
        i = NonZero (x)  zero = Constant <value_ints = [0]> ()  p = Squeeze (i, zero)
        s = Concat <axis = 0> (p, p)  y = ConstantOfShape (s)
        z = ConstantOfShape <value = int32 {{1}}> (s) }}"""
    end = 600 if results == "y" else 400
    with loaded(text, max_bytes=1 << 20) as model:
        for n in (10, 11, 12):
            model(np.eye(1, n, 3, np.float32)[0])
        idle = {*model._programs.pool.idle}
        with pytest.raises(tercet.LimitError, match="are over the limit"):
            model(np.eye(1, 1000, end, np.float32)[0])
        assert len(idle) == 3
        assert idle <= {*model._programs.pool.idle}


def test_values_that_nobody_reads_any_more_do_not_count() -> None:
    """Each NonZero is a node that runs on its own and gives 32 KiB."""
    chain = "".join(f"i{k} = NonZero (x{k}) x{k + 1} = Squeeze (i{k}) " for k in range(40))
    text = f"g (float[4096] x0) => (y) {{ {chain} y = Identity (x40) }}"
    with loaded(text, max_bytes=600 << 10) as model:
        assert model(np.ones(4096, np.float32))[0].shape == (4076,)
    held = text.replace("=> (y)", f"=> (y, {', '.join(f'i{k}' for k in range(40))})")
    with loaded(held, max_bytes=600 << 10) as model, pytest.raises(tercet.LimitError):
        model(np.ones(4096, np.float32))


DOUBLED = "".join(f"s{i + 1} = StringConcat (s{i}, s{i}) " for i in range(45))
STRINGS = {
    "constants": f"""g () => (y) {{
        s0 = Constant <value_strings = ["ab"]> () {DOUBLED} y = Identity (s45) }}""",
    "inputs": f"g (string[1] s0) => (y) {{ {DOUBLED} y = Identity (s45) }}",
    "a loop": """g (string[1] s0, int64 m) => (y) {
        y = Loop (m, , s0) <body = b (i, c, v) => (d, w) {
          d = Identity (c) w = StringConcat (v, v) }> }""",
    "broadcast": """g (string[1] s0) => (y) {
        n = Constant <value_ints = [1000, 1]> () k = Constant <value_ints = [1, 1000]> ()
        a = Expand (s0, n) b = Expand (s0, k) y = StringConcat (a, b) }""",
}


@pytest.mark.parametrize("name", STRINGS)
def test_texts_count(name: str) -> None:
    texts = {"s0": np.array(["ab" * (50 if name == "broadcast" else 1)]), "m": np.array(1 << 40)}
    with (
        loaded(STRINGS[name], max_bytes=16 << 20, fold_bytes=1 << 20) as model,
        pytest.raises(tercet.LimitError, match=r"StringConcat|Loop"),
    ):
        model.run({value.name: texts[value.name] for value in model.inputs})


LITTLE = """
import resource, sys
import numpy as np
import tercet
from onnx.parser import parse_model
text = '<ir_version: 10, opset_import: ["" : 21]> g (float[n] x) => (y) { %s }' % sys.argv[1]
model = tercet.load(parse_model(text), max_bytes=1 << 40)
model(np.ones(8, np.float32))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), -1))
try:
    model(np.ones(40_000_000 if len(sys.argv) < 3 else int(sys.argv[2]), np.float32))
except tercet.TercetError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="there is no /proc here")
@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ("y = Softmax (x)", 40_000_000),
        ("i = NonZero (x) y = Cast <to = 1> (i)", 40_000_000),
        ("a = Sin (x) b = Cos (x) y = Mul (a, b)", 20_000_000),
        ("k = Constant <value_ints = [5]> () y, i = TopK (x, k)", 20_000_000),
    ],
)
def test_memory_that_the_system_does_not_give(nodes: str, size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LITTLE, nodes, str(size)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("DeviceOutOfMemory "), done.stderr[-2000:]
