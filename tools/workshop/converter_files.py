"""Writes small networks as other converters do, with random weights.

    pip install tensorflow tf2onnx onnxruntime
    python tools/workshop/converter_files.py tf2onnx tests/producers/converted
    pip install torch diffusers optimum[onnx] onnxruntime
    python tools/workshop/converter_files.py optimum tests/producers/converted
    python tools/workshop/converter_files.py diffusers tests/producers/converted

TensorFlow's networks by tf2onnx, transformers' by optimum, and the UNet of Stable Diffusion by
torch.onnx, as its pipelines are exported. Beside each file lies an .npz of inputs and of the
results of onnxruntime's CPU. It imports nothing of tercet, so that it runs where that is not.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

Feeds = dict[str, Any]
Made = tuple[str, onnx.ModelProto, Feeds]
RNG = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    """Return standard normal numbers."""
    return RNG.standard_normal(shape).astype(np.float32)


# ── tf2onnx ──────────────────────────────────────────────────────────────────────────────────────


def from_tensorflow() -> Iterator[Made]:
    """Yield Keras's networks: of images, of sequences, and one with attention."""
    tf, tf2onnx = import_module("tensorflow"), import_module("tf2onnx")
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)

    def pictures() -> Any:
        x = layers.Input((16, 16, 3))
        y = layers.BatchNormalization()(layers.Conv2D(6, 3, strides=2, padding="same")(x))
        y = layers.DepthwiseConv2D(3, padding="same")(layers.ReLU(6.0)(y))
        y = layers.MaxPool2D()(layers.Activation("swish")(y))
        y = layers.GlobalAveragePooling2D()(layers.Conv2DTranspose(4, 2, strides=2)(y))
        return tf.keras.Model(x, layers.Dense(5, activation="softmax")(y))

    def sequences() -> Any:
        x = layers.Input((None,), dtype="int32")
        y = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(layers.Embedding(20, 6)(x))
        return tf.keras.Model(x, layers.Dense(3)(layers.GRU(5)(y)))

    def attention() -> Any:
        x = layers.Input((6, 8))
        y = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
        return tf.keras.Model(x, layers.UpSampling1D(2)(layers.Dense(8, activation="relu")(y)))

    ids = RNG.integers(0, 20, (2, 7)).astype(np.int32)
    table: tuple[tuple[str, Callable[[], Any], Any, tuple[int | None, ...]], ...] = (
        ("cnn", pictures, drawn(2, 16, 16, 3), (None, 16, 16, 3)),
        ("lstm", sequences, ids, (None, None)),
        ("attention", attention, drawn(2, 6, 8), (None, 6, 8)),
    )
    for name, make, x, shape in table:
        network = make()
        kind = tf.TensorSpec(shape, x.dtype.name, name="x")

        def call(x: Any, network: Any = network) -> Any:
            return network(x, training=False)

        function = tf.function(call, input_signature=[kind])
        model, _ = tf2onnx.convert.from_function(function, input_signature=[kind], opset=17)
        yield f"tf2onnx_{name}", model, {model.graph.input[0].name: x}


# ── torch ────────────────────────────────────────────────────────────────────────────────────────


def from_optimum() -> Iterator[Made]:
    """Yield Whisper's decoder, with the past and without, and other networks of transformers."""
    transformers, torch = import_module("transformers"), import_module("torch")
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        **{"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 8},
        **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_source_positions": 1500},
        **{"max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        "decoder_start_token_id": 1,
    }
    whisper = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes))
    task = "automatic-speech-recognition-with-past"
    for path, model in _by_optimum(whisper, task):
        if path.startswith("decoder"):
            yield f"optimum_whisper_{path}", model, _fed(model, sizes)
    for name, (make, task) in _networks(transformers).items():
        torch.manual_seed(0)
        for _, model in _by_optimum(make(), task):
            yield f"optimum_{name}", model, _fed(model, {"vocab_size": 20})


def _by_optimum(network: Any, task: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield names and models that optimum exports."""
    export = import_module("optimum.exporters.onnx").main_export
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        network.save_pretrained(source)
        export(str(source), target, task=task, do_validation=False, no_post_process=True)
        for path in sorted(target.glob("*.onnx")):
            model = onnx.load(path)
            for node in model.graph.node:
                node.ClearField("doc_string")
            model.graph.ClearField("value_info")
            yield path.stem, model


def _networks(hf: Any) -> dict[str, tuple[Callable[[], Any], str]]:
    """Return networks whose attention, positions or patches are each of another kind."""
    text = "text-generation-with-past"
    words: dict[str, Any] = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 1}
    words |= {"pad_token_id": 2, "hidden_size": 16}
    deep = {"num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 24}
    far = {"max_position_embeddings": 64}
    seen = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    seen |= {"intermediate_size": 24, "image_size": 32, "patch_size": 16}
    heard: dict[str, Any] = {"conv_dim": [8] * 7, "num_conv_pos_embeddings": 16}
    heard |= {"num_conv_pos_embedding_groups": 4, "num_attention_heads": 2}
    falcon = {"num_hidden_layers": 1, "num_attention_heads": 4, **far}
    return {
        "bloom": (lambda: hf.BloomForCausalLM(hf.BloomConfig(**words, n_layer=1, n_head=4)), text),
        "falcon": (
            lambda: hf.FalconForCausalLM(
                hf.FalconConfig(**words, **falcon, multi_query=True, alibi=False)
            ),
            text,
        ),
        "mistral": (
            lambda: hf.MistralForCausalLM(
                hf.MistralConfig(**words, **deep, **far, num_key_value_heads=2, sliding_window=4)
            ),
            text,
        ),
        "modernbert": (
            lambda: hf.ModernBertForMaskedLM(
                hf.ModernBertConfig(
                    **words, **{**deep, "num_hidden_layers": 2}, **far, local_attention=4,
                    global_attn_every_n_layers=2, cls_token_id=0, sep_token_id=2,
                )
            ),
            "fill-mask",
        ),
        "deberta_v2": (
            lambda: hf.DebertaV2ForSequenceClassification(
                hf.DebertaV2Config(
                    **words, **deep, **far, relative_attention=True, pos_att_type=["p2c", "c2p"],
                    position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
                )
            ),
            "text-classification",
        ),
        "clip": (
            lambda: hf.CLIPModel(
                hf.CLIPConfig(
                    text_config={**words, **deep, **far, "projection_dim": 8},
                    vision_config={**seen, "projection_dim": 8},
                    projection_dim=8,
                )
            ),
            "zero-shot-image-classification",
        ),
        "wav2vec2": (
            lambda: hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**{**words, **deep, **heard})),
            "automatic-speech-recognition",
        ),
    }  # fmt: skip


#: What symbolic dimensions are, by a part of their names.
DIMENSIONS = {
    **{"batch": 2, "past": 3, "encoder": 16, "feature": 8, "decoder": 4, "sequence": 4},
    **{"channels": 3, "height": 32, "width": 32},
}
#: Samples of a sound.
SAMPLES = 800


def _fed(model: onnx.ModelProto, sizes: dict[str, Any]) -> Feeds:
    """Return inputs of a file, by the names of its dimensions."""
    feeds: Feeds = {}
    for each in model.graph.input:
        kind = each.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [d.dim_value or sum(map(_size, d.dim_param.split(" + "))) for d in kind.shape.dim]
        if each.name == "input_values":
            feeds[each.name] = drawn(2, SAMPLES)
        elif each.name == "position_ids":
            feeds[each.name] = np.broadcast_to(np.arange(shape[1]) + DIMENSIONS["past"], shape)
        elif "mask" in each.name:
            feeds[each.name] = np.ones(shape)
            feeds[each.name][0, -1 if "pixel_values" in feeds else 0] = 0
        elif dtype.kind == "i":
            feeds[each.name] = RNG.integers(1, sizes["vocab_size"], shape)
        else:
            feeds[each.name] = drawn(*shape)
        feeds[each.name] = feeds[each.name].astype(dtype)
    return feeds


def _size(name: str) -> int:
    """Return the size of a dimension."""
    return next((n for part, n in DIMENSIONS.items() if part in name.lower()), 2)


def from_diffusers() -> Iterator[Made]:
    """Yield the UNet of Stable Diffusion."""
    diffusers, torch = import_module("diffusers"), import_module("torch")
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(4, 8),
        layers_per_block=1,
        norm_num_groups=2,
        cross_attention_dim=12,
        attention_head_dim=2,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()
    feeds: Feeds = {
        "sample": drawn(2, 4, 8, 8),
        "timestep": np.array(3, np.int64),
        "encoder_hidden_states": drawn(2, 5, 12),
    }
    yield "diffusers_unet", _exported(torch, unet, feeds, 14), feeds


def _exported(torch: Any, network: Any, feeds: Feeds, opset: int) -> onnx.ModelProto:
    """Return what torch.onnx makes of a network by tracing it, its batch free."""

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *args: Any) -> Any:
            return self.network(*args, return_dict=False)[0]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            First().eval(),
            tuple(torch.from_numpy(x) for x in feeds.values()),
            str(path),
            input_names=list(feeds),
            output_names=["out"],
            opset_version=opset,
            dynamo=False,
            dynamic_axes={n: {0: "batch"} for n, x in feeds.items() if x.ndim},
        )
        return onnx.load(path)


MAKERS: dict[str, Callable[[], Iterator[Made]]] = {
    "tf2onnx": from_tensorflow,
    "optimum": from_optimum,
    "diffusers": from_diffusers,
}


def main(producer: str, folder: Path) -> None:
    """Write the files of one producer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model, feeds in MAKERS[producer]():
        session = onnxruntime.InferenceSession(model.SerializeToString())
        results = session.run(None, feeds)
        outputs = [each.name for each in session.get_outputs()]
        named = zip(outputs, results, strict=True)
        arrays = {f"input/{key}": np.asarray(x) for key, x in feeds.items()}
        arrays |= {f"output/{key}": np.asarray(x) for key, x in named}
        np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **arrays)
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
        print(f"{name}: {model.ByteSize()} bytes")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
