r"""Make files with every producer that is installed, to be tried by `produced_page`.

    python -m tercet.tools.workshop.produced build/produced            # all that are installed here
    python -m tercet.tools.workshop.produced build/produced olive onnxslim
    python -m tercet.tools.workshop.produced build/produced --python jax=envs/jax/bin/python \
        --python tensorflow=envs/tf/bin/python

Producers exclude each other's versions, so they may be installed in several environments, each of
which has what tercet needs: each producer runs in the first one, in the order of `--python`, that
has what it imports, and in a separate process, as some crash. `PRODUCERS` is the registry:
converters write their own networks, and what rewrites ONNX files gets those of `SOURCES`. The
folder of a producer has one file per network and way, and an .npz file with its inputs;
`produced.json` says where and with which versions, what the producer itself could not do, and why
it was skipped where it is absent.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...runtime.errors import UsageError
from ..common.environment import ROOT
from . import estimator_files
from . import produced_rewrites as rewrites
from .arguments import parser as make_parser
from .produced_rewrites import Feeds, Rewrite

REPORT = "produced.json"
RECORDED = ROOT / "tests" / "producers" / "converted"
#: Networks of several exporters: of images, of tokens, with caches.
SOURCES = ("jax_vision", "optimum_bloom", "paddle_ernie", "tf2onnx_cnn")

#: Name, model and inputs of a network.
Made = tuple[str, onnx.ModelProto, Feeds]
#: Writes a file to a path, and returns its inputs.
Write = Callable[[Path], Feeds]


@dataclass(frozen=True, slots=True)
class Producer:
    """One package, or several of them, that write ONNX files.

    Attributes:
        imports: modules that must be installed.
        distributions: the packages whose versions are recorded.
        make: yields names of files and what writes each of them to a path, with its inputs.
    """

    imports: tuple[str, ...]
    distributions: tuple[str, ...]
    make: Callable[[], Iterator[tuple[str, Write]]]

    @property
    def missing(self) -> str:
        """Say what is not installed; empty if it can run."""
        absent = [name for name in self.imports if find_spec(name) is None]
        return f"not installed: {', '.join(absent)}" if absent else ""


def converter(module: str, name: str, *imports: str, packages: tuple[str, ...] = ()) -> Producer:
    """Return a producer that writes the networks of a module's `MAKERS`."""

    def make() -> Iterator[tuple[str, Write]]:
        made: Iterator[Made] = import_module(f".{module}", __package__).MAKERS[name]()
        for network, model, feeds in made:

            def write(target: Path, model: onnx.ModelProto = model, feeds: Feeds = feeds) -> Feeds:
                onnx.save(model, target)
                return feeds

            yield network, write

    return Producer(imports, packages or imports, make)


def rewriter(
    ways: Mapping[str, Rewrite], *imports: str, packages: tuple[str, ...] = ()
) -> Producer:
    """Return a producer that rewrites each of the sources in several ways."""

    def make() -> Iterator[tuple[str, Write]]:
        for source in SOURCES:
            for way, rewrite in ways.items():

                def write(target: Path, source: str = source, rewrite: Rewrite = rewrite) -> Feeds:
                    feeds = inputs_of(source)
                    with tempfile.TemporaryDirectory() as folder:
                        plain = onnx.load(RECORDED / f"{source}.onnx")
                        onnx.save(plain, Path(folder) / "source.onnx")
                        rewrite(Path(folder) / "source.onnx", target, feeds)
                    return feeds

                yield f"{source}_{way}", write

    return Producer(imports, packages or imports, make)


#: By the name of their folder.
PRODUCERS: dict[str, Producer] = {
    "diffusers": converter("converter_files", "diffusers", "torch", "diffusers"),
    "hummingbird": converter(
        "writer_files", "hummingbird", "torch", "hummingbird", packages=("hummingbird-ml",)
    ),
    "jax2onnx": converter("converter_files", "jax", "jax2onnx", "flax"),
    "mobius": converter("mobius_files", "mobius", "mobius", packages=("mobius-onnx",)),
    "optimum": converter(
        "converter_files", "optimum", "torch", "optimum", packages=("optimum", "optimum-onnx")
    ),
    "paddle2onnx": converter(
        "converter_files",
        "paddle",
        "paddle",
        "paddle2onnx",
        packages=("paddlepaddle", "paddle2onnx"),
    ),
    "scikit-learn": Producer(
        ("sklearn", "skl2onnx"), ("scikit-learn", "skl2onnx"), estimator_files.estimators
    ),
    "spox": converter("writer_files", "spox", "spox"),
    "tf2onnx": converter("converter_files", "tf2onnx", "tensorflow", "tf2onnx"),
    "tflite": converter("converter_files", "tflite", "tensorflow", "tf2onnx"),
    "torch": converter("writer_files", "torch", "torch", "onnxscript"),
    "aimet": rewriter(rewrites.AIMET, "aimet_onnx", packages=("aimet-onnx",)),
    "model_optimizer": rewriter(
        rewrites.MODEL_OPTIMIZER, "modelopt", "torch", packages=("nvidia-modelopt",)
    ),
    "neural_compressor": rewriter(
        rewrites.NEURAL_COMPRESSOR, "onnx_neural_compressor", packages=("onnx-neural-compressor",)
    ),
    "nncf": rewriter(rewrites.NNCF, "nncf"),
    "olive": rewriter(rewrites.OLIVE, "olive", "torch", packages=("olive-ai",)),
    "onnx": rewriter(rewrites.ONNX, "onnx"),
    "onnx_graphsurgeon": rewriter(rewrites.GRAPHSURGEON, "onnx_graphsurgeon"),
    "onnx_quantize": rewriter(rewrites.ONNX_QUANTIZE, "onnx_quantize", packages=("onnx-quantize",)),
    "onnxconverter_common": rewriter(rewrites.CONVERTER_COMMON, "onnxconverter_common"),
    "onnxoptimizer": rewriter(rewrites.OPTIMIZER, "onnxoptimizer"),
    "onnxruntime": rewriter(rewrites.ONNXRUNTIME, "onnxruntime"),
    "onnxscript": rewriter(rewrites.ONNXSCRIPT, "onnxscript"),
    "onnxsim": rewriter(rewrites.SIMPLIFIER, "onnxsim"),
    "onnxslim": rewriter(rewrites.SLIM, "onnxslim"),
    "quark": rewriter(rewrites.QUARK, "quark", "torch", packages=("amd-quark",)),
}


def inputs_of(source: str) -> Feeds:
    """Return the inputs of a source."""
    with np.load(RECORDED / f"{source}.npz") as file:
        found = {k.removeprefix("input/"): file[k] for k in file.files if k.startswith("input/")}
    return found


def run(producer: Producer, folder: Path) -> dict[str, Any]:
    """Write all files of a producer, and return what is to be reported of it."""
    folder.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    with _recorded(failed, "all"):
        for name, write in producer.make():
            target = folder / f"{name}.onnx"
            with _recorded(failed, name):
                feeds = write(target)
                arrays = {f"input/{key}": np.asarray(x) for key, x in feeds.items()}
                np.savez_compressed(target.with_suffix(".npz"), allow_pickle=False, **arrays)
            if name in failed:
                target.unlink(missing_ok=True)
    return _entry(producer, failed)


@contextlib.contextmanager
def _recorded(failed: dict[str, str], name: str) -> Iterator[None]:
    """Report what a producer raises, which may be any exception, and go on with the next file."""
    try:
        yield
    except Exception as error:
        failed[name] = _sentence(error)


def _entry(producer: Producer, failed: Mapping[str, str]) -> dict[str, Any]:
    versions = {name: _version(name) for name in producer.distributions}
    return {"versions": versions, "failed": dict(failed), "skipped": "", "environment": ""}


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


def _version(distribution: str) -> str:
    """Return a version; that of tensorflow may be installed as tensorflow-cpu."""
    for name in (distribution, *metadata.packages_distributions().get(distribution, ())):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "unknown"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(redirect(io.StringIO()))
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@dataclass(frozen=True, slots=True)
class Environment:
    """An interpreter with the packages installed for it.

    Attributes:
        name: as the page calls it.
        python: its path.
        seconds: a producer that takes longer is ended.
    """

    name: str
    python: str
    seconds: float

    def run(self, folder: Path, name: str) -> str:
        """Run a producer; return why its process ended early, empty if it did not."""
        module = f"tercet.tools.workshop.{Path(__file__).stem}"
        command = [self.python, "-m", module, str(folder), name, "--inside"]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        try:
            ended = subprocess.run(command, check=False, env=variables, timeout=self.seconds)
        except subprocess.TimeoutExpired:
            return f"ended after {self.seconds:g} s; files are missing"
        code = ended.returncode
        return f"the process ended with {code}; files are missing" if code else ""


def _make_in(environment: Environment, folder: Path, name: str) -> None:
    """Run a producer in an environment, unless it has run in one before that."""
    known = _known(folder)
    if name in known and not known[name]["skipped"]:
        return
    why = environment.run(folder, name)
    known = _known(folder)
    if why:
        known[name] = _entry(PRODUCERS[name], {"all": why})
    if not known[name]["skipped"]:
        known[name]["environment"] = environment.name
    _write_report(folder, known)


def _forget(folder: Path, name: str) -> None:
    """Remove what an earlier run has made and reported."""
    shutil.rmtree(folder / name, ignore_errors=True)
    known = _known(folder)
    known.pop(name, None)
    _write_report(folder, known)


def _known(folder: Path) -> dict[str, Any]:
    path = folder / REPORT
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def _write_report(folder: Path, known: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(sorted(known.items())), indent=1) + "\n"
    (folder / REPORT).write_text(text, "utf-8")


def report(folder: Path, name: str, make: Callable[[], dict[str, Any]]) -> None:
    """Run a producer if it is installed, and add it to the report of a folder."""
    known = _known(folder)
    if missing := PRODUCERS[name].missing:
        skipped = {"versions": {}, "failed": {}, "skipped": missing, "environment": ""}
        known.setdefault(name, skipped)
        print(f"{name}: {missing}", flush=True)
    else:
        with _silent():
            known[name] = make()
        count = len(list((folder / name).glob("*.onnx")))
        print(f"{name}: {count} files, {len(known[name]['failed'])} failed", flush=True)
    _write_report(folder, known)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which producers run, and where."""
    parser.add_argument("folder", type=Path, help="folder of one folder per producer")
    parser.add_argument("producers", nargs="*", metavar="PRODUCER", help=", ".join(PRODUCERS))
    parser.add_argument(
        "--python",
        action="append",
        metavar="NAME=PATH",
        default=[],
        help="an environment and its interpreter; repeatable; by default the one that runs this",
    )
    parser.add_argument(
        "--seconds", type=float, default=1200, help="of a producer, after which it is ended"
    )


def make(given: argparse.Namespace) -> None:
    """Run the producers that are named, or all of them, in the environments that are given.

    Raises:
        UsageError: no producer is called so, or an environment is malformed.
    """
    if unknown := sorted(set(given.producers) - set(PRODUCERS)):
        raise UsageError(f"no producer is called {', '.join(unknown)}")
    pairs = [each.partition("=") for each in given.python] or [("here", "=", sys.executable)]
    if wrong := [name for name, _, python in pairs if not python]:
        raise UsageError(f"--python {wrong[0]}: expected NAME=PATH")
    for name in given.producers or PRODUCERS:
        _forget(given.folder, name)
        for environment, _, python in pairs:
            _make_in(Environment(environment, python, given.seconds), given.folder, name)


def main() -> int:
    """Run the command; return the exit code."""
    parser = make_parser("produced", __doc__, commit=False)
    add_options(parser)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        make(given)
    for name in given.producers if given.inside else ():
        report(given.folder, name, lambda name=name: run(PRODUCERS[name], given.folder / name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
