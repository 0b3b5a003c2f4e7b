"""Text search operators of the domain com.microsoft: loops around a decoder graph.

ONNX does not have them; they are declared in `docs/ContribOperators.md` of onnxruntime. The decoder
of GPT-2 (`model_type` 0) takes ids, positions and a mask [rows, length], and past states
[2, rows, heads, past, size] of every layer; it gives logits [rows, length, words] and these states.

That of T5 (`model_type` 1) takes ids [rows, 1], the mask of the encoder's text or its hidden states
or both, and keys and values [rows, heads, past, size] of every layer: its own, then the encoder's;
it gives logits and its own. The encoder takes ids and a mask, and gives its keys and values. With
the decoder's first tokens as a third input, it also does the first step: it gives logits, hidden
states, the decoder's keys and values, and its own.

Those of Whisper (`model_type` 2) have no masks: the encoder takes features and the decoder's first
tokens, of which there may be several, and does the first step.
"""

from __future__ import annotations

from typing import ClassVar

from ..errors import ShapeError
from ..ir.dtypes import FLOATS, float32, int32
from ..ir.graph import Graph
from ..ir.op import Op, op, op_base
from ..ir.types import Dim, TensorType
from .contrib_text import DOMAIN
from .shapes import dim, int_of, need_rank

#: The inputs of a decoder before its past states.
FIRST_INPUTS = 3
#: The `model_type` of T5 and MT5, and of Whisper.
T5, WHISPER = 1, 2


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

    @property
    def states(self) -> int:
        """Number of the decoder's own states."""
        return len(self.decoder.outputs) - 1

    def is_states(self, place: int) -> bool:
        """Whether an input of the decoder takes the encoder's hidden states, and no mask."""
        formal = self.decoder.inputs[place]
        type_ = formal.declared if isinstance(formal.declared, TensorType) else formal.type
        return isinstance(type_, TensorType) and type_.dtype in FLOATS

    def _need_bodies(self, input_ids: TensorType, *, encoded: bool = False) -> None:
        """Check the numbers of inputs and outputs of the bodies.

        Args:
            input_ids: the texts.
            encoded: whether the search knows models with an encoder.
        """
        reads_sound = encoded and self.model_type == WHISPER
        need_rank(input_ids, 3 if reads_sound else 2, "input_ids")
        if reads_sound and input_ids.dtype not in FLOATS:
            raise ShapeError(f"input_ids is {input_ids}; expected features, which are floats")
        if not reads_sound and input_ids.dtype != int32:
            raise ShapeError(f"input_ids is {input_ids}; expected int32")
        if encoded and self.encoder is not None and self.model_type in (T5, WHISPER):
            self._need_encoder(self.encoder)
            return
        if self.model_type != 0 or self.encoder is not None:
            raise ShapeError(
                f"model_type={self.model_type}: a search around an encoder and a decoder; export "
                "the two with optimum, whose folder tercet generate reads"
            )
        inputs, results = len(self.decoder.inputs), len(self.decoder.outputs)
        if inputs != FIRST_INPUTS + results - 1 or results < 2:
            raise ShapeError(
                f"body '{self.decoder.name}' has {inputs} inputs and {results} outputs; expected "
                "ids, positions, a mask and past states, and logits and as many states"
            )

    def _need_encoder(self, encoder: Graph) -> None:
        states, inputs = self.states, len(self.decoder.inputs)
        masks = int(self.model_type == T5)
        extras = range(1, inputs - 2 * states)
        plain = len(extras) - sum(map(self.is_states, extras))
        if states < 2 or plain > masks or len(extras) not in (masks, masks + 1):
            raise ShapeError(
                f"body '{self.decoder.name}' has {inputs} inputs and {states + 1} outputs; "
                "expected ids, a mask or hidden states, past states and as many of the encoder, "
                "and logits and states"
            )
        sizes = len(encoder.inputs), len(encoder.outputs)
        fits = ((2, states), (3, 2 * states + 2)) if masks else ((2, 2 * states + 2),)
        if sizes not in fits:
            raise ShapeError(
                f"body '{encoder.name}' has {sizes[0]} inputs and {sizes[1]} outputs; expected "
                f"ids and a mask, and {states} keys and values; or the decoder's first tokens, "
                "too, and logits, hidden states and twice as many, as features without a mask need"
            )
        if any(map(self.is_states, extras)) and sizes[1] == states:
            raise ShapeError(
                f"body '{self.decoder.name}' takes hidden states, which '{encoder.name}' does not "
                "give"
            )
        if self.decoder_start_token_id < 0:
            raise ShapeError("decoder_start_token_id is not there; the decoder begins with it")


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
        self._need_bodies(input_ids)
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
        self._need_bodies(input_ids)
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
        return self._results(input_ids, max_length, num_beams, num_return_sequences, length_penalty)

    def _results(
        self,
        input_ids: TensorType,
        max_length: TensorType,
        num_beams: TensorType,
        num_return_sequences: TensorType,
        length_penalty: TensorType | None,
    ) -> tuple[TensorType, TensorType, TensorType]:
        self._need_bodies(input_ids, encoded=True)
        batch: Dim = dim(input_ids, 0)
        marks = float32 if length_penalty is None else length_penalty.dtype
        length = int_of(max_length, "max_length")
        beams, kept = int_of(num_beams, "num_beams"), int_of(num_return_sequences, "the number")
        return (
            TensorType(int32, (batch, kept, length)),
            TensorType(marks, (batch, kept)),
            TensorType(marks, (None, batch, beams, None)),
        )


@op
class WhisperBeamSearch(BeamSearch):
    """`BeamSearch` around Whisper, with a temperature that divides the scores of tokens.

    Without cross-attention, probabilities of silence, and scores of extra tokens.
    """

    beginning_timestamp_token_id: int = -1
    decoder_output_cross_qk: int = 0
    no_speech_token_id: int = -1
    no_timestamps_token_id: int = -1
    start_of_lm_token_id: int = -1
    transcribe_token_id: int = -1
    translate_token_id: int = -1

    def infer(  # pyright: ignore[reportIncompatibleMethodOverride]
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
        cross_qk_layer_head: TensorType | None = None,
        extra_decoding_ids: TensorType | None = None,
        temperature: TensorType | None = None,
    ) -> tuple[TensorType, TensorType, TensorType]:
        if cross_qk_layer_head is not None or extra_decoding_ids is not None:
            raise ShapeError(
                "cross_qk_layer_head and extra_decoding_ids are not supported; convert the model "
                "without --collect_cross_qk and --extra_decoding_ids"
            )
        return self._results(input_ids, max_length, num_beams, num_return_sequences, length_penalty)
