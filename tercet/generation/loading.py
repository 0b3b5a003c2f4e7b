"""Loads the models of a folder and checks that they fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from ..runtime.base.closable import Closable
from ..runtime.errors import ModelError, UnsupportedError
from ..runtime.ir.dtypes import FLOATS
from ..runtime.ir.types import Array
from ..runtime.plan.host import HOST
from ..runtime.session.cache_layout import DecoderLayout, Role
from ..runtime.session.decoding import Decoder, on_host
from ..runtime.session.model import Model
from ..runtime.session.open_decoder import open_decoder, open_encoded
from ..runtime.session.opened_caches import Open, opened
from ..runtime.session.padded_lengths import limits_of
from .encoder import Encoder, Load
from .folder import Expected, ModelFolder

#: Fields of ``genai_config.json`` that name the inputs with a role.
_FIELDS: Mapping[Role, tuple[str, ...]] = {
    "ids": ("inputs.input_ids",),
    "embeddings": ("inputs.embeddings", "inputs.inputs_embeds"),
    "mask": ("inputs.attention_mask",),
    "positions": ("inputs.position_ids",),
    "past_length": ("inputs.past_sequence_length",),
    "total_length": ("inputs.total_sequence_length",),
}


class Models(Closable):
    """The loaded models of a folder: the decoder, and those that feed it.

    Args:
        folder: the folder's configuration.
        pairs: cache outputs by the inputs that receive them; see `Generator`.
        load: loads the model of a file.
        whole_caches: see `Generator`.

    Attributes:
        model: the decoder; for an encoder-decoder with a separate first step, the model of the
            later steps.
        layout: the decoder's inputs and outputs.
        encoder: the encoder, if there is one.
        others: all models besides `model`.
        warnings: what the configuration says that cannot be right; sentences.
    """

    def __init__(
        self,
        folder: ModelFolder,
        pairs: Mapping[str, str],
        load: Load,
        *,
        whole_caches: bool = True,
    ) -> None:
        self._folder = folder
        self._first: Model | None = None
        self._embedding: Embedding | None = None
        self.encoder: Encoder | None = None
        self.others: list[Model] = []
        self.model: Model = load(str(folder.model), whole_caches=whole_caches)
        try:
            self.pairs = pairs_of(folder, self.model, pairs)
            self.layout = DecoderLayout.of(
                self.model.imported,
                file=self.model.source.file,
                pairs=self.pairs,
                encoded=folder.encoder is not None,
            )
            check_sizes(folder, self.layout)
            check_tokens(folder, self.vocabulary)
            check_names(folder, self.layout)
            self.warnings = (*lacking(folder, self.layout), *endless(folder, self.vocabulary))
            check_caches(folder, self.layout)
            if folder.encoder is not None:
                self.encoder = Encoder(folder, self.pad(), load)
                self.others.append(self.encoder.model)
            if folder.first is not None:
                self._first = load(str(folder.first))
                self.others.append(self._first)
            if "embeddings" in self.layout.inputs and folder.embedding is not None:
                self._embedding = Embedding(folder, load)
                self.others.append(self._embedding.model)
            if self.encoder is not None:
                self.encoder.rounds = self._rounds()
        except BaseException:
            self.close()
            raise

    @property
    def vocabulary(self) -> int | None:
        """Number of tokens that the decoder chooses from, if known."""
        found = (self.layout.logits.shape or (None,))[-1]
        return found if isinstance(found, int) else None

    def pad(self, ends: Sequence[int] = ()) -> int:
        """Return the token for rows that have none: the folder's, or one of `ends`.

        Some exporters state one that the model does not have.
        """
        known = [self._folder.pad, *sorted(ends)]
        limit = inf if self.vocabulary is None else self.vocabulary
        return next((token for token in known if token is not None and token < limit), 0)

    def _rounds(self) -> bool:
        """Whether the texts of an encoder are padded: what has been read is masked everywhere."""
        graphs = [each.imported for each in (self.model, *self.others)]
        on_host = self.model.backends[0].device is HOST
        is_masked = "encoder_mask" in self.layout.inputs and bool(self.layout.caches)
        return is_masked and not on_host and all(limits_of(each) == frozenset() for each in graphs)

    def open(self, batch: int, capacity: int | None, open_: Open = opened) -> Decoder:
        """Return a decoder for this many sequences, with empty caches; the caller closes it.

        Args:
            batch: number of sequences.
            capacity: see `open_decoder`.
            open_: of an encoder-decoder, opens the steps behind the first; see `opened`.
        """
        if self.encoder is None:
            return open_decoder(
                self.model,
                batch=batch,
                capacity=capacity,
                pairs=self.pairs,
                embed=self._embedding,
            )
        return open_encoded(
            self.model,
            self._first,
            batch=batch,
            capacity=capacity,
            pairs=self.pairs,
            open_=open_,
        )

    def close(self) -> None:
        """Close all models."""
        for each in (*self.others, self.model):
            each.close()


class Embedding:
    """A model that computes the decoder's input embeddings from token ids."""

    def __init__(self, folder: ModelFolder, load: Load) -> None:
        file = str(folder.embedding)
        self.model = load(file)
        inputs = self.model.inputs
        if len(inputs) != 1 or inputs[0].dtype is None or inputs[0].dtype.kind != "i":
            self.model.close()
            raise UnsupportedError(
                f"{file}: it takes {', '.join(map(str, inputs))}: more than the tokens of a text",
                remedy="run this model and the decoder with tercet.load",
            )
        self._input = inputs[0]
        self._output = next(o.name for o in self.model.outputs if o.dtype in FLOATS)

    def __call__(self, ids: Array) -> Array:
        """Return [batch, n, width] for ids [batch, n]."""
        feeds = {self._input.name: ids.astype(self._input.dtype)}
        return on_host(self.model.run(feeds, (self._output,))[self._output])


def pairs_of(folder: ModelFolder, model: Model, given: Mapping[str, str]) -> dict[str, str]:
    """Return the cache pairs that the folder or the caller names."""
    inputs, outputs = ({each.name for each in side} for side in (model.inputs, model.outputs))
    found: dict[str, str] = {}
    for past, present in folder.names:
        for layer in range(len(inputs)):
            names = past.replace("%d", str(layer)), present.replace("%d", str(layer))
            if names[0] in inputs and names[1] in outputs:
                found[names[0]] = names[1]
    return {**found, **given}


def check_sizes(folder: ModelFolder, layout: DecoderLayout) -> None:
    """Raise ModelError if the caches differ in size from the configuration."""
    attention = [each for each in layout.caches if each.axis == 2 and len(each.shape) == 4]
    is_latent = folder.config is not None and folder.config.get("kv_lora_rank") is not None
    for expected, axis in ((folder.heads, 1), (folder.size, 3)):
        if expected is not None and not is_latent:
            whole = [each for each in attention if axis == 1 or each.dtype in FLOATS]
            sizes = {each.past: each.shape[axis] for each in whole}
            expected.check({n: s for n, s in sizes.items() if isinstance(s, int)}, folder.model)
    layers = folder.layers
    if layers is not None and len(attention) > 2 * layers.size:
        raise layers.config.error(
            layers.field,
            f"{layers.size}, but {folder.model} has {len(attention)} caches, two for each layer: "
            "configuration and model are not of one export",
        )


def check_names(folder: ModelFolder, layout: DecoderLayout) -> None:
    """Raise ModelError if the model has another name for what the configuration names.

    A configuration may name inputs that the model does without.
    """
    if folder.config is None:
        return
    known = {
        name: info.name for role, info in layout.inputs.items() for name in _FIELDS.get(role, ())
    }
    known["outputs.logits"] = layout.logits.name
    caches = {"inputs.past": [each.past for each in layout.caches]}
    caches["outputs.present"] = [each.present for each in layout.caches]
    for field, stated in folder.roles.items():
        end = ".".join(field.split(".")[-2:])
        found = known.get(end)
        if found is not None and found != stated:
            raise folder.config.error(field, f"'{stated}', but in {folder.model} it is '{found}'")
        names = caches.get(end.split("_", maxsplit=1)[0], ()) if end.endswith("_names") else ()
        if names and not any(_is_of(name, stated) for name in names):
            raise folder.config.error(
                field, f"'{stated}', but {folder.model} has '{names[0]}', and no cache so named"
            )


def _is_of(name: str, pattern: str) -> bool:
    """Whether a name is that of some layer, by a pattern with ``%d``."""
    start, _, end = pattern.partition("%d")
    layer = name[len(start) : len(name) - len(end)]
    return name == f"{start}{layer}{end}" and (layer.isdecimal() or name == pattern)


def lacking(folder: ModelFolder, layout: DecoderLayout) -> Iterator[str]:
    """Yield a sentence if the configuration counts more layers than have caches.

    Some layers have none: those with a state, and those that read the caches of others.
    """
    layers, count = folder.layers, len(layout.caches)
    if layers is None or folder.shares_caches or count % 2:
        return
    is_plain = all(each.axis is not None and len(each.shape) == 4 for each in layout.caches)
    if is_plain and 0 < count < 2 * layers.size:
        yield (
            f"{layers.config.path}: {layers.field}: {layers.size}, but {folder.model} has caches "
            f"of {count // 2}"
        )


def endless(folder: ModelFolder, vocabulary: int | None) -> Iterator[str]:
    """Yield a sentence if the model has none of the tokens that end a text."""
    known = vocabulary if vocabulary is not None and folder.ends else 1 << 63
    if min(folder.ends, default=0) >= known:
        yield (
            f"{folder.ends_in}: {', '.join(map(str, folder.ends))}, but {folder.model} has "
            f"{vocabulary} tokens: no text ends with that"
        )


def check_tokens(folder: ModelFolder, vocabulary: int | None) -> None:
    """Raise ModelError if the model lacks a token that the folder feeds it, or all it counts."""
    stated = folder.vocabulary
    if stated is not None and vocabulary is not None:
        _check_vocabulary(folder, stated, vocabulary)
    start = () if folder.start is None else folder.start.stated
    for each in (*start, folder.last):
        if each is not None and vocabulary is not None:
            each.check(vocabulary, folder.model)


def check_caches(folder: ModelFolder, layout: DecoderLayout) -> None:
    """Raise ModelError if a decoder that takes one token per step has no caches."""
    if layout.step == 1 and not layout.caches:
        raise ModelError(
            "it reads one token at a time, but has no caches of the others",
            file=str(folder.model),
            where=f"input '{layout.inputs['ids'].name}'",
        )


def _check_vocabulary(folder: ModelFolder, stated: Expected, vocabulary: int) -> None:
    """Raise ModelError if the model has not the tokens stated; more may be padding."""
    if stated.size > vocabulary or (folder.is_exact and stated.size != vocabulary):
        raise stated.config.error(
            stated.field,
            f"{stated.size}, but {folder.model} has {vocabulary} tokens: configuration and model "
            "are not of one export",
        )
