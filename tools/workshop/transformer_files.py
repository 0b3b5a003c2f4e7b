"""Writes small transformers as their producers do, with random weights: see `FILES`.

    pip install torch transformers onnxruntime onnxruntime-genai onnxscript
    python -m tercet.tools.workshop.transformer_files tests/producers/transformers

transformers' networks are exported by torch.onnx, and then saved by onnxruntime as it optimises
them (`basic`, `extended`), or by its optimiser of transformers (`O1` to `O4`, as optimum calls
them). onnxruntime-genai's builder writes decoders of other families. Next to each file is an .npz
of inputs and of the results of onnxruntime's CPU.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

#: What is written: a network, and how it is made.
FILES = {
    "bert": "extended O2 O3 O4",
    "gpt2": "O2",
    "llama": "extended O2",
    "vit": "O2",
    "whisper": "O3",
}
#: The families of onnxruntime-genai's builder, and the precisions.
DECODERS = {
    "llama": "fp32 fp16",
    "qwen3": "fp32",
    "phi3": "fp32",
    "gemma2": "fp32",
    "gptoss": "fp32",
}
#: The sizes that transformers' configurations agree on.
SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
WIDTH, HEADS = 16, 2
#: The fusions that onnxruntime's optimiser tries on each network.
FUSIONS = {"bert": "bert", "vit": "vit", "gpt2": "gpt2", "llama": "gpt2"}
Feeds = dict[str, Any]


def network(name: str) -> tuple[Any, tuple[Any, ...], list[str]]:
    """Return a network of torch, its arguments, and their names."""
    torch, hf = import_module("torch"), import_module("transformers")
    torch.manual_seed(0)
    ids = torch.randint(3, 24, (2, 5))
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[0, 3:] = 0
    whisper: dict[str, Any] = {
        **{"vocab_size": 24, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 4},
        **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_source_positions": 10},
        **{"max_target_positions": 12, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        "decoder_start_token_id": 1,
    }
    eager = {"attn_implementation": "eager"}
    if name == "bert":
        model = hf.BertModel(hf.BertConfig(**SIZES, **eager))
        given = (ids, mask, torch.zeros_like(ids))
        return _first(model), given, ["input_ids", "attention_mask", "token_type_ids"]
    if name == "gpt2":
        sizes = {"vocab_size": 24, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
        ends = {"bos_token_id": 1, "eos_token_id": 2}
        model = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **ends, **eager))
        return _first(model, use_cache=False), (ids, mask), ["input_ids", "attention_mask"]
    if name == "llama":
        config = hf.LlamaConfig(**SIZES, num_key_value_heads=1, **eager)
        model = hf.LlamaForCausalLM(config)
        return _first(model, use_cache=False), (ids, mask), ["input_ids", "attention_mask"]
    if name == "vit":
        config = hf.ViTConfig(**SIZES, image_size=8, patch_size=4, **eager)
        return _first(hf.ViTModel(config)), (torch.randn(2, 3, 8, 8),), ["pixel_values"]
    model = hf.WhisperModel(hf.WhisperConfig(**whisper, **eager))
    return _first(model.encoder), (torch.randn(2, 4, 20),), ["input_features"]


def _first(model: Any, **more: Any) -> Any:
    """Return a module that gives a network's first result alone."""
    torch = import_module("torch")

    class FirstResult(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: Any) -> Any:
            return self.model(**dict(zip(self.names, given, strict=True)), **more)[0]

    return FirstResult()


def export(name: str, path: Path) -> Feeds:
    """Write a network as torch.onnx does, and return the inputs that it was traced with."""
    torch = import_module("torch")
    model, given, names = network(name)
    model.names = names
    dynamic = {
        each: {0: "batch"} | ({1: "length"} if "input_ids" in names else {}) for each in names
    }
    with torch.no_grad():
        torch.onnx.export(
            model.eval(),
            given,
            str(path),
            input_names=names,
            output_names=["y"],
            dynamic_axes=dynamic,
            opset_version=17,
            dynamo=False,
        )
    return {n: x.numpy() for n, x in zip(names, given, strict=True)}


def optimise(name: str, how: str, source: Path, target: Path) -> None:
    """Write a network as onnxruntime optimises it."""
    if how in ("basic", "extended"):
        options = onnxruntime.SessionOptions()
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = {
            "basic": level.ORT_ENABLE_BASIC,
            "extended": level.ORT_ENABLE_EXTENDED,
        }[how]
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        return
    fusion_options = import_module("onnxruntime.transformers.fusion_options")
    optimizer = import_module("onnxruntime.transformers.optimizer")
    level = int(how[1])
    kind = FUSIONS.get(name, "bart")
    fusions = fusion_options.FusionOptions(kind)
    fusions.enable_gelu_approximation = level >= 3
    model = optimizer.optimize_model(
        str(source),
        model_type=kind,
        num_heads=HEADS,
        hidden_size=WIDTH,
        opt_level=0 if level == 1 else 1,
        optimization_options=fusions,
        only_onnxruntime=level == 1,
    )
    if level == 4:
        model.convert_float_to_float16(keep_io_types=True)
    model.save_model_to_file(str(target))


def decoder(family: str, precision: str, folder: Path) -> Path:
    """Write a decoder as onnxruntime-genai's builder does, and return its path."""
    torch, hf = import_module("torch"), import_module("transformers")
    builder = import_module("onnxruntime_genai.models.builder")
    tokenizers = import_module("tokenizers")
    torch.manual_seed(0)
    sizes = {**SIZES, "num_key_value_heads": 1, "eos_token_id": 1, "bos_token_id": 2}
    sizes |= {"head_dim": 16, "sliding_window": 4}
    kinds: dict[str, Callable[[], Any]] = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**sizes)),
        "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**sizes)),
        "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes)),
        "phi3": lambda: hf.Phi3ForCausalLM(
            hf.Phi3Config(
                **{name: size for name, size in sizes.items() if name != "head_dim"}
                | {"hidden_size": 32},
                pad_token_id=1,
                original_max_position_embeddings=32,
            )
        ),
        "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**sizes | {"num_hidden_layers": 2})),
        "gptoss": lambda: hf.GptOssForCausalLM(
            hf.GptOssConfig(
                **sizes | {"num_hidden_layers": 2}, num_local_experts=3, num_experts_per_tok=2
            )
        ),
    }
    source, target = folder / f"{family}_source", folder / f"{family}_{precision}"
    kinds[family]().eval().save_pretrained(source)
    words = {f"w{i}": i for i in range(24)}
    hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")),
        unk_token="w0",
        eos_token="w1",
        bos_token="w2",
        pad_token="w1",
    ).save_pretrained(source)
    device = "cuda" if precision == "fp16" else "cpu"
    asked = (None, str(source), str(target), precision, device, str(folder / "cache"))
    builder.create_model(*asked, **builder.parse_extra_options(*asked, []))
    return target / "model.onnx"


def prompt(model: onnx.ModelProto) -> Feeds:
    """Return the inputs of a decoder for two prompts of five tokens, without a past."""
    rng = np.random.default_rng(0)
    feeds: Feeds = {}
    for each in model.graph.input:
        dims = [d.dim_param or d.dim_value for d in each.type.tensor_type.shape.dim]
        if each.name == "input_ids":
            feeds[each.name] = rng.integers(3, 24, (2, 5))
        elif each.name == "attention_mask":
            feeds[each.name] = np.ones((2, 5), np.int64)
        else:
            room = 4 if "sliding" in str(dims[2]) else 0
            size = dims[3] if isinstance(dims[3], int) else 16
            dtype = onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
            feeds[each.name] = np.zeros((2, int(dims[1]), room, size), dtype)
    return feeds


def results(path: Path, feeds: Feeds) -> Feeds:
    """Return what onnxruntime's CPU computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def record(name: str, source: Path, feeds: Feeds, folder: Path) -> None:
    """Write a model with its weights in one file, and its inputs and results next to it."""
    model = onnx.load(source)
    for node in model.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    target = folder / f"{name}.onnx"
    onnx.save(model, target)
    arrays = {f"input/{n}": x for n, x in feeds.items()}
    arrays |= {f"output/{n}": x for n, x in results(target, feeds).items()}
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    operators = sorted({node.op_type for node in model.graph.node if node.domain})
    print(f"{name}: {target.stat().st_size} bytes, {', '.join(operators)}")


def main(folder: Path) -> None:
    """Write everything that the packages here can make."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, ways in FILES.items():
            source = Path(scratch) / f"{name}.onnx"
            feeds = export(name, source)
            for how in ways.split():
                target = Path(scratch) / f"{name}_{how}.onnx"
                optimise(name, how, source, target)
                record(f"transformers_{name}_{how}", target, feeds, folder)
        for family, precisions in DECODERS.items():
            for precision in precisions.split():
                with contextlib.redirect_stdout(io.StringIO()):
                    source = decoder(family, precision, Path(scratch))
                feeds = prompt(onnx.load(source, load_external_data=False))
                record(f"genai_{family}_{precision}", source, feeds, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
