"""Audio features in numpy: raw samples, or a log-mel spectrogram.

Results equal those of transformers' feature extractors; the settings are those of
``preprocessor_config.json``.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from ..importers.onnx.reading.signatures import mistaken
from ..runtime.base.guard import need
from ..runtime.errors import FileError, InputError, ModelError
from ..runtime.ir.types import Array
from .config_file import ConfigFile
from .folder import ModelFolder

#: The mel scale of Slaney's Auditory Toolbox: linear below 1000 Hz, logarithmic above.
_MELS_PER_HZ, _BREAK_HZ, _STEP = 3 / 200, 1000.0, 27 / np.log(6.4)


def features_of_wav(path: Path, folder: ModelFolder) -> Array:
    """Return the features of a WAV file; see `Generator.audio_features`."""
    config = folder.sound
    if config is None:
        raise ModelError(
            "has no preprocessor_config.json, which says how features are made of sound; save it "
            "there with transformers' AutoFeatureExtractor, or give features",
            file=str(folder.path),
        )
    rate = config.whole("sampling_rate")
    if not rate:
        raise config.error("sampling_rate", "is missing; audio features need it")
    samples = read_wav(path, rate)
    kind = config.text("feature_extractor_type")
    if config.get("n_fft") is not None:
        return log_mel(samples, config, path)
    if config.whole("feature_size") == 1:
        return _normalised(samples, config)[None]
    raise config.error(
        "feature_extractor_type", f"{kind!r}: features are made of Whisper's and of plain samples"
    )


def read_wav(path: Path, rate: int) -> Array:
    """Return the samples of a WAV file, float32 in [-1, 1], averaged over channels.

    Raises:
        FileError: there is no such file.
        InputError: its samples are not integers, or its rate differs from the model's.
    """
    try:
        with wave.open(str(path), "rb") as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            found, data = file.getframerate(), file.readframes(file.getnframes())
    except OSError as error:
        raise FileError(error.errno, error.strerror, str(path)) from error
    except (wave.Error, EOFError) as error:
        instead = mistaken(path) or str(error) or "it ends too early"
        raise InputError(
            f"{path}: no WAV file of whole numbers ({instead}); ffmpeg -i {path.name} -ar {rate} "
            "-ac 1 -c:a pcm_s16le out.wav makes one"
        ) from error
    if found != rate:
        raise InputError(
            f"{path}: {found} samples a second; the model takes {rate}: ffmpeg -i {path.name} "
            f"-ar {rate} out.wav"
        )
    raw: Array = np.frombuffer(data, np.uint8)
    raw = raw[: len(raw) // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:
        whole = raw[:, 0].astype(np.float64) - 128
    else:
        wide = np.zeros((len(raw), 4), np.uint8)
        wide[:, 4 - width :] = raw
        whole = wide.view("<i4")[:, 0] / 256.0 ** (4 - width)
    scaled = whole / 2.0 ** (8 * width - 1)
    return scaled.reshape(-1, channels).mean(1).astype(np.float32)


def log_mel(samples: Array, config: ConfigFile, path: Path) -> Array:
    """Return a log-mel spectrogram, float32 [1, bands, frames].

    Args:
        samples: float [n], at the configured sampling rate.
        config: has ``feature_size`` (bands), ``n_fft``, ``hop_length``, ``chunk_length`` (seconds).
        path: of the audio file, for errors.

    Raises:
        InputError: it is longer than the model's window.
        ModelError: a setting is missing, or contradicts another.
        LimitError: the spectrogram takes more memory than there is.
    """
    names = ("sampling_rate", "feature_size", "n_fft", "hop_length", "chunk_length")
    sizes = [config.whole(name) for name in names]
    for name, size in zip(names, sizes, strict=True):
        if not size:
            raise config.error(name, "is missing; audio features need it")
    rate, bands, window, hop, seconds = (size or 0 for size in sizes)
    if len(samples) > rate * seconds:
        raise InputError(
            f"{path}: {len(samples) / rate:.1f} s of audio; the model processes {seconds} s at a "
            f"time ({config.path}: chunk_length)"
        )
    _check_sizes(config, rate * seconds, bands, window, hop)
    padded = np.zeros(rate * seconds, np.float64)
    padded[: len(samples)] = samples
    whole = np.pad(padded, window // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(whole, window)[::hop][:-1]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    mel = np.maximum(power @ mel_filters(window, bands, rate), 1e-10)
    logs = np.log10(mel).T
    logs = np.maximum(logs, logs.max() - 8)
    return ((logs + 4) / 4).astype(np.float32)[None]


def _check_sizes(config: ConfigFile, count: int, bands: int, window: int, hop: int) -> None:
    """Raise an error if windows do not fit into the samples of a chunk, or not into memory."""
    for name, size in (("n_fft", window), ("hop_length", hop)):
        if size >= count:
            raise config.error(name, f"{size}, but a chunk has {count} samples (chunk_length)")
    most = window // 2 + 1
    if bands > most:
        raise config.error("feature_size", f"{bands}, but there are {most} frequencies (n_fft)")
    need(8 * (count + count // hop * window), f"{config.path}: chunk_length: a spectrogram")


def mel_filters(window: int, bands: int, rate: int) -> Array:
    """Return triangular mel filters of equal area, float64 [window // 2 + 1, bands]."""
    edges = _hertz(np.linspace(0, _mels(rate / 2), bands + 2))
    places = np.linspace(0, rate / 2, window // 2 + 1)[:, None]
    rise = (places - edges[:-2]) / np.diff(edges)[:-1]
    fall = (edges[2:] - places) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rise, fall)) * 2 / (edges[2:] - edges[:-2])


def _mels(hertz: float) -> float:
    linear = hertz * _MELS_PER_HZ
    if hertz < _BREAK_HZ:
        return linear
    return float(_BREAK_HZ * _MELS_PER_HZ + np.log(hertz / _BREAK_HZ) * _STEP)


def _hertz(mels: Array) -> Array:
    first = _BREAK_HZ * _MELS_PER_HZ
    above = _BREAK_HZ * np.exp((mels - first) / _STEP)
    return np.where(mels < first, mels / _MELS_PER_HZ, above)


def _normalised(samples: Array, config: ConfigFile) -> Array:
    """Return samples scaled to mean 0 and variance 1, if the configuration asks for it."""
    if not config.flag("do_normalize"):
        return samples
    wide = samples.astype(np.float64)
    return ((wide - wide.mean()) / np.sqrt(wide.var() + 1e-7)).astype(np.float32)
