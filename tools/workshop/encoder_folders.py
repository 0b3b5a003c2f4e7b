"""Write folders of small encoder-decoders with random weights, using optimum; see `NETWORKS`.

    pip install torch transformers==4.57.* 'optimum[onnxruntime]'
    python -m tercet.tools.workshop.encoder_folders tests/producers/encoders
    pip install torch transformers onnxruntime-genai
    python -m tercet.tools.workshop.encoder_folders tests/producers/encoders genai

Next to the models is ``expected.json``: what transformers generates with the same weights. Files
that no test uses are omitted, so that every layout exists once.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import warnings
import wave
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .decoder_folders import PROMPTS, emptied, strip, tokenizer

NEW = 24
PREFIX = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "vocab_size": 288}
SIZES = {
    **PREFIX,
    **{"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "decoder_start_token_id": 1},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
    **{"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64},
}
#: Of sound: samples a second, and bands of its spectrogram.
RATE, BANDS = 16000, 8
LANGUAGES, TASKS = ("en", "de", "fr"), ("translate", "transcribe")


def _t5(hf: Any) -> Any:
    sizes = {"vocab_size": 288, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    special = {"num_heads": 2, "pad_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 2}
    special |= {"tie_word_embeddings": False}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, **special))


def _bart(hf: Any) -> Any:
    model = hf.BartForConditionalGeneration(hf.BartConfig(**SIZES, forced_eos_token_id=None))
    config = model.generation_config
    config.forced_bos_token_id, config.no_repeat_ngram_size, config.min_length = 0, 3, 4
    config.bad_words_ids = [[2], [30, 31]]
    return model


def _whisper(hf: Any) -> Any:
    sizes = {**SIZES, "d_model": 8, "max_target_positions": 64, "num_mel_bins": BANDS}
    del sizes["max_position_embeddings"]
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**sizes))
    config = model.generation_config
    config.lang_to_id = {"<|en|>": 280, "<|de|>": 281, "<|fr|>": 282}
    config.task_to_id = {"transcribe": 283, "translate": 284}
    config.is_multilingual, config.no_timestamps_token_id = True, 285
    config.suppress_tokens, config.begin_suppress_tokens = [2, 40, 41], [1, 50]
    config.max_length = 48
    return model


def _by_special_tokens(hf: Any, words: Any) -> Any:
    """Return Whisper with the special tokens of OpenAI's, which are added to a tokenizer."""
    special = ("startoftranscript", *LANGUAGES, *TASKS, "notimestamps")
    words.add_special_tokens({"additional_special_tokens": [f"<|{each}|>" for each in special]})
    sizes = {**SIZES, "d_model": 32, "max_target_positions": 64, "num_mel_bins": BANDS}
    del sizes["max_position_embeddings"]
    ids = {each: words.convert_tokens_to_ids(f"<|{each}|>") for each in special}
    sizes |= {"vocab_size": len(words), "decoder_start_token_id": ids["startoftranscript"]}
    none = {"suppress_tokens": None, "begin_suppress_tokens": None}
    model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**sizes, **none))
    config = model.generation_config
    config.lang_to_id = {f"<|{each}|>": ids[each] for each in LANGUAGES}
    config.task_to_id = {each: ids[each] for each in TASKS}
    config.is_multilingual, config.no_timestamps_token_id = True, ids["notimestamps"]
    return model


def _trocr(hf: Any) -> Any:
    seen = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    seen |= {"intermediate_size": 16, "image_size": 16, "patch_size": 8}
    wrote = {**PREFIX, "d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2}
    wrote |= {"decoder_ffn_dim": 16, "max_position_embeddings": 64}
    model = hf.VisionEncoderDecoderModel(
        encoder=hf.ViTModel(hf.ViTConfig(**seen)),
        decoder=hf.TrOCRForCausalLM(hf.TrOCRConfig(**wrote, cross_attention_hidden_size=16)),
    )
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 0, 2, 1
    return model


#: Networks with their tasks, and the files that are kept of them.
NETWORKS: dict[str, tuple[Callable[[Any], Any], str, tuple[str, ...]]] = {
    "t5": (_t5, "text2text-generation", ("decoder_model", "decoder_with_past_model")),
    "bart": (_bart, "text2text-generation", ("decoder_model_merged",)),
    "whisper": (_whisper, "automatic-speech-recognition", ("decoder_model_merged",)),
    "trocr": (_trocr, "image-to-text", ("decoder_model_merged",)),
}


def written(name: str, folder: Path, scratch: Path) -> None:
    """Write a network as ``optimum-cli export onnx`` does."""
    torch, hf = import_module("torch"), import_module("transformers")
    torch.manual_seed(0)
    make, task, kept = NETWORKS[name]
    model, words, source = loud(make(hf)), tokenizer(), scratch / name
    model.generation_config._from_model_config = False  # or else it is written anew
    model.save_pretrained(source)
    words.save_pretrained(source)
    export = import_module("optimum.exporters.onnx").main_export
    export(str(source), folder, task=f"{task}-with-past", do_validation=False)
    for file in folder.glob("*.onnx"):
        if file.stem in (*kept, "encoder_model"):
            strip(file)
        else:
            file.unlink()
    words.save_pretrained(folder)
    for file in (*folder.glob("chat_template*"), folder / "special_tokens_map.json"):
        file.unlink()
    found = {"t5": texts, "bart": texts, "whisper": speech, "trocr": pictures}[name]
    told = found(model, words, folder)
    (folder / "expected.json").write_text(json.dumps(told) + "\n")


def by_builder(folder: Path, scratch: Path) -> None:
    """Write Whisper as onnxruntime-genai's builder does."""
    torch, hf = import_module("torch"), import_module("transformers")
    builder = import_module("onnxruntime_genai.models.builder")
    torch.manual_seed(0)
    words = tokenizer()
    model, source = loud(_by_special_tokens(hf, words)), scratch / "genai_whisper"
    model.save_pretrained(source)
    words.save_pretrained(source)
    asked = (None, str(source), str(folder), "fp32", "cpu", str(scratch / "cache"))
    builder.create_model(*asked, **builder.parse_extra_options(*asked, []))
    for name in ("encoder", "decoder"):
        strip(folder / f"{name}.onnx")
        (folder / f"{name}.onnx.data").unlink(missing_ok=True)
    told = speech(model, words, folder)
    (folder / "preprocessor_config.json").unlink()
    for file in folder.glob("chat_template*"):
        file.unlink()
    (folder / "expected.json").write_text(json.dumps(told) + "\n")


def loud(model: Any) -> Any:
    """Return a network whose tokens differ: by what was written, and by what was read."""
    torch = import_module("torch")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.5)
            if "encoder_attn" in name or "EncDecAttention" in name or "crossattention" in name:
                weight.mul_(2)
    return model.eval()


def texts(model: Any, words: Any, folder: Path) -> dict[str, Any]:
    """Return what is generated of texts, each alone."""
    start = 2 if model.generation_config.forced_bos_token_id is not None else 1
    ids = [words(text)["input_ids"] for text in PROMPTS]
    found = [greedy(model, import_module("torch").tensor([each]))[0][start:] for each in ids]
    return {"prompts": PROMPTS, "ids": ids, "alone": found}


def speech(model: Any, words: Any, folder: Path) -> dict[str, Any]:
    """Return features of sound, and what is generated of them by language and task."""
    hf, torch = import_module("transformers"), import_module("torch")
    made = hf.WhisperFeatureExtractor(feature_size=BANDS)
    made.save_pretrained(folder)
    rng = np.random.default_rng(0)
    times = np.arange(int(0.7 * RATE)) / RATE
    sound = 0.3 * np.sin(2 * np.pi * 440 * times * (1 + times)) + rng.normal(0, 0.02, len(times))
    whole = (sound * 32767).astype("<i2")
    with wave.open(str(folder / "sound.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(whole.tobytes())
    features = made(whole / 32768, sampling_rate=RATE, return_tensors="np").input_features
    np.savez_compressed(folder / "features.npz", features=features)
    given, found = torch.tensor(features), {}
    for language in (None, "de"):
        for task in ("transcribe", "translate"):
            tokens = greedy(model, given, language=language, task=task)[0]
            found[f"{language or ''} {task}"] = (
                tokens[4:] if tokens[:1] == [model.config.decoder_start_token_id] else tokens
            )
    return {"alone": found}


def pictures(model: Any, words: Any, folder: Path) -> dict[str, Any]:
    """Return what is generated of two pictures of noise."""
    pixels = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    np.savez_compressed(folder / "features.npz", features=pixels)
    return {"alone": [row[1:] for row in greedy(model, import_module("torch").tensor(pixels))]}


def greedy(model: Any, given: Any, **more: Any) -> list[list[int]]:
    """Return the tokens of the decoder, those that it began with among them."""
    found = model.generate(given, do_sample=False, num_beams=1, max_new_tokens=NEW, **more)
    return [row.tolist() for row in found]


def main(folder: Path, producer: str) -> None:
    """Write the folders of one producer."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        if producer == "genai":
            by_builder(emptied(folder / "genai_whisper"), Path(scratch))
        for name in NETWORKS if producer == "optimum" else ():
            written(name, emptied(folder / f"optimum_{name}"), Path(scratch))
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            print(f"{file.relative_to(folder)}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(sys.argv[2:] or ["optimum"]))
