"""Run random convolutions on cuDNN and compare them with float64.

    python -m tercet.tools.workshop.cudnn_sweep
    python -m tercet.tools.workshop.cudnn_sweep --output docs/results

Every configuration uses all attributes of Conv and ConvTranspose, over one to three axes, with or
without a bias, a residual and ReLU. It runs in float32 and float16, on contiguous and channels-last
tensors, even if the backend would choose otherwise. Results are compared with float64 on the same
rounded inputs; each is right, or declined with a reason. They are written continuously; ``--begin``
resumes where an earlier call of the same commit on the same GPU stopped.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.errors import TercetError
from ...runtime.ir.dtypes import DType, float16, float32, name_of
from ...runtime.ir.types import Array
from ...runtime.options import Options
from ...runtime.plan.format import Format
from ..common.console import Say, open_console, print_table, progress
from ..common.environment import PACKAGES, device_environment
from ..common.markdown import head, table
from ..common.results import earlier, to_json, write
from .arguments import parser as make_parser
from .convolution_cases import ConvolutionCase, random_cases

if TYPE_CHECKING:
    from ...backends.cuda.device import CudaDevice
    from ...backends.cuda.driver.memory import CudaBuffer
    from ...backends.cudnn.choice import Chooser, EngineChoice
    from ...backends.cudnn.operation import Operand

DTYPES: tuple[DType, ...] = (float32, float16)
FORMATS = (Format.CONTIGUOUS, Format.CHANNELS_LAST)
#: Largest relative L2 distance from float64. In float16 the result is rounded once, and once more
#: by every kernel after cuDNN's; where a sum cancels, that counts several times.
ALLOWED = {"float32": 1e-5, "float16": 2e-3}
_NUMBERS = re.compile(r"\d+")
FILE = "cudnn_sweep.json"
#: Findings of a configuration, and configurations after which what is known is written.
KINDS, OFTEN = len(DTYPES) * len(FORMATS), 10


@dataclass(frozen=True, slots=True)
class SweptEngine:
    """What became of one configuration.

    Attributes:
        case: the configuration.
        dtype: of its tensors.
        format: their physical order.
        kernel: what ran; empty where it was declined.
        error: relative L2 distance from float64; infinite where a result is not finite.
        reason: why it was declined.
    """

    case: str
    dtype: str
    format: str
    kernel: str = ""
    error: float = 0.0
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return self.case, self.dtype, self.format

    @property
    def verdict(self) -> str:
        """``right``, ``wrong`` or ``declined``."""
        if self.reason:
            return "declined"
        return "right" if self.error <= ALLOWED[self.dtype] else "wrong"

    @property
    def sort(self) -> str:
        """The reason without its numbers and without the configuration, which others share."""
        return _NUMBERS.sub("#", self.reason.rpartition(": ")[2])


# ── running ──────────────────────────────────────────────────────────────────────────────────────


def sweep(
    device: CudaDevice, chooser: Chooser, cases: Sequence[ConvolutionCase], say: Say, begin: int = 1
) -> Iterator[SweptEngine]:
    """Yield what becomes of every configuration in every dtype and format.

    Args:
        device: the GPU.
        chooser: finds engines.
        cases: the configurations.
        say: called with progress messages.
        begin: number of the first one, from 1.
    """
    for number, case in enumerate(cases[begin - 1 :], begin):
        say(f"{number} of {len(cases)}: {case}")
        for dtype, format in product(DTYPES, FORMATS):
            yield _check(device, chooser, replace(case, dtype=dtype), format)


def _check(
    device: CudaDevice, chooser: Chooser, case: ConvolutionCase, format: Format
) -> SweptEngine:
    from ...backends.cudnn.conv import ConvPattern, describe
    from ...backends.cudnn.library import NoPlan
    from ...backends.cudnn.stages import follow
    from ...backends.cudnn.step import EngineBench

    graph = case.graph()
    node, *behind = graph.nodes
    found = SweptEngine(str(case), name_of(case.dtype), format.value)
    described = describe(node, format=format)
    if isinstance(described, str):
        return replace(found, reason=described)
    pattern = ConvPattern(node, follow(graph, node.output, frozenset(behind)), Options())
    task = pattern.task(described)
    with EngineBench(device, task, filled=False) as bench:
        try:
            choice = chooser.choose(task, bench)
        except NoPlan as error:
            return replace(found, reason=str(error))
    got = _run(device, choice, case, task.operands)
    return replace(found, kernel=str(choice), error=_distance(got, case.expected()))


def _run(
    device: CudaDevice, choice: EngineChoice, case: ConvolutionCase, operands: Mapping[str, Operand]
) -> Array:
    """Return what a choice computes of a case."""
    from ...backends.cuda.driver.memory import CudaBuffer
    from ...backends.cudnn.step import runner

    w, b = case.constants()
    arrays = {**case.feeds(), "w": w, "bias": b, "zeros": np.zeros_like(b)}
    nothing = np.full(operands["y"].dims, np.nan)
    buffers: dict[str, CudaBuffer] = {}
    scratch = device.allocate(choice.scratch)
    try:
        for role in choice.roles:
            elements = _laid(arrays.get(role, nothing), operands[role])
            buffer = device.upload(elements).buffer
            if isinstance(buffer, CudaBuffer):
                buffers[role] = buffer
        at = {role: buffer.pointer for role, buffer in buffers.items()}
        stream = device.stream()
        runner(device, choice, at, scratch.pointer)(stream)
        stream.synchronize()
        return _read(buffers["y"], operands["y"], case)
    finally:
        for buffer in (*buffers.values(), scratch):
            buffer.close()


def _laid(data: Array, operand: Operand) -> Array:
    """Return elements as an operand has them in memory, zeros where it has more than there are."""
    if data.ndim == 1:
        data = data.reshape(operand.dims)
    elif data.ndim < len(operand.dims):
        data = np.expand_dims(data, 2)
    memory = np.zeros(operand.extent // operand.dtype.itemsize, operand.dtype)
    _seen(memory, operand)[tuple(map(slice, data.shape))] = data
    return memory


def _seen(memory: Array, operand: Operand) -> Array:
    """Return memory in the logical order of an operand."""
    strides = [step * memory.itemsize for step in operand.strides]
    return np.lib.stride_tricks.as_strided(memory, operand.dims, strides)


def _read(buffer: CudaBuffer, operand: Operand, case: ConvolutionCase) -> Array:
    """Return the result, with as many axes as the case has."""
    from cuda.bindings import driver

    from ...backends.cuda.driver.status import check

    memory = np.empty(operand.extent // operand.dtype.itemsize, operand.dtype)
    answer = driver.cuMemcpyDtoH(memory.ctypes.data, buffer.pointer, memory.nbytes)
    check("cuMemcpyDtoH", answer)
    found = _seen(memory, operand).astype(np.float64)
    return found if len(case.x) == found.ndim else np.squeeze(found, 2)


def _distance(got: Array, want: Array) -> float:
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.linalg.norm(got - want) / max(float(np.linalg.norm(want)), 1e-30))


# ── reports ──────────────────────────────────────────────────────────────────────────────────────

TITLES = ("dtype", "format", "right", "wrong", "declined", "worst error", "median", "allowed")


def rows(findings: Sequence[SweptEngine]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each dtype and format."""
    for dtype, format in product(map(name_of, DTYPES), FORMATS):
        mine = [f for f in findings if (f.dtype, f.format) == (dtype, format.value)]
        verdicts = [f.verdict for f in mine]
        errors = [f.error for f in mine if not f.reason]
        figures = (max(errors), float(np.median(errors))) if errors else ()
        yield (
            dtype,
            format.value,
            *(str(verdicts.count(each)) for each in ("right", "wrong", "declined")),
            *(f"{figure:.1e}" for figure in figures),
            f"{ALLOWED[dtype]:.0e}",
        )


def declines(findings: Sequence[SweptEngine]) -> dict[str, list[SweptEngine]]:
    """Return what was declined, by the sort of reason, the most frequent first."""
    found: dict[str, list[SweptEngine]] = {}
    for finding in findings:
        if finding.reason:
            found.setdefault(finding.sort, []).append(finding)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def markdown(findings: Sequence[SweptEngine], about: dict[str, str]) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Written by `python -m tercet.tools.workshop.cudnn_sweep --output docs/results`. Every "
        "configuration of Conv and ConvTranspose runs in both dtypes and both formats, even if the "
        "backend would choose others. Errors are relative L2 distances from float64 on the same "
        "rounded inputs. The cuda kernels run the configurations that cuDNN declines."
    )
    lines = [
        *head("Random convolutions on cuDNN", text, about),
        *table(TITLES, rows(findings), range(2, len(TITLES))),
        "",
    ]
    for reason, found in declines(findings).items():
        first = found[0]
        lines += [
            f"Declined {len(found)} times: {reason}. The first one: `{first.case}`, {first.dtype}, "
            f"{first.format}:",
            "",
            f"    {first.reason}",
            "",
        ]
    wrong = [f for f in findings if f.verdict == "wrong"]
    lines += [
        f"Wrong: `{f.case}`, {f.dtype}, {f.format}: {f.error:.1e} by {f.kernel}" for f in wrong
    ]
    return "\n".join(lines).rstrip() + "\n"


def save(findings: Sequence[SweptEngine], about: dict[str, str], folder: Path) -> list[Path]:
    """Write JSON and Markdown; return their paths."""
    results = [{**asdict(found), "verdict": found.verdict} for found in findings]
    texts = {FILE: to_json(about, results=results), "cudnn_sweep.md": markdown(findings, about)}
    return write(folder, texts)


def _finding(entry: dict[str, Any]) -> SweptEngine:
    """Read what `save` has written."""
    return SweptEngine(**{name: data for name, data in entry.items() if name != "verdict"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, print, and write if asked; return 1 where a result is wrong."""
    parser = make_parser("cudnn_sweep", __doc__)
    parser.add_argument(
        "--count", type=int, default=200, help="number of configurations; default: 200"
    )
    parser.add_argument("--seed", type=int, default=3, help="seed of the configurations")
    parser.add_argument(
        "--begin", type=int, default=1, help="number of the first configuration to run"
    )
    chosen = parser.parse_args(arguments)
    console = open_console()
    try:
        findings = _swept(chosen)
    except TercetError as error:
        console.print(f"cudnn_sweep: {error}")
        return error.exit_code
    print_table(console, TITLES, rows(findings), left=2)
    for reason, found in declines(findings).items():
        console.print(f"declined {len(found)} times: {reason}")
    return 1 if any(found.verdict == "wrong" for found in findings) else 0


def _swept(chosen: argparse.Namespace) -> list[SweptEngine]:
    """Return what was found, now and before; print and write it from time to time."""
    device, chooser = _opened()
    about = {
        "configurations": f"{chosen.count} of seed {chosen.seed}",
        **device_environment(device, PACKAGES, chosen.commit),
    }
    known = earlier(chosen.output / FILE, about, _finding) if chosen.output else []
    findings = {found.key: found for found in known}
    cases = random_cases(chosen.count, chosen.seed)
    with progress() as say:
        for number, found in enumerate(sweep(device, chooser, cases, say, chosen.begin), 1):
            findings[found.key] = found
            done = chosen.begin - 1 + number // KINDS
            if number % KINDS == 0 and (done % OFTEN == 0 or done == len(cases)):
                print(f"{done} of {len(cases)} configurations", flush=True)
                if chosen.output:
                    save(list(findings.values()), about, chosen.output)
    return list(findings.values())


def _opened() -> tuple[CudaDevice, Chooser]:
    """Return the GPU and what chooses engines on it; raises BackendUnavailable."""
    from ...backends import open_backends
    from ...backends.cudnn.backend import CudnnBackend

    backend = open_backends("cudnn", Options())[0]
    if not isinstance(backend, CudnnBackend):
        raise TypeError(f"{backend.name} is not cuDNN")
    return backend.device, backend.chooser


if __name__ == "__main__":
    raise SystemExit(main())
