"""The interface of a decoder: token ids, masks, positions and KV caches, recognised by name.

Exporters have no common interface. The role of an input follows from its name, the pairing of cache
inputs and outputs from what their names have in common, and the axis of positions from declared
sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from ..base.record import record
from ..errors import NotADecoderError, UnsupportedError, did_you_mean
from ..ir.dtypes import FLOATS, DType
from ..ir.graph import Graph, Value
from ..ir.types import Dim
from ..ops.attention import Attention
from ..ops.elementwise import Cast
from ..ops.norm import Softmax
from ..ops.reduce import ReduceSum
from ..ops.shape import Identity, Shape
from .absolute_positions import counted_positions
from .cache_graph import proven_sizes, read_from, through, window_of
from .cache_names import by_core, core_of, is_cross
from .io_types import TensorInfo

#: Roles of inputs other than caches.
Role = Literal[
    "ids",
    "embeddings",
    "mask",
    "positions",
    "cache_positions",
    "past_length",
    "total_length",
    "last_key",
    "use_cache",
    "logits_to_keep",
    "token_types",
    "encoder_states",
    "encoder_mask",
]
#: The side on which shorter sequences of a batch are padded.
Padding = Literal["left", "right"]

#: Roles by the names that exporters use.
ROLES: Mapping[str, Role] = {
    "input_ids": "ids",
    "decoder_input_ids": "ids",
    "ids": "ids",
    "tokens": "ids",
    "inputs_embeds": "embeddings",
    "attention_mask": "mask",
    "decoder_attention_mask": "mask",
    "position_ids": "positions",
    "cache_position": "cache_positions",
    "past_sequence_length": "past_length",
    "past_seq_len": "past_length",
    "total_sequence_length": "total_length",
    "total_seq_len": "total_length",
    "seqlens_k": "last_key",
    "use_cache_branch": "use_cache",
    "num_logits_to_keep": "logits_to_keep",
    "logits_to_keep": "logits_to_keep",
    "token_type_ids": "token_types",
    "encoder_hidden_states": "encoder_states",
    "encoder_outputs": "encoder_states",
    "encoder_attention_mask": "encoder_mask",
}
#: Inputs that tell where a step is and how long, counting padding.
SIZES: tuple[Role, ...] = ("cache_positions", "past_length", "total_length", "use_cache")
#: Outputs of an encoder, which are the same in every step.
ENCODED: frozenset[Role] = frozenset({"encoder_states", "encoder_mask"})


@record
class CachePair:
    """A cache that a step takes as input and returns, longer or changed, for the next one.

    Attributes:
        past: the input.
        present: the output.
        dtype: of both.
        shape: of the input, with the batch first; symbols are those that the file declares, except
            for sizes that follow from the graph.
        axis: the axis of positions; None for a state without one, such as that of a convolution.
        grows: whether the output appends the new positions to the input; otherwise both are one
            buffer of a fixed size.
        window: minimum number of positions of the buffer, if older ones are dropped.
    """

    past: str
    present: str
    dtype: DType
    shape: tuple[Dim, ...]
    axis: int | None
    grows: bool
    window: int | None = None

    @property
    def room(self) -> int | None:
        """Number of positions of a buffer with a fixed size; None for others."""
        size = None if self.axis is None else self.shape[self.axis]
        return size if isinstance(size, int) else None

    def sizes(self, batch: int, length: int) -> tuple[int, ...]:
        """Return the shape for these numbers of sequences and positions."""
        return tuple(
            batch if i == 0 else size if isinstance(size, int) else length
            for i, size in enumerate(self.shape)
        )


@record
class DecoderLayout:
    """The inputs and outputs of a decoder by role.

    Attributes:
        inputs: the inputs other than caches.
        logits: logits of the next token, [batch, length, vocabulary] or [batch, vocabulary].
        caches: every pair of past and present, in the order of the inputs.
        padding: the side on which shorter sequences are padded; None if the model takes no mask,
            and all must have equal length.
        cross: inputs with keys and values of the encoder; constant during decoding.
        counter: the node that adds positions counted from the start of the input, so that padding
            would move tokens; empty if there is none.
        unmasked: a cache without positions that would also hold what is read of padding, such as
            the state of a convolution; empty if there is none.
    """

    inputs: Mapping[Role, TensorInfo]
    logits: TensorInfo
    caches: tuple[CachePair, ...] = ()
    padding: Padding | None = None
    cross: tuple[TensorInfo, ...] = ()
    counter: str = ""
    unmasked: str = ""

    @property
    def room(self) -> int | None:
        """Maximum number of positions of the caches, as fixed by the file; None for any."""
        rooms = [c.room for c in self.caches if c.room is not None and not c.grows]
        mask = self.inputs.get("mask")
        if mask is not None and mask.shape is not None and isinstance(mask.shape[-1], int):
            rooms.append(mask.shape[-1])
        return min(rooms, default=None)

    @property
    def can_pad(self) -> bool:
        """Whether sequences of a batch may differ in length.

        GroupQueryAttention allows padding in a prompt that is as long as the mask, and is read in
        one step; a mask of fixed length may be longer. Neither side is right where a model counts
        positions, of which padding on the left moves tokens and that on the right moves later
        ones, or for a state that does not know what is padding.
        """
        if self.unmasked or self.counter:
            return False
        mask = self.inputs.get("mask")
        is_fixed = mask is not None and mask.shape is not None and isinstance(mask.shape[-1], int)
        on_right = self.padding == "right" and not is_fixed and self.step is None
        return on_right or self.padding == "left"

    @property
    def step(self) -> int | None:
        """Number of tokens that the model takes per step; None for any."""
        ids = self.inputs.get("ids")
        size = ids.shape[1] if ids is not None and ids.shape is not None else None
        return size if isinstance(size, int) else None

    @property
    def gives_last(self) -> bool:
        """Whether the model declares logits of the last of several positions only."""
        shape = self.logits.shape
        is_one = shape is not None and (len(shape) == 2 or shape[1] == 1)
        return is_one and self.step != 1

    @property
    def can_rewind(self) -> bool:
        """Whether the caches hold every position, so that later ones can be dropped."""
        return all(each.axis is not None and each.window is None for each in self.caches)

    @classmethod
    def of(
        cls,
        graph: Graph,
        *,
        file: str | None = None,
        pairs: Mapping[str, str] | None = None,
        encoded: bool = False,
    ) -> DecoderLayout:
        """Return the layout of a decoder.

        Args:
            graph: as imported.
            file: its path, for errors.
            pairs: the output for each cache input, where names do not match.
            encoded: whether there is an encoder.

        Raises:
            UnsupportedError: it takes outputs of an encoder, and there is none.
            NotADecoderError: it is not a decoder; names the input or output that does not fit, and
                the file.
        """
        return _Reader(graph, file, pairs or {}).read(encoded=encoded)


class _Reader:
    """Derives the layout from one graph."""

    def __init__(self, graph: Graph, file: str | None, pairs: Mapping[str, str]) -> None:
        self._graph, self._file, self._pairs = graph, file, pairs
        self._values = {value.name: value for value in graph.inputs}
        self._inputs = {v.name: TensorInfo.of(v) for v in graph.inputs}
        self._outputs = {n: TensorInfo.of(v, n) for n, v in graph.outputs.items()}

    def read(self, *, encoded: bool) -> DecoderLayout:
        known = [name for name in self._inputs if name.lower() in ROLES]
        roles: dict[str, Role] = {name: ROLES[name.lower()] for name in known}
        others = [name for name in self._inputs if name not in roles]
        cross = [name for name in others if is_cross(name) and name not in self._pairs]
        for name in (*(name for name in known if roles[name] in ENCODED), *cross):
            if not encoded:
                raise UnsupportedError(
                    f"{self._file or 'the model'}: input '{name}': this is the decoder of an "
                    "encoder-decoder",
                    remedy="give tercet.Generator the folder with both, or run encoder and decoder "
                    "with tercet.load",
                )
        partners = self._partners([name for name in others if name not in cross])
        rest = [name for name in others if name not in partners and name not in cross]
        if "ids" not in roles.values() and "embeddings" not in roles.values():
            taken = [name for name in rest if _is_ids(self._inputs[name])]
            if len(taken) != 1:
                found = ", ".join(map(str, self._inputs.values()))
                raise self._error(
                    "it is not a decoder: it has no input of token ids, int64[batch,length], "
                    f"which decoders call input_ids (inputs: {found})"
                )
            roles[taken[0]] = "ids"
            rest.remove(taken[0])
        if rest:
            raise self._error(
                "a decoder has no such input: it is neither token ids, a mask nor positions, "
                "nor a cache whose name an output has with present for past "
                f"(outputs: {', '.join(self._outputs)}); name the pairs of caches if "
                "their names differ in more",
                rest[0],
            )
        caches = _windowed([self._pair(past, present) for past, present in partners.items()])
        inputs: dict[Role, TensorInfo] = {r: self._inputs[name] for name, r in roles.items()}
        logits = self._logits({*partners.values()})
        constant = tuple(self._inputs[name] for name in cross)
        padding = self._padding(inputs)
        counter = self._counter(inputs) if padding is not None else ""
        unmasked = self._unmasked(caches, padding, inputs)
        return DecoderLayout(inputs, logits, caches, padding, constant, counter, unmasked)

    def _error(self, reason: str, name: str = "", kind: str = "input") -> NotADecoderError:
        where = f"{kind} '{name}'" if name else None
        return NotADecoderError(reason, file=self._file, where=where)

    # ── pairs ────────────────────────────────────────────────────────────────────────────────

    def _partners(self, names: Iterable[str]) -> dict[str, str]:
        """Return the output for each cache input."""
        for past, present in self._pairs.items():
            for name, known, kind in (
                (past, self._inputs, "input"),
                (present, self._outputs, "output"),
            ):
                if name not in known:
                    hint = did_you_mean(name, known)
                    raise self._error(f"the model has no such {kind}{hint}", name, kind)
        found: dict[str, str] = {}
        presents = by_core(n for n in self._outputs if n not in self._pairs.values())
        pasts = by_core(name for name in names if name not in self._pairs)
        for name in names:
            if name in self._pairs:
                found[name] = self._pairs[name]
                continue
            core = core_of(name)
            same = presents.get(core, [])
            if not same or _is_ids(self._inputs[name]):
                continue
            if len(same) > 1 or len(pasts[core]) > 1:
                raise self._error(
                    f"several tensors differ from this name only in past and present: "
                    f"{', '.join(pasts[core] + same)}; name the pairs of caches",
                    name,
                )
            found[name] = same[0]
        return found

    def _pair(self, past: str, present: str) -> CachePair:
        before, after = self._inputs[past], self._outputs[present]
        if before.dtype is None or before.shape is None or after.shape is None:
            raise self._error("a cache must be a tensor of a declared rank", past)
        if before.dtype != after.dtype or len(before.shape) != len(after.shape):
            raise self._error(f"its type does not match that of its result {after}", past)
        proven = proven_sizes(self._values[past], len(before.shape))
        shape = tuple(b if a is None else a for a, b in zip(proven, before.shape, strict=True))
        axis = self._axis(before, after, shape)
        if axis is None:
            return CachePair(past, present, before.dtype, shape, None, grows=False)
        grows = before.shape[axis] is None or after.shape[axis] != before.shape[axis]
        window = None if grows else window_of(self._values[past], axis)
        return CachePair(past, present, before.dtype, shape, axis, grows, window)

    def _axis(self, before: TensorInfo, after: TensorInfo, shape: tuple[Dim, ...]) -> int | None:
        """Return the axis of positions."""
        sizes = before.shape or ()
        free = [i for i, size in enumerate(shape) if i > 0 and not isinstance(size, int)]
        if len(free) > 1:
            changing = [i for i in free if (after.shape or ())[i] != sizes[i]]
            free = changing if len(changing) == 1 else free
        if len(free) > 1:
            raise self._error(
                f"{before} has {len(free)} axes of unknown size; only the axis of positions may "
                "be one",
                before.name,
            )
        if free:
            return free[0]
        is_attention = {"k", "v", "key", "value"} & {*core_of(before.name)}
        return 2 if is_attention and len(sizes) == 4 else None

    # ── the rest ─────────────────────────────────────────────────────────────────────────────

    def _logits(self, presents: set[str]) -> TensorInfo:
        if "logits" in self._outputs:
            return self._outputs["logits"]
        found = [
            each
            for name, each in self._outputs.items()
            if name not in presents
            and each.dtype in FLOATS
            and len(each.shape or ()) in (2, 3)
            and "hidden_state" not in name  # of a decoder without its last layer
        ]
        if len(found) != 1:
            raise self._error(
                "it is not a decoder: it has no output of logits, float[batch,length,vocabulary] "
                f"(outputs: {', '.join(map(str, self._outputs.values()))})"
            )
        return found[0]

    def _padding(self, inputs: Mapping[Role, TensorInfo]) -> Padding | None:
        """Return the padding side: left, unless the model reads only the number of tokens."""
        if "last_key" in inputs:
            return "right"
        mask = inputs.get("mask")
        if mask is None:
            return None
        if mask.shape is not None and len(mask.shape) != 2:
            raise self._error(f"{mask}: a mask must be [batch, length]", mask.name)
        readers = [node for value in through(self._values[mask.name]) for node in value.consumers]
        counted = any(isinstance(node.op, ReduceSum) for node in readers)
        others = [n for n in readers if not isinstance(n.op, ReduceSum | Shape | Cast | Identity)]
        return "right" if counted and not others else "left"

    def _counter(self, inputs: Mapping[Role, TensorInfo]) -> str:
        """Return the node that adds positions counted from the start; empty if there is none."""
        if "positions" in inputs:
            return ""
        tokens = {inputs[role].name for role in ("ids", "embeddings") if role in inputs}
        sizes = {inputs[role].name for role in SIZES if role in inputs}
        found = counted_positions(self._graph, tokens, sizes)
        return "" if found is None else found.name

    def _unmasked(
        self,
        caches: Iterable[CachePair],
        padding: Padding | None,
        inputs: Mapping[Role, TensorInfo],
    ) -> str:
        """Return a state that padding would change; empty if there is none.

        Padding on the right comes last, so every state ends with it. Before the tokens, on the
        left, it leaves no trace if the mask multiplies what is read, not only attention's scores,
        and not only where positions are counted.
        """
        states = {each.present: each.past for each in caches if each.axis is None}
        if not states or padding is None:
            return ""
        reached = set[Value]()
        if padding == "left":
            reached = read_from(self._values[inputs["mask"].name], (Attention, Softmax))
        outputs = self._graph.outputs
        return next(
            (past for present, past in states.items() if outputs[present] not in reached), ""
        )


def _windowed(caches: Iterable[CachePair]) -> tuple[CachePair, ...]:
    """Return the caches; a window found for one applies to all of equal length."""
    windows = {each.shape[each.axis]: each.window for each in caches if each.axis and each.window}
    return tuple(
        each
        if each.axis is None or each.grows
        else replace(each, window=windows.get(each.shape[each.axis]))
        for each in caches
    )


def _is_ids(info: TensorInfo) -> bool:
    return info.dtype is not None and info.dtype.kind == "i" and len(info.shape or ()) == 2
