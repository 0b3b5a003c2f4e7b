"""A decoder's step from its first product to the result of attention: one kernel, if it is that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cuda.attention import flash_parts
from tercet.backends.cuda.attention.flash_parts import BUSY
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.gemm.tile import clusters_of
from tercet.backends.cuda.recipe.launch import Launch
from tercet.backends.cuda.recipe.targets import A100, H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.ir.dtypes import bfloat16, float16, float32, float64
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import Array, TensorType
from tercet.runtime.ops.attention import Attention, RotaryEmbedding
from tercet.runtime.ops.elementwise import Add, Cast, Mul, Sigmoid, Sub
from tercet.runtime.ops.gather import TensorScatter
from tercet.runtime.ops.movement import Split, Transpose
from tercet.runtime.ops.norm import RMSNormalization
from tercet.runtime.ops.reduce import ReduceLogSumExp
from tercet.runtime.ops.shape import Reshape
from tercet.runtime.plan.backend import Backend
from tercet.runtime.session.model import Model

from .cubins import PtxCompiler, all_compile, assert_arguments
from .dry import DryCompiler, DryDevice, launches, normal, planned
from .emulator import needs_compiler
from .samples import ERROR, OPTIONS

COMPILES = {"attention/attention_decode.cu"}
#: What is added to mean squares: enough to be seen.
EPSILON = 0.05
#: A GPU whose blocks form clusters, for the emulator.
CLUSTERS = Target("sm_90", 132, 232448)


@dataclass(frozen=True)
class Decode:
    """A step of a decoder over caches of static size.

    Attributes:
        before: tokens in the caches, by sample.
        new: tokens of the step.
        heads: of queries, and of keys.
        size: of a head.
        room: of the caches.
        rotated: elements of a head that are rotated; 0 for none.
        interleaved: whether pairs are neighbours.
        tables: "positions" if positions index tables, "samples" if each sample has its own.
        mode: of TensorScatter.
        dtype: of everything.
        counted: whether attention gets lengths.
        mask: "flags" or "numbers" that hide every third key; "" for none.
        computed: whether caches come from another node.
        kept: "keys" if another node reads the rotated keys, "queries" the queries; "" for none.
        constant: whether the tables of angles are constants.
        joined: whether queries, keys and values are parts of the rows of one tensor.
        normed: what is normalized before heads of queries and new keys are rotated: ``heads``, or
            ``rows`` of one tensor before they are transposed; "" for nothing.
        sink: whether each head has one.
        attributes: of the attention.
    """

    before: tuple[int, ...] = (37, 0)
    new: int = 1
    heads: tuple[int, int] = (4, 2)
    size: int = 16
    room: int = 64
    rotated: int = -1
    interleaved: int = 0
    tables: str = "positions"
    mode: str = "linear"
    dtype: Any = float16
    counted: bool = True
    mask: str = ""
    computed: bool = False
    kept: str = ""
    constant: bool = False
    joined: bool = False
    normed: str = ""
    sink: bool = False
    attributes: tuple[tuple[str, Any], ...] = (("is_causal", 1),)

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        return self.size if self.rotated < 0 else self.rotated

    def feeds(self, seed: int = 0) -> dict[str, Array]:
        """Return what the graph gets."""
        draw = np.random.default_rng(seed)
        numbers = partial(normal, dtype=self.dtype, draw=draw)
        batch, (of_q, of_k) = len(self.before), self.heads
        start = np.array(self.before)
        places = np.maximum(start, 0)[:, None] + np.arange(self.new)
        angles = draw.uniform(0, 6, (self.room + self.new, self.rotary_dim // 2))
        angles = angles[places] if self.tables == "samples" else angles
        feeds = {
            "q": numbers(batch, of_q, self.new, self.size),
            "k": numbers(batch, of_k, self.new, self.size),
            "v": numbers(batch, of_k, self.new, self.size),
            "keys": numbers(batch, of_k, self.room, self.size),
            "values": numbers(batch, of_k, self.room, self.size),
            "first": start,
        }
        if self.rotary_dim:
            feeds["cos"], feeds["sin"] = (f(angles).astype(self.dtype) for f in (np.cos, np.sin))
            if self.tables == "positions":
                feeds["places"] = places
        if self.counted:
            ends = np.where(start < 0, self.room, start + self.new)
            feeds["lengths"] = np.minimum(ends, self.room)
        if self.normed:
            feeds["of_q"], feeds["of_k"] = (numbers(self.size) for _ in range(2))
        if self.sink:
            feeds["sink"] = draw.uniform(-1, 3, (1, of_q, 1, 1)).astype(float32)
        if self.mask:
            shown = np.arange(self.room) % 3 != draw.integers(0, 3, (batch, 1, self.new, 1))
            number = np.where(shown, draw.standard_normal(shown.shape), -np.inf).astype(self.dtype)
            feeds["mask"] = shown if self.mask == "flags" else number
        return feeds

    def inputs(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return the graph's inputs."""
        fixed = ("of_q", "of_k", "sink", *(("cos", "sin") if self.constant else ()))
        found = {name: a for name, a in feeds.items() if name not in fixed}
        if self.joined:
            parts = (found.pop(name).swapaxes(1, 2) for name in ("q", "k", "v"))
            shape = (len(self.before), self.new, -1)
            found["rows"] = np.concatenate([part.reshape(shape) for part in parts], -1)
        return found

    def graph(self) -> Graph:
        """Return the step, its caches outputs beside the result."""
        graph, feeds = Graph("step"), self.feeds()
        given = {
            name: graph.add_input(name, TensorType(data.dtype, data.shape))
            for name, data in self.inputs(feeds).items()
        }
        if self.constant:
            given |= {name: graph.constant(feeds[name]) for name in ("cos", "sin")}
        if self.joined:
            given |= self._parted(graph, given["rows"])
        q, k = given["q"], given["k"]
        if self.normed == "heads":
            q, k = self._normalized(graph, q, "q"), self._normalized(graph, k, "k")
        if self.rotary_dim:
            rotation = RotaryEmbedding(
                rotary_embedding_dim=self.rotary_dim % self.size, interleaved=self.interleaved
            )
            more = [given["cos"], given["sin"], *([given["places"]] if "places" in given else [])]
            q, k = (graph.insert(rotation, [x, *more]).output for x in (q, k))
        pasts = [given["keys"], given["values"]]
        if self.computed:
            zero = graph.constant(np.zeros((), self.dtype))
            pasts = [graph.insert(Add(), [past, zero]).output for past in pasts]
        append = TensorScatter(mode=self.mode)
        keys = graph.insert(append, [pasts[0], k, given["first"]]).output
        values = graph.insert(append, [pasts[1], given["v"], given["first"]]).output
        inputs: list[Value | None] = [q, keys, values, given.get("mask"), None, None]
        inputs += [given["lengths"]] if self.counted else []
        mode = {"qk_matmul_output_mode": 2} if self.sink else {}
        attention = Attention(**mode, **dict(self.attributes))
        y, *others = graph.insert(attention, inputs, 4 if self.sink else 1).outputs
        if self.sink:
            y = _softened(graph, y, others[2], graph.constant(feeds["sink"]), self.dtype)
        outputs = {"y": y, "present_keys": keys, "present_values": values}
        outputs |= {"rotated": q if self.kept == "queries" else k} if self.kept else {}
        graph.set_outputs(outputs)
        infer(graph)
        return graph

    def _parted(self, graph: Graph, rows: Value) -> dict[str, Value]:
        """Return queries, keys and values by head, of rows with all of them."""
        of_q, of_k = self.heads
        counts = {"q": of_q, "k": of_k, "v": of_k}
        sizes = graph.constant(np.array([count * self.size for count in counts.values()]))
        split = graph.insert(Split(axis=2, num_outputs=3), [rows, sizes], 3)
        found: dict[str, Value] = {}
        for (name, count), part in zip(counts.items(), split.outputs, strict=True):
            shape = np.array([len(self.before), self.new, count, self.size])
            heads = graph.insert(Reshape(), [part, graph.constant(shape)]).output
            if self.normed == "rows" and name != "v":
                heads = self._normalized(graph, heads, name)
            found[name] = graph.insert(Transpose(perm=(0, 2, 1, 3)), [heads]).output
        return found

    def _normalized(self, graph: Graph, x: Value, name: str) -> Value:
        factors = graph.constant(self.feeds()[f"of_{name}"])
        return graph.insert(RMSNormalization(epsilon=EPSILON), [x, factors]).output

    def exact(self, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return results in float64, of the caches as they are rounded."""
        wide = {name: a.astype(float64) for name, a in feeds.items() if a.dtype == self.dtype}
        q, k = wide["q"], wide["k"]
        if self.normed:
            q, k = (
                x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * by
                for x, by in ((q, wide["of_q"]), (k, wide["of_k"]))
            )
        if self.rotary_dim:
            cos, sin = wide["cos"], wide["sin"]
            if self.tables == "positions":
                cos, sin = (table[feeds["places"]] for table in (cos, sin))
            q, k = (self._rotated(x, cos[:, None], sin[:, None]) for x in (q, k))
        batch, of_k = len(self.before), self.heads[1]
        caches = {"keys": wide["keys"].copy(), "values": wide["values"].copy()}
        for n, start in enumerate(self.before):
            for row in range(self.new):
                at = start + row
                at = at % self.room if self.mode == "circular" else at + self.room * (at < 0)
                if 0 <= at < self.room:
                    caches["keys"][n, :, at] = k[n, :, row]
                    caches["values"][n, :, at] = wide["v"][n, :, row]
        y = np.zeros(q.shape)
        options = dict(self.attributes)
        for n in range(batch):
            valid = feeds["lengths"][n] if self.counted else self.room
            shift = valid - self.new if self.counted else 0
            for head in range(self.heads[0]):
                kv = head // (self.heads[0] // of_k)
                for row in range(self.new):
                    scores = caches["keys"][n, kv] @ q[n, head, row] * self.size**-0.5
                    if cap := options.get("softcap"):
                        scores = cap * np.tanh(scores / cap)
                    t, place = np.arange(self.room), shift + row
                    hidden = t >= valid
                    if options.get("is_causal"):
                        hidden |= t > place
                    if (left := options.get("left_window_size", -1)) >= 0:
                        hidden |= place - t > left
                    if self.mask == "flags":
                        hidden |= ~feeds["mask"][n, 0, row]
                    if self.mask == "numbers":
                        scores = scores + wide["mask"][n, 0, row]
                    scores[hidden] = -np.inf
                    if np.isfinite(scores).any():
                        weights = np.exp(scores - scores.max())
                        total = weights.sum()
                        if self.sink:
                            total += np.exp(float(feeds["sink"][0, head, 0, 0]) - scores.max())
                        y[n, head, row] = weights / total @ caches["values"][n, kv]
        return {"y": y, "present_keys": caches["keys"], "present_values": caches["values"]}

    def _rotated(self, x: Array, cos: Array, sin: Array) -> Array:
        half, out = self.rotary_dim // 2, x.copy()
        if self.interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        out[..., first] = cos * x[..., first] - sin * x[..., second]
        out[..., second] = sin * x[..., first] + cos * x[..., second]
        return out


def _softened(graph: Graph, y: Value, scores: Value, sink: Value, dtype: Any) -> Value:
    """Return results of an attention with sinks, as the importer writes it."""
    wide = scores
    if dtype != float32:
        wide = graph.insert(Cast(to=float32), [scores]).output
    total = graph.insert(ReduceLogSumExp(), [wide, graph.constant(np.array([3]))]).output
    share = graph.insert(Sigmoid(), [graph.insert(Sub(), [total, sink]).output]).output
    if dtype != float32:
        share = graph.insert(Cast(to=dtype), [share]).output
    return graph.insert(Mul(), [y, share]).output


def check(case: Decode, backend: Backend, seed: int = 0) -> None:
    """Run a step twice, and compare both with float64 and each other."""
    feeds = case.feeds(seed)
    with Model(case.graph(), [backend], OPTIONS, evaluate) as model:
        found, again = (
            {name: np.asarray(a) for name, a in model.run(case.inputs(feeds)).items()}
            for _ in range(2)
        )
    for name, exact in case.exact(feeds).items():
        np.testing.assert_array_equal(found[name].view(np.int16), again[name].view(np.int16))
        limit = ERROR[case.dtype] * np.abs(exact).max()
        np.testing.assert_allclose(found[name].astype(float64), exact, rtol=0, atol=limit)


CASES = {
    "one": Decode(),
    "three samples": Decode(before=(3, 63, 20), new=1, room=64),
    "eight samples": Decode(before=(0, 1, 15, 16, 17, 31, 62, 63)),
    "first of all": Decode(before=(0,), new=1),
    "prompt of eight": Decode(before=(0, 8), new=8),
    "seven": Decode(before=(57, 1), new=7, dtype=bfloat16),
    "past the end": Decode(before=(62, 64), new=4),
    "from the end": Decode(before=(-5, 3), new=4, counted=False, attributes=()),
    "circular": Decode(before=(62, 1), new=4, mode="circular", counted=False, attributes=()),
    "heads of 64": Decode(size=64, heads=(8, 2), room=300, before=(257,), dtype=bfloat16),
    "heads of 96": Decode(size=96, new=2, room=150, before=(140,)),
    "heads of 128": Decode(size=128, heads=(8, 1), new=5, room=200, before=(190, 63)),
    "heads of 256": Decode(size=256, heads=(2, 1), room=100, before=(98,)),
    "eight rows of large heads": Decode(
        size=144, heads=(4, 2), new=4, room=300, before=(257, 3), dtype=bfloat16
    ),
    "nine rows of large heads": Decode(size=144, heads=(6, 2), new=3, room=300, before=(257, 3)),
    "large heads, window, sinks": Decode(
        size=160,
        heads=(8, 2),
        new=2,
        sink=True,
        before=(50, 9),
        attributes=(("is_causal", 1), ("left_window_size", 7)),
    ),
    "large heads, numbers": Decode(
        size=192, new=2, mask="numbers", room=200, counted=False, attributes=()
    ),
    "large heads, flags": Decode(
        size=256, mask="flags", before=(37, 0, 61), attributes=(("is_causal", 1), ("softcap", 2.0))
    ),
    "large heads, circular": Decode(
        size=144, before=(62, 1), new=4, mode="circular", counted=False, attributes=()
    ),
    "large heads, normed": Decode(normed="heads", joined=True, size=256, constant=True),
    "odd heads": Decode(size=20, heads=(6, 2), room=77, before=(70, 5), new=3),
    "many rows": Decode(heads=(10, 1), new=8, before=(30,)),
    "interleaved": Decode(interleaved=1, size=32, new=2),
    "part of a head": Decode(rotated=8, size=24, new=2),
    "interleaved part": Decode(rotated=12, size=20, interleaved=1),
    "no rotation": Decode(rotated=0, new=3),
    "angles of samples": Decode(tables="samples", new=2),
    "window": Decode(before=(50, 9), new=2, attributes=(("is_causal", 1), ("left_window_size", 7))),
    "softcap": Decode(attributes=(("is_causal", 1), ("softcap", 2.0))),
    "flags": Decode(mask="flags", new=2),
    "numbers": Decode(mask="numbers", counted=False, attributes=()),
    "all of the room": Decode(counted=False, attributes=()),
    "computed caches": Decode(computed=True, new=2),
    "queries are read": Decode(kept="queries"),
    "keys are read": Decode(kept="keys", new=2),
    "constant angles": Decode(constant=True, size=64, heads=(8, 2)),
    "constant angles of samples": Decode(constant=True, tables="samples", new=3, interleaved=1),
    "rows of all": Decode(joined=True, constant=True),
    "rows of many": Decode(joined=True, new=5, size=24, rotated=8, before=(30, 2, 59)),
    "rows without rotation": Decode(joined=True, new=2, rotated=0),
    "normed": Decode(normed="heads"),
    "normed heads of rows": Decode(
        normed="heads", joined=True, constant=True, size=128, heads=(8, 2)
    ),
    "normed heads of 96": Decode(
        normed="heads", size=96, rotated=64, new=2, room=150, before=(140,)
    ),
    "normed neighbours": Decode(normed="heads", interleaved=1, size=32, new=3, dtype=bfloat16),
    "normed rows": Decode(normed="rows", joined=True, constant=True, size=128, heads=(8, 2)),
    "normed rows of many": Decode(normed="rows", joined=True, new=5, size=32, before=(30, 2, 59)),
    "sinks": Decode(sink=True),
    "sinks of rows": Decode(sink=True, joined=True, constant=True, size=64, heads=(8, 1)),
    "sinks of many": Decode(
        sink=True,
        new=5,
        heads=(6, 2),
        before=(50, 9),
        dtype=bfloat16,
        attributes=(("is_causal", 1), ("left_window_size", 7)),
    ),
    "sinks, capped": Decode(sink=True, attributes=(("is_causal", 1), ("softcap", 2.0))),
    "normed before": Decode(normed="heads", size=80),  # by five threads
    "normed rows before": Decode(normed="rows", joined=True, size=80),
}
APART = {
    "float32": Decode(dtype=float32),
    "nine": Decode(new=9),
    "rows of a prompt": Decode(new=20, joined=True, before=(5, 0)),
    "normed rows of a prompt": Decode(new=20, joined=True, before=(5, 0), normed="rows"),
    "fewer keys than a product takes": Decode(room=12, before=(3, 0)),
    "sinks of a prompt": Decode(sink=True, new=20, joined=True, before=(5, 0)),
    "sinks of a prompt in float32": Decode(sink=True, new=20, before=(5, 0), dtype=float32),
    "sinks of a step in float32": Decode(sink=True, dtype=float32),
}


def planned_for(case: Decode, target: Target = H200) -> list[Launch]:
    return launches(planned(case.graph(), DryDevice(compiler=DryCompiler(target=target))))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_kernel(case: Decode) -> None:
    found = [launch.entry for launch in planned_for(case)]
    assert found.count("attention_decode") == 1
    assert not {"rotate_append", "tensor_scatter", "attention_mma"} & set(found)
    assert ("rotate" in found) == bool(case.kept)


@pytest.mark.parametrize("case", APART.values(), ids=APART)
def test_others_are_two(case: Decode) -> None:
    found = [launch.entry for launch in planned_for(case)]
    assert found.count("rotate_append") == 1
    assert "attention_decode" not in found


@pytest.mark.parametrize(
    "case",
    [case for name, case in CASES.items() if case.joined and not name.endswith("before")],
    ids=str,
)
def test_heads_are_read_where_they_are(case: Decode) -> None:
    """Nothing splits or transposes rows; only caches that are not updated in place are copied."""
    *copies, attention = planned_for(case)
    assert attention.entry == "attention_decode"
    assert all(copy.moot for copy in copies)


@pytest.mark.parametrize(("normed", "joined"), [("heads", False), ("heads", True), ("rows", True)])
@pytest.mark.parametrize("size", [80, 96, 112])
def test_heads_that_its_threads_cannot_normalize_are_normed_before(
    size: int, normed: str, joined: bool
) -> None:
    found = [each.entry for each in planned_for(Decode(normed=normed, size=size, joined=joined))]
    assert found.count("normalize_rows") == 2
    assert found[-1] == "attention_decode"
    assert "rotate_append" not in found


@pytest.mark.parametrize("normed", ["", "rows"])
def test_heads_of_a_prompt_are_read_where_they_are(normed: str) -> None:
    """Neither are parts of rows cut out, nor heads transposed."""
    *others, append, attention = planned_for(replace(APART["rows of a prompt"], normed=normed))
    assert (append.entry, attention.entry) == ("rotate_append", "attention_mma")
    kept = [each.entry for each in others if not each.moot]
    assert kept == ["normalize_rows"] * (2 if normed else 0)


def test_caches_that_kernels_write_are_read_behind_these() -> None:
    for computed in (False, True):
        (launch,) = (x for x in planned_for(Decode(computed=computed)) if x.entry[:4] == "atte")
        assert dict(launch.constants)["EARLY"] == (not computed)


@pytest.mark.parametrize("batch", [1, 4, 8, 16, 32])
def test_blocks_of_a_short_step_fit_on_the_gpu_at_one_time(batch: int) -> None:
    llama = Decode((512,) * batch, heads=(32, 8), size=64, room=2048)
    (launch,) = (x for x in planned_for(llama) if x.entry == "attention_decode")
    blocks, parts, _ = launch.grid
    assert blocks == 8 * batch
    assert 0.45 * H200.processors <= blocks * parts <= 2 * H200.processors
    assert launch.cluster == (1, parts, 1)
    assert parts == 1 or blocks < BUSY * H200.processors
    places = H200.processors if parts == 1 else clusters_of(parts, H200) * parts
    spread = blocks * parts <= places  # one block per multiprocessor, else two
    assert blocks * parts <= 2 * places
    assert (2 * (launch.shared + 1024) <= H200.shared + 1024) == (not spread)


@pytest.mark.parametrize(("batch", "parts"), [(3, 8), (5, 6), (8, 3), (14, 2)])
def test_clusters_of_large_heads_leave_few_multiprocessors_idle(batch: int, parts: int) -> None:
    """Of which one block fits on each (Gemma 2)."""
    gemma = Decode((512,) * batch, heads=(8, 4), size=256, room=2048)
    (launch,) = (x for x in planned_for(gemma) if x.entry == "attention_decode")
    assert launch.grid[:2] == (4 * batch, parts)
    assert launch.cluster == (1, parts, 1)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
@pytest.mark.parametrize("batch", [1, 8, 16])
def test_large_caches_are_displaced_first(batch: int, target: Target, cache: Path) -> None:
    """A step of 16 sequences whose caches are half full reads 33 MB per layer."""
    llama = Decode((512,) * batch, heads=(32, 8), size=64, room=2048)
    (launch,) = (x for x in planned_for(llama, target) if x.entry == "attention_decode")
    all_compile([launch.source], target, cache)
    ptx = PtxCompiler(target, cache).code(launch.source).decode()
    hinted = "cp.async.cg.shared.global.L2::cache_hint" in ptx
    assert (hinted, "cp.async.cg.shared.global [" in ptx) == (batch == 16, batch < 16)


@pytest.mark.parametrize("target", [A100, H200], ids=lambda target: target.arch)
def test_compiles(target: Target, cache: Path) -> None:
    made = [one for case in CASES.values() for one in planned_for(case, target)]
    found = [launch for launch in made if launch.file in COMPILES]
    all_compile([launch.source for launch in found], target, cache, COMPILES)
    assert_arguments(found, target, cache)
    assert all(launch.shared <= target.shared for launch in found)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("target", [A100, CLUSTERS], ids=["blocks", "clusters"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results(
    case: Decode, target: Target, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", target)
    check(case, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("parts", [3, 5, 6, 7])
def test_results_of_clusters_of_any_size(
    parts: int, emulated: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler: Any = emulated.device.compiler
    monkeypatch.setattr(compiler, "target", H200)
    fitting = {2: 99, parts: 99}
    monkeypatch.setattr(flash_parts, "clusters_of", lambda size, target: fitting.get(size, 0))
    case = Decode((560, 3), new=2, size=40, room=1100)
    (launch,) = (x for x in planned_for(case) if x.entry == "attention_decode")
    assert launch.cluster == (1, parts, 1)
    check(case, emulated)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("case", [c for c in APART.values() if c.joined], ids=str)
def test_results_of_two_kernels(case: Decode, emulated: CudaBackend) -> None:
    check(case, emulated)
