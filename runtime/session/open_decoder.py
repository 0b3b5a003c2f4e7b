"""Opens a decoder on a model: with static caches if possible, else with passed ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from ..errors import InputError, PerformanceWarning, UnsupportedError
from ..plan.host import HOST
from .cache_layout import DecoderLayout
from .decoding import Decoder
from .encoded_decoder import EncodedDecoder
from .model import Model
from .passed_caches import passed_decoder
from .static_cache import static_decoder
from .step_inputs import Embed


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
    if not layout.caches:
        return passed_decoder(model, layout, batch, capacity, embed)
    try:
        return static_decoder(model, layout, batch, capacity, embed)
    except UnsupportedError as error:
        if model.backends[0].device is HOST:  # where it costs little
            return passed_decoder(model, layout, batch, capacity, embed)
        reason = f"caches are passed from run to run: {error}"
        text = f"{model.source.file}: {reason}" if model.source.file else reason
        warnings.warn(text, PerformanceWarning, stacklevel=2)
        return passed_decoder(model, layout, batch, capacity, embed)


def open_encoded(
    model: Model,
    first: Model | None = None,
    *,
    batch: int = 1,
    capacity: int | None = None,
    pairs: Mapping[str, str] | None = None,
) -> EncodedDecoder:
    """Return a decoder with empty caches for the outputs of an encoder.

    Args:
        model: the model of all steps, or of those after the first; remains the caller's.
        first: the model of the first step, if that is another one.
        batch: number of sequences.
        capacity: see `open_decoder`.
        pairs: see `open_decoder`.

    Raises:
        ModelError: they are not decoders, or do not match; names file and input or output.
        InputError: `batch` or `capacity` does not fit the model.
    """
    file = model.source.file
    layout = DecoderLayout.of(model.imported, file=file, pairs=pairs, encoded=True)
    steps = passed_decoder(model, layout, batch, capacity)
    if "use_cache" in layout.inputs:
        return EncodedDecoder(steps, model, layout)
    if first is None:
        return EncodedDecoder(steps)
    file = first.source.file
    return EncodedDecoder(steps, first, DecoderLayout.of(first.imported, file=file, encoded=True))
