"""Text of tokens that come one by one: no character is given before it is whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: What a decoder writes for bytes that are not a character, or not yet.
REPLACEMENT = "\ufffd"
#: Tokens that are decoded again for each new one, at least: enough for what they do to each other.
_CONTEXT = 8


class TextStream:
    """Turns tokens into pieces of text whose sum is the text of all tokens.

    What was given stays: where later bytes make a tokenizer take back characters, as some do with
    all bytes of a run when one of them is wrong, the sum has both.

    Args:
        decode: gives the text of tokens.
        stops: strings that end the text; it ends before the first of them.
        before: tokens that the text follows: some tokenizers drop the space with which a text of
            its own would begin.

    Attributes:
        text: all that was given so far.
        is_stopped: whether one of `stops` has come.
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
        self._shown = decode(self._ids) if self._ids else ""  # of the text from the anchor on
        self._held = ""  # decoded, but may belong to a stop string
        self.text, self.is_stopped = "", False

    def add(self, token: int) -> str:
        """Return what is to be shown after one more token; often nothing."""
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
        """Return what is left when no more tokens come: bytes that are not a character among it."""
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
    """Return the number of last characters with which one of the strings may begin."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for count in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-count:]) for stop in stops):
            return count
    return 0
