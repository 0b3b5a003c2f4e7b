"""Model folders as exporters write them: which file, which settings, which tokenizer.

onnxruntime-genai's builder writes ``genai_config.json``; optimum and transformers.js write
``config.json`` and ``generation_config.json``, with the model next to them or in ``onnx``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..runtime.base.arguments import unfit
from ..runtime.errors import FileError, ModelError, UnsupportedError, UsageError
from .bans import Bans
from .config_file import ConfigFile, StatedToken
from .genai_speech import sound_of_genai, start_of_genai
from .parts import (
    ONNX,
    Parts,
    chosen,
    encoder_and_decoder,
    files_in,
    folders_below,
    has_encoder,
)
from .search_fields import (
    TOP_K,
    infeasible,
    misspelt,
    search_of,
    search_of_genai,
    unsupported,
)
from .start import Start

#: Field names of KV heads, layers, head size and maximum position count.
_SIZES = (
    ("num_key_value_heads", "num_kv_heads"),
    ("num_hidden_layers", "n_layer", "num_layers"),
    ("head_dim",),
    ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
)
#: The same for the decoder of an encoder-decoder; some have no maximum position count.
_DECODER_SIZES = (
    ("num_key_value_heads", "decoder_attention_heads"),
    ("decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "n_layer"),
    ("d_kv", "head_dim"),
    ("max_target_positions", "max_position_embeddings"),
)

#: Fields of a configuration that say why some layers have no cache of their own.
_FEWER_CACHES = ("layer_types", "num_kv_shared_layers", "use_cla")


@dataclass(frozen=True, slots=True)
class Expected:
    """A size stated in a configuration, which the graph must have as well.

    Attributes:
        config: the configuration file.
        field: the field's name in it.
        size: its value.
    """

    config: ConfigFile
    field: str
    size: int

    def check(self, found: Mapping[str, int], model: Path) -> None:
        """Raise ModelError if no cache of the graph has this size.

        One matching layer is enough: in models with sliding windows layers differ, and the
        configuration describes one kind.

        Args:
            found: sizes by cache name.
            model: the file.
        """
        if found and self.size not in found.values():
            name, size = next(iter(found.items()))
            raise self.config.error(
                self.field,
                f"{self.size}, but in {model} the cache '{name}' has {size}: configuration and "
                "model are not of one export",
            )


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What the configuration files say about a decoder.

    Attributes:
        model: the decoder's file.
        path: the folder, or that of a model given by itself.
        ends: end-of-text tokens.
        ends_in: the file and field that state them.
        pad: the padding token.
        context: maximum number of positions, and the field that states it.
        search: sampling settings (``temperature``, ``top_k``, …), if the folder enables sampling.
        max_new_tokens: default number of new tokens.
        max_length: likewise of all tokens, prompt included, if less than `context`.
        heads, size, layers: sizes of the caches, where the configuration states them.
        names: patterns of cache names, ``past`` and ``present`` with ``%d`` for the layer, and the
            configuration that states them.
        embedding: the model that computes ``inputs_embeds`` from token ids.
        tokenizer: path of ``tokenizer.json``.
        tokens: contents of ``tokenizer_config.json``.
        encoder: the encoder's file, if there is one.
        first: the file of the decoder's first step, if that is a separate model.
        source: maximum number of encoder tokens, if the encoder has position embeddings.
        start: the tokens that an encoder-decoder's decoder starts with; None for decoder-only
            models.
        bans: tokens forbidden as the next one.
        last: ``forced_eos_token_id``: the last token of a text of maximum length.
        vocabulary: number of tokens, where the configuration states it.
        is_exact: whether the model has exactly that many, and no more.
        roles: names of inputs and outputs by field, where the configuration states them.
        shares_caches: whether layers may have no cache of their own, by the configuration.
        warnings: what is not supported or cannot be right; each sentence names file and field.
        sound: how audio features are computed, with the fields of ``preprocessor_config.json``.
    """

    model: Path
    path: Path
    ends: tuple[int, ...] = ()
    ends_in: str = ""
    pad: int | None = None
    context: Expected | None = None
    search: Mapping[str, float] = field(default_factory=dict[str, float])
    max_new_tokens: int | None = None
    max_length: Expected | None = None
    heads: Expected | None = None
    size: Expected | None = None
    layers: Expected | None = None
    names: tuple[tuple[str, str], ...] = ()
    config: ConfigFile | None = None
    embedding: Path | None = None
    tokenizer: Path | None = None
    tokens: ConfigFile | None = None
    encoder: Path | None = None
    first: Path | None = None
    source: Expected | None = None
    start: Start | None = None
    bans: Bans = field(default_factory=Bans)
    last: StatedToken | None = None
    vocabulary: Expected | None = None
    is_exact: bool = False
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    shares_caches: bool = False
    warnings: tuple[str, ...] = ()
    sound: ConfigFile | None = None


def read_folder(source: str | os.PathLike[str], variant: str | None = None) -> ModelFolder:
    """Read the configuration of a folder, or of the folder of an ONNX file.

    Args:
        source: the path of either.
        variant: which of several models: a file name, or the suffix its exporter added, such as
            ``q4`` for ``model_q4.onnx``.

    Raises:
        FileError: there is no such file or folder.
        UsageError: there is no such variant, or several models and no choice.
        UnsupportedError: a pipeline of several models.
        ModelError: a malformed configuration; the message names file and field.
    """
    given = Path(source)
    if not given.exists():
        raise FileError(2, "there is no such file or folder", str(given))
    if given.is_file():
        if variant is not None:
            reason = f"{given} is a model itself; give its folder"
            raise unfit(UsageError, "variant", reason, variant)
        path = given.parent.parent if given.parent.name == ONNX else given.parent
        return _completed(given, path, given)
    return _completed(None, given, given, variant)


def _completed(
    model: Path | None, path: Path, given: Path, variant: str | None = None
) -> ModelFolder:
    genai = ConfigFile.perhaps(path / "genai_config.json")
    config = ConfigFile.perhaps(path / "config.json")
    if model is None and not genai and not config:
        raise ModelError(
            "has neither genai_config.json nor config.json, of which generation reads the tokens "
            "that end a text; give the folder that the exporter wrote, or the .onnx file itself"
            f"{folders_below(path)}",
            file=str(given),
        )
    if genai:
        _refuse_pipelines(genai)
        return _of_genai(genai, path, model, variant)
    if config.flag("is_encoder_decoder") or has_encoder(path):
        return _of_config(config, path, encoder_and_decoder(path, config, variant, model))
    return _of_config(config, path, Parts(model or chosen(path, variant)))


# ── configurations ───────────────────────────────────────────────────────────────────────────────


def _of_genai(
    genai: ConfigFile, path: Path, model: Path | None, variant: str | None
) -> ModelFolder:
    """Return what ``genai_config.json`` states."""
    decoder = "model.decoder"
    if model is None and variant is None:
        model = _named(genai, f"{decoder}.filename")
    encoder = _named(genai, "model.encoder.filename") if genai.get("model.encoder") else None
    tokens = ConfigFile.perhaps(path / "tokenizer_config.json")
    context = _expected(genai, "model.context_length")
    length = genai.whole("search.max_length")
    if context is not None and length is not None and length > context.size:
        raise genai.error(
            "search.max_length", f"{length}, but {context.field} is {context.size}: expected less"
        )
    return ModelFolder(
        model or chosen(path, variant),
        path,
        ends=genai.tokens("model.eos_token_id"),
        ends_in=f"{genai.path}: model.eos_token_id",
        pad=genai.token("model.pad_token_id"),
        context=context,
        search=search_of_genai(genai),
        max_length=_max_length(genai, "search.max_length", context),
        heads=_expected(genai, f"{decoder}.num_key_value_heads"),
        size=_expected(genai, f"{decoder}.head_size"),
        layers=_expected(genai, f"{decoder}.num_hidden_layers"),
        names=tuple(_names(genai, decoder)),
        config=genai,
        embedding=genai.file("model.embedding.filename"),
        tokenizer=_tokenizer(path),
        tokens=tokens,
        bans=Bans.of(genai, "search."),
        vocabulary=_expected(genai, "model.vocab_size"),
        is_exact=True,
        roles=dict(_roles(genai, decoder)),
        shares_caches=any(genai.get(f"{decoder}.{each}") is not None for each in _FEWER_CACHES),
        warnings=(
            *unsupported(genai, "search."),
            *misspelt(genai),
            *infeasible(genai, "search."),
            *_sliding(genai, f"{decoder}.sliding_window"),
        ),
        encoder=encoder,
        start=None if encoder is None else start_of_genai(genai),
        sound=None if encoder is None else sound_of_genai(path),
    )


def _named(genai: ConfigFile, field: str) -> Path:
    """Return the model that a field names, which must be there."""
    found = genai.file(field)
    if found is None:
        raise genai.error(field, "is not there; it names the model")
    if not found.is_file():
        folder = genai.path.parent
        raise genai.error(field, f"there is no file '{found.relative_to(folder)}' in {folder}")
    return found


def _names(genai: ConfigFile, decoder: str) -> Iterator[tuple[str, str]]:
    for kind in ("key", "value"):
        past = genai.text(f"{decoder}.inputs.past_{kind}_names")
        present = genai.text(f"{decoder}.outputs.present_{kind}_names")
        if past is not None and present is not None:
            yield past, present


def _roles(genai: ConfigFile, decoder: str) -> Iterator[tuple[str, str]]:
    """Yield the fields that name an input or output, and its name."""
    for side in ("inputs", "outputs"):
        for name in cast("Mapping[str, Any]", genai.get(f"{decoder}.{side}") or {}):
            field = f"{decoder}.{side}.{name}"
            text = genai.text(field)
            if text:
                yield field, text


def _sliding(genai: ConfigFile, section: str) -> Iterator[str]:
    """Yield a sentence if another runtime would drop old positions of caches.

    With ``layers``, the section only says how long the caches of layers are that have windows.
    """
    window = genai.get(section)
    if window is not None and genai.get(f"{section}.layers") is None:
        slides = genai.get(f"{section}.slide_key_value_cache")
        if slides is None or genai.flag(f"{section}.slide_key_value_cache"):
            yield (
                f"{genai.path}: {section}.slide_key_value_cache: tercet does not drop positions "
                "from caches, beyond what the model does itself"
            )


def _of_config(config: ConfigFile, path: Path, parts: Parts) -> ModelFolder:
    """Return what transformers' configuration files state."""
    generation = ConfigFile.perhaps(path / "generation_config.json")
    tokens = ConfigFile.perhaps(path / "tokenizer_config.json")
    sound = ConfigFile.perhaps(path / "preprocessor_config.json")
    kinds = ("text_config",) if parts.encoder is None else ("decoder", "text_config")
    nested = next((f"{each}." for each in kinds if config.get(each) is not None), "")

    def known(*names: str) -> Expected | None:
        return _expected(config, config.first(*(f"{nested}{n}" for n in names), *names))

    ends, says_ends = generation.tokens("eos_token_id"), f"{generation.path}: eos_token_id"
    if not ends:
        where = config.first("eos_token_id", f"{nested}eos_token_id")
        ends, says_ends = config.tokens(where), f"{config.path}: {where}"
    pad = generation.token("pad_token_id")
    heads, layers, size, context = _SIZES if parts.encoder is None else _DECODER_SIZES
    suffix = parts.model.stem.removeprefix("model").removeprefix("decoder_model_merged")
    embedding = next(
        (each for each in files_in(path) if each.stem == f"embed_tokens{suffix}"),
        next((each for each in files_in(path) if each.stem == "embed_tokens"), None),
    )
    says = generation if generation else config
    return ModelFolder(
        parts.model,
        path,
        ends=ends,
        ends_in=says_ends,
        pad=config.token("pad_token_id") if pad is None else pad,
        context=known(*context),
        search=search_of(says, top_k=TOP_K),
        max_new_tokens=says.whole("max_new_tokens", 1),
        max_length=_max_length(says, "max_length", known(*context)),
        heads=None if config.flag(f"{nested}multi_query") else known(*heads),  # then it is one
        size=known(*size),
        layers=known(*layers),
        config=config if config else None,
        embedding=embedding,
        tokenizer=_tokenizer(path),
        tokens=tokens,
        encoder=parts.encoder,
        first=parts.first,
        source=None if parts.encoder is None else known("max_position_embeddings"),
        start=None if parts.encoder is None else Start.of(says, config, nested),
        bans=Bans.of(says),
        vocabulary=known("vocab_size"),
        shares_caches=any(
            config.get(f"{where}{each}") is not None
            for each in _FEWER_CACHES
            for where in ("", nested)
        ),
        warnings=(
            *unsupported(says, more={} if parts.encoder else {"forced_bos_token_id": ()}),
            *infeasible(says),
        ),
        last=_last(says),
        sound=sound if sound else None,
    )


def _last(config: ConfigFile) -> StatedToken | None:
    name = "forced_eos_token_id"
    found = min(config.tokens(name), default=None)
    return None if found is None else StatedToken(config, name, found)


def _expected(config: ConfigFile, name: str) -> Expected | None:
    size = config.whole(name)
    return None if not size else Expected(config, name, size)


def _max_length(config: ConfigFile, name: str, context: Expected | None) -> Expected | None:
    """Return the length at which a text ends; None if the model has no room for more anyway."""
    found = _expected(config, name)
    return None if found and context and found.size >= context.size else found


def _tokenizer(path: Path) -> Path | None:
    file = path / "tokenizer.json"
    return file if file.is_file() else None


def _refuse_pipelines(genai: ConfigFile) -> None:
    """Raise UnsupportedError for anything but a decoder, and an encoder of its keys and values."""
    fed = genai.get("model.decoder.inputs.cross_past_key_names")
    if genai.get("model.encoder") is not None and fed is None:
        raise UnsupportedError(
            f"{genai.path}: model.encoder: an encoder-decoder whose decoder takes no keys and "
            "values of the encoder (cross_past_key_names)",
            remedy="export it with optimum (optimum-cli export onnx), whose encoders are read",
        )
    if genai.get("model.decoder.pipeline") is not None:
        raise UnsupportedError(
            f"{genai.path}: model.decoder.pipeline: a decoder in several files, for one device",
            remedy="export it again for the CPU or CUDA, which is one file",
        )
