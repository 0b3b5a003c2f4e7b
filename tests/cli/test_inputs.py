"""Inputs: random ones, pictures, shapes; and how latencies are measured."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from PIL import Image

import tercet as tercet_package
from tercet import InputError, UsageError
from tercet.runtime.ir.dtypes import (
    bfloat16,
    bool_,
    float32,
    int2,
    int4,
    int32,
    int64,
    string,
    uint8,
)
from tercet.runtime.session.model import TensorInfo
from tercet.tools.common import random_arrays
from tercet.tools.common.archives import write_archive
from tercet.tools.common.arrays import read_test_data
from tercet.tools.common.as_option import as_option
from tercet.tools.common.images import Pixels, read_images
from tercet.tools.common.inputs import InputRequest, make_inputs, random_inputs
from tercet.tools.common.measure import Repeat, interleave
from tercet.tools.common.shapes import assumed_dims, input_shapes

from . import models
from .conftest import Tercet


def info(shape, dtype=float32, name="x") -> TensorInfo:
    return TensorInfo(name, dtype, shape)


# ── random ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("dtype", "minimum", "maximum"),
    [
        (float32, -8, 8),
        (bfloat16, -8, 8),
        (int64, 0, 9),
        (int32, 0, 9),
        (uint8, 0, 127),
        (np.dtype(np.int8), 0, 127),
        (int4, 0, 7),
        (int2, 0, 1),
        (bool_, 0, 1),
    ],
)
def test_random_inputs(dtype, minimum, maximum) -> None:
    first, again, other = (
        random_inputs([info((5, 200), dtype)], {"x": (5, 200)}, seed)["x"] for seed in (1, 1, 2)
    )
    assert first.dtype == dtype
    assert first.shape == (5, 200)
    assert first.tobytes() == again.tobytes() != other.tobytes()
    wide = first.astype(np.float64)
    assert minimum <= wide.min() < wide.max() <= maximum


def test_random_strings_and_floats_are_the_documented_ones() -> None:
    texts = random_inputs([info((3,), string)], {"x": (3,)}, 0)["x"]
    assert texts.dtype == string
    assert all(isinstance(text, str) and text.isdigit() for text in texts)
    floats = random_inputs([info((3,))], {"x": (3,)}, 7)["x"]
    expected = np.random.default_rng(7).standard_normal(3).astype(np.float32)
    np.testing.assert_array_equal(floats, expected)


def test_what_cannot_be_random() -> None:
    with pytest.raises(InputError, match="is not a tensor"):
        random_inputs([TensorInfo("x", None, None)], {}, 0)
    with pytest.raises(InputError, match=r"shapes: .* as in x="):
        random_inputs([info(None)], {}, 0)


@pytest.mark.parametrize("shape", [(1 << 63, 0), (0, 1 << 40, 1 << 30), (1 << 50,)])
@pytest.mark.parametrize("dtype", [float32, int64, bool_, string])
def test_shapes_that_no_array_has(shape, dtype) -> None:
    with pytest.raises(InputError, match="no machine has room"):
        random_inputs([info(shape, dtype)], {"x": shape}, 0)


def test_inputs_that_memory_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before anything is drawn, with the numbers that the generator draws."""
    infos = [info((1 << 18,)), TensorInfo("z", float32, (1 << 18,))]
    shapes = {"x": (1 << 18,), "z": (1 << 18,)}
    monkeypatch.setattr(random_arrays, "memory", lambda: 4 << 20)
    assert sorted(random_inputs(infos, shapes, 0)) == ["x", "z"]
    monkeypatch.setattr(random_arrays, "memory", lambda: (4 << 20) - 1)
    with pytest.raises(InputError, match=r"input 'z': float32\[262144\] takes 0\.0 GiB, and 0\.0"):
        random_inputs(infos, shapes, 0)
    huge = (1 << 20, 1, 1 << 21)
    with pytest.raises(
        InputError, match=r"input 'x': .*takes 8,192\.0 GiB.* GiB of memory; give smaller sizes"
    ):
        random_inputs([info(huge)], {"x": huge}, 0)


INDEXED = """ <ir_version: 8, opset_import: ["" : 18]>
g (float[4, n] t, int32[5] row, int64[5, 1] column, int64[3] at)
=> (float[5, n] a, float[5, 1] b, float[4, n] c)
<int64[1] zero = {0}, int64[1] end = {3}> {
  wide = Cast <to = 7> (row)
  a = Gather(t, wide)
  b = GatherElements <axis = 1> (a, column)
  axes = Constant <value_ints = [1]> ()
  first = Unsqueeze(at, axes)
  second = Sub(first, first)
  places = Concat <axis = 1> (first, second)
  updates = Squeeze(b)
  three = Slice(updates, zero, end)
  c = ScatterND(t, places, three)
}"""


@pytest.mark.parametrize("n", [1, 3, 40])
def test_random_indices_are_inside_of_what_they_index(n: int) -> None:
    with tercet_package.load(INDEXED) as model:
        for seed in range(4):
            arrays = make_inputs(model.inputs, InputRequest(dims=[f"n={n}"], seed=seed)).arrays
            model.run(arrays)
            assert arrays["row"].max() < 4
            assert arrays["at"].max() < 4
            assert arrays["column"].max() < n


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────

PAIR = [info(("n", 3, None), name="a"), info(("n", "m"), name="b")]


@pytest.mark.parametrize(
    ("shapes", "dims", "expected"),
    [
        ([], [], {"a": (1, 3, 1), "b": (1, 1)}),
        ([], ["n=4"], {"a": (4, 3, 1), "b": (4, 1)}),
        (["a=5x3x7"], [], {"a": (5, 3, 7), "b": (5, 1)}),
        (["a=5,3,7"], ["m=2"], {"a": (5, 3, 7), "b": (5, 2)}),
        (["b=0x2"], [], {"a": (0, 3, 1), "b": (0, 2)}),
    ],
)
def test_input_shapes(shapes, dims, expected) -> None:
    assert input_shapes(PAIR, shapes, dims) == expected


@pytest.mark.parametrize(
    ("shapes", "dims", "python", "words"),
    [
        (["y=2x3"], [], "shapes={'y': (2, 3)}", "--shape y=2x3"),
        (["x=2x3"], [], "shapes={'x': (2, 3)}", "--shape x=2x3"),
        (["2x3"], [], "shapes=(2, 3)", "--shape 2x3"),
        ([], ["m=4"], "dims={'m': 4}", "--dim m=4"),
        (["x=2"], ["n=3"], "shapes={'x': (2,)}", "--shape x=2"),
    ],
)
def test_shapes_that_do_not_fit_are_shown_as_they_are_written(
    shapes: list[str], dims: list[str], python: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        input_shapes([info(("n",)), info(("n",), name="z")], shapes, dims)
    assert str(caught.value).startswith(f"{python}: ")
    assert caught.value.argument is not None
    assert as_option(caught.value.argument).startswith(f"{words}: ")


@pytest.mark.parametrize(
    ("dims", "expected"),
    [([], 2), (["past=5"], 6), (["past=5", "new=2"], 7), (["past + new=9"], 9)],
)
def test_sums_of_symbols(dims, expected) -> None:
    """As exporters of decoders name the axes of a mask."""
    mask = "past + new", "2*new", "new + 1", "a+", "+"
    infos = [info(("past", "new")), info(mask, name="mask")]
    new = 2 if "new=2" in dims else 1
    assert input_shapes(infos, [], dims)["mask"] == (expected, 2 * new, new + 1, 1, 1)
    assumed = {"past", "new"} - {text.split("=")[0] for text in dims}
    assert set(assumed_dims(infos, [], dims)) == {*assumed, "a+", "+"}


#: A symbol that weights fix, one that two nodes contradict, and one that is free.
NAMED_SIZES = """
<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
g (float[n, features] x, float[n, any, h, h] image, float[n, any] z, float[n, s, 8] q,
   float[n, 2, past, cache] pk, float[n, 2, past, cache] pv, int32[n] ends, int32 total)
  => (y, c, d, a)
<float[5, 3] w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
 float[1, 2, 1, 1] filter = {1, 2}, float[3, 1] v = {1, 2, 3}>
{
  t = Identity(x)
  y = MatMul(t, w)
  c = Conv(image, filter)
  d = MatMul(z, v)
  a, present_k, present_v = com.microsoft.GroupQueryAttention
    <num_heads = 2, kv_num_heads = 2> (q, q, q, pk, pv, ends, total)
}
"""


def test_sizes_that_nodes_need() -> None:
    with tercet_package.load(NAMED_SIZES) as model:
        found = input_shapes(model.inputs)
        assert assumed_dims(model.inputs) == ("n", "any", "h", "s", "past")
        chosen = input_shapes(model.inputs, ["x=2x7"], ["cache=9"])
    assert found["x"] == (1, 5)
    assert found["image"] == (1, 1, 1, 1)
    assert found["z"] == (1, 1)
    assert found["pk"] == found["pv"] == (1, 2, 1, 4)
    assert chosen["x"] == (2, 7)
    assert chosen["pk"] == (2, 2, 1, 9)


def test_names_with_strange_characters() -> None:
    strange = [info(("n",), name="gpu_0/data=0:1")]
    assert input_shapes(strange, ["gpu_0/data=0:1=4"]) == {"gpu_0/data=0:1": (4,)}
    assert input_shapes([info(None)], ["4x5"]) == {"x": (4, 5)}
    assert input_shapes([info(())], []) == {"x": ()}


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_types_that_numpy_cannot_name_survive_a_file(folder: Path) -> None:
    data = np.arange(3).astype(ml_dtypes.bfloat16)
    texts = np.array(["a", "bc"], object)
    write_archive(folder / "all.npz", {"x": data, "t": texts})
    infos = [info((3,), bfloat16), info((2,), string, "t")]
    for wanted in (InputRequest(folder=Path("all.npz")), InputRequest(files=["all.npz"])):
        arrays = make_inputs(infos, wanted).arrays
        assert arrays["x"].dtype == bfloat16
        assert list(arrays["t"]) == ["a", "bc"]
        np.testing.assert_array_equal(arrays["x"], data)


def test_test_data_go_by_name_then_by_number(folder: Path) -> None:
    tensors = [
        TensorProto(name="b", dims=[1], data_type=1, float_data=[1]),
        TensorProto(name="", dims=[1], data_type=1, float_data=[2]),
    ]
    for number, proto in enumerate(tensors):
        Path(f"input_{number}.pb").write_bytes(proto.SerializeToString())
    assert read_test_data(folder, "input", ["a", "b"]).keys() == {"b"}
    Path("test_data_set_0").mkdir()
    with pytest.raises(InputError, match=r"try .*test_data_set_0"):
        read_test_data(folder, "output", ["a"])


def test_a_tensor_may_not_read_other_files(folder: Path) -> None:
    proto = TensorProto(name="x", dims=[1], data_type=1, data_location=TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value="../secret")
    Path("input_0.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(InputError, match="secret"):
        read_test_data(folder, "input", ["x"])


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def picture(folder: Path) -> Path:
    """Six columns, four rows: red, green and blue rise to the right, downwards, and not at all."""
    data = np.zeros((4, 6, 3), np.uint8)
    data[..., 0] = np.arange(6) * 50
    data[..., 1] = np.arange(4)[:, None] * 60
    data[..., 2] = 7
    Image.fromarray(data).save("picture.png")
    return folder / "picture.png"


def read(file: Path, shape, dtype=float32, pixels=None, given=None) -> np.ndarray:
    return read_images([file], info(shape, dtype), given, pixels or Pixels())


def test_layouts(picture: Path) -> None:
    plain = np.asarray(Image.open(picture), np.float32) / 255
    np.testing.assert_array_equal(read(picture, (1, 3, 4, 6))[0], plain.transpose(2, 0, 1))
    np.testing.assert_array_equal(read(picture, ("n", 4, 6, 3))[0], plain)
    np.testing.assert_array_equal(read(picture, (3, 4, 6)), plain.transpose(2, 0, 1))
    assert read(picture, ("n", "c", "h", "w")).shape == (1, 3, 4, 6)
    assert read(picture, (None, 1, None, None)).shape == (1, 1, 4, 6)
    assert read(picture, (8, 8)).shape == (8, 8)
    assert read(picture, ("n", 3, "h", "w"), given=(1, 3, 5, 9)).shape == (1, 3, 5, 9)
    assert read(picture, ("n", 3, "h", "w"), given=(1, 3, 1, 1)).shape == (1, 3, 4, 6)


def test_integers_take_pixels_as_they_are(picture: Path) -> None:
    data = read(picture, (1, 3, 4, 6), uint8)
    np.testing.assert_array_equal(data[0, 0, 0], np.arange(6) * 50)
    stated = Pixels(scale=2, source="preprocessor_config.json")
    np.testing.assert_array_equal(read(picture, (1, 3, 4, 6), uint8, stated), data)
    with pytest.raises(UsageError, match=r"leave out --scale: .* pixels unchanged"):
        read(picture, (1, 3, 4, 6), uint8, Pixels(scale=2, given=("--scale",)))


def test_scaling(picture: Path) -> None:
    pixels = Pixels(scale=1, mean=(10, 20, 30), std=(2, 4, 5))
    data = read(picture, (1, 3, 4, 6), pixels=pixels)[0]
    assert data[:, 1, 2].tolist() == pytest.approx([90 / 2, 40 / 4, -23 / 5])
    with pytest.raises(UsageError, match="2 values for 3 channels"):
        read(picture, (1, 3, 4, 6), pixels=Pixels(mean=(1, 2)))


def test_crop_keeps_the_aspect_ratio(picture: Path) -> None:
    stretched = read(picture, (1, 3, 4, 4), pixels=Pixels(scale=1))
    cropped = read(picture, (1, 3, 4, 4), pixels=Pixels(scale=1, crop=True))
    assert cropped[0, 0, 0].tolist() == [50, 100, 150, 200]
    assert stretched[0, 0, 0].tolist() != cropped[0, 0, 0].tolist()


def test_several_pictures_make_a_batch(tercet: Tercet, picture: Path) -> None:
    given = "-i", picture.name, "-i", f"image={picture.name}"
    done = tercet("run", "classifier.onnx", *given, "--json")
    assert done.json["inputs"][0]["shape"] == [2, 3, 8, 8]
    with pytest.raises(InputError, match="no batch axis"):
        read_images([picture, picture], info((3, 4, 6)), None, Pixels())


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 7, 8, 9), float32), ((4,), float32), ((1, 3, 4, 4), string)]
)
def test_inputs_that_take_no_picture(picture: Path, shape, dtype) -> None:
    with pytest.raises(InputError, match="takes no image"):
        read(picture, shape, dtype)


def test_without_pillow(tercet: Tercet, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    done = tercet("run", "classifier.onnx", "-i", picture.name)
    assert done.code == 2
    assert "pip install 'tercet[image]'" in done.err


def test_a_picture_too_large_to_be_true(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(InputError, match=r"picture\.png: .*exceeds limit"):
        read(picture, (1, 3, 4, 6))


# ── measuring ────────────────────────────────────────────────────────────────────────────────────


def test_runners_take_turns_after_a_warm_up() -> None:
    called: list[str] = []
    calls = {name: (lambda name=name: called.append(name)) for name in "ab"}
    found = interleave(calls, Repeat(3))
    assert "".join(called) == "ab" + "ab" * 3
    assert all(len(timing.samples) == 3 for timing in found.values())
    called.clear()
    interleave(calls, Repeat(1), first={"a": 5, "b": 0.1})
    assert called == ["b", "a", "b"]
    assert found["a"].quantile(0.1) <= found["a"].median <= found["a"].quantile(0.9)


def test_repetition_ends() -> None:
    repeat = Repeat(seconds=1, minimum=3, maximum=5)
    assert repeat.wants([9, 9])
    assert not repeat.wants([9, 9, 9])
    assert repeat.wants([0.1] * 4)
    assert not repeat.wants([0.1] * 5)
    assert interleave({"a": int}, Repeat(0))["a"].samples == ()
    with pytest.raises(UsageError):
        Repeat(-1)


def test_classifier_is_the_same_from_a_picture_and_its_array(tercet: Tercet, folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save("p.png")
    np.save("p.npy", (pixels.astype(np.float32) / 255).transpose(2, 0, 1)[None])
    picture, array = (
        tercet("run", "classifier.onnx", "-i", f, "--json").json["outputs"]
        for f in ("p.png", "p.npy")
    )
    assert picture == array
    assert models.FLOAT == TensorProto.FLOAT


def test_an_archive_without_any_input(tmp_path: Path) -> None:
    file = tmp_path / "other.npz"
    np.savez(file, image=np.zeros(2, np.float32), mask=np.zeros(2, np.float32))
    infos = [info((2,)), info((2,), name="y")]
    for request in (InputRequest(folder=file), InputRequest(files=[str(file)])):
        with pytest.raises(InputError, match=r"it has image, mask; inputs: x: float32\[2\], y"):
            make_inputs(infos, request)


@pytest.mark.parametrize("option", [("--mean", "1,2"), ("--scale", "2"), ("--crop",), ("--bgr",)])
def test_options_of_images_need_one(tercet: Tercet, folder: Path, option: tuple[str, ...]) -> None:
    done = tercet("run", "classifier.onnx", *option)
    assert done.code == 2
    assert f"{option[0]} is for images, and no input is one" in done.err


def test_inputs_of_a_saved_comparison(tercet: Tercet, folder: Path) -> None:
    """They are found beside its outputs."""
    options = ("-b", "numpy", "-b", "onnxruntime", "--seed", "3", "--save", "saved.npz")
    assert tercet("compare", "classifier.onnx", *options, "--repeat", "1").code == 0
    taken = tercet("run", "classifier.onnx", "--inputs-from", "saved.npz", "--save", "a.npz")
    drawn = tercet("run", "classifier.onnx", "--seed", "3", "--save", "b.npz")
    assert (taken.code, drawn.code) == (0, 0)
    with np.load(folder / "a.npz") as a, np.load(folder / "b.npz") as b:
        np.testing.assert_array_equal(a["scores"], b["scores"])


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize(
    ("held", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d", "run 'git lfs pull'"),
        (b"\n<!DOCTYPE html><html>", "HTML page; was the download redirected?"),
        (b"", "it is empty"),
        (b"anything", "writes one"),
    ],
)
def test_what_was_fetched_instead_of_arrays(
    tmp_path: Path, name: str, held: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(held)
    with pytest.raises(InputError, match=re.escape(words)):
        make_inputs([info((2,))], InputRequest(files=[str(tmp_path / name)]))
