"""Write folders of small decoders with random weights, using their exporters; see `WRITERS`.

    pip install torch transformers==4.57.* 'optimum[onnxruntime]'
    python -m tercet.tools.workshop.decoder_folders tests/producers/decoders optimum
    pip install torch transformers onnxruntime-genai onnxscript
    python -m tercet.tools.workshop.decoder_folders tests/producers/decoders genai
    python -m tercet.tools.workshop.decoder_folders tests/producers/recurrent recurrent

All have the same tokenizer, of bytes and some words, and most have ``expected.json``: the tokens
that transformers generates with the weights exported by optimum, and onnxruntime-genai with its own
folder. Folders in transformers.js's layout, and their quantized files, are made from optimum's.
Those of onnxruntime-genai are written by its builder.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx

SIZES: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
#: The part of them that all configurations call so.
IDS: dict[str, Any] = {
    **{name: SIZES[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")},
    **{"pad_token_id": 2, "tie_word_embeddings": False},
}
#: What optimum exports.
NETWORKS: dict[str, Callable[[Any], Any]] = {
    "llama": lambda hf: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)),
    "gpt2": lambda hf: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            **{"vocab_size": 288, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
            **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
            tie_word_embeddings=False,
        )
    ),
    "qwen3": lambda hf: hf.Qwen3ForCausalLM(hf.Qwen3Config(**SIZES, head_dim=8)),
    "opt": lambda hf: hf.OPTForCausalLM(
        hf.OPTConfig(
            **{**IDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"ffn_dim": 24, "max_position_embeddings": 64, "word_embed_proj_dim": 16},
        )
    ),
    "bloom": lambda hf: hf.BloomForCausalLM(
        hf.BloomConfig(**{**IDS, "hidden_size": 16, "n_layer": 1, "n_head": 4})
    ),
    "gptj": lambda hf: hf.GPTJForCausalLM(
        hf.GPTJConfig(
            **{**IDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "rotary_dim": 4}
        )
    ),
    "falcon": lambda hf: hf.FalconForCausalLM(
        hf.FalconConfig(
            **{**IDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
            **{"multi_query": True, "new_decoder_architecture": False, "alibi": False},
        )
    ),
    "gpt_bigcode": lambda hf: hf.GPTBigCodeForCausalLM(
        hf.GPTBigCodeConfig(
            **{**IDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
            multi_query=True,
        )
    ),
    "mpt": lambda hf: hf.MptForCausalLM(
        hf.MptConfig(**{**IDS, "d_model": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 64})
    ),
}
#: What onnxruntime-genai's builder writes: families, with precision and device.
BUILT = {
    "llama": ("int4", "cpu"),
    "qwen2": ("fp16", "cuda"),
    "phi3": ("fp32", "cpu"),
    "gemma2": ("int4", "cpu"),
    "phi3long": ("fp32", "cpu"),
    "masked": ("fp16", "cpu"),  # computes masks, and repeats keys and values
}
#: Those with states of all that was read, which have a folder of their own.
RECURRENT = {"lfm2": ("fp32", "cpu"), "qwen3_5": ("fp32", "cpu")}
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "once upon a time there was a little model that could write",
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PROMPTS = ["the quick", "once upon a time there was"]
NEW = 32
#: Draws are compared step by step, so that only distributions count.
WARPED = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3}


def tokenizer() -> Any:
    """Return a tokenizer of bytes and some pairs of them, as transformers holds it."""
    library, hf = import_module("tokenizers"), import_module("transformers")
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    special = ["<|begin|>", "<|end|>", "<|pad|>"]
    trainer = library.trainers.BpeTrainer(
        vocab_size=SIZES["vocab_size"],
        special_tokens=special,
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS * 4, trainer)
    made.post_processor = library.processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    names = dict(zip(("bos_token", "eos_token", "pad_token"), special, strict=True))
    found = hf.PreTrainedTokenizerFast(tokenizer_object=made, **names)
    found.chat_template = TEMPLATE
    return found


def spread(model: Any) -> Any:
    """Return a network whose weights are large enough for its tokens to differ."""
    torch = import_module("torch")
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(6)
    return model.eval()


def expected(model: Any, words: Any) -> dict[str, Any]:
    """Return what transformers generates: each prompt alone, both padded, and distributions."""
    torch, hf = import_module("torch"), import_module("transformers")
    words.padding_side = "left"
    plain = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 2}

    def greedy(texts: list[str], **more: Any) -> list[list[int]]:
        given = words(texts, return_tensors="pt", padding=True)
        given.pop("token_type_ids", None)
        found = model.generate(**given, **{**plain, **more})
        return [row[given["input_ids"].shape[1] :].tolist() for row in found]

    given = words(PROMPTS[:1], return_tensors="pt")["input_ids"]
    kinds = hf.generation.logits_process
    with torch.no_grad():
        logits = model(given).logits[:, -1].double()
    scores = kinds.RepetitionPenaltyLogitsProcessor(WARPED["repetition_penalty"])(given, logits)
    for warper in (
        kinds.TemperatureLogitsWarper(WARPED["temperature"]),
        kinds.TopKLogitsWarper(WARPED["top_k"]),
        kinds.TopPLogitsWarper(WARPED["top_p"]),
        kinds.MinPLogitsWarper(WARPED["min_p"]),
    ):
        scores = warper(given, scores)
    return {
        "prompts": PROMPTS,
        "ids": [words(text)["input_ids"] for text in PROMPTS],
        "alone": [greedy([text])[0] for text in PROMPTS],
        "padded": greedy(PROMPTS),
        "penalty": greedy(PROMPTS[:1], repetition_penalty=1.5)[0],
        "warped": WARPED,
        "probabilities": scores.softmax(-1)[0].tolist(),
        "chat": words.apply_chat_template(
            [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
        ),
    }


def by_optimum(name: str, folder: Path, scratch: Path) -> None:
    """Write a network as ``optimum-cli export onnx --task text-generation-with-past`` does."""
    torch, hf = import_module("torch"), import_module("transformers")
    torch.manual_seed(0)
    model, words = spread(NETWORKS[name](hf)), tokenizer()
    source = scratch / name
    model.save_pretrained(source)
    words.save_pretrained(source)
    export = import_module("optimum.exporters.onnx").main_export
    export(str(source), folder, task="text-generation-with-past", do_validation=False)
    strip(folder / "model.onnx")
    (folder / "expected.json").write_text(json.dumps(expected(model, words)) + "\n")


def merged(source: Path, folder: Path) -> None:
    """Write both halves of a decoder in one file, as optimum did until 2023."""
    hf = import_module("transformers")
    exporters = import_module("optimum.exporters.onnx")
    config = import_module("optimum.exporters.onnx.model_configs").GPT2OnnxConfig
    model = hf.AutoModelForCausalLM.from_pretrained(source).eval()
    parts: list[Path] = []
    for name, with_past in (("decoder_model", False), ("decoder_with_past_model", True)):
        parts.append(folder / f"{name}.onnx")
        kind = config(
            model.config, task="text-generation", use_past=True, use_past_in_inputs=with_past
        )
        exporters.export(model, kind, parts[-1])
    target = folder / "decoder_model_merged.onnx"
    import_module("optimum.onnx").merge_decoders(*parts, save_path=target)
    for part in parts:
        part.unlink()
    strip(target)


def variants(source: Path, folder: Path) -> None:
    """Write the quantized files of a model as transformers.js's scripts do."""
    quantization = import_module("onnxruntime.quantization")
    blocks = import_module("onnxruntime.quantization.matmul_nbits_quantizer").MatMulNBitsQuantizer
    half = import_module("onnxruntime.transformers.float16").convert_float_to_float16
    target = folder / "onnx"
    target.mkdir()
    plain = source / "model.onnx"

    def packed(model: onnx.ModelProto) -> onnx.ModelProto:
        quantizer = blocks(model, block_size=32, is_symmetric=True)
        quantizer.process()
        return quantizer.model.model

    onnx.save(packed(onnx.load(plain)), target / "model_q4.onnx")
    onnx.save(packed(half(onnx.load(plain))), target / "model_q4f16.onnx")
    quantization.quantize_dynamic(
        plain, target / "model_uint8.onnx", weight_type=quantization.QuantType.QUInt8
    )
    for file in target.glob("*.onnx"):
        strip(file)


def by_builder(family: str, folder: Path, scratch: Path) -> None:
    """Write a decoder as onnxruntime-genai's builder does."""
    torch, hf = import_module("torch"), import_module("transformers")
    builder = import_module("onnxruntime_genai.models.builder")
    precision, device = {**BUILT, **RECURRENT}[family]
    torch.manual_seed(0)
    sizes = {**SIZES, "hidden_size": 32, "intermediate_size": 32}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}  # heads of 16, as GQA wants them
    kinds: dict[str, Callable[[], Any]] = {
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**sizes)),
        "masked": lambda: hf.LlamaForCausalLM(
            hf.LlamaConfig(**{**sizes, "hidden_size": 16, "num_attention_heads": 2})
        ),
        "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**sizes)),
        "phi3": lambda: hf.Phi3ForCausalLM(
            hf.Phi3Config(**sizes, original_max_position_embeddings=64)
        ),
        "phi3long": lambda: hf.Phi3ForCausalLM(
            hf.Phi3Config(
                **{**sizes, "original_max_position_embeddings": 16},
                rope_parameters=_two_rotations(8),
            )
        ),
        "gemma2": lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(**{**sizes, "num_hidden_layers": 2}, head_dim=16, sliding_window=8)
        ),
        "lfm2": lambda: hf.Lfm2ForCausalLM(
            hf.Lfm2Config(
                **{**sizes, "num_hidden_layers": 2, "block_auto_adjust_ff_dim": False},
                layer_types=["conv", "full_attention"],
            )
        ),
        "qwen3_5": lambda: hf.Qwen3_5ForConditionalGeneration(_qwen3_5(hf, sizes)),
    }
    source = scratch / f"{family}_source"
    spread(kinds[family]()).save_pretrained(source)
    tokenizer().save_pretrained(source)
    asked = (None, str(source), str(folder), precision, device, str(scratch / "cache"))
    builder.create_model(*asked, **builder.parse_extra_options(*asked, []))
    strip(folder / "model.onnx")
    (folder / "model.onnx.data").unlink(missing_ok=True)
    if device == "cpu":
        (folder / "expected.json").write_text(json.dumps(by_genai(folder)) + "\n")


def _two_rotations(pairs: int) -> dict[str, Any]:
    """Return the angles of Phi-3.5 and Phi-4-mini, which are others in texts beyond a length."""
    short, long = ([step * (1 + i) for i in range(pairs)] for step in (1.0, 1.5))
    kind = {"type": "longrope", "rope_type": "longrope", "rope_theta": 1e4}
    return {**kind, "short_factor": short, "long_factor": long}


def _qwen3_5(hf: Any, sizes: dict[str, Any]) -> Any:
    """Return a configuration with one layer of a recurrent state and one of attention."""
    small = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
    rotation = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    return hf.Qwen3_5Config(
        text_config={
            **{**sizes, "num_hidden_layers": 2, "head_dim": 16},
            "layer_types": ["linear_attention", "full_attention"],
            **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
            **{"linear_key_head_dim": 16, "linear_value_head_dim": 16},
            "rope_parameters": {**rotation, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
        },
        vision_config={**small, "out_hidden_size": 32},
    )


def by_genai(folder: Path) -> dict[str, Any]:
    """Return what onnxruntime-genai generates."""
    genai = import_module("onnxruntime_genai")
    model = genai.Model(str(folder))
    words = import_module("transformers").AutoTokenizer.from_pretrained(folder)

    def greedy(ids: list[int], **more: float) -> list[int]:
        asked = genai.GeneratorParams(model)
        asked.set_search_options(do_sample=False, max_length=len(ids) + NEW, **more)
        generator = genai.Generator(model, asked)
        generator.append_tokens(np.array(ids, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)][len(ids) :]

    prompts = [words(text)["input_ids"] for text in PROMPTS]
    return {
        "prompts": PROMPTS,
        "ids": prompts,
        "alone": [greedy(ids) for ids in prompts],
        "penalty": greedy(prompts[0], repetition_penalty=1.5),
    }


def strip(path: Path) -> None:
    """Put the weights into the file, and leave out what no node reads."""
    model = onnx.load(path)
    graphs = [model.graph]
    for graph in graphs:
        for node in graph.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
            graphs += [each.g for each in node.attribute if each.HasField("g")]
        graph.ClearField("value_info")
    onnx.save(model, path)


def main(folder: Path, producer: str) -> None:
    """Write the folders of one producer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        if producer in ("genai", "recurrent"):
            built = BUILT if producer == "genai" else RECURRENT
            for family, (precision, _) in built.items():
                by_builder(family, emptied(folder / f"genai_{family}_{precision}"), Path(scratch))
        else:
            for name in NETWORKS:
                by_optimum(name, emptied(folder / f"optimum_{name}"), Path(scratch))
            merged(Path(scratch) / "gpt2", emptied(folder / "optimum_gpt2_merged"))
            variants(folder / "optimum_llama", emptied(folder / "transformersjs_llama"))
            for source, target in (
                ("optimum_gpt2", "optimum_gpt2_merged"),
                ("optimum_llama", "transformersjs_llama"),
            ):
                for file in (folder / source).glob("*.js*n*"):
                    shutil.copy(file, folder / target)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            print(f"{file.relative_to(folder)}: {file.stat().st_size} bytes")


def emptied(folder: Path) -> Path:
    """Return a folder without what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
