"""Finds the decoder, the encoder and the first-step model among the files of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..runtime.base.arguments import unfit
from ..runtime.errors import FileError, ModelError, UsageError, did_you_mean
from .config_file import ConfigFile

#: File names of decoders, those with caches first.
STEMS = ("decoder_model_merged", "model", "decoder_with_past_model", "decoder_model")
#: The subfolder of models that are not next to the configuration.
ONNX = "onnx"
ENCODER = "encoder_model"
#: Name prefixes of files for other parts of a model.
_OTHERS = ("encoder", "embed", "vision", "audio", "decoder_with_past", "tokenizer")
#: What transformers.js calls variants, where that is not the suffix of their files.
_DTYPES = {"fp32": "", "q8": "_quantized"}
#: How far below a folder those are that onnxruntime-genai's repositories have for each device.
_BELOW = ("*/genai_config.json", "*/*/genai_config.json")
#: Decoder files of an encoder-decoder: for all steps, later steps, the first step.
_DECODERS = _, _LATER, _FIRST = "decoder_model_merged", "decoder_with_past_model", "decoder_model"


@dataclass(frozen=True, slots=True)
class Parts:
    """The models of one folder.

    Attributes:
        model: the decoder for all steps, or for all but the first.
        encoder: the encoder of an encoder-decoder.
        first: the decoder of the first step, if that is a separate model.
    """

    model: Path
    encoder: Path | None = None
    first: Path | None = None


def files_in(path: Path) -> list[Path]:
    """Return the model files of a folder, those next to the configuration first."""
    return [
        file
        for folder in (path, path / ONNX)
        if folder.is_dir()
        for file in sorted(folder.glob("*.onnx"))
    ]


def has_encoder(path: Path) -> bool:
    """Return whether the folder has an encoder under the name that optimum uses."""
    return any(each.stem.startswith(ENCODER) for each in files_in(path))


def chosen(path: Path, variant: str | None) -> Path:
    """Return the model of a decoder-only folder, or one of its variants."""
    files = files_in(path)
    if variant is not None:
        named = path / variant
        if named.is_file():
            return named
        names = [f"{stem}_{variant}.onnx" for stem in STEMS] + [variant, f"{variant}.onnx"]
        if variant in _DTYPES:
            names += [f"{stem}{_DTYPES[variant]}.onnx" for stem in STEMS]
        found = next((f for name in names for f in files if f.name == name), None)
        if found is None:
            raise _unknown(path, variant, files)
        return found
    for stem in STEMS:
        for file in files:
            if file.stem == stem:
                return file
    decoders = [f for f in files if not f.name.startswith(_OTHERS)]
    if len(decoders) == 1:
        return decoders[0]
    if not decoders:
        reason = f"there is no model (.onnx) in it, nor in its folder onnx{folders_below(path)}"
        raise FileError(2, reason, str(path))
    raise _several(path, decoders)


def folders_below(path: Path) -> str:
    """Return the folders in a folder that onnxruntime-genai's builder wrote, as advice if any."""
    found = sorted(file.parent for pattern in _BELOW for file in path.glob(pattern))
    names = ", ".join(each.relative_to(path).as_posix() for each in found)
    return f"; give one of the folders in it: {names}" if found else ""


def encoder_and_decoder(
    path: Path, config: ConfigFile, variant: str | None, model: Path | None = None
) -> Parts:
    """Return the parts of an encoder-decoder, by the names that optimum and transformers.js use.

    The encoder has the decoder's variant if it exists in that variant.

    Args:
        path: the folder.
        config: its configuration.
        variant: see `Generator`.
        model: the decoder if the caller chose one; None to look for it.

    Raises:
        ModelError: a part is missing; the message names the folder and the part.
        UsageError: no part has this variant.
    """
    files = files_in(path)
    encoders = [each for each in files if each.stem.startswith(ENCODER)]
    if not encoders:
        raise config.error(
            "is_encoder_decoder", f"true, but there is no {ENCODER}.onnx in {path}, nor in {ONNX}"
        )
    if model is None and variant is not None:
        named = (each for each in files if variant in (each.name, each.stem))
        model = path / variant if (path / variant).is_file() else next(named, None)
    if model is None:
        model = _decoder(path, variant, files, encoders[0].name)
    kind, suffix = _kind(model) or (model.stem, "")
    encoder = _named(encoders, f"{ENCODER}{suffix}") or _named(encoders, ENCODER) or encoders[0]
    first = None
    if kind == _LATER:
        first = _named(files, f"{_FIRST}{suffix}")
        if first is None:
            raise ModelError(
                f"has {model.name}, but not {_FIRST}{suffix}.onnx, which does the first step",
                file=str(path),
            )
    return Parts(model, encoder, first)


def _decoder(path: Path, variant: str | None, files: list[Path], encoder: str) -> Path:
    """Return the decoder of an encoder-decoder in a variant, or in the only one."""
    found = {kind: each for each in reversed(files) if (kind := _kind(each)) is not None}
    suffixes = {suffix for _, suffix in found}
    wanted = [f"_{variant}", *([_DTYPES[variant]] if variant in _DTYPES else [])]
    if variant is None:
        wanted = [""] if "" in suffixes else [*suffixes]
        if len(wanted) > 1:
            raise _several(path, sorted(found.values()))
    kinds = ((name, suffix) for suffix in wanted for name in _DECODERS)
    model = next((found[kind] for kind in kinds if kind in found), None)
    if model is not None:
        return model
    if variant is not None:
        raise _unknown(path, variant, files)
    names = ", ".join(f"{name}.onnx" for name in _DECODERS)
    raise ModelError(f"has {encoder}, but no decoder: {names}", file=str(path))


def _kind(model: Path) -> tuple[str, str] | None:
    """Return which of `_DECODERS` a file is, and its suffix; None if it is none of them."""
    kind = next((each for each in _DECODERS if model.stem.startswith(each)), None)
    return None if kind is None else (kind, model.stem.removeprefix(kind))


def _several(path: Path, models: list[Path]) -> UsageError:
    names = ", ".join(each.relative_to(path).as_posix() for each in models)
    return UsageError(f"{path} has several models ({names}); choose one with variant (--file)")


def _named(files: list[Path], stem: str) -> Path | None:
    return next((each for each in files if each.stem == stem), None)


def _unknown(path: Path, variant: str, files: list[Path]) -> UsageError:
    known = [f.relative_to(path).as_posix() for f in files]
    hint = did_you_mean(variant, [f.stem.rpartition("_")[2] for f in files])
    reason = f"{path} has no such model{hint} (models: {', '.join(known) or 'none'})"
    return unfit(UsageError, "variant", reason, variant)
