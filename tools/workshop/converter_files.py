"""Write small networks with random weights, using other converters.

    pip install tensorflow tf2onnx onnxruntime
    python tools/workshop/converter_files.py tf2onnx tests/producers/converted
    python tools/workshop/converter_files.py tflite tests/producers/converted
    pip install paddlepaddle paddle2onnx onnxruntime
    python tools/workshop/converter_files.py paddle tests/producers/converted
    pip install jax2onnx flax onnxruntime
    python tools/workshop/converter_files.py jax tests/producers/converted
    pip install torch diffusers optimum[onnx] onnxruntime
    python tools/workshop/converter_files.py optimum tests/producers/converted
    python tools/workshop/converter_files.py diffusers tests/producers/converted
    python tools/workshop/converter_files.py torch tests/producers/converted

Networks of TensorFlow are converted by tf2onnx (from TFLite, too), those of Paddle by paddle2onnx,
of flax by jax2onnx, of transformers by optimum; `torch` exports a decoder with torch.export, and
`diffusers` the UNet of Stable Diffusion with torch.onnx, as its pipelines do. Next to each file is
an .npz file with inputs and the results of onnxruntime's CPU provider. This script imports nothing
of tercet, so it runs in environments without it.
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

    def gates() -> Any:
        x = layers.Input((5, 4))
        return tf.keras.Model(x, layers.GRU(3)(layers.SimpleRNN(3, return_sequences=True)(x)))

    def masked() -> Any:
        x = layers.Input((None,), dtype="int32")
        y = layers.Embedding(20, 8, mask_zero=True)(x)
        y = layers.LayerNormalization()(y + layers.MultiHeadAttention(2, 4)(y, y))
        return tf.keras.Model(x, y)

    def resized() -> Any:
        x = layers.Input((None, None, 3))
        y = layers.Resizing(7, 9, interpolation="nearest")(x)
        return tf.keras.Model(x, y + layers.Resizing(7, 9)(x))

    ids = RNG.integers(0, 20, (2, 7)).astype(np.int32)
    words = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 0]], np.int32)
    table: tuple[tuple[str, Callable[[], Any], Any, tuple[int | None, ...]], ...] = (
        ("cnn", pictures, drawn(2, 16, 16, 3), (None, 16, 16, 3)),
        ("lstm", sequences, ids, (None, None)),
        ("attention", attention, drawn(2, 6, 8), (None, 6, 8)),
        ("gates", gates, drawn(2, 5, 4), (None, 5, 4)),
        ("masked", masked, words, (None, None)),
        ("resized", resized, drawn(2, 6, 5, 3), (None, None, None, 3)),
    )
    for name, make, x, shape in table:
        network = make()
        kind = tf.TensorSpec(shape, x.dtype.name, name="x")

        def call(x: Any, network: Any = network) -> Any:
            return network(x, training=False)

        function = tf.function(call, input_signature=[kind])
        model, _ = tf2onnx.convert.from_function(function, input_signature=[kind], opset=17)
        yield f"tf2onnx_{name}", model, {model.graph.input[0].name: x}


def from_tflite() -> Iterator[Made]:
    """Yield a network of images in float32 and quantized to bytes, by way of TFLite."""
    tf, tf2onnx = import_module("tensorflow"), import_module("tf2onnx")
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(0)
    x = layers.Input((12, 12, 3), batch_size=1)
    y = layers.Conv2D(8, 3, strides=2, padding="same", activation="swish")(x)
    s = layers.Reshape((1, 1, 8))(layers.GlobalAveragePooling2D()(y))
    s = layers.Dense(8, activation="sigmoid")(layers.Dense(4, activation="relu")(s))
    y = layers.UpSampling2D(2)(layers.SeparableConv2D(4, 3, padding="same")(y * s))
    network = tf.keras.Model(x, layers.Conv2D(2, 1, activation="softmax")(y))
    image = drawn(1, 12, 12, 3)
    for name in ("float32", "qdq"):
        converter = tf.lite.TFLiteConverter.from_keras_model(network)
        if name == "qdq":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: ([drawn(1, 12, 12, 3)] for _ in range(4))
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.tflite"
            path.write_bytes(converter.convert())
            model, _ = tf2onnx.convert.from_tflite(str(path), opset=17)
        yield f"tflite_{name}", model, {model.graph.input[0].name: image}


# ── paddle ───────────────────────────────────────────────────────────────────────────────────────


def from_paddle() -> Iterator[Made]:
    """Yield Paddle's networks: a reader of texts in images, ERNIE, and one that selects."""
    paddle = import_module("paddle")
    nn, F = paddle.nn, paddle.nn.functional
    paddle.seed(0)

    class Block(nn.Layer):
        def __init__(self, inner: int, outer: int, stride: Any, groups: int = 1) -> None:
            super().__init__()
            self.conv = nn.Conv2D(inner, outer, 3, stride, 1, groups=groups, bias_attr=False)
            self.norm = nn.BatchNorm2D(outer)
            self.down, self.up = nn.Conv2D(outer, 4, 1), nn.Conv2D(4, outer, 1)

        def forward(self, x: Any) -> Any:
            y = F.hardswish(self.norm(self.conv(x)))
            s = self.up(F.relu(self.down(F.adaptive_avg_pool2d(y, 1))))
            return y * F.hardsigmoid(s, slope=0.2, offset=0.5)

    class TextReader(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Block(3, 8, 2), Block(8, 8, (2, 1), 8)
            self.lstm = nn.LSTM(8, 5, direction="bidirectional")
            self.head = nn.Linear(10, 6)

        def forward(self, x: Any) -> Any:
            y = F.avg_pool2d(self.two(self.one(x)), [4, 1]).squeeze(2).transpose([0, 2, 1])
            return F.softmax(self.head(self.lstm(y)[0]), axis=2)

    class Ernie(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(30, 16), nn.Embedding(16, 16)
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)
            layer = nn.TransformerEncoderLayer(16, 2, 24, activation="gelu")
            self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, x: Any) -> Any:
            mask = (x == 0).astype("float32").unsqueeze([1, 2]) * -1e4
            places = paddle.cumsum(paddle.ones_like(x), axis=-1) - 1
            y = self.encoder(self.norm(self.words(x) + self.places(places)), mask)
            return self.head(paddle.tanh(y[:, 0]))

    class Selected(nn.Layer):
        def forward(self, x: Any) -> Any:
            return paddle.masked_select(x, x > 0.5)

    ids = np.array([[1, 2, 3, 4, 0, 0], [5, 6, 7, 8, 9, 10]], np.int64)
    table: tuple[tuple[str, Any, Any, list[int | None]], ...] = (
        ("reader", TextReader, drawn(2, 3, 16, 24), [None, 3, 16, None]),
        ("ernie", Ernie, ids, [None, None]),
        ("selected", Selected, drawn(2, 3, 4), [None, 3, None]),
    )
    for name, make, x, shape in table:
        network = make()
        network.eval()
        with tempfile.TemporaryDirectory() as folder:
            spec = paddle.static.InputSpec(shape, x.dtype.name, "x")
            paddle.onnx.export(network, f"{folder}/model", input_spec=[spec])
            yield f"paddle_{name}", onnx.load(f"{folder}/model.onnx"), {"x": x}


# ── jax ──────────────────────────────────────────────────────────────────────────────────────────


def from_jax() -> Iterator[Made]:
    """Yield flax's vision transformer of one block, and attention with heads behind positions."""
    jax, nnx = import_module("jax"), import_module("flax.nnx")
    to_onnx = import_module("jax2onnx").to_onnx
    rngs = nnx.Rngs(0)

    class Vision(nnx.Module):
        def __init__(self) -> None:
            self.patches = nnx.Conv(3, 8, (4, 4), strides=(4, 4), padding="VALID", rngs=rngs)
            self.one, self.two = nnx.LayerNorm(8, rngs=rngs), nnx.LayerNorm(8, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 8, 8, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.patches(x)
            x = x.reshape(x.shape[0], -1, 8)
            x = x + self.attention(self.one(x))
            return (x + self.down(nnx.gelu(self.up(self.two(x))))).mean(1)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v)

    heads = [drawn(2, 5, 2, 8) for _ in range(3)]
    table: tuple[tuple[str, Any, list[Any]], ...] = (
        ("vision", Vision(), [drawn(2, 16, 16, 3)]),
        ("attention", attend, heads),
    )
    for name, function, arrays in table:
        shapes = [("batch", *x.shape[1:]) for x in arrays]
        model = to_onnx(function, inputs=shapes, return_mode="proto")
        names = (each.name for each in model.graph.input)
        yield f"jax_{name}", model, dict(zip(names, arrays, strict=True))


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

    class FirstOfTuple(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *args: Any) -> Any:
            return self.network(*args, return_dict=False)[0]

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            FirstOfTuple().eval(),
            tuple(torch.from_numpy(x) for x in feeds.values()),
            str(path),
            input_names=list(feeds),
            output_names=["out"],
            opset_version=opset,
            dynamo=False,
            dynamic_axes={n: {0: "batch"} for n, x in feeds.items() if x.ndim},
        )
        return onnx.load(path)


def from_torch() -> Iterator[Made]:
    """Yield Llama with its caches, as torch.onnx writes it by torch.export (dynamo)."""
    hf, torch = import_module("transformers"), import_module("torch")
    torch.manual_seed(0)
    sizes = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    llama = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **heads, attn_implementation="eager"))

    class CachedStep(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.llama = llama

        def forward(self, ids: Any, mask: Any, positions: Any, keys: Any, values: Any) -> Any:
            past = hf.DynamicCache.from_legacy_cache(((keys, values),))
            found = self.llama(ids, mask, positions, past, use_cache=True)
            return found.logits, *found.past_key_values.to_legacy_cache()[0]

    feeds: Feeds = {
        "input_ids": RNG.integers(0, 24, (2, 3)),
        "attention_mask": np.ones((2, 8), np.int64),
        "position_ids": np.tile(np.arange(5, 8), (2, 1)),
        **{f"past_key_values.0.{name}": drawn(2, 2, 5, 4) for name in ("key", "value")},
    }
    new, past = {0: "batch", 1: "length"}, {0: "batch", 2: "past"}
    program = torch.onnx.export(
        CachedStep().eval(),
        tuple(torch.from_numpy(x) for x in feeds.values()),
        input_names=list(feeds),
        output_names=["logits", "present.0.key", "present.0.value"],
        dynamo=True,
        dynamic_shapes=(new, {0: "batch", 1: "total"}, new, past, past),
    )
    model: onnx.ModelProto = program.model_proto
    for node in model.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    model.graph.ClearField("value_info")
    yield "torch_llama", model, feeds


MAKERS: dict[str, Callable[[], Iterator[Made]]] = {
    "tf2onnx": from_tensorflow,
    "tflite": from_tflite,
    "paddle": from_paddle,
    "jax": from_jax,
    "optimum": from_optimum,
    "diffusers": from_diffusers,
    "torch": from_torch,
}


def write(made: Iterator[Made], folder: Path) -> None:
    """Write files, with their inputs and what onnxruntime computes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model, feeds in made:
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
    write(MAKERS[sys.argv[1]](), Path(sys.argv[2]))
