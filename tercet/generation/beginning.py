"""The first decoder tokens of each sequence, including a detected language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..runtime.session.encoded_decoder import EncodedDecoder
from .settings import GenerationSettings
from .start import Start


def beginnings(
    decoder: EncodedDecoder, start: Start, chosen: GenerationSettings
) -> list[list[int]]:
    """Return the tokens that the decoder starts with, for each sequence.

    Args:
        decoder: an unused decoder; it is rewound afterwards.
        start: the folder's start tokens.
        chosen: the caller's settings.

    Raises:
        UsageError: no such language or task.
    """
    if chosen.decoder_ids is not None:
        return [list(chosen.decoder_ids)] * decoder.batch

    def detect(among: Sequence[int]) -> list[int]:
        """Return the most likely of some tokens at the position after the first ones."""
        ids = np.tile(np.array(start.ids, np.int64), (decoder.batch, 1))
        logits = decoder.read(ids)[:, among]
        decoder.rewind(0)
        return [among[place] for place in logits.argmax(-1).tolist()]

    rows = start.tokens(chosen.language, chosen.task, detect)
    return rows if len(rows) == decoder.batch else rows * decoder.batch
