"""Compilation of the steps of text generation ahead of time, for a GPU that may be absent."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from ...arguments import public
from ...generation import settings
from ...generation.beginning import beginnings
from ...generation.encoder import LEAST, Encoder
from ...generation.folder import ModelFolder, read_folder
from ...generation.generator import PREFILL_CHUNK
from ...generation.generator import RULES as GENERATOR_RULES
from ...generation.loading import Models, pairs_of
from ...runtime.base import arguments as rules
from ...runtime.base.arguments import dims as dim_texts
from ...runtime.base.arguments import shapes as shape_texts
from ...runtime.base.record import record
from ...runtime.errors import InputError, UnsupportedError, UsageError
from ...runtime.ir.types import Array
from ...runtime.session.bans import TokenBans
from ...runtime.session.cache_layout import DecoderLayout
from ...runtime.session.decoding import CachedDecoder
from ...runtime.session.encoded_decoder import Encoded, EncodedDecoder
from ...runtime.session.io_types import TensorInfo
from ...runtime.session.model import Model
from ...runtime.session.sampling import GREEDY, Following, SamplingSettings
from ...runtime.session.static_cache import FIRST_ROOM, StaticCaches
from ...runtime.session.step_inputs import StepInputs, Tokens
from ..common.console import Say, silent
from ..common.deadline import limited
from ..common.shapes import Dims, Shapes, assumed_dims, input_shapes
from .compilation import Compilation, PaperGpu, on_paper_gpu

#: Steps in flight: the one whose token is awaited, and the next; see `Decoder.follow`.
_DEPTH = 2


@public(**GENERATOR_RULES, batch=rules.whole(1))
@limited
def compile_generation(
    folder: str | os.PathLike[str],
    *,
    variant: str | None = None,
    target: str | None = None,
    batch: int = 1,
    capacity: int | None = None,
    prefill_chunk: int | None = PREFILL_CHUNK,
    fallback: str | None = None,
    precision: str = "float32",
    shapes: Shapes = (),
    dims: Dims = (),
    timeout: float | None = None,
    say: Say = silent,
    **options: Any,
) -> Compilation:
    """Compile the kernels with which the cuda backend generates text, and keep them in the cache.

    They are those of prompts of all lengths up to `prefill_chunk`, read at once or in parts of
    that size, and of the steps of one token, chosen greedily and as the folder says, while the
    caches grow to `capacity`. An encoder reads texts of up to `prefill_chunk` tokens, or features
    of one size. Options must be those of the run.

    Args:
        folder: what `tercet.Generator` takes.
        variant: see `tercet.Generator`.
        target: see `tercet.compile`.
        batch: number of sequences that are generated together.
        capacity: maximum number of positions; if None, those that caches have room for at first.
        prefill_chunk: see `tercet.Generator`.
        fallback: backend for nodes that cuda declines.
        precision: compute precision of float32 tensors.
        shapes: for an encoder of features, their shape by name: ``{"pixel_values": (1, 3, 384,
            384)}``; the first size is `batch`.
        dims: likewise sizes of symbolic dimensions: ``{"height": 384, "width": 384}``.
        timeout: time limit in seconds; None for no limit.
        say: called with progress messages.
        **options: further fields of `Options`.

    Raises:
        UnsupportedError: a decoder reads embeddings that another model computes, or its steps are
            planned for each length.
        BackendUnavailable, FileError, KernelError, ModelError, UsageError: see `tercet.compile` and
            `tercet.Generator`.
    """
    found = read_folder(folder, variant)
    if found.embedding is not None:
        raise _in_sizes_of_a_run(f"{found.model}: it reads what {found.embedding} computes")
    given = {"precision": precision, **options}
    wanted = _Wanted(
        {GREEDY, settings.generate(found.search, None).sampling},
        found.bans.following(found.ends),
        batch,
        capacity,
        prefill_chunk,
        tuple(shape_texts("shapes", shapes)),
        tuple(dim_texts("dims", dims)),
        say,
    )
    with on_paper_gpu(target, fallback, given, say) as gpu:
        plan = _plan if found.encoder is None else _plan_encoded
        plan(gpu, found, wanted)
        return gpu.compilation(str(found.model))


@record
class _Wanted:
    """What is generated.

    Attributes:
        chosen: how tokens are chosen on the device.
        bans: tokens forbidden as the next one.
        batch, capacity, prefill_chunk: see `compile_generation`.
        shapes, dims: as texts; see `input_shapes`.
        say: see `compile_generation`.
    """

    chosen: Collection[SamplingSettings]
    bans: TokenBans
    batch: int
    capacity: int | None
    prefill_chunk: int | None
    shapes: tuple[str, ...]
    dims: tuple[str, ...]
    say: Say

    def most(self, folder: ModelFolder, layout: DecoderLayout) -> int:
        """Return the number of positions that caches grow to."""
        return self.capacity or min([FIRST_ROOM, *_limits(folder, layout)])

    def follow(self, caches: StaticCaches, length: int) -> None:
        """Plan steps that follow `length` positions."""
        read, first = Tokens.dummy(self.batch, length), np.zeros(self.batch, np.int64)
        for how in self.chosen:
            caches.chained(read, first, Following(how, bans=self.bans), _DEPTH)


def _plan(gpu: PaperGpu, folder: ModelFolder, wanted: _Wanted) -> None:
    """Plan the prompts and steps of a decoder."""
    if wanted.shapes or wanted.dims:
        raise _no_features(f"{folder.model} reads prompts of all lengths")
    model = gpu.load(folder.model, whole_caches=True)  # as `Generator` has it
    pairs = pairs_of(folder, model, {})
    layout = DecoderLayout.of(model.imported, file=model.source.file, pairs=pairs)
    most = wanted.most(folder, layout)
    if wanted.batch > 1:  # `Generator` begins with a step for one sequence
        StaticCaches(model, StepInputs.of(model, layout, 1, most, None)).close()
    inputs = StepInputs.of(model, layout, wanted.batch, most, None)
    chunk = min(wanted.prefill_chunk or most, most)
    counts = [layout.step] if layout.step else list(_counts(chunk))
    for room in _rooms(most):
        caches = StaticCaches(model, inputs, room)
        try:
            for count in counts if room <= FIRST_ROOM else counts[-1:]:
                wanted.say(f"{count} tokens, of up to {room}")
                caches.program(count)
            wanted.follow(caches, 0)
        finally:
            caches.close()


def _plan_encoded(gpu: PaperGpu, folder: ModelFolder, wanted: _Wanted) -> None:
    """Plan an encoder, and a decoder's steps behind it, by running models that compute nothing."""
    how = settings.generate(folder.search, None)
    with Models(folder, {}, gpu.load) as models:
        encoder, start = models.encoder, folder.start
        assert encoder is not None
        assert start is not None
        most = wanted.most(folder, models.layout)
        if not models.layout.caches:
            raise _in_sizes_of_a_run(f"{folder.model}: it reads all tokens in each step")
        with models.open(wanted.batch, most, _static) as decoder:
            assert isinstance(decoder, EncodedDecoder)
            for encoded in _encoded(encoder, wanted):
                decoder.begin(encoded)
                ids = np.array(beginnings(decoder, start, how), np.int64)
                decoder.greedy(ids)
                decoder.greedy(ids[:, :1])
                caches = decoder.store
                assert isinstance(caches, StaticCaches)
                for room in _rooms(most):
                    wanted.follow(caches, room - 1)


def _static(
    model: Model, inputs: StepInputs, given: Mapping[str, Array]
) -> CachedDecoder[StaticCaches]:
    """Open a decoder whose steps have plans for all lengths."""
    return CachedDecoder(inputs, StaticCaches(model, inputs, given=given))


def _encoded(encoder: Encoder, wanted: _Wanted) -> Iterator[Encoded]:
    """Yield what an encoder computes of texts of all lengths, or of features."""
    info, file = encoder.features, encoder.model.source.file
    if info is not None:
        yield encoder.read_features(np.zeros(_features(info, file, wanted), info.dtype))
        return
    if wanted.shapes or wanted.dims:
        raise _no_features(f"{file} reads texts of all lengths up to prefill_chunk")
    if encoder.length_of(1) == 1:
        raise _in_sizes_of_a_run(f"{file}: texts are not padded")
    length = 0
    while length < (wanted.prefill_chunk or FIRST_ROOM):
        before, length = length, encoder.length_of(length + 1)
        if length != 2 * before and before >= LEAST:  # the longest that it reads
            return
        wanted.say(f"texts of {length} tokens")
        yield encoder.read_ids([[0] * length] * wanted.batch)


def _features(info: TensorInfo, file: str | None, wanted: _Wanted) -> tuple[int, ...]:
    """Return the shape of an encoder's features.

    Raises:
        InputError: a size is neither declared nor given.
    """
    first = info.shape[0] if info.shape else None
    dims = [*wanted.dims, *([f"{first}={wanted.batch}"] if isinstance(first, str) else ())]
    if unknown := assumed_dims((info,), wanted.shapes, dims):
        raise InputError(
            f"{file}: input {info}: no size is known of {', '.join(unknown)}; "
            "--dim and --shape (dims, shapes) set them"
        )
    return input_shapes((info,), wanted.shapes, dims)[info.name]


def _no_features(reason: str) -> UsageError:
    return UsageError(
        "--shape and --dim (shapes, dims) are sizes of images or sounds that an encoder reads; "
        f"{reason}, --batch (batch) of them at a time"
    )


def _in_sizes_of_a_run(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"{reason}, in sizes that only a run knows",
        remedy="run the first text with the cache where it is to be; it is compiled then",
    )


def _limits(folder: ModelFolder, layout: DecoderLayout) -> Iterator[int]:
    """Yield the numbers of positions that the folder and the model have at most."""
    for size in (None if folder.context is None else folder.context.size, layout.room):
        if size is not None:
            yield size


def _counts(chunk: int) -> Iterator[int]:
    """Yield the numbers of tokens that prompts of up to `chunk` are extended to, in turn."""
    count = 1
    while count < chunk:
        yield count
        count *= 2
    yield chunk


def _rooms(most: int) -> Iterator[int]:
    """Yield the sizes that caches have while they grow to `most` positions."""
    room = FIRST_ROOM
    while room < most:
        yield room
        room *= 2
    yield most
