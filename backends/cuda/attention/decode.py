"""A decoder step's attention as one kernel, including rotary embeddings and cache updates.

A step of few tokens is short, and each kernel costs a launch and a memory latency. So the
attention's own blocks normalize and rotate queries and keys, and append keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from math import gcd

from ....runtime.base.record import record
from ....runtime.ir.dtypes import bfloat16, bool_, float16, float32, int32, int64
from ....runtime.ir.graph import Graph, Node, Value
from ....runtime.ops.attention import Attention, RotaryEmbedding
from ....runtime.ops.cuts import is_along_last
from ....runtime.ops.gather import TensorScatter
from ....runtime.ops.movement import Transpose
from ....runtime.ops.norm import RMSNormalization
from ..algorithms.registry import Answer, need_dtypes
from ..codegen.copies import copied_unless_same
from ..gemm.atoms import atom_of
from ..recipe.operands import Arguments, Tensor
from ..recipe.pattern import Grouping, OperandOf, Pattern, Rest, Whole
from ..recipe.setting import Setting, Stored
from ..recipe.source import arithmetic
from ..recipe.targets import Target
from .flash_mma import FEWEST_KEYS, MAX_HEAD, MmaConfig, config_of, steepness_of
from .flash_parts import FlashKernel, launched
from .heads import AttentionTask, Heads, HeadSource, by_head, rows_of_heads, source_of_heads
from .rotate_append import WORD, RotateAppend, are_appended_alike, are_rotated_alike, updated
from .sink import Sink, SinkAttention, sink_behind

#: Maximum number of new tokens per sample; threads per warp.
MAX_NEW, WARP = 8, 32
#: Bytes of the keys and values that a layer reads, a third of an H200's L2 cache, from which on
#: they are displaced first in it, as no later kernel reads them. On an H200, a step of Llama-3.2-1B
#: with 4 bits takes 1 and 2 % less time with 16 and 32 sequences of 512 tokens, of Llama-3-8B 1.5 %
#: with 8; with one or 8 sequences 1B takes as long with 4 bits, and 1 % more in float16.
PASSING = 20 << 20


@record
class DecodeAttention(Whole):
    """Nodes that append keys and values to caches and attend to these.

    Attributes:
        attention: the attention.
        keys, values: writes into the caches [batch, heads, room, size].
        rotations: the rotations of queries and new keys, which have no other readers; or None.
        norms: the normalizations of their heads before that, which only the rotations read; or
            None.
        sources: where the heads of queries, new keys and new values lie.
        sink: what accounts for an attention sink behind the attention; or None.
    """

    attention: Node
    keys: Node
    values: Node
    rotations: tuple[Node, Node] | None
    norms: tuple[Node, Node] | None
    sources: tuple[HeadSource, HeadSource, HeadSource]
    sink: Sink | None = None

    reads_rows = True

    @property
    def output(self) -> Value:
        """The result of the attention."""
        return self.attention.output if self.sink is None else self.sink.output

    @property
    def nodes(self) -> frozenset[Node]:
        """All its nodes."""
        views = (node for source in self.sources for node in source.nodes)
        before = (
            *(self.rotations or ()),
            *(self.norms or ()),
            *(self.sink.nodes if self.sink else ()),
        )
        return frozenset({self.attention, self.keys, self.values, *before, *views})

    @property
    def in_place(self) -> tuple[tuple[Value, Value], ...]:
        """The updated caches, each with its previous value."""
        return updated((self.keys, self.values))

    @property
    def behind_norms(self) -> DecodeAttention | None:
        """The part behind the normalizations, if these are separate kernels."""
        if self.norms is None:
            return None
        rotated = (rotation.operands[0] for rotation in self.rotations or ())
        given = (*rotated, self.values.operands[1])
        q, k, v = (HeadSource(value) for value in given)
        return replace(self, norms=None, sources=(q, k, v))

    @property
    def appending(self) -> RotateAppend | None:
        """The part before the attention, if both are separate kernels."""
        return (
            None
            if self.rotations is None
            else RotateAppend(*self.rotations, self.keys, self.values)
        )

    def recipe(self, y: Tensor, operand: OperandOf, setting: Setting, stored: Stored) -> Answer:
        """Return its recipe; see `Pattern`."""
        return decode_attention(self, operand, setting.target)

    def instead(self) -> tuple[Pattern | Rest, ...]:
        """Return what is behind the norms, or the attention apart from the caches' update."""
        if rest := self.behind_norms:
            return Rest(self.nodes - rest.nodes), rest
        if (before := self.appending) is None:
            return (Rest(self.nodes, Grouping.ALONE),)
        attention: Pattern | Rest = Rest(frozenset({self.attention}))
        if self.sink is not None:
            attention = SinkAttention(self.attention, self.sink)
        views = {node for source in self.sources for node in source.nodes}
        return Rest(views), attention, before


def decode_attention_at(
    graph: Graph, attention: Node, free: Set[Node], may_join: Callable[[Set[Node]], bool]
) -> DecodeAttention | None:
    """Return the decoder step that ends with an attention, if there is one.

    Args:
        graph: the graph.
        attention: the attention.
        free: nodes that may be taken.
        may_join: whether nodes may be one kernel.
    """
    keys, values = (v.producer if v else None for v in attention.inputs[1:3])
    if keys is None or values is None or not are_appended_alike(keys, values):
        return None
    stay = all(_stays(graph, node.output, attention) for node in (keys, values))
    sink = sink_behind(graph, attention, free)
    if not stay or not _suits(graph, attention, has_sink=sink is not None):
        return None
    rotations = _rotations(graph, attention, keys)
    norms = None if rotations is None else _norms(graph, rotations)
    for found, normed in dict.fromkeys(((rotations, norms), (rotations, None), (None, None))):
        q, k = (normed and normed.nodes) or found or (attention, keys)
        read = ((q, 0), (k, 0 if found else 1), (values, 1))
        given = [(node, value) for node, i in read if (value := node.inputs[i]) is not None]
        if len(given) < len(read):
            continue
        for find in (partial(source_of_heads, graph), lambda value, _: HeadSource(value)):
            q_source, k_source, v_source = (find(value, node) for node, value in given)
            if normed and normed.rows:
                q_source, k_source = normed.rows
            sources, norm = (q_source, k_source, v_source), normed and normed.nodes
            whole = DecodeAttention(attention, keys, values, found, norm, sources, sink)
            anchors = {attention, keys, values}
            if len(anchors) == 3 and whole.nodes <= free and may_join(whole.nodes):
                return whole
    return None


def _suits(graph: Graph, attention: Node, *, has_sink: bool) -> bool:
    """Whether an attention has few queries, 16-bit operands and one output besides a sink's."""
    q = attention.inputs[0]
    if q is None or q.tensor.dtype not in (float16, bfloat16):
        return False
    rows = q.tensor.dims[-2]
    past = (*attention.inputs, None, None, None)[4:6]
    others = attention.outputs[1 : 3 if has_sink else None]
    unread = not any(map(graph.is_read, others))
    return 0 < rows <= MAX_NEW and past == (None, None) and unread


def _stays(graph: Graph, cache: Value, attention: Node) -> bool:
    """Whether a cache has readers besides the attention."""
    return graph.is_read_outside(cache, (attention,))


def _rotations(graph: Graph, attention: Node, keys: Node) -> tuple[Node, Node] | None:
    """Return the rotations of queries and new keys, without other readers."""
    q, k = (v.producer if v else None for v in (attention.inputs[0], keys.inputs[1]))
    if q is None or k is None or not are_rotated_alike(q, k):
        return None
    alone = graph.sole_consumer(q.output) is attention and graph.sole_consumer(k.output) is keys
    return (q, k) if alone else None


@record
class _HeadNorms:
    """The normalizations of the heads of queries and keys, which only rotations read.

    Attributes:
        nodes: the normalizations.
        rows: the rows that they read if heads are transposed behind them, not in front; or None.
    """

    nodes: tuple[Node, Node]
    rows: tuple[HeadSource, HeadSource] | None


def _norms(graph: Graph, rotations: tuple[Node, Node]) -> _HeadNorms | None:
    """Return the normalizations in front of two rotations, if they have no other readers."""
    (q, of_q), (k, of_k) = (_norm_before(graph, rotation) for rotation in rotations)
    if q is None or k is None or q.op != k.op or (of_q is None) != (of_k is None):
        return None
    return _HeadNorms((q, k), None if of_q is None or of_k is None else (of_q, of_k))


def _norm_before(graph: Graph, rotation: Node) -> tuple[Node | None, HeadSource | None]:
    """Return what normalizes the heads that are rotated, and its rows; see `_HeadNorms`."""
    value, reader, rows = rotation.operands[0], rotation, None
    node, transpose = value.producer, None
    if node is not None and isinstance(node.op, Transpose):
        value, reader, transpose = node.operands[0], node, node
        node = value.producer
    if node is None or not isinstance(node.op, RMSNormalization):
        return None, None
    x, scale = node.operands[:2]
    whole = x.tensor.rank == 4 and is_along_last(node)
    constant = scale.is_constant and scale.tensor.dims == (x.tensor.dims[-1],)
    if not (whole and constant) or graph.sole_consumer(value) is not reader:
        return None, None
    if transpose is not None:
        rows = rows_of_heads(graph, transpose.output, rotation, node)
    return (node, rows) if transpose is None or rows else (None, None)


@record
class _Operands:
    """What the kernel reads and writes; None for what a step does not have.

    Attributes:
        x, k, v: new queries, keys and values, before they are normalized and rotated.
        y: the result.
        keys, values: the caches behind the update.
        first: where each sample's new rows are written.
        cos, sin, positions: of the rotations.
        factors: of the normalizations of queries and keys.
        mask, lengths, sink: of the attention.
    """

    x: Tensor
    k: Tensor
    v: Tensor
    y: Tensor
    keys: Tensor
    values: Tensor
    first: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    positions: Tensor | None
    factors: tuple[Tensor | None, Tensor | None]
    mask: Tensor | None
    lengths: Tensor | None
    sink: Tensor | None

    @property
    def refusal(self) -> str:
        """Which dtype no kernel has; empty if there is none."""
        alike = (self.k, self.v, self.cos, self.sin, self.y, self.keys, self.values)
        return (
            need_dtypes((float16, bfloat16), self.x)
            or need_dtypes((self.x.dtype,), *alike, *self.factors)
            or need_dtypes((int32, int64), self.first)
            or need_dtypes((bool_, float32, float16, bfloat16), self.mask)
        )

    @property
    def batches(self) -> int:
        """How many samples have angles of their own; 1 if all have the same."""
        chosen = self.cos if self.positions is None else self.positions
        return 1 if self.cos is None or chosen is None else max(1, chosen.dims[0])

    @property
    def has_known_angles(self) -> bool:
        """Whether the angles are constants."""
        return all(x is not None and x.data is not None for x in (self.cos, self.sin))


def _operands(found: DecodeAttention, operand: Callable[[Value], Tensor]) -> _Operands:
    def optional(node: Node | None, place: int) -> Tensor | None:
        value = node.inputs[place] if node and place < len(node.inputs) else None
        return None if value is None else operand(value)

    rotation, _ = found.rotations or (None, None)
    of_queries, of_keys = found.norms or (None, None)
    x, k, v = (operand(source.value) for source in found.sources)
    return _Operands(
        x=x,
        k=k,
        v=v,
        y=operand(found.output),
        keys=operand(found.keys.output),
        values=operand(found.values.output),
        first=optional(found.keys, 2),
        cos=optional(rotation, 1),
        sin=optional(rotation, 2),
        positions=optional(rotation, 3),
        factors=(optional(of_queries, 1), optional(of_keys, 1)),
        mask=optional(found.attention, 3),
        lengths=optional(found.attention, 6),
        sink=None if found.sink is None else operand(found.sink.value),
    )


def decode_attention(
    found: DecodeAttention, operand: Callable[[Value], Tensor], target: Target
) -> Answer:
    """Return the launches: copies of caches that are not updated in place, and the kernel."""
    op, rotation, given = found.attention.op, _rotation(found), _operands(found, operand)
    assert isinstance(op, Attention)
    if given.refusal or op.is_wide:
        return given.refusal or "float64"
    of_q = op.q_num_heads if rotation is None else rotation.num_heads
    known = (of_q, rotation and rotation.num_heads, None)
    queries, new_keys, new_values = (
        source.operand(rows, heads)
        for rows, source, heads in zip(
            (given.x, given.k, given.v), found.sources, known, strict=True
        )
    )
    old_keys, old_values = by_head(given.keys, None), by_head(given.values, None)
    result = by_head(given.y, op.q_num_heads)
    batch, count, new, size = queries.dims
    kv_heads, room = given.keys.dims[1:3]
    if queries.dims != result.dims or count % kv_heads or room < max(new, FEWEST_KEYS):
        return f"queries of {queries.dims} and caches of {given.keys.dims}"
    if {new_keys.dims, new_values.dims} != {(batch, kv_heads, new, size)} or size > MAX_HEAD:
        return f"heads of {new_keys.dims} and {new_values.dims}"
    task = AttentionTask(
        *(op, queries, old_keys, old_values, result, given.mask),
        lengths=given.lengths,
        sink=given.sink,
    )
    config = config_of(task, target, new=new)
    if config.shared > target.shared:
        return f"{config.shared} bytes of shared memory"
    half = 0 if rotation is None else (rotation.rotary_embedding_dim or size) // 2
    widest = min(one.vector(WORD) for one in (queries, new_keys, new_values))
    vector = gcd(min(WORD // given.x.dtype.itemsize, widest), half, size - 2 * half)
    chunks = (size - half) // vector  # threads per head
    if found.norms and (chunks & (chunks - 1) or chunks > WARP):
        return f"heads of {size} that {chunks} threads normalize"
    constants = {
        **config.constants,
        **{"VECTOR_K": old_keys.vector(8), "VECTOR_V": old_values.vector(8)},
        **{"VECTOR_Y": 8 if result.vector(8) == 8 else 1, "ROTATED": config.rotated},
        **{"NEW": new, "HEAD": size, "HALF": half, "VECTOR": vector},
        **_constants(found, given),
        "OWN_KEYS": config.shape.warps_m == 1,
        "PASSING": _read_bytes(task) >= PASSING,
    }
    kernel = _kernel(config.sharing.apart(config.shared, task, target), config, given, constants)
    pasts = [operand(past) for _, past in found.in_place]
    heads = (queries, new_keys, new_values, result)
    arguments = _arguments(found, given, task, heads, pasts, half)
    pitched = (given.x, given.k, given.v, given.y)
    launches = launched(
        task, kernel, config.sharing, steepness_of(task), arguments, pitched=pitched
    )
    caches = zip((given.keys, given.values), pasts, strict=True)
    return (*(copied_unless_same(cache, past) for cache, past in caches), *launches)


def _kernel(
    shared: int, config: MmaConfig, given: _Operands, constants: Mapping[str, int | bool]
) -> FlashKernel:
    return FlashKernel(
        "attention_decode",
        shared,
        config.block,
        constants,
        atom_of(given.x.dtype).code(),
        (
            ("A", arithmetic(given.x.dtype)),
            ("I", int64 if given.first is None else given.first.dtype),
        ),
    )


def _arguments(
    found: DecodeAttention,
    given: _Operands,
    task: AttentionTask,
    heads: tuple[Heads, Heads, Heads, Heads],
    pasts: Sequence[Tensor],
    half: int,
) -> Arguments:
    """Return the operands of the kernel.

    Args:
        found: the nodes.
        given: what they read and write.
        task: the attention alone.
        heads: the layouts of queries, new keys, new values and the result.
        pasts: the caches before the update.
        half: half of the elements of a head that are rotated.
    """
    cos, (of_queries, of_keys) = given.cos, given.factors
    of_q, of_k, of_v, of_y = (each.struct for each in heads)
    return {
        **{"q": given.x, "k": given.k, "v": given.v, "keys": given.keys, "values": given.values},
        **{"of_queries": of_queries, "of_keys": of_keys, "epsilon": _epsilon(found)},
        **{"cosine": cos, "sine": given.sin, "positions": given.positions},
        **{"starts": given.first, "past_keys": pasts[0], "past_values": pasts[1]},
        **{"lengths": given.lengths, "mask": task.mask_operand, "sink": given.sink},
        "angles": {
            "batches": given.batches,
            "places": cos.size // half if cos is not None and half else 0,
        },
        **{"of_q": of_q, "of_k": of_k, "of_v": of_v, "of_y": of_y},
    }


def _constants(found: DecodeAttention, given: _Operands) -> dict[str, bool]:
    """Return what the kernel is compiled to do."""
    appends, rotation = found.keys.op, _rotation(found)
    assert isinstance(appends, TensorScatter)
    return {
        "INTERLEAVED": bool(rotation and rotation.interleaved),
        "CIRCULAR": appends.mode == "circular",
        "NORMED": found.norms is not None,
        # Graph inputs were complete before any kernel of the plan started.
        "EARLY": all(past.producer is None for _, past in found.in_place),
        "PLACED": given.positions is not None,
        "KNOWN_ANGLES": given.has_known_angles,
    }


def _epsilon(found: DecodeAttention) -> float:
    norm = found.norms[0].op if found.norms else None
    return norm.epsilon if isinstance(norm, RMSNormalization) else 0.0


def _read_bytes(task: AttentionTask) -> int:
    """Return the bytes of keys and values that a step reads; see `share` for unknown lengths."""
    batch, heads, _, size = task.k.dims
    seen = task.seen if task.lengths is None else task.seen // 2
    return 2 * batch * heads * seen * size * task.k.tensor.dtype.itemsize


def _rotation(found: DecodeAttention) -> RotaryEmbedding | None:
    op = None if found.rotations is None else found.rotations[0].op
    return op if isinstance(op, RotaryEmbedding) else None
