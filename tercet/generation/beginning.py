"""The first tokens of each sequence, with the language that is heard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..runtime.session.encoded_decoder import EncodedDecoder
from .settings import Settings
from .start import Start


def beginnings(decoder: EncodedDecoder, start: Start, chosen: Settings) -> list[list[int]]:
    """Return what a decoder begins with, for each of its sequences.

    Args:
        decoder: has read nothing of its own; is so afterwards.
        start: as the folder has it.
        chosen: what the caller says.

    Raises:
        UsageError: no such language or task.
    """
    if chosen.decoder_ids is not None:
        return [list(chosen.decoder_ids)] * decoder.batch

    def detect(among: Sequence[int]) -> list[int]:
        """Return the most likely of some tokens behind the first ones."""
        ids = np.tile(np.array(start.ids, np.int64), (decoder.batch, 1))
        logits = decoder.read(ids)[:, among]
        decoder.rewind(0)
        return [among[place] for place in logits.argmax(-1).tolist()]

    rows = start.tokens(chosen.language, chosen.task, detect)
    return rows if len(rows) == decoder.batch else rows * decoder.batch
