"""Opens a decoder on a model, or on those of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import InputError
from .cache_layout import DecoderLayout
from .decoding import Decoder
from .encoded_decoder import EncodedDecoder, FirstStep
from .model import Model
from .opened_caches import Open, opened
from .step_inputs import Embed, StepInputs


def open_decoder(
    model: Model,
    *,
    batch: int = 1,
    capacity: int | None = None,
    pairs: Mapping[str, str] | None = None,
    embed: Embed | None = None,
) -> Decoder:
    """Return a decoder with empty caches for a model.

    Args:
        model: remains the caller's, who closes it after the decoder.
        batch: number of sequences.
        capacity: maximum number of positions; if None, the limit of the file, or of memory.
        pairs: the output for each cache input, by name, if names do not match; see
            `DecoderLayout.of`.
        embed: computes embeddings [batch, n, width] of ids [batch, n], for a model that takes
            ``inputs_embeds``.

    Raises:
        ModelError, UnsupportedError: the model is not a decoder; see `DecoderLayout.of`.
        InputError: `batch` or `capacity` does not fit the model.
    """
    layout = DecoderLayout.of(model.imported, file=model.source.file, pairs=pairs)
    if "embeddings" in layout.inputs and embed is None:
        raise InputError(
            f"input '{layout.inputs['embeddings'].name}': the model takes embeddings, not token "
            "ids; another model computes them (embed_tokens.onnx)"
        )
    return opened(model, StepInputs.of(model, layout, batch, capacity, embed))


def open_encoded(
    model: Model,
    first: Model | None = None,
    *,
    batch: int = 1,
    capacity: int | None = None,
    pairs: Mapping[str, str] | None = None,
    open_: Open = opened,
) -> EncodedDecoder:
    """Return a decoder with empty caches for the outputs of an encoder.

    Args:
        model: the model of all steps, or of those after the first; remains the caller's.
        first: the model of the first step, if that is another one.
        batch: number of sequences.
        capacity: see `open_decoder`.
        pairs: see `open_decoder`.
        open_: opens the steps behind the first; see `opened`.

    Raises:
        ModelError: they are not decoders, or do not match; names file and input or output.
        InputError: `batch` or `capacity` does not fit the model.
    """
    file = model.source.file
    layout = DecoderLayout.of(model.imported, file=file, pairs=pairs, encoded=True)
    inputs = StepInputs.of(model, layout, batch, capacity)
    begin = model if "use_cache" in layout.inputs else first
    start = None if begin is None else FirstStep.of(begin, inputs)
    return EncodedDecoder(model, inputs, start, open_)
