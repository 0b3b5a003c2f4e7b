"""Arrays, pictures and JSON of unknown origin: typed errors, no memory for what is only said."""

import io
import json
import resource
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tercet.runtime.errors import InputError, LimitError, TercetError
from tercet.runtime.session.model import TensorInfo
from tercet.tools.bench.bench_check import read_bench
from tercet.tools.common import archives
from tercet.tools.common.archives import member_name, read_archive, read_npy, write_archive
from tercet.tools.common.images import Pixels, read_images
from tercet.tools.profile.profiling_diff import read_profile
from tercet.tools.report.report import report
from tercet.tools.runners.saved import read_comparison


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    """A .npy file with any header."""
    text = header.encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def described(shape: str, dtype: str = "'<f4'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"


HEADERS: dict[str, tuple[bytes, str]] = {
    "petabyte": (npy(described("(1125899906842624,)"), bytes(8)), "header says .* there are 8"),
    "wraps": (npy(described(f"({2**32}, {2**32}, {2**32})"), bytes(8)), "header says"),
    "negative": (npy(described("(-1,)"), bytes(8)), "header says"),
    "short": (npy(described("(3,)"), bytes(8)), "header says 12 bytes of data; there are 8"),
    "many axes": (npy(described(f"({'1,' * 70})"), bytes(4)), "damaged"),
    "pickle": (npy(described("(1,)", "'|O'"), bytes(64)), "pickles, which could run code"),
    "inner pickle": (
        npy(described("(1,)", "[('a', '|O')]"), bytes(64)),
        "pickles, which could run code",
    ),
    "nested": (npy("(" * 9000), "damaged"),
    "code": (npy("__import__('os').system('exit 1')"), "damaged"),
    "no header": (npy(""), "damaged"),
    "header too long": (npy(" " * 20_000, version=2), "damaged"),
    "half a header": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "damaged"),
    "version": (npy("", version=9), "damaged"),
    "text shape": (npy(described("'x'"), bytes(8)), "damaged"),
    "unknown dtype": (npy(described("(1,)", "'nothing'"), bytes(8)), "damaged"),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_that_lie(kind: str, tmp_path: Path) -> None:
    data, words = HEADERS[kind]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(InputError, match=words):
        read_npy(tmp_path / "x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", data)
    with pytest.raises(InputError, match=words):
        read_archive(tmp_path / "x.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def bomb(nbytes: int) -> bytes:
    """An archive of a few kilobytes that unpacks to an array of so many bytes."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(npy(described(f"({nbytes // 4},)")))
        for _ in range(nbytes >> 20):
            entry.write(bytes(1 << 20))
    return buffer.getvalue()


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bomb.npz"
    file.write_bytes(bomb(32 << 20))
    assert read_archive(file)["a"].nbytes == 32 << 20
    monkeypatch.setattr(archives, "SUSPECT_BYTES", 16 << 20)
    with pytest.raises(LimitError, match=r"bomb.npz has \d+ bytes and unpacks to \d+"):
        read_archive(file)
    monkeypatch.setattr(archives, "memory", lambda: 1 << 20)
    with pytest.raises(LimitError, match="half of this machine's memory"):
        read_archive(file)


def _encrypted(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[6] |= 1  # the flags of the first member, and in the directory
    changed[changed.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


def _method(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[8] = changed[changed.index(b"PK\x01\x02") + 10] = 97
    return bytes(changed)


@pytest.mark.parametrize(
    "damage",
    [
        _encrypted,
        _method,
        lambda data: data.replace(bytes(64), b"\xff" * 64, 1),
        lambda data: data[:100] + data[160:],
        lambda data: data[: len(data) // 2] + data[-60:],
    ],
    ids=["encrypted", "method", "crc", "shifted", "cut"],
)
def test_archives_that_are_damaged(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(1000, np.float32))
    (tmp_path / "x.npz").write_bytes(damage((tmp_path / "x.npz").read_bytes()))
    with pytest.raises(InputError, match=r"x\.npz"):
        read_archive(tmp_path / "x.npz")


NAMES = (
    *("scores", "a/b", "é 漢字", "x:0", "/conv1/Conv_output_0", "100%", "%2E%2E"),
    *("../../etc/passwd", "..", "a/../../b", "//x", "C:\\x", "C:/x", "..\\..\\x", "a\nb\x1b[2J"),
)


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_below_the_folder_and_come_back(name: str, tmp_path: Path) -> None:
    file = tmp_path / "out.npz"
    write_archive(file, {name: np.arange(3)})
    assert list(read_archive(file)) == [name]
    (member,) = zipfile.ZipFile(file).namelist()
    assert not member.startswith("/")
    assert ".." not in member.split("/")
    assert "\\" not in member
    assert member.isprintable()


def test_ordinary_names_are_what_numpy_reads(tmp_path: Path) -> None:
    for name in NAMES[:4]:
        assert member_name(name) == name
    write_archive(tmp_path / "out.npz", {"a/b": np.arange(3)})
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays.files == ["a/b"]
    theirs: Any = {"100%25": np.arange(3)}
    np.savez(tmp_path / "theirs.npz", **theirs)
    assert list(read_archive(tmp_path / "theirs.npz")) == ["100%25"]
    write_archive(tmp_path / "long.npz", {"x" * 100_000: np.arange(3)})
    assert len(read_archive(tmp_path / "long.npz")) == 1


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "", "nul"])
def test_json_that_is_nested_or_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text, encoding="utf-8")
    for read in (read_bench, read_profile, lambda file: report([file])):
        with pytest.raises(InputError, match=r"x\.json"):
            read(file)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("tercet.json", text)
    with pytest.raises(TercetError, match=r"x\.npz"):
        read_comparison(tmp_path / "x.npz", [], [])


def test_pictures_that_are_damaged_or_start_programs(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    info = TensorInfo("x", np.dtype(np.float32), (1, 3, 8, 8))
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), (1, 2, 3)).save(buffer, "PNG")
    good, file = buffer.getvalue(), tmp_path / "x.png"
    file.write_bytes(good)
    assert read_images([file], info, None, Pixels()).shape == (1, 3, 8, 8)
    huge = good[:16] + struct.pack(">II", 60_000, 60_000) + good[24:]
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
    for data in (good[:60], good[:33] + good[45:], huge, postscript, b"", b"GIF89a"):
        file.write_bytes(data)
        with pytest.raises(InputError, match=r"x\.png"):
            read_images([file], info, None, Pixels())


def test_a_script_holds_names_as_texts() -> None:
    from tercet.tools.bisect.reduction import SCRIPT

    name = 'x"""\nimport os; os.abort()\n"""'
    text = SCRIPT.format(
        reference=name,
        runner=name,
        model=name,
        version="1",
        stem="reduced",
        runners=[name],
        options={},
    )
    assert not [line for line in text.splitlines() if line.startswith("import os")]
    compile(text, "reproduce.py", "exec")
    assert json.dumps(text)
