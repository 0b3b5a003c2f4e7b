"""The page of `decode_bench`: its rows, PyTorch's figures, and the tables of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from ...runtime.errors import UsageError
from ..common.markdown import head, table
from ..common.results import to_json, write

#: Models by the names that PyTorch's script has for them.
PYTORCH_NAMES = {
    "llama1b": "llama-3.2-1b",
    "llama8b": "llama-3-8b",
    "qwen05b": "qwen2.5-0.5b",
}


@dataclass(frozen=True, slots=True)
class DecodeTiming:
    """One decoder, its weights in one form, for one number of sequences.

    Attributes:
        model: its name among `decoder_files.SHAPES`.
        bits: of the weights of products: 16 for float16, else those of MatMulNBits.
        block: rows of a weight that share a scale, of packed weights.
        batch: number of sequences.
        position: tokens before the one that is timed.
        capacity: positions that the caches have room for.
        device_ms: the device's for one step, a CUDA graph; None where it cannot be timed.
        host_ms: from one most likely token that the host gets to the next.
        floor_ms: in which the bytes of a step are read at the memory's bandwidth; None on the host.
        kernels: launches of a step.
        error: relative L2 distance of logits from the same file in float64; None if not measured.
        seconds: what came before by its name: writing the file, loading, reading the prompt.
        sampled_ms: as `host_ms`, of tokens that are sampled; None if not measured.
        layers: blocks of the decoder whose error it is, which has the same widths; 0 for all.
    """

    model: str
    bits: int
    block: int
    batch: int
    position: int
    capacity: int
    device_ms: float | None
    host_ms: float
    floor_ms: float | None
    kernels: int
    error: float | None
    seconds: Mapping[str, float]
    sampled_ms: float | None = None
    layers: int = 0

    @property
    def place(self) -> tuple[str, int, int, int, int]:
        """What distinguishes it from other rows, and orders them."""
        return self.model, -self.bits, self.block, self.position, self.batch

    @property
    def form(self) -> str:
        """The form of the weights; see `form_of`."""
        return form_of(self.bits, self.block)

    @property
    def tokens_per_second(self) -> float | None:
        """Of all sequences, by the device's time."""
        return None if self.device_ms is None else self.batch / self.device_ms * 1e3

    @property
    def share(self) -> float | None:
        """The floor divided by the device's time."""
        if self.device_ms is None or self.floor_ms is None:
            return None
        return self.floor_ms / self.device_ms

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        more = {"tokens_s": self.tokens_per_second, "share": self.share}
        return {**asdict(self), "seconds": dict(self.seconds), **more}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> DecodeTiming:
        """Return the inverse of `to_dict`."""
        return cls(**{name: entry[name] for name in cls.__dataclass_fields__ if name in entry})


def form_of(bits: int, block: int) -> str:
    """Return the form of weights: ``float16`` or ``int4, block 32``."""
    return "float16" if bits == 16 else f"int{bits}, block {block}"


@dataclass(frozen=True, slots=True)
class PromptTiming:
    """The prompt of one sequence.

    Attributes:
        model: its name among `decoder_files.SHAPES`.
        bits, block: of the weights, as in `DecodeTiming`.
        tokens: of the prompt.
        device_ms: the device's for all of it, which ends with the logits of the last position.
        flops: arithmetic operations, two per multiply-accumulate.
        peak: operations per second of the largest product of this precision; None on the host.
    """

    model: str
    bits: int
    block: int
    tokens: int
    device_ms: float
    flops: float
    peak: float | None

    @property
    def place(self) -> tuple[str, int, int, int]:
        """What distinguishes it from other rows, and orders them."""
        return self.model, -self.bits, self.block, self.tokens

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.flops / self.device_ms * 1e3

    @property
    def share(self) -> float | None:
        """Its rate by the peak."""
        return None if self.peak is None else self.rate / self.peak

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**asdict(self), "rate": self.rate, "share": self.share}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> PromptTiming:
        """Return the inverse of `to_dict`."""
        return cls(**{name: entry[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class PytorchTiming:
    """What PyTorch needs for a step of one sequence.

    Attributes:
        model: as `DecodeTiming` names it.
        dtype: of weights and arithmetic.
        way: ``eager`` or ``compile``, both as a CUDA graph with a static cache.
        position: tokens before the one that is timed.
        ms: median of the device.
    """

    model: str
    dtype: str
    way: str
    position: int
    ms: float


@dataclass(frozen=True, slots=True)
class OnnxruntimeTiming:
    """What onnxruntime needs for a step of a decoder, of the very file.

    Attributes:
        model, bits, block, batch, position, capacity: as in `DecodeTiming`.
        way: how its kernels are launched; see `decode_onnxruntime`.
        ms: median of several steps that are launched together.
        error: relative L2 distance of its logits from float64; None if not measured.
    """

    model: str
    bits: int
    block: int
    batch: int
    position: int
    capacity: int
    way: str
    ms: float
    error: float | None = None

    @property
    def step(self) -> tuple[str, int, int, int, int]:
        """The `place` of tercet's row."""
        return self.model, -self.bits, self.block, self.position, self.batch

    @property
    def place(self) -> tuple[tuple[str, int, int, int, int], str]:
        """What distinguishes it from other rows, and orders them."""
        return self.step, self.way

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> OnnxruntimeTiming:
        """Return the inverse of `to_dict`."""
        return cls(**entry)


def read_pytorch(path: Path) -> list[PytorchTiming]:
    """Return what PyTorch's script wrote: a list of ``model, dtype, way, position, ms``.

    Raises:
        UsageError: it cannot be read, or is no such list; names the file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return [
            PytorchTiming(
                PYTORCH_NAMES.get(str(each["model"]), str(each["model"])),
                str(each["dtype"]).removeprefix("torch."),
                str(each["way"]),
                int(each["position"]),
                float(each["ms"]),
            )
            for each in cast("list[Any]", data)
        ]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path}: no list of PyTorch's figures ({error})") from error


TITLES = (
    "model", "weights", "batch", "position", "ms", "tokens/s", "floor, ms", "of the floor",
    "PyTorch", "host, ms", "sampled, ms", "error",
)  # fmt: skip
TEXT = 2


def cells(row: DecodeTiming, peers: Sequence[PytorchTiming]) -> tuple[str, ...]:
    """Return a row of the table."""
    near = [p for p in peers if (p.model, p.position) == (row.model, row.position)]
    best = min(near, key=lambda each: each.ms, default=None) if row.batch == 1 else None
    peer = "" if best is None else f"{1e3 / best.ms:.0f} ({best.dtype} {best.way})"
    step, rate, share = row.device_ms, row.tokens_per_second, row.share
    return (
        *(row.model, row.form, str(row.batch), str(row.position)),
        *("" if step is None else f"{step:.3f}", "" if rate is None else f"{rate:.0f}"),
        "" if row.floor_ms is None else f"{row.floor_ms:.3f}",
        "" if share is None else f"{share:.0%}",
        *(peer, f"{row.host_ms:.3f}"),
        "" if row.sampled_ms is None else f"{row.sampled_ms:.3f}",
        "" if row.error is None else f"{row.error:.1e}" + _of_layers(row.layers),
    )


def _of_layers(count: int) -> str:
    return f" ({count} layer{'s' if count > 1 else ''})" if count else ""


def markdown(
    rows: Sequence[DecodeTiming],
    peers: Sequence[PytorchTiming],
    about: Mapping[str, str],
    prompts: Sequence[PromptTiming] = (),
    onnxruntime: Sequence[OnnxruntimeTiming] = (),
) -> str:
    """Return the report as a Markdown page."""
    reading = [
        "",
        "Prompts of one sequence, up to the logits of the last position: the rate counts products "
        "and causal attention, and is compared with that of a large product:",
        "",
        *table(
            ("model", "weights", "tokens", "ms", "TFLOP/s", "of the peak"),
            (
                (
                    *(p.model, form_of(p.bits, p.block), str(p.tokens), f"{p.device_ms:.2f}"),
                    *(f"{p.rate / 1e12:.0f}", "" if p.share is None else f"{p.share:.0%}"),
                )
                for p in prompts
            ),
            range(2, 6),
        ),
    ]
    pytorch = [
        "",
        "PyTorch, one sequence, a static cache, one CUDA graph per step:",
        "",
        *table(
            ("model", "dtype", "way", "position", "ms", "tokens/s"),
            (
                (p.model, p.dtype, p.way, str(p.position), f"{p.ms:.3f}", f"{1e3 / p.ms:.0f}")
                for p in peers
            ),
            range(3, 6),
        ),
    ]
    text = (
        "Written by `python -m tercet.tools.workshop.decode_bench --output docs/results`. Decoders "
        "of published sizes with random weights, in the format of onnxruntime-genai's builder "
        "(`decoder_files`). *ms* is the device time of one greedy step, which adds one token to "
        "every sequence after *position* others and feeds itself: the median of several that are "
        "launched together, between two events. *Host* is the time between two of these tokens on "
        "the host, *sampled* the same with temperature, top-k and top-p. The *floor* is the time "
        "to read the bytes of a step from memory: all weights except the embedding table, and the "
        "caches up to the position. "
        "*PyTorch* is its fastest configuration for one sequence, in tokens/s. *Error* is the "
        "relative L2 distance of the logits of a prompt from the same file in float64, with the "
        "same packed weights; where a number of layers is given, those of a decoder of the same "
        "widths with so many layers."
    )
    lines = [
        *head("Decoders step by step", text, about),
        *table(TITLES, (cells(row, peers) for row in rows), range(TEXT, len(TITLES))),
        *(reading if prompts else ()),
        *(pytorch if peers else ()),
        *(_onnxruntime_lines(rows, onnxruntime) if onnxruntime else ()),
        "",
    ]
    return "\n".join(lines)


def _onnxruntime_lines(
    rows: Sequence[DecodeTiming], peers: Sequence[OnnxruntimeTiming]
) -> list[str]:
    """Return the table of onnxruntime's steps, beside tercet's."""
    steps = {row.place: row.device_ms for row in rows}

    def line(peer: OnnxruntimeTiming) -> tuple[str, ...]:
        ours = steps.get(peer.step)
        return (
            *(peer.model, form_of(peer.bits, peer.block), str(peer.batch), str(peer.position)),
            *(peer.way, f"{peer.ms:.3f}", f"{peer.batch / peer.ms * 1e3:.0f}"),
            "" if ours is None else f"{peer.ms / ours:.1f}",
            "" if peer.error is None else f"{peer.error:.1e}",
        )

    return [
        "",
        "onnxruntime's CUDA provider, the same files. Past and present share their buffers, "
        "nothing leaves the device, steps are launched one after another with one wait at their "
        "end, and no token is chosen; *ratio* is its time by tercet's:",
        "",
        *table(
            (
                *("model", "weights", "batch", "position", "launches", "ms", "tokens/s", "ratio"),
                "error",
            ),
            (line(peer) for peer in peers),
            (2, 3, 5, 6, 7, 8),
        ),
    ]


def save(
    rows: Sequence[DecodeTiming],
    peers: Sequence[PytorchTiming],
    about: Mapping[str, str],
    folder: Path,
    prompts: Sequence[PromptTiming] = (),
    onnxruntime: Sequence[OnnxruntimeTiming] = (),
) -> list[Path]:
    """Write ``decode.json`` and ``decode.md``; return their paths."""
    parts = {
        "results": [each.to_dict() for each in rows],
        "prompts": [each.to_dict() for each in prompts],
        "pytorch": [asdict(each) for each in peers],
        "onnxruntime": [each.to_dict() for each in onnxruntime],
    }
    page = markdown(rows, peers, about, prompts, onnxruntime)
    return write(folder, {"decode.json": to_json(about, **parts), "decode.md": page})
