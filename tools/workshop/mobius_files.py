"""Write small decoders and encoders that Mobius constructs, with random weights.

    pip install mobius-onnx onnx-shape-inference transformers onnxruntime
    python -m tercet.tools.workshop.mobius_files mobius build/mobius

Mobius (of onnxruntime's developers) builds graphs of opset 23 and 24 from configurations, and fuses
them for an execution provider: its own functions for `default`, operators of com.microsoft for
others. Next to each file is an .npz file with inputs and the results of onnxruntime's CPU provider.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .converter_files import RNG, Feeds, Made, drawn, write

#: Model type, execution provider, and what differs from Mobius's small configuration.
_DECODERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *(("llama", provider, {}) for provider in ("default", "cpu", "dml")),
    ("qwen3", "default", {"attn_qk_norm": True}),
    ("mixtral", "default", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ("mistral", "cuda", {"sliding_window": 4, "dtype": "float16"}),
)
_BATCH, _LENGTH, _PAST = 1, 3, 2


def from_mobius() -> Iterator[Made]:
    """Yield decoders with caches, for several execution providers."""
    builder, ir = import_module("mobius._builder"), import_module("onnx_ir")
    registry = import_module("mobius._registry").registry
    make_config = import_module("mobius._testing").make_config
    for kind, provider, options in _DECODERS:
        dtype = builder.resolve_dtype(options.get("dtype", "float32"))
        config = make_config(**{**options, "dtype": dtype})
        module = registry.get(kind)(config)
        model = builder.build_from_module(module, config, execution_provider=provider)["model"]
        _fill(model.graph.initializers)
        proto = ir.to_proto(model)
        yield f"mobius_{kind}_{provider}", proto, _inputs(proto)


def _fill(weights: Mapping[str, Any]) -> None:
    """Draw the weights that have no numbers: scales near 1, matrices that keep the variance."""
    tensor = import_module("onnx_ir").tensor
    for name, value in weights.items():
        if value.const_value is None:
            shape = tuple(map(int, value.shape))
            data = drawn(*shape)
            data = data / np.sqrt(shape[-1]) if len(shape) > 1 else 1 + data / 10
            value.const_value = tensor(data.astype(value.dtype.numpy()), name=name)


def _inputs(proto: onnx.ModelProto) -> Feeds:
    """Return tokens behind a past, in one text."""
    sizes = {"batch": _BATCH, "sequence_len": _LENGTH, "past_sequence_len": _PAST}
    found: Feeds = {}
    for each in proto.graph.input:
        kind = each.type.tensor_type
        shape = [
            d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, _LENGTH + _PAST)
            for d in kind.shape.dim
        ]
        if each.name == "position_ids":
            found[each.name] = np.arange(_PAST, _PAST + _LENGTH)[np.newaxis]
        elif each.name == "attention_mask":
            found[each.name] = np.ones(shape, np.int64)
        elif kind.elem_type == onnx.TensorProto.INT64:
            found[each.name] = RNG.integers(0, 50, shape)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            found[each.name] = drawn(*shape).astype(dtype)
    return found


MAKERS: dict[str, Callable[[], Iterator[Made]]] = {"mobius": from_mobius}

if __name__ == "__main__":
    write(MAKERS[sys.argv[1]](), Path(sys.argv[2]))
