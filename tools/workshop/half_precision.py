r"""Measure the errors of networks in half precision, against float64 and PyTorch.

    python -m tercet.tools.workshop.half_precision FOLDER... --output docs/results
    python -m tercet.tools.workshop.half_precision --networks timm:efficientvit_b1 hf:gpt2 \\
        --backend cuda

A FOLDER contains files as written by `exported_networks`, ``NAME.onnx`` with ``NAME.npz``, or
models in separate folders, ``NAME/model.onnx`` with ``inputs.npz`` and perhaps
``real_inputs.npz``. ``--networks`` exports networks first (all of them if none is named), for which
PyTorch and their libraries must be installed.

Errors are relative L2 distances from the same model in float64: of float32, of half precision, and
of PyTorch in that precision (eager, on the CPU, or on the GPU with a GPU backend), if the folder
has it. The limit is `TIMES` PyTorch's error. A number that is not finite although float64's is
finite is an error in any case. Outputs of integers and strings are not compared.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...api import load
from ...backends import open_backends
from ...runtime.errors import InputError, PrecisionWarning, TercetError
from ...runtime.ir.dtypes import FLOATS
from ...runtime.ir.types import TensorType
from ...runtime.options import Options, Precision
from ...runtime.session.model import Model
from ..bisect.precision import HALVES
from ..common.environment import device_environment
from ..common.markdown import head, table
from ..common.results import earlier, to_json, write
from ..verdict.float64_reference import Oracle
from .arguments import parser as make_parser
from .exported_networks import NETWORKS, export

#: Largest error, as a multiple of PyTorch's.
TIMES = 3.0
#: Layers, which gain from half precision.
LAYERS = ("Attention", "Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class HalfResult:
    """One model in one precision.

    Attributes:
        model: its name.
        precision: float16 or bfloat16.
        error: of the worst output, relative, from float64.
        error_float32: likewise, in float32.
        error_pytorch: likewise, of PyTorch in this precision; None where it is not known.
        layers: convolutions and products.
        narrow: how many of them are in half precision.
        lost: elements that are not finite, and are so in float64.
        warned: what the model's user was told.
        seconds: to load and to run.
        problem: why there are no figures.
    """

    model: str
    precision: str
    error: float = 0.0
    error_float32: float = 0.0
    error_pytorch: float | None = None
    layers: int = 0
    narrow: int = 0
    lost: int = 0
    warned: str = ""
    seconds: float = 0.0
    problem: str = ""

    @property
    def verdict(self) -> str:
        """``ok``, or what is wrong."""
        if self.problem:
            return self.problem
        if self.lost:
            return f"{self.lost} elements are not finite"
        if self.error_pytorch is not None and not self.error <= TIMES * self.error_pytorch:
            return f"more than {TIMES:g} times PyTorch's error"
        return "ok"


@dataclass(frozen=True, slots=True)
class ModelSample:
    """A model's file, inputs for it, and what others computed of them, by precision."""

    name: str
    file: Path
    inputs: Mapping[str, Any] | Sequence[Any]
    peers: Mapping[str, Any]


def samples(folder: Path) -> Iterator[ModelSample]:
    """Yield the models of a folder, each with one set of inputs.

    Raises:
        InputError: there are none.
    """
    count = 0
    for file in sorted((*folder.glob("*.onnx"), *folder.glob("*/model.onnx"))):
        is_own = file.name == "model.onnx" and file.parent != folder
        stored = file.with_suffix(".npz")
        if is_own:
            stored = file.parent / "real_inputs.npz"
            stored = stored if stored.exists() else file.parent / "inputs.npz"
        if not stored.exists():
            continue
        count += 1
        data = dict(np.load(stored))
        if is_own:
            yield ModelSample(file.parent.name, file, data, {})
            continue
        fed = [data.pop(f"in{i}") for i in range(len(data)) if f"in{i}" in data]
        yield ModelSample(file.stem, file, fed, data)
    if not count:
        raise InputError(f"{folder} has no models with inputs next to them")


def measure(sample: ModelSample, precision: Precision, backend: str) -> HalfResult:
    """Run a model in float64, float32 and half precision."""
    begin = time.perf_counter()
    options: dict[str, Any] = {} if backend == "numpy" else {"fallback": "numpy"}
    try:
        with load(sample.file, backend, **options) as model:
            feeds = _feeds(sample, model)
            wide = _flat(model.run(feeds))
            exact = _exact(sample, model, feeds)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always", PrecisionWarning)
            with load(sample.file, backend, precision=precision, **options) as model:
                found = _flat(model.run(feeds))
                layers = _layers(model)
    except TercetError as error:
        return HalfResult(sample.name, precision, problem=str(error).partition("\n")[0])
    peer = sample.peers.get(precision)
    of_pytorch = None if peer is None else _error(peer, next(iter(exact.values())))
    told = [str(one.message) for one in seen if issubclass(one.category, PrecisionWarning)]
    return HalfResult(
        sample.name,
        precision,
        max((_error(found[name], want) for name, want in exact.items()), default=0.0),
        max((_error(wide[name], want) for name, want in exact.items()), default=0.0),
        of_pytorch,
        len(layers),
        sum(name == precision for name in layers),
        sum(int((np.isfinite(w) & ~np.isfinite(found[n])).sum()) for n, w in exact.items()),
        told[0] if told else "",
        time.perf_counter() - begin,
    )


def _feeds(sample: ModelSample, model: Model) -> dict[str, Any]:
    if isinstance(sample.inputs, Mapping):
        return dict(sample.inputs)
    return {info.name: x for info, x in zip(model.inputs, sample.inputs, strict=True)}


def _exact(sample: ModelSample, model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    if "float64" in sample.peers:
        return {model.outputs[0].name: sample.peers["float64"]}
    oracle = Oracle(model.imported)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _flat(oracle.run(feeds))
    finally:
        oracle.close()


def _flat(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs that are tensors of floats, as float64."""
    arrays = {n: x for n, x in results.items() if isinstance(x, np.ndarray) and x.dtype in FLOATS}
    return {name: data.astype(np.float64) for name, data in arrays.items()}


def _layers(model: Model) -> list[str]:
    types = [n.output.type for n in model.graph.walk() if n.kind in LAYERS]
    return [t.dtype.name if isinstance(t, TensorType) else "" for t in types]


def _error(found: Any, exact: Any) -> float:
    """Return the relative error in the L2 norm, over what is finite in float64."""
    if found.shape != exact.shape:
        return float("inf")
    usable = np.isfinite(exact)
    apart, size = found[usable] - exact[usable], np.linalg.norm(exact[usable])
    return float(np.linalg.norm(apart) / (size or 1.0))


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def markdown(results: Sequence[HalfResult], about: Mapping[str, str]) -> str:
    """Return the report as a Markdown page."""
    text = (
        "Written by `python -m tercet.tools.workshop.half_precision FOLDER... --output "
        "docs/results`. Errors are relative L2 distances of the worst output from float64: in half "
        "precision, in float32, and of PyTorch in the same half precision (eager); the limit is "
        f"{TIMES:g} times PyTorch's error. *Layers* is the number of convolutions, matrix products "
        "and attentions in half precision, of all."
    )
    rows: list[tuple[str, ...]] = []
    for one in sorted(results, key=lambda r: (r.precision, r.error_pytorch is None, r.model)):
        peer = "" if one.error_pytorch is None else f"{one.error_pytorch:.1e}"
        errors = f"{one.error:.1e}", f"{one.error_float32:.1e}", peer
        kinds = f"{one.narrow} of {one.layers}"
        rows.append((one.model, one.precision, *errors, kinds, one.verdict))
    titles = ("model", "precision", "error", "float32", "PyTorch", "layers", "verdict")
    lines = [*head("Half precision", text, about), *table(titles, rows, range(2, 6))]
    told = [f"- {one.model}, {one.precision}: {one.warned}" for one in results if one.warned]
    return "\n".join([*lines, "", *(["Warnings:", "", *told, ""] if told else [])])


def main() -> int:
    """Measure, print, and write if asked; return 1 where something is wrong."""
    parser = make_parser("half_precision", __doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--networks", nargs="*", help="networks to export first; default: all")
    parser.add_argument(
        "--export", type=Path, default=Path("exported"), help="folder of exported networks"
    )
    parser.add_argument("--models", nargs="*", help="names of the only models to measure")
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--precision", nargs="*", default=HALVES, choices=HALVES)
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no measurement after SECONDS"
    )
    arguments = parser.parse_args()
    try:
        results = _measured(arguments)
    except TercetError as error:
        parser.error(str(error))
    wrong = [one for one in results if one.verdict != "ok"]
    print(f"{len(results)} results, {len(wrong)} not ok")
    return 1 if wrong else 0


def _samples(arguments: argparse.Namespace) -> Iterator[ModelSample]:
    for folder in arguments.folders:
        yield from samples(folder)
    if arguments.networks is not None:
        place = "cpu" if arguments.backend == "numpy" else "cuda"
        for network in arguments.networks or NETWORKS:
            file = export(network, arguments.export, place)
            yield from (one for one in samples(arguments.export) if one.file == file)


def _measured(arguments: argparse.Namespace) -> list[HalfResult]:
    backend, begin = arguments.backend, time.monotonic()
    device = open_backends(backend, Options())[0].device
    about = {
        "backend": backend,
        **device_environment(device, ("numpy", "onnx", "torch"), arguments.commit),
    }
    name = "half_precision" + ("" if backend == "numpy" else f"_{backend}")
    found: dict[tuple[str, str], HalfResult] = {}
    if arguments.output:
        for one in earlier(arguments.output / f"{name}.json", about, lambda d: HalfResult(**d)):
            found[one.model, one.precision] = one
    for sample in _samples(arguments):
        if arguments.models and sample.name not in arguments.models:
            continue
        for precision in arguments.precision:
            if time.monotonic() - begin > arguments.seconds:
                return list(found.values())
            one = measure(sample, precision, backend)
            found[sample.name, precision] = one
            peer = "" if one.error_pytorch is None else f" (PyTorch {one.error_pytorch:.1e})"
            text = f"{one.error:.1e}{peer}, {one.narrow} of {one.layers} layers, {one.verdict}"
            print(f"{sample.name} {precision}: {text}, {one.seconds:.1f} s", flush=True)
            if arguments.output:
                data = [asdict(each) for each in found.values()]
                texts = {f"{name}.json": to_json(about, results=data)}
                texts[f"{name}.md"] = markdown(list(found.values()), about)
                write(arguments.output, texts)
    return list(found.values())


if __name__ == "__main__":
    raise SystemExit(main())
