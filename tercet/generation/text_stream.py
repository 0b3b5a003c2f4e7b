"""Incremental detokenization: characters are returned once they are complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: What tokenizers write for an incomplete or invalid UTF-8 sequence.
REPLACEMENT = "\ufffd"
#: Minimum number of preceding tokens decoded with each new one, as tokens affect their neighbours.
_CONTEXT = 8


class TextStream:
    """Converts tokens to pieces of text whose concatenation is the text of all tokens.

    Pieces are never taken back: if later bytes change characters that were already returned, as
    some tokenizers do with a run of bytes of which one is invalid, both versions remain in the
    concatenation.

    Args:
        decode: decodes tokens to text.
        stops: stop strings; the text ends before the first occurrence.
        before: preceding tokens, as some tokenizers drop the leading space at the start of a text.

    Attributes:
        text: the text returned so far.
        is_stopped: whether a stop string occurred.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        stops: Sequence[str] = (),
        before: Sequence[int] = (),
    ) -> None:
        self._decode, self._stops = decode, [stop for stop in stops if stop]
        self._ids = list(before[-_CONTEXT:])
        self._anchor = self._next_anchor = 0
        self._shown = decode(self._ids) if self._ids else ""  # text from the anchor onwards
        self._held = ""  # decoded, but possibly the beginning of a stop string
        self.text, self.is_stopped = "", False

    def add(self, token: int) -> str:
        """Append a token; return the text to show, which is often empty."""
        self._ids.append(token)
        text = self._decode(self._ids[self._anchor :])
        if text.endswith(REPLACEMENT):
            return ""
        new, self._shown = text[len(self._shown) :], text
        if len(self._ids) - self._next_anchor >= _CONTEXT:
            self._anchor, self._next_anchor = self._next_anchor, len(self._ids)
            self._shown = self._decode(self._ids[self._anchor :])
        return self._give(new, is_last=False)

    def end(self) -> str:
        """Return the remaining text, including bytes that form no character."""
        text = self._decode(self._ids[self._anchor :])
        new, self._shown = text[len(self._shown) :], text
        return self._give(new, is_last=True)

    def _give(self, new: str, *, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        text, self._held = self._held + new, ""
        places = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.is_stopped, text = True, text[: min(places)]
        elif not is_last:
            kept = _ending(text, self._stops)
            text, self._held = text[: len(text) - kept], text[len(text) - kept :]
        self.text += text
        return text


def _ending(text: str, stops: Sequence[str]) -> int:
    """Return how many of the last characters may be the beginning of a stop string."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-count:]) for stop in stops):
            return count
    return 0
