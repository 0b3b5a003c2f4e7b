"""Text search operators of the domain com.microsoft: loops around a decoder graph.

ONNX does not have them; they are declared in `docs/ContribOperators.md` of onnxruntime. The decoder
of GPT-2 (`model_type` 0) takes ids, positions and a mask [rows, length], and past states
[2, rows, heads, past, size] of every layer; it gives logits [rows, length, words] and these states.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import float32, int32
from ..ir.graph import Graph
from ..ir.op import Op, op, op_base
from ..ir.types import Dim, TensorType
from .contrib_text import DOMAIN
from .shapes import dim, int_of, need_rank

#: The inputs of a decoder before its past states.
FIRST_INPUTS = 3


@op_base
class Search(Op):
    """Common attributes of the searches.

    Attributes:
        decoder: computes the logits of the next token.
        init_decoder: the same for the prompt; `decoder` if None.
        encoder: for models with one.
        no_repeat_ngram_size: n-grams of this size may occur only once in a text; 0 for no limit.
        vocab_size: number of tokens in the logits; -1 for all.
    """

    domain: ClassVar[str] = DOMAIN
    outputs: ClassVar[tuple[int, int | None]] = (1, 1)
    decoder: Graph
    decoder_start_token_id: int = -1
    encoder: Graph | None = None
    eos_token_id: int
    init_decoder: Graph | None = None
    model_type: int = 0
    no_repeat_ngram_size: int = 0
    pad_token_id: int
    vocab_size: int = -1

    def _need_decoder(self, input_ids: TensorType) -> None:
        need_rank(input_ids, 2, "input_ids")
        if self.model_type != 0 or self.encoder is not None:
            raise ShapeError(
                f"model_type={self.model_type}: a search around an encoder and a decoder; export "
                "the two with optimum, whose folder tercet generate reads"
            )
        if input_ids.dtype != int32:
            raise ShapeError(f"input_ids is {input_ids}; expected int32")
        inputs, results = len(self.decoder.inputs), len(self.decoder.outputs)
        if inputs != FIRST_INPUTS + results - 1 or results < 2:
            raise ShapeError(
                f"body '{self.decoder.name}' has {inputs} inputs and {results} outputs; expected "
                "ids, positions, a mask and past states, and logits and as many states"
            )


@op
class GreedySearch(Search):
    """Texts continued with the most likely token: [batch, max_length]."""

    def infer(
        self,
        input_ids: TensorType,
        max_length: TensorType,
        min_length: TensorType | None = None,
        repetition_penalty: TensorType | None = None,
        vocab_mask: TensorType | None = None,
        prefix_vocab_mask: TensorType | None = None,
        attention_mask: TensorType | None = None,
    ) -> TensorType:
        self._need_decoder(input_ids)
        return TensorType(int32, (dim(input_ids, 0), int_of(max_length, "max_length")))


@op
class Sampling(Search):
    """Texts continued with sampled tokens: [batch, max_length], and the last logits.

    Tokens are sampled from the most likely ones whose probabilities sum to `top_p`.
    """

    outputs = (1, 2)
    deterministic = False
    custom: int = 0
    filter_value: float = -1e20
    min_tokens_to_keep: int = 0
    presence_penalty: float = 0.0
    temperature: float = 1.0
    top_p: float = 0.0

    def infer(
        self,
        input_ids: TensorType,
        max_length: TensorType,
        min_length: TensorType | None = None,
        repetition_penalty: TensorType | None = None,
        vocab_mask: TensorType | None = None,
        prefix_vocab_mask: TensorType | None = None,
        attention_mask: TensorType | None = None,
        presence_mask: TensorType | None = None,
        seed: TensorType | None = None,
    ) -> tuple[TensorType, TensorType]:
        self._need_decoder(input_ids)
        batch = dim(input_ids, 0)
        length = int_of(max_length, "max_length")
        return TensorType(int32, (batch, length)), TensorType(float32, (batch, None))


@op
class BeamSearch(Search):
    """The most likely texts found by following `num_beams` at a time.

    [batch, num_return_sequences, max_length], their scores, and the scores of every token in every
    step: [max_length - length, batch, num_beams, vocabulary].
    """

    outputs = (1, 3)
    early_stopping: int = 0

    def infer(
        self,
        input_ids: TensorType,
        max_length: TensorType,
        min_length: TensorType | None,
        num_beams: TensorType,
        num_return_sequences: TensorType,
        length_penalty: TensorType | None = None,
        repetition_penalty: TensorType | None = None,
        vocab_mask: TensorType | None = None,
        prefix_vocab_mask: TensorType | None = None,
        attention_mask: TensorType | None = None,
        decoder_input_ids: TensorType | None = None,
        logits_processor: TensorType | None = None,
    ) -> tuple[TensorType, TensorType, TensorType]:
        self._need_decoder(input_ids)
        batch: Dim = dim(input_ids, 0)
        length = int_of(max_length, "max_length")
        beams, kept = int_of(num_beams, "num_beams"), int_of(num_return_sequences, "the number")
        return (
            TensorType(int32, (batch, kept, length)),
            TensorType(float32, (batch, kept)),
            TensorType(float32, (None, batch, beams, None)),
        )
