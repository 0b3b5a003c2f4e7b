"""Runtimes that compute what they should, each in its own way: no verdict may call them wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx import load as load_proto

from ...api import Loadable, load
from ...backends.numpy.numerics import blas
from ...runtime.errors import TercetError
from ...runtime.ir.types import Array
from ...runtime.options import Precision
from ..common.nested import flat
from ..common.onnxruntime_errors import onnxruntime_errors
from ..common.threads import use_threads
from .onnxruntime_process import run_onnxruntime

Arrays = Mapping[str, Array]
#: What makes the output that errors are planted in.
BASE: Mapping[Precision, str] = {
    "float32": "onnxruntime all",
    "tf32": "numpy with factors of tf32",
    "float16": "numpy in float16",
    "bfloat16": "numpy in bfloat16",
}
_LEVELS = {"plain": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "all": "ORT_ENABLE_ALL"}
_ROUGH = ("tercet.workshop", "Rough")
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: Passes that change which sums are rounded.
_FUSIONS = ("fold_batchnorm", "fold_affine", "merge_linear", "fuse_attention", "fuse_norm")


def honest(
    source: Loadable, feeds: Arrays, failed: list[str], precision: Precision
) -> Iterator[tuple[str, Arrays]]:
    """Yield what honest runtimes compute; the first one is the reference."""
    numpy = partial(_numpy, source, feeds)
    runs: dict[str, Callable[[], Arrays]] = {"numpy": numpy}
    base = BASE[precision]
    levels: Mapping[str, str] = {"all": _LEVELS["all"]}
    if precision == "float32":
        runs["numpy without passes"] = partial(numpy, stop_at=0)
        runs["numpy with direct convolutions"] = partial(numpy, conv="direct")
        if blas.threads() != 1:
            runs["numpy on one thread"] = partial(numpy, threads=1)
        levels = _LEVELS
    elif precision == "tf32":
        rough, operators = _with_rough_factors(source), {_ROUGH: _rough}
        numpy = partial(_numpy, rough, feeds, operators=operators)
        runs[base] = numpy
        runs[f"{base}, without passes"] = partial(numpy, stop_at=0)
    else:
        numpy = partial(numpy, precision=precision)
        runs[base] = numpy
        runs[f"{base}, with direct convolutions"] = partial(numpy, conv="direct")
        runs[f"{base}, without fusions"] = partial(numpy, skip=_FUSIONS)
    for level, constant in levels.items():
        runs[f"onnxruntime {level}"] = partial(run_onnxruntime, source, feeds, constant)
    for name, run in runs.items():
        try:
            yield name, run()
        except onnxruntime_errors() as error:
            if not name.startswith("onnxruntime"):
                raise
            failed.append(f"{name}: {str(error).splitlines()[0]}")


def _numpy(source: Loadable, feeds: Arrays, threads: int | None = None, **options: Any) -> Arrays:
    usable = threads if blas.threads() is not None else None
    with use_threads(usable), load(source, **options) as model:
        return flat(model.run(feeds))


def _with_rough_factors(source: Loadable) -> ModelProto:
    """Return a model whose products and convolutions read factors of as many bits as tf32 has."""
    model = ModelProto()
    model.CopyFrom(source if isinstance(source, ModelProto) else load_proto(str(source)))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for i, node in enumerate(nodes):
        for place in range(2 if node.op_type in _PRODUCTS else 0):
            rough = f"{node.input[place]}/rough/{i}"
            made = model.graph.node.add(domain=_ROUGH[0], op_type=_ROUGH[1], output=[rough])
            made.input.append(node.input[place])
            node.input[place] = rough
        model.graph.node.append(node)
    model.opset_import.add(domain=_ROUGH[0], version=1)
    return model


def _rough(x: Array) -> Array:
    if x.dtype != np.float32:
        return x
    bits = np.ascontiguousarray(x).view(np.uint32) + np.uint32(1 << 12)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def other_outputs(source: Loadable, feeds: Arrays) -> Arrays:
    """Return the outputs of another input: the same numbers in another order."""
    rng = np.random.default_rng(5)
    shuffled = {
        name: rng.permutation(data.ravel()).reshape(data.shape) if data.size > 1 else data
        for name, data in feeds.items()
    }
    try:
        return _numpy(source, shuffled)
    except TercetError:
        return {}
