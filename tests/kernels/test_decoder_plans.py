"""Which kernels a step of a decoder takes on a GPU that feeds itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

import tercet
from tercet.backends.cuda.backend import CudaBackend
from tercet.backends.cuda.control.conditional_nodes import CudaDecisions
from tercet.backends.cuda.driver import step as stepping
from tercet.backends.cuda.driver.step import KernelStep
from tercet.backends.cuda.recipe.source import KernelSource
from tercet.backends.cuda.recipe.targets import H200, Target
from tercet.backends.numpy import evaluate
from tercet.runtime.control.if_step import Branches
from tercet.runtime.options import Options, Precision
from tercet.runtime.plan.backend import Run, View
from tercet.runtime.plan.plan import Plan
from tercet.runtime.session.cache_layout import DecoderLayout
from tercet.runtime.session.model import Model
from tercet.runtime.session.opened_caches import static_decoder
from tercet.runtime.session.sampling import SamplingSettings
from tercet.tools.workshop.decoder_files import DecoderSizes, Packing, write

from .emulator import EmulatedDevice

DECODERS = Path(__file__).parents[1] / "producers" / "decoders"
#: Of 16 bits, for which there is the fused attention, in the words of transformers.
HALF = DECODERS / "transformersjs_llama" / "onnx" / "model_q4f16.onnx"
pytestmark = pytest.mark.filterwarnings("ignore::tercet.ModelWarning")


class NoCompiler:
    """Compiles nothing; no kernel runs."""

    target: Target = H200

    def submit(self, source: KernelSource) -> Future[Any]:
        return Future()


@contextmanager
def following(
    path: Path,
    sampling: SamplingSettings,
    patch: pytest.MonkeyPatch,
    precision: Precision = "float32",
    batch: int = 1,
    *,
    whole_caches: bool = False,
) -> Iterator[Plan]:
    """Yield the plan of a step that feeds itself, on an H200 that does nothing."""
    patch.setattr(stepping, "bind_launch", lambda *_, **__: lambda stream: None)
    compiler: Any = NoCompiler()
    device: Any = EmulatedDevice(compiler)
    with tercet.load(path, whole_caches=whole_caches) as host:
        graph, layout = host.imported.clone(), DecoderLayout.of(host.imported)
    with (
        Model(graph, [CudaBackend(device)], Options(precision=precision), evaluate) as model,
        static_decoder(model, layout, batch, 64) as decoder,
    ):
        next(decoder.follow(np.ones(batch, np.int64), 1, sampling=sampling))
        (chain,) = decoder.store._chained.values()
        assert not chain._moves, "everything is written in its place"
        yield chain._plan


class Undecided(CudaDecisions):
    """Plans both branches of an If, and takes neither."""

    def choose(self, cond: View, then: Run, other: Run) -> Run:
        return lambda stream: None


def kernels(plan: Plan) -> list[str]:
    return [row.kernel for row in plan.rows if row.kind == "step"]


@pytest.mark.parametrize("name", ["optimum_bloom", "optimum_falcon", "optimum_gptj", "optimum_opt"])
def test_masks_of_single_positions_have_caches_of_static_size(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(DECODERS / name / "model.onnx", SamplingSettings(), monkeypatch) as plan:
        assert kernels(plan), "sizes of masks that grow have a bound"


def test_rotations_of_transformers_are_done_by_the_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with following(HALF, SamplingSettings(), monkeypatch) as plan:
        (attention,) = (row for row in plan.rows if "attention_decode" in row.kernel)
        assert [node.kind for node in attention.nodes].count("RotaryEmbedding") == 2
        found = kernels(plan)
        assert not any("rotate" in kernel or "Concat" in kernel for kernel in found)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["optimum_llama", "optimum_qwen3"])
def test_a_float32_file_in_half_precision_has_the_kernels_of_a_file_of_halves(
    name: str, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing converts its caches, and heads are normalized and rotated by the attention."""
    with following(
        DECODERS / name / "model.onnx", SamplingSettings(), monkeypatch, precision
    ) as plan:
        (attention,) = (row for row in plan.rows if "attention_decode" in row.kernel)
        kinds = [node.kind for node in attention.nodes]
        assert kinds.count("RotaryEmbedding") == kinds.count("TensorScatter") == 2
        assert kinds.count("RMSNormalization") == (2 if "qwen3" in name else 0)
        assert not any("scatter" in kernel.replace("ScatterND", "") for kernel in kernels(plan))


@pytest.mark.parametrize("name", ["genai_phi3long_fp32", "genai_gemma2_int4"])
def test_long_texts_and_windows_take_no_other_kernels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Angles are chosen by row, and caches of windows drop nothing."""
    path = DECODERS / name / "model.onnx"
    with following(path, SamplingSettings(), monkeypatch, "float16", whole_caches=True) as plan:
        rows = [row for row in plan.rows if row.kind == "step" and "attention" in row.kernel]
        kinds = [[node.kind for node in row.nodes] for row in rows]
        assert len(kinds) == (2 if "gemma2" in name else 1)
        for each in kinds:
            assert each.count("RotaryEmbedding") == each.count("TensorScatter") == 2
        found = kernels(plan)
        assert not any("gather_nd" in kernel or "concat" in kernel for kernel in found)


def test_queries_keys_and_values_are_one_product_of_packed_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then nothing else reads the normalization in front, which is the product's."""
    with following(HALF, SamplingSettings(), monkeypatch) as plan:
        packed = [kernel for kernel in kernels(plan) if kernel.startswith("gemv_packed")]
        assert len(packed) == 5  # of its only layer four; and the scores
        assert sum("after RMSNormalization" in kernel for kernel in packed) == 3
        assert not any(kernel.startswith("normalize") for kernel in kernels(plan))


def test_a_layer_of_experts_with_sinks_is_seven_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = DecoderSizes(192, 96, 2, 6, 2, 512, 1024, head=32, experts=8)
    write(tmp_path / "decoder.onnx", sizes, Packing(4, 32))
    with following(tmp_path / "decoder.onnx", SamplingSettings(), monkeypatch) as plan:
        found = kernels(plan)
        first, second = (i for i, kernel in enumerate(found) if "experts" in kernel)
        layer = [kernel.split()[0] for kernel in found[first + 1 : second + 1]]
        products = ["gemv_packed", "copy_strided", "gemv_packed"]  # caches are in place
        assert layer == [*products, "normalize_rows", "gemv", "experts_packed"]
        assert "attention_decode" in found[first + 2]
        assert "experts_packed_sum" in found[second]


def test_a_layer_with_normalized_heads_is_five_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of Qwen3, whose products for queries, keys and values are three in the file."""
    sizes = DecoderSizes(192, 96, 2, 6, 2, 512, 1024, head=32, normed=True)
    write(tmp_path / "decoder.onnx", sizes, Packing(4, 32))
    with following(tmp_path / "decoder.onnx", SamplingSettings(), monkeypatch) as plan:
        found = kernels(plan)
        first, second = (i for i, kernel in enumerate(found) if "attention_decode" in kernel)
        layer = " + ".join(found[first + 1 : second]).split(" + ")
        assert [kernel.split()[0] for kernel in layer] == ["gemv_packed"] * 4
        assert sum("after RMSNormalization" in kernel for kernel in found) == 5  # and the scores


@pytest.mark.parametrize("bits", [16, 4])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_rows_are_normalized_between_no_products(
    batch: int, bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products in front leave what those behind need, with any number of sequences."""
    path = tmp_path / "decoder.onnx"
    write(path, DecoderSizes(2048, 2048, 2, 32, 8, 2048), Packing(bits, 32))
    with following(path, SamplingSettings(), monkeypatch, batch=batch) as plan:
        found = " + ".join(kernels(plan)).split(" + ")
    assert sum(kernel.startswith("normalize_rows") for kernel in found) <= 1  # of embeddings
    count = 1 if batch <= 8 and bits == 4 else 4  # few rows are normalized as they are multiplied
    assert sum(", measured" in kernel for kernel in found) == count
    assert sum("in front" in kernel for kernel in found) == count


def test_positions_and_lengths_are_one_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything from the state of a step to where its rows begin in the caches, and their end."""
    write(tmp_path / "decoder.onnx", DecoderSizes(64, 128, 2, 2, 2, 512), Packing(4, 32))
    with following(tmp_path / "decoder.onnx", SamplingSettings(), monkeypatch) as plan:
        found = [kernel.split()[0] for kernel in kernels(plan)]
        before = found[: found.index("copy_strided")]
        assert sorted(before) == ["gather", "gemv_packed", "shared_chain"]


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(0.8)])
def test_the_next_state_is_one_kernel(
    sampling: SamplingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token, whether scores are finite, the row of all tokens chosen, and their number."""
    with following(HALF, sampling, monkeypatch) as plan:
        *before, last = kernels(plan)
        assert "placed_chain" in last
        assert "reduce" in before[-1]


@pytest.mark.parametrize(("penalty", "gathers"), [(1.0, 0), (1.1, 2)])
def test_only_a_penalty_needs_the_tokens_of_all_positions(
    penalty: float, gathers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the token that is read is the state, and is not looked up in a table."""
    with following(HALF, SamplingSettings(repetition_penalty=penalty), monkeypatch) as plan:
        assert kernels(plan).count("gather_elements") == gathers
        tokens = plan.inputs["state.tokens"].type.dims
        assert tokens == ((1, 1) if penalty == 1 else (1, 65))


@pytest.mark.parametrize(
    "sampling",
    [SamplingSettings(), SamplingSettings(0.8, top_k=40, top_p=0.9, repetition_penalty=1.1)],
    ids=str,
)
def test_a_step_is_of_this_device_alone(
    sampling: SamplingSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(HALF, sampling, monkeypatch) as plan:
        assert {row.backend for row in plan.rows if row.kind == "step"} == {"cuda"}
        assert not [row for row in plan.rows if row.kind in ("copy", "reformat")]


def test_tokens_are_drawn_from_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device takes the branch that looks at all of them only if it has to."""
    sampling = SamplingSettings(0.8, top_k=40, top_p=0.9)
    decisions = property(lambda device: Undecided(device))
    monkeypatch.setattr(EmulatedDevice, "decisions", decisions, raising=False)
    write(tmp_path / "decoder.onnx", DecoderSizes(64, 128, 1, 2, 2, 640), Packing(4, 32))
    with following(tmp_path / "decoder.onnx", sampling, monkeypatch) as plan:
        (branches,) = (row.step for row in plan.rows if isinstance(row.step, Branches))
        few, everything = ([r for r in b.rows if r.kind == "step"] for b in branches.bodies)
        assert {row.backend for row in (*few, *everything)} == {"cuda"}
        assert len(few) == 4 < len(everything)
        assert not any("640" in row.kernel for row in few)


def test_all_kernels_of_a_greedy_step_start_early(monkeypatch: pytest.MonkeyPatch) -> None:
    with following(HALF, SamplingSettings(), monkeypatch) as plan:
        steps = [row.step for row in plan.rows if isinstance(row.step, KernelStep)]
        assert steps
        launches = [one for step in steps for one in step.launches if one.moot is None]
        assert [one.title for one in launches if not one.early] == []
