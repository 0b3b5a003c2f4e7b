"""Decoders that number positions themselves: padded prompts give what each gives alone, or fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tercet import Generator, InputError

from .folders import DECODERS, Opened

#: Learned positions, which are an input as recorded.
GPT2 = DECODERS / "optimum_gpt2" / "model.onnx"
#: GroupQueryAttention, for which shorter prompts are padded on the right.
PHI3 = DECODERS / "genai_phi3_fp32" / "model.onnx"
PROMPT = [0, 259, 71, 223, 287, 278]
BOTH = [PROMPT, PROMPT[:2]]
EQUAL = [PROMPT[:3], PROMPT[3:]]

Rows = list[tuple[str, list[str], str]]


def numbered(model: ModelProto, nodes: Rows) -> None:
    """Compute position_ids by these nodes, in the place of reading them if they are an input."""
    for given in [i for i in model.graph.input if i.name == "position_ids"]:
        model.graph.input.remove(given)
    constants = {"zero": 0, "one": 1, "two": 2, "row": [0], "second": [1]}
    for name, data in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(data, np.int64), name))
    made = [helper.make_node(op, reads, [gives]) for op, reads, gives in nodes]
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*made, *kept])


#: The lengths of the past and of both together.
SIZES: Rows = [
    ("Shape", ["past_key_values.0.key"], "past_shape"),
    ("Gather", ["past_shape", "two"], "past"),
    ("Shape", ["input_ids"], "ids_shape"),
    ("Gather", ["ids_shape", "one"], "new"),
    ("Add", ["past", "new"], "total"),
]


def by_range(model: ModelProto) -> None:
    """As torch.arange(past, total)."""
    rest = [("Range", ["past", "total", "one"], "r"), ("Unsqueeze", ["r", "row"], "position_ids")]
    numbered(model, [*SIZES, *rest])


def by_table(model: ModelProto) -> None:
    """As a slice of a buffer of all positions."""
    buffer = numpy_helper.from_array(np.arange(64)[None], "buffer")
    model.graph.initializer.append(buffer)
    rest: Rows = [
        ("Unsqueeze", ["past", "row"], "begin"),
        ("Unsqueeze", ["total", "row"], "end"),
        ("Slice", ["buffer", "begin", "end", "second"], "position_ids"),
    ]
    numbered(model, [*SIZES, *rest])


def by_cache_position(model: ModelProto) -> None:
    """As an input that is the same for all sequences."""
    info = helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["sequence_length"])
    model.graph.input.append(info)
    numbered(model, [("Unsqueeze", ["cache_position", "row"], "position_ids")])


def by_table_of_embeddings(model: ModelProto) -> None:
    """As learned embeddings of positions, added to those of tokens."""
    words = "/model/embed_tokens/Gather/output_0"
    for node in model.graph.node:
        node.input[:] = ["placed" if name == words else name for name in node.input]
    table = np.random.default_rng(0).standard_normal((64, 32), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    by_range(model)
    made = [
        helper.make_node("Gather", ["table", "position_ids"], ["places"]),
        helper.make_node("Add", [words, "places"], ["placed"], "Add_of_places"),
    ]
    at = next(i for i, node in enumerate(model.graph.node) if words in node.output)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[: at + 1], *made, *nodes[at + 1 :]])


def by_mask(model: ModelProto) -> None:
    """As OPT does: ones are counted."""
    rest: Rows = [
        ("CumSum", ["attention_mask", "one"], "counted"),
        ("Sub", ["counted", "one"], "from_zero"),
        ("Max", ["from_zero", "zero"], "all_positions"),
        ("Unsqueeze", ["past", "row"], "begin"),
        ("Unsqueeze", ["total", "row"], "end"),
        ("Slice", ["all_positions", "begin", "end", "second"], "position_ids"),
    ]
    numbered(model, [*SIZES, *rest])


def changed(change: Callable[[ModelProto], None], folder: Path, recorded: Path = GPT2) -> Path:
    model = onnx.load(recorded)
    change(model)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("change", [by_range, by_table, by_cache_position])
def test_positions_from_sizes_refuse_padding(
    change: Callable[[ModelProto], None], opened: Opened, tmp_path: Path
) -> None:
    wanted = opened(GPT2).generate_ids(EQUAL, max_new_tokens=6).ids
    with Generator(changed(change, tmp_path)) as generator:
        assert generator.generate_ids(EQUAL, max_new_tokens=6).ids == wanted
        with pytest.raises(InputError, match=r"Add.*' adds them"):
            generator.generate_ids(BOTH, max_new_tokens=6)


def test_positions_from_sizes_refuse_padding_on_the_right(tmp_path: Path) -> None:
    """Later steps begin behind the padding."""
    with Generator(changed(by_table_of_embeddings, tmp_path, PHI3)) as generator:
        alone = [generator.generate_ids(ids, max_new_tokens=6).ids[0] for ids in EQUAL]
        assert generator.generate_ids(EQUAL, max_new_tokens=6).ids == alone
        with pytest.raises(InputError, match="node 'Add_of_places' adds them"):
            generator.generate_ids(BOTH, max_new_tokens=6)


def test_positions_from_the_mask_allow_padding(opened: Opened, tmp_path: Path) -> None:
    wanted = opened(GPT2).generate_ids(BOTH, max_new_tokens=6).ids
    with Generator(changed(by_mask, tmp_path)) as generator:
        assert generator.generate_ids(BOTH, max_new_tokens=6).ids == wanted
