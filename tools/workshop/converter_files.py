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
    """Yield Whisper's decoder, with the past and without, and both in one."""
    transformers, torch = import_module("transformers"), import_module("torch")
    export = import_module("optimum.exporters.onnx").main_export
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        **{"vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 8},
        **{"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_source_positions": 1500},
        **{"max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        "decoder_start_token_id": 1,
    }
    whisper = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes))
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        whisper.save_pretrained(source)
        export(
            str(source),
            target,
            task="automatic-speech-recognition-with-past",
            do_validation=False,
            no_post_process=True,
        )
        for path in sorted(target.glob("decoder*.onnx")):
            model = onnx.load(path)
            yield f"optimum_whisper_{path.stem}", model, _fed(model, sizes)


#: What symbolic dimensions are, by a part of their names.
DIMENSIONS = {"batch": 2, "past": 3, "encoder": 16, "feature": 8, "decoder": 4, "sequence": 4}


def _fed(model: onnx.ModelProto, sizes: dict[str, Any]) -> Feeds:
    """Return inputs of a file, by the names of its dimensions."""
    feeds: Feeds = {}
    for each in model.graph.input:
        kind = each.type.tensor_type
        shape = [
            d.dim_value
            or next((n for part, n in DIMENSIONS.items() if part in d.dim_param.lower()), 2)
            for d in kind.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        is_id = dtype.kind == "i"
        feeds[each.name] = RNG.integers(1, sizes["vocab_size"], shape) if is_id else drawn(*shape)
        feeds[each.name] = feeds[each.name].astype(dtype)
    return feeds


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
