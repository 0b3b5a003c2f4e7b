"""Sounds that encoder-decoders hear: WAV files, and settings of their spectrograms."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from tercet import FileError, Generator, InputError, TercetError
from tercet.generation.sound import read_wav

from .encoders import ENCODERS, WHISPER, copied
from .folders import Opened, rewrite


@pytest.fixture(scope="module")
def whisper(opened: Opened) -> Generator:
    return opened(ENCODERS / WHISPER)


def written(path: Path, data: bytes, *, width: int = 2, channels: int = 1, rate: int = 100) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (1, np.array([128, 192, 0, 255], np.uint8).tobytes()),
        (2, np.array([0, 16384, -32768, 32512], "<i2").tobytes()),
        (3, bytes([0, 0, 0, 0, 0, 64, 0, 0, 128, 0, 0, 127])),
        (4, np.array([0, 1 << 30, -(1 << 31), 127 << 24], "<i4").tobytes()),
    ],
)
def test_samples(width: int, data: bytes, tmp_path: Path) -> None:
    found = read_wav(written(tmp_path / "a.wav", data, width=width), 100)
    np.testing.assert_array_equal(found, np.array([0, 0.5, -1, 127 / 128], np.float32))


def test_channels_are_averaged(tmp_path: Path) -> None:
    data = np.array([0, 16384, 16384, 16384], "<i2").tobytes()
    found = read_wav(written(tmp_path / "a.wav", data, channels=2), 100)
    np.testing.assert_array_equal(found, np.array([0.25, 0.5], np.float32))


def test_sounds_that_do_not_fit(whisper: Generator, tmp_path: Path) -> None:
    file = written(tmp_path / "a.wav", b"\0" * 8)
    with pytest.raises(InputError, match=r"100 samples a second; the model takes 16000: ffmpeg"):
        whisper.audio_features(file)
    long = written(tmp_path / "long.wav", b"\0" * 2 * 16000 * 31, rate=16000)
    with pytest.raises(InputError, match=r"31\.0 s of audio; the model processes 30 s at a time"):
        whisper.audio_features(long)
    file.write_bytes(b"ID3 of something else")
    with pytest.raises(InputError, match="no WAV file of whole numbers"):
        whisper.audio_features(file)
    file.write_bytes(b"ID3")
    with pytest.raises(InputError, match=r"whole numbers \(it ends too early\)"):
        whisper.audio_features(file)
    with pytest.raises(FileError):
        whisper.audio_features(tmp_path / "gone.wav")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"feature_size": 10**9}, "feature_size: 1000000000, but there are 201 frequencies"),
        ({"n_fft": 10**9}, "n_fft: 1000000000, but a chunk has 480000 samples"),
        ({"hop_length": 480000}, "hop_length: 480000, but a chunk has 480000 samples"),
        ({"chunk_length": 10**12}, "chunk_length: a spectrogram"),
    ],
)
def test_spectrograms_that_contradict_themselves(
    fields: dict[str, int], text: str, tmp_path: Path
) -> None:
    folder = copied(WHISPER, tmp_path)
    rewrite(folder / "preprocessor_config.json", **fields)
    sound = written(tmp_path / "a.wav", b"\0" * 8, rate=16000)
    with Generator(folder) as generator, pytest.raises(TercetError) as caught:
        generator.audio_features(sound)
    assert f"preprocessor_config.json: {text}" in str(caught.value)
