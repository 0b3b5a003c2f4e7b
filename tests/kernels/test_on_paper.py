"""Kernels that are compiled ahead of time are those with which a GPU runs the model."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda import on_paper
from tercet.backends.cuda.driver import launching
from tercet.backends.cuda.driver.compile import Statistics
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import Target
from tercet.generation.tokens import FolderTokenizer
from tercet.runtime.ir.dtypes import float32
from tercet.runtime.ir.graph import Graph
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.elementwise import Exp
from tercet.runtime.ops.matmul import MatMul
from tercet.runtime.ops.norm import Softmax
from tercet.runtime.options import Options

from ..control.flows import FLOWS
from .cubins import QuickCompiler
from .dry import DryCompiler, DryDevice, apply, dry_backend, launches, normal, planned
from .fake_driver import FAKE, Gate, plant

DIGITS = Path(tercet.__file__).parent / "demo" / "digits.onnx"
DECODERS = Path(__file__).parents[1] / "producers" / "decoders"
ENCODERS = DECODERS.parent / "encoders"
#: In half precision, a GPU looks for infinities in large results.
LARGE = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[512, 512] x) => (float[512, 512] y) { y = Exp (x) }"""
#: The sizes of the results of NonZero are known only from data.
LATE = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[8] x) => (int64[1, n] y) { z = Exp (x) i = NonZero (z) y = Neg (i) }"""


@dataclass(eq=False)
class Named:
    """A compiler that only remembers what it is asked for."""

    target: Target = FAKE
    gpu: Any = None
    sources: set[KernelSource] = field(default_factory=set[KernelSource])
    statistics: Statistics = field(default_factory=Statistics)

    def submit(self, source: KernelSource, *, here: bool = False) -> Future[bytes]:
        self.sources.add(source)
        future = Future[bytes]()
        future.set_result(b"")
        return future

    def finish(self) -> tuple[bytes, ...]:
        return (b"",) * len(self.sources)

    def lacking(self) -> tuple[str, ...]:
        return ()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile without optimizations: nobody runs the code."""
    monkeypatch.setattr(on_paper, "Compiler", QuickCompiler)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", ["digits", "large", *(flow.name for flow in FLOWS)])
def test_a_gpu_asks_for_the_same(
    name: str, precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = {flow.name: flow.model for flow in FLOWS}
    model = parse_model(LARGE) if name == "large" else flows.get(name)
    file = DIGITS if model is None else saved(model, tmp_path)
    ahead, there = Named(), Named()
    monkeypatch.setattr(on_paper, "Compiler", lambda target, cache: ahead)
    tercet.compile(file, target="sm_80", fallback="numpy", precision=precision)
    compiler: Any = there
    monkeypatch.setattr(launching, "launcher", lambda *_: lambda stream: None)
    plant(compiler, Gate(), monkeypatch.setattr)
    with tercet.load(file, "cuda", fallback="numpy", precision=precision) as model:
        model.prepare()
    assert ahead.sources == there.sources
    assert bool(ahead.sources) or name not in ("digits", "large")


def test_kernels_are_compiled_while_other_nodes_are_claimed() -> None:
    """Only those of claims whose formats are their own: others may be compiled in vain."""
    graph, compiler = Graph("test"), DryCompiler()
    x = graph.add_input("x", TensorType(float32, (128, 256)))
    first = apply(graph, MatMul(), x, normal(256, 512))
    graph.set_outputs({"y": apply(graph, Exp(), apply(graph, Softmax(), first))})
    infer(graph)
    backend = dry_backend(DryDevice(compiler=compiler))
    claims = backend.claim(graph, frozenset(graph.nodes), Options())
    assert next(claims).nodes == (first.producer,)
    assert {source.file.partition("/")[0] for source in compiler.sources} == {"gemm"}
    layout = planned(graph, DryDevice())
    assert set(compiler.sources) <= {launch.source for launch in launches(layout)}


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("name", ["digits", "large", *(flow.name for flow in FLOWS)])
def test_a_gpu_takes_the_same_memory(
    name: str, precision: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = {flow.name: flow.model for flow in FLOWS}
    model = parse_model(LARGE) if name == "large" else flows.get(name)
    file = DIGITS if model is None else saved(model, tmp_path)
    options: Any = {"fallback": "numpy", "precision": precision}
    found = tercet.inspect(file, memory=True, placement="cuda", target="sm_80", **options).memory
    compiler: Any = Named()
    monkeypatch.setattr(launching, "launcher", lambda *_: lambda stream: None)
    plant(compiler, Gate(), monkeypatch.setattr)
    with tercet.load(file, "cuda", **options) as loaded:
        assert found == loaded.memory()
    assert found is not None
    assert any(found.activations.values())


def compiled(file: Path, folder: Path, **options: Any) -> tercet.Compilation:
    return tercet.compile(file, target="sm_90a", cache=folder, **options)


def test_they_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = compiled(DIGITS, tmp_path), compiled(DIGITS, tmp_path)
    assert first.kernels == first.compiled == second.kernels > 1
    assert second.compiled == 0
    assert (second.nbytes, second.later) == (first.nbytes, ())
    monkeypatch.setenv("TERCET_COMPILE", "never")
    assert compiled(DIGITS, tmp_path).compiled == 0
    with pytest.raises(tercet.UncompiledError, match="or `tercet compile` it"):
        compiled(DIGITS, tmp_path / "empty")


def test_a_cache_that_keeps_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(tercet.UsageError, match=r"has not kept (\d) of \1 kernels: can it be"):
        compiled(DIGITS, tmp_path / "file" / "folder")


def test_what_is_measured_is_not_asked_for(tmp_path: Path) -> None:
    assert compiled(DIGITS, tmp_path, tune=True).kernels == compiled(DIGITS, tmp_path).kernels


def test_what_only_a_run_knows_is_named(tmp_path: Path) -> None:
    found = compiled(saved(parse_model(LATE), tmp_path), tmp_path, fallback="numpy")
    assert found.later == ("y",)


# ── decoders ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("precision", "batch"), [("float32", 1), ("float16", 2)])
@pytest.mark.parametrize("name", ["optimum_llama", "genai_llama_int4", "optimum_falcon"])
def test_a_gpu_asks_for_the_same_as_it_generates(
    name: str, precision: Any, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, options = DECODERS / name, {"capacity": 16, "precision": precision}
    ahead, there = Named(), Named()
    monkeypatch.setattr(on_paper, "Compiler", lambda target, cache: ahead)
    tercet.compile_generation(folder, target="sm_80", batch=batch, prefill_chunk=4, **options)
    compiler: Any = there
    monkeypatch.setattr(launching, "launcher", lambda *_: lambda stream: None)
    plant(compiler, Gate(), monkeypatch.setattr)
    with tercet.Generator(folder, "cuda", prefill_chunk=4, **options) as generator:
        for length in (2, 7):
            generator.generate_ids([[5] * length] * batch, max_new_tokens=3)
    assert there.sources == ahead.sources


def test_more_room_has_other_plans(tmp_path: Path) -> None:
    short, long = (
        tercet.compile_generation(
            DECODERS / "optimum_llama",
            target="sm_90a",
            cache=tmp_path,
            capacity=size,
            prefill_chunk=2,
        )
        for size in (2048, 4096)
    )
    assert short.compiled == short.kernels <= long.kernels
    assert long.compiled == long.kernels - short.kernels


@pytest.mark.filterwarnings("ignore::tercet.PrecisionWarning")
@pytest.mark.parametrize(
    ("name", "precision", "batch"),
    [
        ("optimum_t5", "float32", 2),
        ("optimum_bart", "float16", 1),
        ("optimum_whisper", "float32", 1),
        ("optimum_trocr", "float16", 2),
        ("genai_whisper", "float32", 1),
    ],
)
def test_a_gpu_asks_for_the_same_as_it_generates_of_what_an_encoder_reads(
    name: str, precision: Any, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ENCODERS / name
    monkeypatch.setattr(FolderTokenizer, "decode", lambda *_: "")  # of what nothing has written
    options: Any = {"capacity": 16, "precision": precision}
    features = None
    if (folder / "features.npz").exists():
        with np.load(folder / "features.npz") as file:
            features = file["features"][:1].repeat(batch, 0)
    shapes = {} if features is None else {"pixel_values": features.shape}
    ahead, there = Named(), Named()
    monkeypatch.setattr(on_paper, "Compiler", lambda target, cache: ahead)
    tercet.compile_generation(
        folder,
        target="sm_80",
        batch=batch,
        prefill_chunk=32,
        shapes=shapes if name == "optimum_trocr" else {},
        **options,
    )
    compiler: Any = there
    monkeypatch.setattr(launching, "launcher", lambda *_: lambda stream: None)
    plant(compiler, Gate(), monkeypatch.setattr)
    with tercet.Generator(folder, "cuda", **options) as generator:
        if features is not None:
            generator.generate_features(features, max_new_tokens=3)
        for length in (2, 20) if features is None else ():
            generator.generate_ids([[5] * length] * batch, max_new_tokens=3)
    assert there.sources == ahead.sources


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("optimum_trocr", {}, r"no size is known of height, width; --dim and --shape"),
        ("optimum_t5", {"dims": {"height": 3}}, r"encoder_model\.onnx reads texts"),
        ("../decoders/optimum_llama", {"dims": {"height": 3}}, r"model\.onnx reads prompts of"),
    ],
)
def test_sizes_of_what_an_encoder_reads(name: str, options: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises((tercet.InputError, tercet.UsageError), match=text):
        tercet.compile_generation(ENCODERS / name, target="sm_90a", cache=tmp_path, **options)


def test_decoders_that_read_all_tokens_again(tmp_path: Path) -> None:
    file = shutil.copytree(ENCODERS / "optimum_t5", tmp_path / "t5") / "decoder_model.onnx"
    with pytest.raises(tercet.UnsupportedError, match=r"decoder_model.onnx: it reads all tokens"):
        tercet.compile_generation(file, target="sm_90a", cache=tmp_path)
