"""The options that several commands have, and what becomes of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...runtime.errors import UsageError

if TYPE_CHECKING:
    from ..inputs import Wanted

File = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Fallback = Annotated[
    str | None,
    typer.Option(metavar="BACKEND", help="Runs the nodes that the other backend does not."),
]
Precision = Annotated[
    str,
    typer.Option(metavar="KIND", help="For float32 tensors: float32, tf32, float16, bfloat16."),
]
Tune = Annotated[
    bool, typer.Option("--tune", help="Measure cuDNN's algorithms and keep the fastest, once.")
]
Convolution = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", help="direct: no Winograd on numpy; naive: cuda with one thread an output."
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE",
        help="A .npy, .npz, .pb or picture file for an input; repeat it for more.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--inputs-from",
        metavar="PATH",
        help="A folder of ONNX test data (input_0.pb, ...), or an .npz file of all inputs.",
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Seed of the random inputs used where none are given.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="[NAME=]1x3x224x224", help="Shape of an input."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a symbolic dimension, 1 if not set."),
]
Outputs = Annotated[
    str,
    typer.Option(metavar="A,B", help="Tensors wanted, intermediate ones too; else the outputs."),
]
Repeats = Annotated[
    int | None,
    typer.Option("--repeat", metavar="N", help="Measured runs; else about a second of them."),
]
Threads = Annotated[
    int | None, typer.Option(metavar="N", help="CPU threads, of each contestant; else numpy's.")
]
Scale = Annotated[float, typer.Option(metavar="X", help="Divide pixels of pictures by this.")]
Mean = Annotated[str, typer.Option(metavar="R,G,B", help="Then subtract this from them.")]
Std = Annotated[str, typer.Option(metavar="R,G,B", help="Then divide them by this.")]
Crop = Annotated[
    bool,
    typer.Option("--crop", help="Cut the middle out of pictures; else stretch them."),
]
Bgr = Annotated[
    bool,
    typer.Option("--bgr", help="Channels in the order blue, green, red, as Caffe's networks."),
]
Target = Annotated[
    Path, typer.Argument(metavar="OUT", help="The .onnx file to write.", show_default=False)
]
Opset = Annotated[
    int | None,
    typer.Option(metavar="N", help="Opset to write; else the file's, or what its nodes need."),
]
External = Annotated[
    int | None,
    typer.Option(metavar="BYTES", help="Constants of so many bytes go to a file beside it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error, too.")]


def wanted_inputs(
    files: Sequence[str] | None,
    folder: Path | None,
    seed: int,
    shapes: Sequence[str] | None,
    dims: Sequence[str] | None,
    pixels: tuple[float, str, str, bool, bool] = (255, "0", "1", False, False),
) -> Wanted:
    """Return where the inputs of a run come from, as the options say."""
    from ..images import Pixels
    from ..inputs import Wanted

    scale, mean, std, crop, bgr = pixels
    chosen = Pixels(scale, numbers("--mean", mean), numbers("--std", std), crop, bgr)
    return Wanted(files or (), folder, seed, shapes or (), dims or (), chosen)


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers of an option, which commas separate."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{option} {text}: one number, or one for each channel with commas between"
        ) from error


def integers(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of an option, which commas separate."""
    try:
        return tuple(int(number) for number in split(text))
    except ValueError as error:
        raise UsageError(f"{option} {text}: whole numbers with commas between") from error


def split(names: str) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(name for name in names.split(",") if name)


def show(found: Any, view: Any, *, json: bool) -> None:
    """Print what was found: as JSON, or with the function that draws it."""
    from ..console import open_console, print_json

    console = open_console()
    if json:
        print_json(console, found.to_dict())
    else:
        view(console, found)
