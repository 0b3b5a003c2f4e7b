"""Folders as exporters write them, and what is said of those that do not fit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import tercet
from tercet import FileError, Generator, ModelError, TercetError, UnsupportedError, UsageError
from tercet.generation.config_file import field_at
from tercet.generation.folder import read_folder

from .folders import DECODERS, check_refused, copied, rewrite

LLAMA, GENAI = "optimum_llama", "genai_gemma2_int4"


def test_what_genai_says() -> None:
    found = read_folder(DECODERS / GENAI)
    assert found.model.name == "model.onnx"
    assert (found.ends, found.pad) == ((1,), 2)
    assert found.context is not None
    assert (found.context.field, found.context.size) == ("model.context_length", 64)
    assert [each and each.size for each in (found.heads, found.size, found.layers)] == [1, 16, 2]
    assert found.search == {"repetition_penalty": 1.0}
    assert ("past_key_values.%d.key", "present.%d.key") in found.names
    assert found.tokenizer is not None


def test_what_transformers_says() -> None:
    found = read_folder(DECODERS / LLAMA)
    assert (found.ends, found.pad) == ((1,), 2)
    assert found.context is not None
    assert (found.context.field, found.context.size) == ("max_position_embeddings", 64)
    assert [each and each.size for each in (found.heads, found.size, found.layers)] == [2, 4, 1]


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("q4", "onnx/model_q4.onnx"),
        ("q4f16", "onnx/model_q4f16.onnx"),
        ("model_uint8", "onnx/model_uint8.onnx"),
        ("model_q4.onnx", "onnx/model_q4.onnx"),
        ("onnx/model_q4.onnx", "onnx/model_q4.onnx"),
    ],
)
def test_variants(variant: str, name: str) -> None:
    folder = DECODERS / "transformersjs_llama"
    assert read_folder(folder, variant).model == folder / name


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("fp32", "model.onnx"),
        ("q8", "model_quantized.onnx"),
        ("quantized", "model_quantized.onnx"),
        ("int8", "model_int8.onnx"),
        (None, "model.onnx"),
    ],
)
def test_variants_by_the_names_of_transformersjs(
    variant: str | None, name: str, tmp_path: Path
) -> None:
    for each in ("config.json", "model.onnx", "model_quantized.onnx", "model_int8.onnx"):
        (tmp_path / each).write_text('{"eos_token_id": 1}')
    assert read_folder(tmp_path, variant).model.name == name


def test_folders_for_each_device(tmp_path: Path) -> None:
    for name in ("cpu_and_mobile/int4", "cuda/fp16"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "genai_config.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(TercetError, match="in it: cpu_and_mobile/int4, cuda/fp16"):
            read_folder(tmp_path)
        (tmp_path / "config.json").write_text("{}")


def test_a_file_by_itself_has_the_settings_of_its_folder() -> None:
    path = DECODERS / "transformersjs_llama" / "onnx" / "model_q4.onnx"
    found = read_folder(path)
    assert (found.model, found.path, found.ends) == (path, path.parent.parent, (1,))


def test_nested_configurations_and_other_names(tmp_path: Path) -> None:
    folder = copied(LLAMA, tmp_path)
    (folder / "generation_config.json").unlink()
    (folder / "config.json").write_text(
        json.dumps({"text_config": {"n_positions": 32, "eos_token_id": [4, 5], "n_layer": 1}})
    )
    found = read_folder(folder)
    assert found.ends == (4, 5)
    assert found.context is not None
    assert (found.context.field, found.context.size) == ("text_config.n_positions", 32)


def test_heads_that_all_queries_share_are_not_those_that_a_configuration_counts(
    tmp_path: Path,
) -> None:
    """As Falcon's: one, whatever ``num_kv_heads`` is."""
    folder = copied(LLAMA, tmp_path)
    rewrite(folder / "config.json", num_key_value_heads=None, num_kv_heads=71)
    with pytest.raises(ModelError, match="num_kv_heads: 71, but in"):
        Generator(folder)
    rewrite(folder / "config.json", multi_query=True)
    with Generator(folder) as generator:
        assert generator.folder.heads is None


def test_a_padding_token_that_the_model_does_not_have(tmp_path: Path) -> None:
    folder, prompts = copied(LLAMA, tmp_path), [[5, 6, 7], [8]]
    with Generator(folder) as generator:
        expected = generator.generate_ids(prompts, max_new_tokens=4).ids
    rewrite(folder / "generation_config.json", pad_token_id=288)
    with Generator(folder) as generator:
        assert generator.generate_ids(prompts, max_new_tokens=4).ids == expected


def test_the_tokenizer_tells_the_end_where_nobody_else_does(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    folder = copied(LLAMA, tmp_path)
    rewrite(folder / "generation_config.json", eos_token_id=None)
    rewrite(folder / "config.json", eos_token_id=None)
    rewrite(folder / "tokenizer_config.json", eos_token="<|begin|>")
    with Generator(folder) as generator:  # 29 tokens in comes token 0
        found = generator.generate("the quick", max_new_tokens=32).continuations[0]
    assert (found.reason, found.ids[-1]) == ("end", 0)


# ── what does not fit ────────────────────────────────────────────────────────────────────────────

Spoil = Callable[[Path], object]


def write(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text)


def drop(*names: str) -> Spoil:
    return lambda folder: [(folder / name).unlink() for name in names]


def put(config: str, **fields: Any) -> Spoil:
    return lambda folder: rewrite(folder / config, **fields)


def also(name: str) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / "model.onnx").read_bytes())


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
SPOILED: list[tuple[str, Spoil, type[TercetError], str]] = [
    (LLAMA, drop("config.json"), ModelError, "has neither genai_config.json nor config.json"),
    (LLAMA, drop("model.onnx"), FileError, "there is no model (.onnx) in it"),
    (LLAMA, write("config.json", "{"), ModelError, "config.json: is not JSON"),
    (LLAMA, write("config.json", LFS), ModelError, "config.json: is not JSON: it is a Git LFS"),
    (LLAMA, write("config.json", "[]"), ModelError, "config.json: is not a JSON object"),
    (
        LLAMA,
        put("generation_config.json", eos_token_id="<end>"),
        ModelError,
        "generation_config.json: eos_token_id: '<end>': expected a token",
    ),
    (
        LLAMA,
        put("config.json", max_position_embeddings=-1),
        ModelError,
        "config.json: max_position_embeddings: -1: expected a whole number >= 0",
    ),
    (
        LLAMA,
        put("config.json", num_key_value_heads=8),
        ModelError,
        "config.json: num_key_value_heads: 8, but in",
    ),
    (LLAMA, put("config.json", head_dim=64), ModelError, "config.json: head_dim: 64, but in"),
    (
        LLAMA,
        put("config.json", is_encoder_decoder=True),
        ModelError,
        "config.json: is_encoder_decoder: true, but there is no encoder_model.onnx",
    ),
    (LLAMA, also("encoder_model.onnx"), ModelError, "has encoder_model.onnx, but no decoder"),
    (
        LLAMA,
        put("generation_config.json", do_sample=True, top_p="high"),
        ModelError,
        "generation_config.json: top_p: 'high': expected a number",
    ),
    (
        GENAI,
        put("genai_config.json", model__decoder__num_key_value_heads=4),
        ModelError,
        "genai_config.json: model.decoder.num_key_value_heads: 4, but in",
    ),
    (
        GENAI,
        put("genai_config.json", model__decoder__num_hidden_layers=1),
        ModelError,
        "genai_config.json: model.decoder.num_hidden_layers: 1, but",
    ),
    (
        GENAI,
        put("genai_config.json", model__decoder__filename="gone.onnx"),
        ModelError,
        "genai_config.json: model.decoder.filename: there is no file 'gone.onnx'",
    ),
    (
        GENAI,
        put("genai_config.json", model__decoder__filename=None),
        ModelError,
        "model.decoder.filename: is not there",
    ),
    (
        GENAI,
        put("genai_config.json", model__encoder={}),
        UnsupportedError,
        "model.encoder: an encoder-decoder",
    ),
    (
        GENAI,
        put("genai_config.json", model__decoder__pipeline=[]),
        UnsupportedError,
        "model.decoder.pipeline: a decoder in several files",
    ),
    (GENAI, put("genai_config.json", search=-1), ModelError, "search: -1: expected an object"),
    (
        GENAI,
        put("genai_config.json", model__decoder__inputs=[None]),
        ModelError,
        "model.decoder.inputs: [None]: expected an object",
    ),
    (
        GENAI,
        put("genai_config.json", model__context_length=True),
        ModelError,
        "model.context_length: True: expected a whole number",
    ),
]


@pytest.mark.parametrize(
    ("name", "spoil", "kind", "text"), SPOILED, ids=[text for *_, text in SPOILED]
)
def test_folders_that_do_not_fit(
    name: str, spoil: Spoil, kind: type[TercetError], text: str, tmp_path: Path
) -> None:
    check_refused(copied(name, tmp_path), spoil, kind, text)


@pytest.mark.parametrize("model", ["decoder", "embedding"])
@pytest.mark.parametrize(
    "name", ["/etc/hostname", "onnx/../../model.onnx", "..\\model.onnx", "C:/model.onnx"]
)
def test_names_of_files_outside_are_refused(name: str, model: str, tmp_path: Path) -> None:
    """Whether or not there is such a file, which is never opened."""
    folder = copied(GENAI, tmp_path / "folder")
    rewrite(folder / "genai_config.json", **{f"model__{model}__filename": name})
    (tmp_path / "model.onnx").write_text("of somebody else")
    with pytest.raises(ModelError) as caught:
        Generator(folder)
    message = str(caught.value)
    assert f"genai_config.json: model.{model}.filename: " in message
    assert "is outside of" in message


def test_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="gone: there is no such file or folder"):
        Generator(tmp_path / "gone")


def test_no_such_variant() -> None:
    with pytest.raises(UsageError) as caught:
        Generator(DECODERS / "transformersjs_llama", variant="q4f61")
    assert "no such model; did you mean 'q4f16'?" in str(caught.value)
    assert "onnx/model_uint8.onnx" in str(caught.value)


def test_several_models_and_no_choice() -> None:
    with pytest.raises(UsageError, match=r"has several models .*choose one with variant"):
        Generator(DECODERS / "transformersjs_llama")


def test_a_variant_of_a_file() -> None:
    with pytest.raises(UsageError, match="is a model itself; give its folder"):
        Generator(DECODERS / LLAMA / "model.onnx", variant="q4")


def test_weights_that_are_packed_for_one_gpu(tmp_path: Path) -> None:
    folder = copied("genai_llama_int4", tmp_path)
    model = onnx.load(folder / "model.onnx")
    node = next(n for n in model.graph.node if n.op_type == "MatMulNBits")
    node.attribute.append(onnx.helper.make_attribute("weight_prepacked", 1))
    onnx.save(model, folder / "model.onnx")
    with Generator(folder) as generator, pytest.raises(UnsupportedError) as caught:
        generator.generate_ids([5])
    assert "weight_prepacked=1" in str(caught.value)
    assert node.name in str(caught.value)


# ── tokenizers ───────────────────────────────────────────────────────────────────────────────────


def test_without_a_tokenizer_ids_still_work(tmp_path: Path) -> None:
    folder = copied(LLAMA, tmp_path)
    (folder / "tokenizer.json").unlink()
    with Generator(folder) as generator:
        assert len(generator.generate_ids([5], max_new_tokens=2).ids[0]) == 2
        with pytest.raises(ModelError, match=r"has no tokenizer\.json.*generate_ids"):
            generator.generate("a")


def test_without_the_library_ids_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with Generator(DECODERS / LLAMA) as generator:
        assert len(generator.generate_ids([5], max_new_tokens=2).ids[0]) == 2
        with pytest.raises(UnsupportedError, match=r"pip install 'tercet\[generate\]'"):
            generator.generate("a")


def test_without_jinja_texts_still_work(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with Generator(DECODERS / LLAMA) as generator:
        assert generator.generate("the quick", max_new_tokens=1).ids
        with pytest.raises(UnsupportedError, match=r"jinja2\n.*pip install 'tercet\[generate\]'"):
            generator.generate([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (write("tokenizer.json", "{}"), "tokenizer.json: is none that tokenizers"),
        (write("tokenizer.json", LFS), "it is a Git LFS pointer; run 'git lfs pull'"),
        (write("tokenizer.json", ""), "it is empty"),
        (put("tokenizer.json", version=-1), "tokenizer.json: version: is none that tokenizers"),
        (drop("chat_template.jinja"), "has no chat template"),
        (write("chat_template.jinja", "{% generation %}a"), "the chat template fails"),
        (write("chat_template.jinja", "{% for %}"), "chat_template.jinja: the chat template fails"),
        (
            write("chat_template.jinja", "{{ raise_exception('users only') }}"),
            "the chat template fails: users only",
        ),
        (
            write("chat_template.jinja", "{{ messages.__class__.__mro__ }}"),
            "the chat template fails: access to attribute '__class__'",
        ),
    ],
)
def test_tokenizers_and_templates_that_fail(spoil: Spoil, text: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    folder = copied(LLAMA, tmp_path)
    spoil(folder)
    with Generator(folder) as generator, pytest.raises(ModelError) as caught:
        generator.generate([{"role": "user", "content": "a"}])
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] }}",
        [{"name": "default", "template": "{{ messages[0].content }}"}],
    ],
)
def test_templates_in_the_tokenizer_s_configuration(template: object, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    folder = copied(LLAMA, tmp_path)
    (folder / "chat_template.jinja").unlink()
    rewrite(folder / "tokenizer_config.json", chat_template=template)
    with Generator(folder) as generator:
        assert generator.tokenizer.chat([{"role": "user", "content": "Köln"}]) == "Köln"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "<ä> & \'b\'"}]'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "<ä> & 'b'!"),
        ("{% for m in messages %}{% break %}{% endfor %}{{ tools is none }}", "True"),
        ("{{ eos_token }}{{ unk_token }}", "<|end|>"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_what_templates_may_use(template: str, text: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    folder = copied(LLAMA, tmp_path)
    (folder / "chat_template.jinja").write_text(template)
    with Generator(folder) as generator:
        assert generator.tokenizer.chat([{"role": "user", "content": "<ä> & 'b'"}]) == text


def test_templates_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    folder = copied(LLAMA, tmp_path)
    (folder / "chat_template.jinja").unlink()
    rewrite(folder / "tokenizer_config.json", chat_template=[1, {"name": "rag"}])
    with Generator(folder) as generator, pytest.raises(ModelError, match="has no chat template"):
        generator.generate([{"role": "user", "content": "a"}])


@pytest.mark.parametrize("indent", [None, 1])
def test_which_field_has_a_byte(indent: int | None) -> None:
    """Each number is found where json wrote it."""
    data = {"a": 10, 'b "{:,': {"c": [11, {"é": 12, "d": [13]}, 14], "e": 15}, "f": [[16], 17]}
    text = json.dumps(data, indent=indent, ensure_ascii=False).encode()
    found: list[str] = []
    for number in range(10, 18):
        before = text[: text.index(b"%d" % number)]
        column = len(before) - before.rfind(b"\n")
        found.append(field_at(text, before.count(b"\n") + 1, column))
    b = r"b \"{:,"
    nested = [f"{b}.c.0", f"{b}.c.1.é", f"{b}.c.1.d.0", f"{b}.c.2", f"{b}.e"]
    assert found == ["a", *nested, "f.0.0", "f.1"]


def test_layers_of_several_sizes(tmp_path: Path) -> None:
    """A configuration has one of them, and -1 for no token."""
    folder = copied(GENAI, tmp_path)
    rewrite(folder / "genai_config.json", model__pad_token_id=-1)
    found = read_folder(folder)
    assert found.pad is None
    assert found.heads is not None
    found.heads.check({"past.0": 1, "past.1": 7}, found.model)
    with pytest.raises(ModelError, match=r"num_key_value_heads: 1, but in .* 'past\.0' has 7"):
        found.heads.check({"past.0": 7}, found.model)


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="pip install tercet[generate]")
    folder = copied(LLAMA, tmp_path)
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"].append(
        {**data["added_tokens"][0], "id": 288, "content": "<extra>", "special": False}
    )
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with (
        Generator(folder) as generator,
        pytest.raises(tercet.InputError, match=r"token 288; the model knows 288.*tokenizer\.json"),
    ):
        generator.generate("<extra>")
