"""Networks of timm, torchvision and transformers with random weights, as torch.onnx exports them.

`export` writes ``NAME.onnx``, and next to it ``NAME.npz``: the inputs as ``in0``, ``in1``, …, and
PyTorch's results as ``float64``, ``float32``, ``float16`` and ``bfloat16``. PyTorch and the three
libraries are not dependencies; they are imported when needed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...runtime.errors import UsageError
from ...runtime.ir.types import Array

#: Networks to measure by default: convolutions, attention with and without a softmax,
#: normalizations of every kind, encoders and decoders of text, audio models.
NETWORKS = (
    *("timm:efficientvit_b1", "timm:mobilenetv4_conv_small", "timm:convnext_tiny", "timm:resnet50"),
    *("timm:swin_tiny_patch4_window7_224", "timm:mobilevit_s", "timm:vit_small_patch16_224"),
    *("timm:eva02_tiny_patch14_224", "timm:regnety_016", "timm:densenet121", "timm:repvgg_a2"),
    *("timm:resnext50_32x4d", "timm:mobilenetv3_large_100", "timm:efficientnet_b0"),
    *("tv:deeplabv3_mobilenet_v3_large", "hf:whisper_encoder", "hf:clip_vision", "hf:wav2vec2"),
    *("hf:bert", "hf:distilbert", "hf:roberta", "hf:gpt2", "hf:t5_encoder", "hf:qwen2", "hf:llama"),
)
PRECISIONS = ("float64", "float32", "float16", "bfloat16")
#: Of transformers: the model, its configuration, and the settings that are not the default.
_TEXT: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", {}),
    "roberta": ("RobertaModel", "RobertaConfig", {}),
    "distilbert": ("DistilBertModel", "DistilBertConfig", {}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"use_cache": False}),
    "t5_encoder": ("T5EncoderModel", "T5Config", {"num_layers": 6, "num_heads": 8}),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 12,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 32000,
            "use_cache": False,
        },
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 8,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
            "use_cache": False,
        },
    ),
}
_OTHERS: Mapping[str, tuple[str, str, Mapping[str, Any], tuple[int, ...]]] = {
    "clip_vision": ("CLIPVisionModel", "CLIPVisionConfig", {}, (1, 3, 224, 224)),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", {}, (1, 16000)),
    "whisper_encoder": (
        "WhisperModel",
        "WhisperConfig",
        {
            **{"encoder_layers": 6, "encoder_attention_heads": 8, "d_model": 512},
            **{"decoder_layers": 1, "decoder_attention_heads": 8},
        },
        (1, 80, 3000),
    ),
}
TOKENS = 128


def file_name(network: str) -> str:
    """Return the name of a network's files, without a suffix."""
    return network.replace(":", "_")


def export(network: str, folder: Path, device: str = "cpu") -> Path:
    """Write a network's file and what PyTorch computes, unless they are there; return the file.

    Args:
        network: ``timm:NAME``, ``tv:NAME``, or ``hf:NAME`` of those here or of transformers' model
            types.
        folder: where the files go.
        device: of PyTorch, on which it computes.

    Raises:
        UsageError: there is no such network, or a library is missing.
    """
    file = folder / f"{file_name(network)}.onnx"
    results = file.with_suffix(".npz")
    if file.exists() and results.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    torch = library("torch")
    net, inputs = build(network)
    if not file.exists():
        options = {"dynamo": True, "external_data": False, "verbose": False}
        torch.onnx.export(net, inputs, str(file), **options)
    found = {f"in{i}": tensor.numpy() for i, tensor in enumerate(inputs)}
    arrays: dict[str, Any] = {**found, **_results(net, inputs, device)}
    np.savez(results, **arrays)
    return file


def build(network: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a network with seeded random weights that gives one tensor, and inputs for it."""
    torch = library("torch")
    torch.manual_seed(0)
    kind, _, name = network.partition(":")
    makers: dict[str, Callable[[str], tuple[Any, tuple[Any, ...]]]] = {
        "timm": _timm,
        "tv": _torchvision,
        "hf": _transformers,
    }
    if kind not in makers:
        raise UsageError(f"'{network}' is not a network: timm:NAME, tv:NAME and hf:NAME are")
    net, inputs = makers[kind](name)
    _settle(net.eval(), inputs)

    class FirstTensor(torch.nn.Module):
        """The network with its first tensor as the result."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, *tensors: Any) -> Any:
            return _first(self.net(*tensors))

    return FirstTensor().eval(), inputs


def library(name: str) -> Any:
    """Return a library that is not a dependency; raises UsageError where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(f"this needs {name}, which is not installed: {error}") from error


def _timm(name: str) -> tuple[Any, tuple[Any, ...]]:
    net = library("timm").create_model(name, pretrained=False)
    size = net.pretrained_cfg.get("input_size", (3, 224, 224))
    return net, (library("torch").randn(1, *size),)


def _torchvision(name: str) -> tuple[Any, tuple[Any, ...]]:
    models = library("torchvision").models
    if hasattr(models.segmentation, name):
        net = getattr(models.segmentation, name)(weights=None, weights_backbone=None)
    else:
        net = getattr(models, name)(weights=None)
    return net, (library("torch").randn(1, 3, 224, 224),)


def _transformers(name: str) -> tuple[Any, tuple[Any, ...]]:
    torch, transformers = library("torch"), library("transformers")
    if name in _TEXT:
        kind, config, options = _TEXT[name]
        chosen = getattr(transformers, config)(**options)
        tokens = torch.randint(0, chosen.vocab_size, (1, TOKENS))
        net = getattr(transformers, kind)(chosen)
        masked = name in ("bert", "roberta", "distilbert", "t5_encoder")
        return net, (tokens, torch.ones(1, TOKENS, dtype=torch.int64))[: 1 + masked]
    if name not in _OTHERS:
        return _of_type(name)
    kind, config, options, shape = _OTHERS[name]
    net = getattr(transformers, kind)(getattr(transformers, config)(**options))
    return (net.encoder if name == "whisper_encoder" else net), (torch.randn(*shape),)


def _of_type(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a model type of transformers in its default configuration, without a cache."""
    torch, auto = library("torch"), library("transformers.models.auto")
    if name not in auto.CONFIG_MAPPING:
        known = ", ".join((*_TEXT, *_OTHERS))
        raise UsageError(f"'hf:{name}' is not a network: {known} and transformers' model types are")
    config = auto.CONFIG_MAPPING[name]()
    if hasattr(config, "use_cache"):
        config.use_cache = False
    net = auto.AutoModel.from_config(config)
    return net, (main_input(torch, net.main_input_name, config),)


def main_input(torch: Any, name: str, config: Any) -> Any:
    """Return a tensor for what a model of transformers reads first, one sample.

    Args:
        torch: the library.
        name: of the input.
        config: the model's.

    Raises:
        UsageError: it is none of tokens, pixels, samples and spectrograms.
    """
    if name == "input_ids":
        return torch.randint(0, config.vocab_size, (1, TOKENS))
    if name == "pixel_values":
        size = getattr(config, "image_size", 224)
        sides = size if isinstance(size, (list, tuple)) else (size, size)
        return torch.randn(1, config.num_channels, *sides)
    if name == "input_values" and hasattr(config, "num_mel_bins"):
        return torch.randn(1, config.max_length, config.num_mel_bins)
    if name == "input_values":
        return torch.randn(1, 16000)
    if name == "input_features":
        return torch.randn(1, config.num_mel_bins, 3000)
    raise UsageError(f"a {config.model_type} reads '{name}', for which there is no example here")


def _first(found: Any) -> Any:
    if isinstance(found, library("torch").Tensor):
        return found
    if isinstance(found, dict) and "out" in found:
        return found["out"]
    for name in ("logits", "last_hidden_state"):
        if getattr(found, name, None) is not None:
            return getattr(found, name)
    return found[0]


def _settle(net: Any, inputs: Sequence[Any]) -> None:
    """Give batch-norms the statistics of one batch, so that numbers stay in range."""
    torch = library("torch")
    layers = torch.nn.modules.batchnorm
    norms = [m for m in net.modules() if isinstance(m, layers._BatchNorm)]
    for module in net.modules():
        if isinstance(module, torch.nn.Linear) and not module.weight.any():
            torch.nn.init.normal_(module.weight, std=0.02)
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms:
        with torch.inference_mode():
            net(*[torch.randn(4, *x.shape[1:]) if x.is_floating_point() else x for x in inputs])
    for norm in norms:
        norm.eval()


def _results(net: Any, inputs: Sequence[Any], device: str) -> dict[str, Array]:
    """Return what PyTorch gives by precision, as float64; what it cannot compute is left out."""
    torch = library("torch")
    found: dict[str, Array] = {}
    with torch.inference_mode():
        for precision in PRECISIONS:
            dtype = getattr(torch, precision)
            try:
                there = copy.deepcopy(net).to(device, dtype)
                fed = [x.to(device, dtype if x.is_floating_point() else x.dtype) for x in inputs]
                found[precision] = there(*fed).double().cpu().numpy()
            except (RuntimeError, TypeError, ValueError) as error:
                print(f"PyTorch has no {precision} of it: {error}"[:200], flush=True)
    return found
