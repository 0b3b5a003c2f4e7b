"""What cuDNN itself says to our graphs, for a GPU that is described by a file."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.runtime.base.cache import Cache
from tercet.runtime.errors import DeviceError
from tercet.runtime.ir.dtypes import DType, bfloat16, float16, float32, name_of
from tercet.runtime.ir.graph import Graph, Value
from tercet.runtime.ir.infer import infer
from tercet.runtime.ir.types import TensorType
from tercet.runtime.ops.conv import Conv, ConvTranspose
from tercet.runtime.ops.elementwise import Relu
from tercet.runtime.ops.movement import Concat
from tercet.runtime.ops.pool import GlobalAveragePool, MaxPool
from tercet.runtime.options import Options, Precision
from tercet.runtime.plan.layout import lay_out
from tercet.tools.workshop.convolution_cases import ConvolutionCase, random_cases

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'tercet[cuda13]'")

from tercet.backends.cudnn import backend
from tercet.backends.cudnn.backend import CudnnBackend
from tercet.backends.cudnn.choice import Chooser, EngineChoice, EngineTask
from tercet.backends.cudnn.conv import convolution, describe
from tercet.backends.cudnn.convolution import Convolution
from tercet.backends.cudnn.graph import OperationGraph
from tercet.backends.cudnn.library import CudnnLibrary, NoPlan
from tercet.backends.cudnn.operation import Operand, Operation
from tercet.backends.cudnn.registry import NodeGroup
from tercet.backends.cudnn.session import Session

from ..kernels.dry import CudaBackend, DryDevice, stores

CASE = ConvolutionCase(Conv(pads=(1, 1, 1, 1)), (1, 64, 56, 56), (64, 64, 3, 3))
DEPTHWISE = ConvolutionCase(Conv(group=128, pads=(1, 1, 1, 1)), (1, 128, 28, 28), (128, 1, 3, 3))
UP = ConvolutionCase(
    ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1)), (1, 64, 28, 28), (64, 32, 4, 4)
)
ALL = ("bias", "add", "relu")


def convolution_of(case: ConvolutionCase, precision: Precision = "float32") -> Convolution:
    found = describe(case.graph().nodes[0], precision)
    assert isinstance(found, Convolution), found
    return found


def task(
    case: ConvolutionCase,
    precision: Precision = "float32",
    limit: int | None = None,
    epilogue: Collection[str] = ALL,
) -> EngineTask:
    taken = {name: name in epilogue for name in ALL}
    graph = replace(case, **taken).graph()
    options = Options(precision=precision, workspace=limit)
    found = convolution(graph, graph.nodes[0], frozenset(graph.nodes), options)
    assert isinstance(found, NodeGroup), found
    return found.task


def whole(wanted: EngineTask) -> Operation:
    """The operation that takes all of the epilogue along."""
    operations = (way.operation for way in wanted.divisions if not way.rest)
    (found,) = (o for o in operations if isinstance(o, Convolution) and not o.written)
    return found


class Judge:
    """Stands for the GPU: the first engine fails, the others take less and less time."""

    def __init__(self, *, failing: int = 0) -> None:
        self.failing = failing
        self.tried: list[str] = []

    def trial(self, choice: EngineChoice) -> None:
        self.tried.append(choice.engine.name)
        if len(self.tried) <= self.failing:
            raise NoPlan(f"{choice.engine.name} fails here")

    def microseconds(self, choice: EngineChoice, minimum: float) -> float:
        self.trial(choice)
        return 100.0 / len(self.tried)


def choose(session: Session, wanted: EngineTask, folder: Path) -> EngineChoice:
    return Chooser(session, folder).choose(wanted, Judge())


def tune(
    session: Session, wanted: EngineTask, folder: Path, judge: Judge | None = None
) -> EngineChoice:
    return Chooser(session, folder).choose(wanted, judge or Judge(), tune=True)


def found(choice: EngineChoice) -> tuple[str, str, float | None, int]:
    """What is remembered of a choice."""
    title = choice.engine.graph.operation.title
    return title, choice.engine.name, choice.microseconds, choice.among


def test_the_library_says_what_it_is(library: CudnnLibrary) -> None:
    assert library.version.startswith("9.")
    assert Path(library.file).is_file()


def test_the_target_is_what_the_file_says(session: Session) -> None:
    assert session.target == "NVIDIA H200 sm_90"


@pytest.mark.parametrize(
    "epilogue", [(), ("bias",), ("relu",), ("bias", "relu"), ("add",), ALL], ids="+".join
)
def test_float32_has_engines_for_every_epilogue(
    session: Session, epilogue: tuple[str, ...], tmp_path: Path
) -> None:
    choice = choose(session, task(CASE, epilogue=epilogue), tmp_path)
    assert not choice.rest, "all of it is in cuDNN's graph"
    assert choice.engine.scratch == 0
    assert not choice.engine.compiled


def test_tf32_has_other_engines_and_more_of_them(session: Session) -> None:
    exact, rounded = whole(task(CASE)), whole(task(CASE, "tf32"))
    names = [{e.name for e in OperationGraph(session, c, None).engines()} for c in (exact, rounded)]
    assert names[0]
    assert names[1] - names[0]


def test_small_groups_leave_the_epilogue_to_a_kernel(session: Session, tmp_path: Path) -> None:
    choice = choose(session, task(DEPTHWISE), tmp_path)
    assert choice.rest.title == "add+bias+relu"
    assert str(choice).startswith("conv eng0")
    assert ", then add+bias+relu" in str(choice)


def test_a_transposed_convolution_leaves_its_bias_to_a_kernel(
    session: Session, tmp_path: Path
) -> None:
    choice = choose(session, task(UP, epilogue=("bias",)), tmp_path)
    assert choice.rest.title == "bias"
    assert str(choice).startswith("dgrad ")


def test_shapes_are_those_that_cudnn_computes(session: Session) -> None:
    """CuDNN checks the result's shape against the parameters of the convolution."""
    refused = 0
    for case in random_cases(200):
        right = convolution_of(case)
        OperationGraph(session, right, None)
        if case.transposed:
            continue
        dims = right.y.dims
        wrong = replace(right, y=Operand.of((*dims[:-1], dims[-1] + 1), float32))
        with pytest.raises(NoPlan):
            OperationGraph(session, wrong, None)
        refused += 1
    assert refused > 100


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=name_of)
def test_random_convolutions_have_engines(session: Session, dtype: DType, tmp_path: Path) -> None:
    chooser = Chooser(session, tmp_path)
    for case in random_cases(40, seed=1):
        epilogue = [name for name in ALL if getattr(case, name)]
        chooser.choose(task(replace(case, dtype=dtype), epilogue=epilogue), Judge())


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=name_of)
@pytest.mark.parametrize("limit", [None, 0])
def test_tensor_cores_have_fused_engines(
    session: Session, dtype: DType, limit: int | None, tmp_path: Path
) -> None:
    for case in (
        CASE,
        ConvolutionCase(Conv(strides=(2, 2), pads=(3, 3, 3, 3)), (1, 3, 224, 224), (64, 3, 7, 7)),
        ConvolutionCase(Conv(pads=(1, 1)), (1, 64, 100), (64, 64, 3)),
        ConvolutionCase(Conv(pads=(1,) * 6), (1, 16, 8, 9, 9), (32, 16, 3, 3, 3)),
        ConvolutionCase(Conv(group=2), (1, 64, 9, 9), (64, 32, 3, 3)),
    ):
        choice = choose(session, task(replace(case, dtype=dtype), limit=limit), tmp_path)
        assert str(choice).startswith("conv+add+bias+relu eng")
        assert not choice.rest
        assert limit is None or not choice.engine.scratch


def test_sums_of_halves_are_float32(session: Session) -> None:
    operation = whole(task(replace(CASE, dtype=float16)))
    assert "REDUCED_PRECISION_REDUCTION" in operation.notes


def test_an_engine_that_fails_is_passed_over(session: Session, tmp_path: Path) -> None:
    judge = Judge(failing=2)
    choice = Chooser(session, tmp_path).choose(task(CASE), judge)
    assert len(judge.tried) == 3
    assert choice.engine.name == judge.tried[-1]


def test_a_convolution_of_which_all_engines_fail_is_refused(
    session: Session, tmp_path: Path
) -> None:
    with pytest.raises(NoPlan, match=r"fails here.*plans: \d+ use TF32, Winograd or FFT"):
        Chooser(session, tmp_path).choose(task(CASE), Judge(failing=99))


# ── plans ────────────────────────────────────────────────────────────────────────────────────────


def test_halves_stay_channels_last_between_the_two_backends(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of the first layer is packed by its own step; branches write into their Concat."""
    rng = np.random.default_rng(0)
    graph = Graph()

    def conv(x: Value, filters: int, size: int, stride: int = 1) -> Value:
        w = rng.standard_normal((filters, x.tensor.dims[1], size, size)).astype(float16)
        op = Conv(pads=(size // 2,) * 4, strides=(stride, stride))
        bias = graph.constant(np.zeros(filters, float16))
        y = graph.insert(Relu(), [graph.insert(op, [x, graph.constant(w), bias]).output]).output
        infer(graph)
        return y

    x = conv(graph.add_input("x", TensorType(float16, (1, 3, 64, 64))), 32, 7, 2)
    x = graph.insert(MaxPool(kernel_shape=(2, 2), strides=(2, 2)), [x]).output
    infer(graph)
    x = graph.insert(Concat(axis=1), [conv(x, 16, 1), conv(x, 48, 3)]).output
    infer(graph)
    graph.set_outputs({"y": graph.insert(GlobalAveragePool(), [conv(x, 8, 1)]).output})
    infer(graph)
    monkeypatch.setattr(backend, "Bench", lambda *_, **__: nullcontext(Judge()))
    device: Any = DryDevice()
    chain: Any = [CudnnBackend(device, Chooser(session, tmp_path)), CudaBackend(device)]
    layout, _ = lay_out(graph, chain, Options(), stores(device))
    kinds = [(row.kind, row.backend) for row in layout.rows if row.kind != "copy"]
    assert kinds.count(("step", "cudnn")) == 4
    assert kinds.count(("step", "cuda")) == 2
    assert {kind for kind, _ in kinds} == {"step", "view"}


# ── what was measured ────────────────────────────────────────────────────────────────────────────


def test_tuning_takes_the_fastest_that_runs(session: Session, tmp_path: Path) -> None:
    judge = Judge(failing=1)
    choice = tune(session, task(CASE), tmp_path, judge)
    assert choice.engine.name == judge.tried[-1]
    assert choice.among == len(judge.tried) - 1 > 10
    assert str(choice).endswith(f" us, best of {choice.among})")


def kept(file: Path) -> str:
    """What an entry of the cache says."""
    return (Cache(file.parent).read(file.name) or b"").decode()


def keep(file: Path, text: str) -> None:
    """Have an entry of the cache say something else."""
    Cache(file.parent).write(file.name, text.encode())


def test_the_heuristics_choice_is_not_kept(session: Session, tmp_path: Path) -> None:
    choose(session, task(CASE), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_measured_choice_is_kept(session: Session, tmp_path: Path) -> None:
    first = tune(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    key = json.loads(kept(file))["key"]
    assert key.startswith(
        f"cuDNN {session.vendor.version} on NVIDIA H200 sm_90: conv+add+bias+relu x"
    )
    judge = Judge()
    assert found(tune(session, task(CASE), tmp_path, judge)) == found(first)
    assert judge.tried == [first.engine.name], "tried once, not measured"


def test_every_engine_can_be_kept(session: Session) -> None:
    """The frontend has no name for some knobs, so names must do."""
    operation = whole(task(CASE, "tf32"))
    engines = list(OperationGraph(session, operation, None).engines())
    again = OperationGraph(session, operation, None)
    for engine in engines:
        assert again.engine(engine.name).scratch == engine.scratch


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"key": "another"}',
        '{"key": KEY}',
        '{"key": KEY, "operation": "", "engine": "eng99", "microseconds": 1, "among": 1}',
        '{"key": KEY, "operation": "?", "engine": "eng0", "microseconds": 1, "among": 1}',
        '{"key": KEY, "operation": [], "engine": 7, "microseconds": {}, "among": null}',
    ],
)
def test_a_damaged_file_is_replaced(session: Session, tmp_path: Path, text: str) -> None:
    first = tune(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    good = kept(file)
    keep(file, text.replace("KEY", json.dumps(json.loads(good)["key"])))
    assert found(tune(session, task(CASE), tmp_path)) == found(first)
    assert kept(file) == good


def test_a_kept_engine_that_fails_is_replaced(session: Session, tmp_path: Path) -> None:
    first = tune(session, task(CASE), tmp_path)
    again = tune(session, task(CASE), tmp_path, Judge(failing=1))
    assert again.among == first.among


def test_a_file_cannot_bring_tensor_cores_in(session: Session, tmp_path: Path) -> None:
    rounded, exact = whole(task(CASE, "tf32")), whole(task(CASE))
    names = [{e.name for e in OperationGraph(session, c, None).engines()} for c in (rounded, exact)]
    tune(session, task(CASE), tmp_path)
    (file,) = tmp_path.iterdir()
    wrong = min(names[0] - names[1])
    entry = json.loads(kept(file)) | {"operation": str(exact), "engine": wrong}
    keep(file, json.dumps(entry))
    judge = Judge()
    tune(session, task(CASE), tmp_path, judge)
    assert wrong not in judge.tried


def test_a_folder_that_cannot_be_written_is_no_error(session: Session, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert tune(session, task(CASE), blocked).engine.scratch == 0


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def test_every_status_becomes_an_error_that_names_the_call(library: CudnnLibrary) -> None:
    with pytest.raises(DeviceError, match=r"^cuDNN 9\..*: cudnnCreate: "):
        Session.here(library, 99)
