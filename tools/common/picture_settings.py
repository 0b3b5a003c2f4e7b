"""How pictures become inputs, as `preprocessor_config.json` of Hugging Face's folders says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, cast

from ...generation.config_file import ConfigFile
from ...runtime.base.arguments import shown
from .images import FILTERS, Pixels

_FILE = "preprocessor_config.json"


def pixels_beside(model: Path) -> Pixels:
    """Return the conversion of images that is stated beside a model; without one, the default.

    The folder of a model in `onnx` is the one above, as of transformers.js.

    Raises:
        ModelError: the file is malformed; the message names the field.
    """
    folder = model.parent.parent if model.parent.name == "onnx" else model.parent
    places = dict.fromkeys((model.parent / _FILE, folder / _FILE))
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return Pixels()
    config = ConfigFile.read(path)
    factor = _positive(config, "rescale_factor") or 1 / 255
    is_cropped = _flag(config, "do_center_crop", default=config.get("crop_size") is not None)
    size, edge = _size(config, "size")
    if is_cropped:
        cut, _ = _size(config, "crop_size")
        size, edge = (cut or size), edge or (min(size) if size else None)
    if not _flag(config, "do_resize"):
        size, edge = (size if is_cropped else None), None
    shifted = _flag(config, "do_normalize", default=config.get("image_mean") is not None)
    code = config.whole("resample")
    if code is not None and code not in FILTERS:
        raise config.error("resample", f"{code}: expected one of {', '.join(map(str, FILTERS))}")
    std = (_numbers(config, "image_std") if shifted else ()) or (1.0,)
    if 0 in std:
        raise config.error("image_std", f"{shown(list(std))}: expected numbers other than 0")
    return Pixels(
        scale=1 / factor if _flag(config, "do_rescale") else 1.0,
        mean=(_numbers(config, "image_mean") if shifted else ()) or (0.0,),
        std=std,
        crop=is_cropped,
        size=size,
        edge=edge,
        filter=Pixels.filter if code is None else code,
        source=_FILE,
    )


def _flag(config: ConfigFile, field: str, *, default: bool = True) -> bool:
    return default if config.get(field) is None else config.flag(field)


def _positive(config: ConfigFile, field: str) -> float | None:
    found = _numbers(config, field)
    if len(found) > 1 or any(number <= 0 for number in found):
        raise config.error(field, f"{shown(config.get(field))}: expected a positive number")
    return found[0] if found else None


def _numbers(config: ConfigFile, field: str) -> tuple[float, ...]:
    """Return a number or a list of them; empty if absent."""
    value = config.get(field)
    if value is None:
        return ()
    several = cast("Sequence[Any]", value) if isinstance(value, list) else [value]
    if all(type(each) in (int, float) and isfinite(each) for each in several):
        return tuple(map(float, several))
    raise config.error(field, f"{shown(value)}: expected numbers")


def _size(config: ConfigFile, field: str) -> tuple[tuple[int, int] | None, int | None]:
    """Return a height and width, or else the shorter edge of an image in its own proportions."""
    value = config.get(field)
    if not isinstance(value, Mapping):
        side = config.whole(field, 1)
        return (None if side is None else (side, side)), None
    height, width = (config.whole(f"{field}.{side}", 1) for side in ("height", "width"))
    edge = config.whole(f"{field}.shortest_edge", 1)
    return (None if height is None or width is None else (height, width)), edge
