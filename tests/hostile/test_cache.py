"""Caches: no other user can plant an entry, and no damage changes a result."""

import os
import random
import resource
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tercet.runtime.base import cache as caching
from tercet.runtime.base.cache import Cache, default_cache
from tercet.runtime.base.files import replacing, write_text
from tercet.runtime.errors import PerformanceWarning

ROOT = Path(__file__).resolve().parents[2]
PAYLOAD = bytes(range(256)) * 8

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders have no owner here")


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins as a new process does."""
    monkeypatch.setattr(caching, "_keys", {})
    monkeypatch.setattr(caching, "_warned", set())


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache" / "cuda", tmp_path / "own")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_read_and_is_the_users_alone(cache: Cache) -> None:
    before = os.umask(0)
    try:
        cache.write("a", PAYLOAD)
    finally:
        os.umask(before)
    assert cache.read("a") == PAYLOAD
    assert cache.read("b") is None
    assert [mode(cache.folder), mode(cache.folder.parent)] == [0o700, 0o700]
    assert mode(cache.folder / "a") == 0o600
    assert [mode(cache.key_folder), mode(cache.key_folder / "key")] == [0o700, 0o600]
    assert names(cache.folder) == ["a"]


def test_no_damage_is_ever_read(cache: Cache) -> None:
    """1,000 bit flips, every truncation, other versions, and bytes after the end."""
    cache.write("a", PAYLOAD)
    file = cache.folder / "a"
    good, rng = file.read_bytes(), random.Random(0)
    flips = []
    for _ in range(1000):
        data = bytearray(good)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        flips.append(bytes(data))
    others = [good[:end] for end in range(0, len(good), 7)]
    others += [good.replace(b"entry 2", b"entry 1"), good + b"x", b"", b"[" * 100_000]
    for data in (*flips, *others):
        file.write_bytes(data)
        assert cache.read("a") is None
    cache.write("a", PAYLOAD)
    assert cache.read("a") == PAYLOAD


def test_an_entry_is_good_under_its_own_name_and_key_alone(cache: Cache, tmp_path: Path) -> None:
    cache.write("a", PAYLOAD)
    entry = (cache.folder / "a").read_bytes()
    (cache.folder / "b").write_bytes(entry)
    assert cache.read("b") is None
    other = Cache(tmp_path / "other", tmp_path / "another")
    other.write("x", b"")
    (other.folder / "a").write_bytes(entry)
    assert other.read("a") is None


@pytest.mark.parametrize("bits", [0o777, 0o720, 0o702])
@pytest.mark.parametrize("where", ["folder", "above", "key_folder"])
def test_a_folder_that_others_may_write_to_is_not_used(
    cache: Cache, where: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("a", PAYLOAD)
    folder = cache.folder.parent if where == "above" else getattr(cache, where)
    folder.chmod(bits)
    monkeypatch.setattr(caching, "_keys", {})
    with pytest.warns(PerformanceWarning, match=f"chmod go-w {folder}"):
        assert cache.read("a") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        cache.write("b", PAYLOAD)
    assert names(cache.folder) == ["a"]
    folder.chmod(0o700)
    assert cache.read("a") == PAYLOAD


def test_a_folder_of_another_user_is_not_used(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write("a", PAYLOAD)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.warns(PerformanceWarning, match=r"belongs to user .*TERCET_CACHE"):
        assert cache.read("a") is None


def test_a_key_that_others_can_read_is_not_used(cache: Cache) -> None:
    cache.write("a", PAYLOAD)
    (cache.key_folder / "key").chmod(0o644)
    caching._keys.clear()
    with pytest.warns(PerformanceWarning, match="remove it"):
        assert cache.read("a") is None


@pytest.mark.parametrize("planted", [b"", b"short", bytes(33)])
def test_a_damaged_key_is_not_used(cache: Cache, planted: bytes) -> None:
    cache.key_folder.mkdir(mode=0o700)
    key = cache.key_folder / "key"
    key.write_bytes(planted)
    key.chmod(0o600)
    with pytest.warns(PerformanceWarning, match="damaged"):
        cache.write("a", PAYLOAD)
    assert not names(cache.folder)


def test_a_key_behind_a_link_is_not_used(cache: Cache, tmp_path: Path) -> None:
    cache.key_folder.mkdir(mode=0o700)
    (tmp_path / "planted").write_bytes(bytes(32))
    (tmp_path / "planted").chmod(0o600)
    (cache.key_folder / "key").symlink_to(tmp_path / "planted")
    with pytest.warns(PerformanceWarning, match="key of the cache cannot be used"):
        cache.write("a", PAYLOAD)


def test_a_link_in_the_place_of_an_entry_is_replaced(cache: Cache, tmp_path: Path) -> None:
    cache.write("b", PAYLOAD)
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (cache.folder / "a").symlink_to(victim)
    cache.write("a", PAYLOAD)
    assert victim.read_text() == "untouched"
    assert cache.read("a") == PAYLOAD


WRITERS = """
import sys
from pathlib import Path
from tercet.runtime.base.cache import Cache
cache = Cache(Path(sys.argv[1]), Path(sys.argv[2]))
for number in range(50):
    cache.write("a", bytes([number]) * 10_000)
    found = cache.read("a")
    assert found is not None and len(found) == 10_000 and len(set(found)) == 1
"""


def test_eight_processes_write_at_a_time(cache: Cache) -> None:
    command = [sys.executable, "-c", WRITERS, str(cache.folder), str(cache.key_folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: subprocess.call(command, env=environment), range(8)))
    assert codes == [0] * 8
    assert names(cache.folder) == ["a"]
    assert names(cache.key_folder) == ["key"]


def test_a_full_disk_leaves_nothing_behind(cache: Cache, tmp_path: Path) -> None:
    cache.write("a", b"small")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        cache.write("a", bytes(100_000))
        with pytest.raises(OSError, match="too large"):
            write_text(tmp_path / "report.html", "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert cache.read("a") == b"small"
    assert names(cache.folder) == ["a"]
    assert "report.html" not in names(tmp_path)


def test_a_folder_that_vanishes_or_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "file" / "cuda", tmp_path / "own")
    (tmp_path / "file").write_text("a file where the folder should be")
    cache.write("a", PAYLOAD)
    assert cache.read("a") is None
    again = Cache(tmp_path / "folder", tmp_path / "own")
    again.write("a", PAYLOAD)
    (again.folder / "a").unlink()
    again.folder.rmdir()
    assert again.read("a") is None
    again.write("a", PAYLOAD)
    assert again.read("a") == PAYLOAD


def test_without_a_home_there_is_still_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TERCET_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert default_cache().name == f"tercet-{os.getuid()}"


def test_without_owners_and_links_it_works(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr(caching, "_HAS_OWNERS", False)
    monkeypatch.delattr(os, "getuid")
    cache.write("a", PAYLOAD)
    cache.folder.chmod(0o777)
    assert cache.read("a") == PAYLOAD


# ── files that are replaced ──────────────────────────────────────────────────────────────────────


def test_a_file_is_replaced_as_a_whole_or_stays(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_text(file, "old")

    def fail() -> None:
        with replacing(file) as stream:
            stream.write(b"half")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()
    assert names(tmp_path) == ["report.html"]
    assert file.read_text() == "old"


def test_links_are_replaced_and_pipes_are_written(tmp_path: Path) -> None:
    victim, link, pipe = (tmp_path / name for name in ("victim", "link", "pipe"))
    victim.write_text("untouched")
    link.symlink_to(victim)
    write_text(link, "new")
    assert (victim.read_text(), link.read_text()) == ("untouched", "new")
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(pipe.read_text)
        write_text(pipe, "through")
        assert reading.result() == "through"
    write_text(Path(os.devnull), "nowhere")
    assert not Path(os.devnull).is_file()


def test_new_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == 0o640
