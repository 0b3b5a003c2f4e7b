"""Options shared by several commands; `option_values` parses their texts."""

from __future__ import annotations

import os
from collections.abc import Callable
from errno import EACCES, EISDIR, ENOENT, ENOTDIR
from pathlib import Path
from typing import Annotated, Any

import typer

from ...runtime.errors import FileError, TimeLimitError
from .help import BACKEND, GENERAL, OWN

File = Annotated[
    Path,
    # The importer says what is wrong with a file that cannot be read.
    typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False, readable=False),
]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        "-b",
        metavar="BACKEND",
        help="Backend to run on; tercet doctor lists them.",
        rich_help_panel=BACKEND,
    ),
]


def size_option(name: str, text: str) -> Any:
    """Return an option for a number of bytes, which may have a unit: 64MB, 64MiB."""

    def parse(given: str) -> int:
        from ...runtime.base.arguments import nbytes  # numpy comes with it

        return nbytes(name, given)

    return typer.Option(name, metavar="BYTES", help=text, parser=parse)


def written_file(metavar: str, text: str, *names: str) -> Any:
    """Return the option for a file that a command writes when its work is done.

    Whether there is a place for it is known before: a long run does not end in an error.
    """
    return typer.Option(*names, metavar=metavar, help=text, callback=_need_place)


def written_folder(text: str) -> Any:
    """Return the option for a folder, likewise; it is made if it does not exist."""
    return typer.Option(metavar="FOLDER", help=text, callback=_need_no_file)


def _need_place(file: Path | None) -> Path | None:
    if file is not None and file.is_dir():
        raise FileError(EISDIR, "is a folder; give the name of a file to write", str(file))
    if file is not None and not file.parent.is_dir():
        raise FileError(ENOENT, f"there is no folder '{file.parent}'", str(file))
    if file is not None:
        _need_permission(file)
    return file


def _need_no_file(folder: Path | None) -> Path | None:
    if folder is not None and folder.exists() and not folder.is_dir():
        raise FileError(ENOTDIR, "is a file; give the name of a folder to write", str(folder))
    if folder is not None:
        _need_permission(folder / "file")
    return folder


def _need_permission(file: Path) -> None:
    """Raise FileError if neither a file nor the nearest of its folders can be written."""
    folder = next((each for each in file.parents if each.exists()), file)
    if not os.access(folder, os.W_OK) and not (file.exists() and os.access(file, os.W_OK)):
        reason = f"cannot be written: no permission to write in the folder '{folder}'"
        raise FileError(EACCES, reason, str(file))


def several_backends(text: str) -> Any:
    """Return the option for several backends or runners, with its help."""
    return typer.Option("--backend", "-b", metavar="BACKEND", help=text, rich_help_panel=BACKEND)


Fallback = Annotated[
    str | None,
    typer.Option(
        metavar="BACKEND",
        help="Backend for nodes that the first one declines; default: they are an error.",
        rich_help_panel=BACKEND,
    ),
]
SkipUnavailable = Annotated[
    bool,
    typer.Option(
        "--skip-unavailable",
        help="Skip backends that cannot run the model here.",
        rich_help_panel=BACKEND,
    ),
]
Precision = Annotated[
    str,
    typer.Option(metavar="KIND", help="Compute precision: float32, tf32, float16, bfloat16."),
]
KeepFloat32 = Annotated[
    str,
    typer.Option(
        "--keep-float32",
        metavar="A,B|@FILE",
        help="Nodes to keep in float32 at any precision; bisect --tolerance finds them.",
    ),
]
Tune = Annotated[
    bool,
    typer.Option("--tune", help="Measure the algorithms of each node once and use the fastest."),
]
AllowInconclusive = Annotated[
    bool,
    typer.Option(
        "--allow-inconclusive",
        help="Exit with 0 instead of 8 if a difference may be rounding, but might be an error.",
    ),
]
Variant = Annotated[
    str | None,
    typer.Option(
        "--variant",
        "--file",
        metavar="NAME",
        help="Which of several model files, such as q4 or model_q4.onnx.",
        rich_help_panel=OWN,
    ),
]
PrefillChunk = Annotated[
    int,
    typer.Option(metavar="N", help="Number of tokens per prefill step; fewer take less memory."),
]
Device = Annotated[int, typer.Option(metavar="N", help="Index of the GPU.")]
SkipPasses = Annotated[
    str,
    typer.Option(
        "--skip-passes",
        metavar="A,B",
        help="Graph passes to skip, such as fold_batchnorm.",
    ),
]
Finite = Annotated[
    bool,
    typer.Option(
        "--finite",
        help="Assume that no value is infinite or NaN, and remove products with weights of zero.",
    ),
]
Integers = Annotated[
    bool | None,
    typer.Option(
        "--integers/--no-integers",
        help="Compute all layers of quantized tensors on integers, or none. Default: those that "
        "the backend computes faster.",
        show_default=False,
    ),
]
Convolution = Annotated[
    str | None,
    typer.Option(
        "--conv-algorithm",
        metavar="A,B",
        help="Algorithms for every Conv (naive, fft, ...), in order of preference.",
    ),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        metavar="NODE=NAME",
        help="Algorithm for a node or for all nodes of an operator; repeatable.",
    ),
]
BackendOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--backend-option",
        metavar="BACKEND.OPTION=VALUE",
        help="Option of one backend, such as openvino.min_nodes=2; repeatable.",
        rich_help_panel=BACKEND,
    ),
]
MaxBytes = Annotated[
    int | None,
    size_option("--max-bytes", "Limit of host memory, such as 2GB; default: 7/8 of the machine's."),
]
MaxDeviceBytes = Annotated[
    int | None,
    size_option("--max-device-bytes", "Limit of GPU memory, such as 2GB; default: none."),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]FILE",
        help="A .npy, .npz, .pb or image file for an input; repeatable.",
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
    int,
    typer.Option(
        metavar="N", min=0, help="Seed of the random inputs, used if no others are given."
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="[NAME=]1x3x224x224", help="Shape of an input; repeatable."),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=SIZE",
        help="Size of a symbolic dimension; default: 1; repeatable.",
    ),
]
FixedShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="[NAME=]1x3x224x224",
        help="Fix the shape of an input; repeatable.",
    ),
]
FixedDims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=SIZE",
        help="Fix the size of a symbolic dimension; others stay symbolic; repeatable.",
    ),
]
Tokens = Annotated[
    str,
    typer.Option(
        "--tokens",
        metavar="1,2,3|FILE",
        help="Token ids for a decoder: its inputs are those of one step, caches included.",
    ),
]
DecodeStep = Annotated[
    int | None,
    typer.Option(
        "--decode-step",
        metavar="N",
        min=0,
        help="With --tokens: index of the step; default: the last one.",
    ),
]
_STATED = "default: as preprocessor_config.json beside the model says, or"
Scale = Annotated[
    float | None,
    typer.Option(metavar="X", help=f"Images: divide the pixels by X; {_STATED} 255."),
]
Mean = Annotated[
    str,
    typer.Option(metavar="R,G,B", help=f"Images: subtract this after scaling; {_STATED} 0."),
]
Std = Annotated[
    str,
    typer.Option(
        metavar="R,G,B",
        help=f"Images: divide by this after subtracting the mean; {_STATED} 1.",
    ),
]
Crop = Annotated[bool, typer.Option("--crop", help="Images: center-crop instead of stretching.")]
Bgr = Annotated[
    bool, typer.Option("--bgr", help="Images: use BGR channel order, as Caffe models do.")
]
Outputs = Annotated[
    str,
    typer.Option(
        metavar="A,B",
        help="Tensors to return, intermediate ones included; default: the model's outputs.",
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option(
        "--repeat",
        metavar="N",
        help="Number of measured runs; default: as many as fit in one or two seconds.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of CPU threads per backend; default: the BLAS setting.",
        rich_help_panel=BACKEND,
    ),
]
Freeze = Annotated[
    list[str] | None,
    typer.Option(
        "--freeze-input",
        metavar="NAME=FILE",
        help="Replace an input that is the same in every run by a constant; repeatable.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        help="Other weights by name: a .safetensors or .npz file, or another .onnx file.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--external-data-dir",
        metavar="FOLDER",
        help="Folder of the model's external data; default: the folder of MODEL.",
    ),
]
Operators = Annotated[
    Path | None,
    typer.Option(
        "--operators",
        metavar="FILE.py",
        help="Custom operators: a Python file that sets OPERATORS. It is executed, so trust it.",
    ),
]
Target = Annotated[
    Path, typer.Argument(metavar="OUT", help="The .onnx file to write.", show_default=False)
]
Force = Annotated[bool, typer.Option("--force", help="Allow OUT to overwrite MODEL.")]
Opset = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Opset to write; default: that of MODEL, or higher if nodes need it."
    ),
]
External = Annotated[
    int | None,
    size_option(
        "--external",
        "Store constants of at least BYTES in a file next to OUT; default: above 2 GB only.",
    ),
]
SparseConstants = Annotated[
    bool,
    typer.Option("--sparse", help="Store constants that are mostly zeros as sparse initializers."),
]


class _Process:
    """The role of the process; `is_command` if it runs one command and nothing else."""

    is_command = False


PROCESS = _Process()


def arm_watchdog(seconds: float | None) -> float | None:
    """Arm the watchdog that ends a command which cannot be interrupted; returns its limit.

    Raises:
        UsageError: it is not a positive number.
    """
    if seconds is None:
        return None
    from ...runtime.base import arguments
    from ..common.deadline import WATCHDOG

    limit = arguments.seconds("timeout", seconds)
    if limit is not None:
        WATCHDOG.owns_process = PROCESS.is_command
        WATCHDOG.arm(limit)
    return limit


Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time limit; exit code 7, with partial results if the command has any.",
        callback=arm_watchdog,
        rich_help_panel=GENERAL,
    ),
]
RunnerTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Time that onnxruntime may take to load the model, or for one run, before its process "
        "is ended; exit code 10.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=GENERAL)]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Also print the traceback of an error.", rich_help_panel=GENERAL),
]


def exit_code(ok: bool, stopped: str) -> int:
    """Return 1 for a failure, 7 for an incomplete result, else 0."""
    return 1 if not ok else TimeLimitError.exit_code if stopped else 0


def show(found: Any, view: Any, *, json: bool, write: Callable[[], object] | None = None) -> None:
    """Write the files of a result, and print it: as JSON, or with its view.

    Args:
        found: the result.
        view: prints it on a console.
        json: whether to print JSON.
        write: writes the files; the result is printed though they cannot be.

    Raises:
        OSError: a file cannot be written.
        Unwritten: likewise, with what is to be printed as JSON together with the error.
    """
    from ..common.console import open_console, print_json
    from ..common.failures import Unwritten
    from ..common.warned import HEARD

    failed = None
    try:
        if write is not None:
            write()
    except OSError as error:
        failed = error
    console = open_console()
    if not json:
        view(console, found)
        if failed is not None:
            raise failed
        return
    results = {**found.to_dict(), "warnings": HEARD.to_list()}
    if failed is not None:
        raise Unwritten(results) from failed
    print_json(console, results)
