"""Greyscale images in a terminal."""

import numpy as np
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

_PAPER = 32  # the darkest grey, so that edges are visible on a black terminal
_BLOCKS = " ░▒▓█"
_ASCII = " .-+*#@"


def draw(image: np.ndarray, console: Console) -> list[Text]:
    """Return the lines of an image, one character wide per pixel.

    Args:
        image: float `[h, w]`, 0 (paper) to 1 (ink), h even.
        console: determines the style: in colour, a character shows two pixels, one above the other;
            otherwise it is a shade of one pixel, which doubles the height.
    """
    if console.color_system is not None and not console.no_color:
        pairs = zip(image[0::2], image[1::2], strict=True)
        return [Text.assemble(*map(_grey_pair, upper, lower)) for upper, lower in pairs]
    ramp = _ASCII if console.options.ascii_only else _BLOCKS
    return [Text("".join(ramp[round(ink * (len(ramp) - 1))] for ink in row)) for row in image]


def _grey_pair(upper: float, lower: float) -> tuple[str, Style]:
    return "▀", Style(color=_grey(upper), bgcolor=_grey(lower))


def _grey(ink: float) -> Color:
    level = round(_PAPER + ink * (255 - _PAPER))
    return Color.from_rgb(level, level, level)
