"""The real parser and builder, in a separate process: a sample; the tool asks about everything.

They need no GPU; nothing is run. `python -m tercet.tools.workshop.tensorrt_support` has the whole
table.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Set
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper

from tercet.backends.numpy import NumpyBackend, evaluate
from tercet.backends.regions.section import Section, section
from tercet.backends.tensorrt.claims import OPSET
from tercet.importers import onnx as importer
from tercet.runtime.base.worker import Ended
from tercet.runtime.errors import BackendUnavailable
from tercet.runtime.ir.graph import Graph, Node
from tercet.runtime.options import Options
from tercet.runtime.plan.backend import Claim, Decline
from tercet.runtime.session.model import Model
from tercet.tools.inspect.inspection import inspect
from tercet.tools.workshop.generated_models import Sheet, image
from tercet.tools.workshop.light_models import light_model
from tercet.tools.workshop.tensorrt_page import is_wrong_claim, is_wrong_refusal
from tercet.tools.workshop.tensorrt_support import CAPABILITY, suite
from tercet.tools.workshop.tensorrt_survey import Survey, look_at
from tercet.tools.workshop.tensorrt_worker import SectionBuilder

from .double import RTX_STUB, STUB, classes
from .recurrences import WAYS, recurrences

WHY = "TensorRT-RTX is not installed: pip install 'tercet[tensorrt-rtx]'"
pytestmark = pytest.mark.skipif(find_spec("tensorrt_rtx_bindings") is None, reason=WHY)
#: One in so many cases of ONNX's suite.
STRIDE = 41


@pytest.fixture(scope="module")
def worker() -> Iterator[SectionBuilder]:
    with SectionBuilder(CAPABILITY, patience=120) as found:
        yield found


@pytest.fixture(scope="module")
def known() -> dict[str, bool]:
    """Which operators the real parser knows; others it does not."""
    from tercet.runtime.ir.op import OPERATORS

    names = sorted(name for domain, name in OPERATORS if not domain)
    said = in_a_process(f"print(*[name for name in {names!r} if builder.takes(name)])")
    return dict.fromkeys(said.split(), True)


def in_a_process(script: str) -> str:
    """Return what a script prints that has a `builder` of the real library."""
    head = f"""
    from tercet.backends.tensorrt.build import EngineBuilder, SectionRefused
    from tercet.backends.tensorrt.products import RTX
    from tercet.backends.tensorrt.library import load
    vendor = load()
    builder = EngineBuilder(vendor, "{CAPABILITY}")
    """
    text = textwrap.dedent(head) + textwrap.dedent(script)
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_names_that_the_stubs_have() -> None:
    """Every class of the stubs that the backend needs, and every member, exists."""
    used = ("Builder", "IBuilderConfig", "INetworkDefinition", "OnnxParser", "ParserError")
    used += ("Runtime", "ICudaEngine", "IExecutionContext", "EngineInspector", "ITensor")
    members = {name: classes(RTX_STUB)[name] for name in classes(RTX_STUB)}
    calls = {name: classes(STUB)[name] & CALLED for name in used}
    said = in_a_process(f"""
    for declared in ({members!r}, {calls!r}):
        for kind, names in declared.items():
            for name in names:
                if not hasattr(getattr(vendor.module, kind), name):
                    print(f"{{kind}}.{{name}}")
    """)
    assert said == ""


#: What the backend calls, in the main stub.
CALLED = {
    *("create_network", "create_builder_config", "create_optimization_profile"),
    *("build_serialized_network", "set_flag", "clear_flag", "builder_optimization_level"),
    *("set_memory_pool_limit", "add_optimization_profile", "num_inputs", "num_outputs"),
    *("get_input", "get_output", "add_input", "add_activation", "mark_output", "name", "dtype"),
    *("shape", "parse_from_file", "supports_operator", "num_errors", "get_error", "node_name"),
    *("code", "desc", "deserialize_cuda_engine", "create_execution_context", "num_layers"),
    *("create_runtime_config", "create_engine_inspector", "device_memory_size_v2"),
    *("set_input_shape", "set_tensor_address", "set_device_memory", "execute_async_v3"),
    *("get_engine_information",),
}


def test_a_sample_of_the_suite(worker: SectionBuilder, known: dict[str, bool]) -> None:
    """The backend claims what the library takes, and has a reason for whatever else it takes."""
    survey = Survey(lambda name: name in known, worker.build, "TensorRT-RTX")
    for i, source in enumerate(suite("")):
        if i % STRIDE == 0:
            look_at(survey, source.name, source.graph, source.feeds)
    found = [*survey.nodes.values()]
    assert len(found) > 40
    assert [each for each in found if is_wrong_claim(each)] == []
    assert [each for each in found if is_wrong_refusal(each)] == []
    assert [each for each in survey.parts.values() if not each.verdict] == []
    assert worker.crashes == 0


def test_a_whole_network_is_one_engine(worker: SectionBuilder, known: dict[str, bool]) -> None:
    survey = Survey(lambda name: name in known, worker.build, "TensorRT-RTX")
    graph = importer.load(light_model("squeezenet")).graph
    assert look_at(survey, "squeezenet", graph, None) == ""
    (part,) = survey.parts.values()
    assert (bool(part.verdict), part.refusal) == (True, "")


@pytest.mark.parametrize("way", WAYS)
def test_two_recurrences(way: str, worker: SectionBuilder, known: dict[str, bool]) -> None:
    """Each region that is formed of them is built."""
    survey = Survey(lambda name: name in known, worker.build, "TensorRT-RTX")
    graph = importer.load(recurrences("LSTM", way)).graph
    assert look_at(survey, way, graph, None) == ""
    assert [each for each in survey.parts.values() if not each.verdict] == []
    assert [each for each in survey.nodes.values() if is_wrong_refusal(each)] == []


def small() -> ModelProto:
    sheet = Sheet("small", 0)
    x = sheet.node("Relu", sheet.conv("input", (3, 8), 3, 4))
    x = sheet.node("Flatten", sheet.node("GlobalAveragePool", x), axis=1)
    return sheet.model(image("batch"), (sheet.gemm(x, 8, 10), ("batch", 10)), 17)


def sections_of(model: ModelProto, ranges: dict[str, tuple[int, int, int]]) -> list[Section]:
    """Return a whole model as one region, planned for a batch of 2."""
    found: list[Section] = []

    class Keep(NumpyBackend):
        def claim(
            self, graph: Graph, free: Set[Node], options: Options
        ) -> Iterator[Claim | Decline]:
            found.append(section(graph, tuple(graph.nodes), ranges, OPSET))
            return super().claim(graph, free, options)

    with Model(importer.load(model).graph, (Keep(),), Options(), evaluate) as plan:
        plan.run({"input": np.zeros((2, 3, 224, 224), np.float32)})
    return found


def test_one_engine_for_all_sizes_of_a_range(worker: SectionBuilder) -> None:
    """A region with symbolic dimensions and a profile, as `ranges=` makes it."""
    found = sections_of(small(), {"batch": (1, 4, 8)})
    assert found[0].profiles == {"input": tuple((n, 3, 224, 224) for n in (1, 4, 8))}
    verdict = worker.build(found[0])
    assert verdict.stage == "built", verdict


def test_a_plan_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    """Engines are built for it, and kernels of cuda stand in between."""
    model = small()
    first = next(node for node in model.graph.node if node.op_type == "Relu")
    first.op_type = "MaxPool"  # with gaps in its windows, which engines lack
    for name, sizes in (("kernel_shape", [3, 3]), ("dilations", [2, 2]), ("pads", [2] * 4)):
        first.attribute.append(helper.make_attribute(name, sizes))
    file = tmp_path / "m.onnx"
    file.write_bytes(model.SerializeToString())
    placement = inspect(file, placement="tensorrt", target="sm_89").placement
    assert placement is not None
    steps = [row for row in placement if row.kind == "step"]
    assert [row.backend for row in steps] == ["tensorrt", "cuda", "tensorrt"]
    assert "bytes, built for compute capability 8.9" in steps[0].kernel
    assert [row.kind for row in placement].count("copy") == 2, "the input and the result alone"
    with pytest.raises(BackendUnavailable, match=r"no engines for compute capability 9\.0"):
        inspect(file, placement="tensorrt", target="sm_90a")


def test_a_crash_is_a_refusal(worker: SectionBuilder) -> None:
    found = sections_of(small(), {})
    with pytest.MonkeyPatch.context() as patch:

        def crash(question: object) -> object:
            raise Ended("its process died of SIGSEGV")

        patch.setattr(worker._process, "ask", crash)
        verdict = worker.build(found[0])
    assert (verdict.stage, verdict.reason) == (
        "crash",
        "the library crashes on this: its process died of SIGSEGV",
    )
    assert worker.crashes == 1
    worker.crashes = 0


def test_the_librarys_own_words() -> None:
    said = in_a_process("""
    print(RTX.capabilities(vendor.module))
    print(len(builder.probe()) > 0)
    try:
        EngineBuilder(vendor, "9.0").probe()
    except SectionRefused as error:
        print(error)
    """).splitlines()
    assert "8.9" in said[0]
    assert said[1] == "True"
    assert said[2].startswith("no engines for compute capability 9.0 (it has: 7.5, 8.0, ")
