"""Decoders whose inputs are others than the recorded ones': the same tokens come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tercet import Generator, InputError, TercetError, UnsupportedError
from tercet.runtime.session.static_cache import StaticCaches

from .folders import DECODERS, Opened, copied

LLAMA, PHI = "optimum_llama", "genai_phi3_fp32"
PROMPT = [0, 259, 71, 223, 287, 278]
BOTH = [PROMPT, PROMPT[:2]]
MASK = "/model/attn_mask_reformat/attn_mask_subgraph"


def drop_input(model: ModelProto, name: str) -> None:
    model.graph.input.remove(next(each for each in model.graph.input if each.name == name))


def add_input(model: ModelProto, name: str, kind: int, shape: list[str | int]) -> None:
    model.graph.input.append(helper.make_tensor_value_info(name, kind, shape))


def constant(model: ModelProto, name: str, data: object) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(data, np.int64), name))
    return name


def first(model: ModelProto, op: str, inputs: list[str], output: str) -> None:
    model.graph.node.insert(0, helper.make_node(op, inputs, [output]))


def renamed_logits(model: ModelProto, *nodes: onnx.NodeProto) -> None:
    """Give the logits another name, and compute the output from them."""
    for node in model.graph.node:
        node.output[:] = ["all_logits" if name == "logits" else name for name in node.output]
    model.graph.node.extend(nodes)


# ── what is changed ──────────────────────────────────────────────────────────────────────────────


def keep_logits(model: ModelProto) -> None:
    """The last scores alone, as many as an input says."""
    add_input(model, "num_logits_to_keep", TensorProto.INT64, [])
    nodes = [
        helper.make_node("Neg", ["num_logits_to_keep"], ["minus"]),
        helper.make_node("Unsqueeze", ["minus", constant(model, "zero", [0])], ["begin"]),
        helper.make_node(
            "Slice",
            ["all_logits", "begin", constant(model, "far", [2**40]), constant(model, "one", [1])],
            ["logits"],
        ),
    ]
    renamed_logits(model, *nodes)


def last_logits(model: ModelProto) -> None:
    """The scores of the last position alone."""
    last = helper.make_node("Gather", ["all_logits", constant(model, "last", [-1])], ["logits"])
    last.attribute.append(helper.make_attribute("axis", 1))
    renamed_logits(model, last)


def flat_logits(model: ModelProto) -> None:
    """The scores of the last position, without an axis for it."""
    last = helper.make_node("Gather", ["all_logits", constant(model, "last", -1)], ["logits"])
    last.attribute.append(helper.make_attribute("axis", 1))
    renamed_logits(model, last)
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", 288])
    )


def three_positions(model: ModelProto) -> None:
    """Positions in time, height and width, of which text has three times the same."""
    drop_input(model, "position_ids")
    add_input(model, "thrice", TensorProto.INT64, [3, "batch_size", "sequence_length"])
    first(model, "Gather", ["thrice", constant(model, "which", 1)], "position_ids")
    for each in model.graph.input:
        each.name = "position_ids" if each.name == "thrice" else each.name
    for node in model.graph.node[1:]:
        node.input[:] = ["positions" if n == "position_ids" else n for n in node.input]
    model.graph.node[0].input[0] = "position_ids"
    model.graph.node[0].output[0] = "positions"


def cache_position(model: ModelProto) -> None:
    """Positions of the cache, for all sequences the same."""
    drop_input(model, "position_ids")
    add_input(model, "cache_position", TensorProto.INT64, ["sequence_length"])
    inputs = ["cache_position", constant(model, "front", [0])]
    first(model, "Unsqueeze", inputs, "position_ids")


def lengths(model: ModelProto) -> None:
    """GroupQueryAttention's lengths as inputs, in place of a mask."""
    drop_input(model, "attention_mask")
    names = {
        f"{MASK}/Sub/Cast/output_0": "seqlens_k",
        f"{MASK}/Gather/Cast/output_0": "total_sequence_length",
    }
    kept = [node for node in model.graph.node if not node.name.startswith(MASK)]
    for node in kept:
        node.input[:] = [names.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    add_input(model, "seqlens_k", TensorProto.INT32, ["batch_size"])
    add_input(model, "total_sequence_length", TensorProto.INT32, [])


def shared_buffers(model: ModelProto) -> None:
    """Past and present as one buffer of the greatest length."""
    for each in (*model.graph.input, *model.graph.output):
        if each.name.startswith(("past", "present")):
            each.type.tensor_type.shape.dim[2].Clear()
            each.type.tensor_type.shape.dim[2].dim_value = 64


def wide_mask(model: ModelProto) -> None:
    """Buffers of the greatest length, and a mask of it."""
    shared_buffers(model)
    mask = next(each for each in model.graph.input if each.name == "attention_mask")
    mask.type.tensor_type.shape.dim[1].Clear()
    mask.type.tensor_type.shape.dim[1].dim_value = 64


Change = Callable[[ModelProto], None]
CHANGES: list[tuple[str, Change]] = [
    (LLAMA, keep_logits),
    (LLAMA, last_logits),
    (LLAMA, flat_logits),
    (LLAMA, three_positions),
    (LLAMA, cache_position),
    (PHI, lengths),
    (PHI, shared_buffers),
    (PHI, wide_mask),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[c.__name__ for _, c in CHANGES])
def test_other_inputs_give_the_same_tokens(
    name: str, change: Change, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where steps feed themselves, as on a device."""
    path = tmp_path / "model.onnx"
    model = onnx.load(DECODERS / name / "model.onnx")
    change(model)
    onnx.save(model, path)
    wanted = opened(DECODERS / name).generate_ids(PROMPT, max_new_tokens=12).ids
    both = opened(DECODERS / name).generate_ids(BOTH, max_new_tokens=8).ids
    monkeypatch.setattr(
        StaticCaches, "chains", property(lambda _: True, lambda *_: None), raising=False
    )
    with Generator(path, prefill_chunk=4) as generator:
        assert generator.generate_ids(PROMPT, max_new_tokens=12).ids == wanted
        if change is wide_mask:
            with pytest.raises(InputError, match="the mask has a fixed length"):
                generator.generate_ids(BOTH)
        elif change is not cache_position:  # which is the same for all sequences
            assert generator.generate_ids(BOTH, max_new_tokens=8).ids == both


def test_padding_behind_the_only_token_of_a_step(opened: Opened, tmp_path: Path) -> None:
    """GroupQueryAttention would write it over the tokens before it."""
    path = tmp_path / "model.onnx"
    model = onnx.load(DECODERS / PHI / "model.onnx")
    ids = next(each for each in model.graph.input if each.name == "input_ids")
    ids.type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(model, path)
    wanted = opened(DECODERS / PHI).generate_ids([PROMPT, PROMPT], max_new_tokens=8).ids
    with Generator(path) as generator:
        assert generator.generate_ids([PROMPT, PROMPT], max_new_tokens=8).ids == wanted
        with pytest.raises(InputError, match="reads in steps of 1"):
            generator.generate_ids(BOTH)


def test_buffers_of_the_file_bound_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.load(DECODERS / PHI / "model.onnx")
    shared_buffers(model)
    onnx.save(model, path)
    with Generator(path) as generator:
        assert generator.capacity == 64
        with pytest.raises(InputError, match="has 65 tokens; the caches have room for 64"):
            generator.generate_ids([5] * 65)
    with pytest.raises(InputError, match="capacity=65: the model's caches have room for 64"):
        Generator(path, capacity=65)


def test_scores_of_the_last_position_and_padding_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.load(DECODERS / PHI / "model.onnx")
    last_logits(model)
    onnx.save(model, path)
    with Generator(path) as generator:
        assert len(generator.generate_ids(BOTH[:1] * 2, max_new_tokens=2).ids) == 2
        both = generator.generate_ids(BOTH, max_new_tokens=4).ids
        assert both == [generator.generate_ids(ids, max_new_tokens=4).ids[0] for ids in BOTH]
        with pytest.raises(InputError, match="scores of the last position only"):
            generator.generate_ids([PROMPT, PROMPT[:1]], max_new_tokens=2)


def test_no_mask_and_prompts_of_several_lengths(tmp_path: Path) -> None:
    path = DECODERS.parent / "quantized" / "decoder_int4.onnx"
    with Generator(path) as generator:
        pair = generator.generate_ids([[3, 4], [5, 6]], max_new_tokens=3).ids
        assert pair[0] == generator.generate_ids([3, 4], max_new_tokens=3).ids[0]
        with pytest.raises(InputError, match="takes no attention_mask"):
            generator.generate_ids([[3, 4], [5]], max_new_tokens=3)


# ── embeddings of another model ──────────────────────────────────────────────────────────────────


def split(folder: Path) -> None:
    """Put the embeddings into a model of their own, as onnx-community does for some families."""
    model = onnx.load(folder / "model.onnx")
    node = next(each for each in model.graph.node if "input_ids" in each.input)
    table = next(each for each in model.graph.initializer if each.name == node.input[0])
    ids = next(each for each in model.graph.input if each.name == "input_ids")
    shape = [*(d.dim_param for d in ids.type.tensor_type.shape.dim), table.dims[1]]
    info = helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, shape)
    gather = helper.make_node("Gather", [table.name, "input_ids"], ["inputs_embeds"])
    graph = helper.make_graph([gather], "embed", [ids], [info], [table])
    onnx.save(
        helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version),
        folder / "embed_tokens.onnx",
    )
    for each in model.graph.node:
        each.input[:] = ["inputs_embeds" if n == node.output[0] else n for n in each.input]
    model.graph.node.remove(node)
    drop_input(model, "input_ids")
    model.graph.input.append(info)
    onnx.save(model, folder / "model.onnx")


def test_embeddings_of_another_model(opened: Opened, tmp_path: Path) -> None:
    folder = copied(LLAMA, tmp_path)
    split(folder)
    wanted = opened(DECODERS / LLAMA).generate_ids(PROMPT, max_new_tokens=12).ids
    with Generator(folder) as generator:
        assert generator.generate_ids(PROMPT, max_new_tokens=12).ids == wanted
        assert len(generator.generate_ids(BOTH, max_new_tokens=2).ids) == 2
    (folder / "embed_tokens.onnx").unlink()
    with pytest.raises(InputError, match=r"takes embeddings, not token ids.*embed_tokens\.onnx"):
        Generator(folder)


def test_embeddings_of_more_than_tokens(tmp_path: Path) -> None:
    folder = copied(LLAMA, tmp_path)
    split(folder)
    model = onnx.load(folder / "embed_tokens.onnx")
    add_input(model, "image_features", TensorProto.FLOAT, ["images", 16])
    onnx.save(model, folder / "embed_tokens.onnx")
    with pytest.raises(UnsupportedError, match="more than the tokens of a text"):
        Generator(folder)


def test_a_decoder_without_its_last_layer(tmp_path: Path) -> None:
    """As onnxruntime-genai's builder writes it with ``exclude_lm_head``."""
    folder = copied(LLAMA, tmp_path)
    model = onnx.load(folder / "model.onnx")
    renamed_logits(model, helper.make_node("Identity", ["all_logits"], ["hidden_states"]))
    next(each for each in model.graph.output if each.name == "logits").name = "hidden_states"
    onnx.save(model, folder / "model.onnx")
    with pytest.raises(TercetError, match="no output of logits"), Generator(folder) as generator:
        generator.generate_ids([5])
