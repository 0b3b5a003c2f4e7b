"""onnxruntime's sessions, in this process or served to another one.

This file is also a program, which `onnxruntime_process` starts by its path: it imports nothing of
tercet, so that it is ready when onnxruntime is.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from importlib import import_module
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from queue import SimpleQueue
from shutil import disk_usage, rmtree
from tempfile import mkstemp
from threading import Thread
from time import perf_counter
from traceback import print_exc
from typing import IO, Any, NoReturn

#: Arrays of more bytes than this travel in a file, which the receiver maps into its memory.
_LARGE = 1 << 22
_ALIGNMENT = 64
#: Types that numpy lacks, which onnxruntime takes and gives by their address: ONNX's number of each
#: and its name in ml_dtypes.
_NUMBERS = {
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
}
_BY_NAME = {name: number for number, name in _NUMBERS.items()}
#: The same by onnxruntime's names.
_BY_ADDRESS = {f"tensor({name.replace('_', '')})" for name in _BY_NAME}
#: Which process Linux ends first when memory runs out.
_FIRST_TO_END = "1000"


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a session.

    Attributes:
        level: of graph optimisation, by onnxruntime's name.
        threads: within a node; None for onnxruntime's default.
        providers: with their options, the first one first.
        entries: further entries of its configuration.
    """

    level: str = "ORT_ENABLE_ALL"
    threads: int | None = None
    providers: Sequence[Any] = ("CPUExecutionProvider",)
    entries: Mapping[str, str] = field(default_factory=dict[str, str])


class Session:
    """A model in onnxruntime.

    Args:
        model: its file, or its bytes.
        setup: the settings.

    Attributes:
        outputs: names of the model's outputs.
        providers: those that were started.
    """

    def __init__(self, model: str | bytes, setup: Setup) -> None:
        ort = import_module("onnxruntime")
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, setup.level)
        if setup.threads is not None:
            options.intra_op_num_threads = setup.threads
            options.inter_op_num_threads = 1
        for key, value in setup.entries.items():
            options.add_session_config_entry(key, value)
        chosen = list(setup.providers)
        self._session: Any = ort.InferenceSession(model, options, providers=chosen)
        self.outputs: list[str] = [output.name for output in self._session.get_outputs()]
        self._types = {output.name: output.type for output in self._session.get_outputs()}
        self.providers: list[str] = self._session.get_providers()
        inputs = self._session.get_inputs()
        self._takes_addresses = any(each.type in _BY_ADDRESS for each in inputs)
        self._run: Any = self._session.run
        self._last: tuple[list[str], dict[str, Any]] = ([], {})

    def run(self, feeds: Mapping[str, Any], wanted: Sequence[str]) -> list[Any]:
        """Return outputs in the order of their names, which may recur."""
        if self._takes_addresses or any(self._types[name] in _BY_ADDRESS for name in wanted):
            self._run = self._session.run_with_ort_values
            self._last = list(wanted), {name: _given(data) for name, data in feeds.items()}
            return list(map(_taken, self._run(*self._last)))
        self._run, self._last = self._session.run, (list(wanted), dict(feeds))
        return self._run(*self._last)

    def repeat(self) -> None:
        """Run once more on the same inputs, and drop the results."""
        self._run(*self._last)


def _given(data: Any) -> Any:
    """Return an array as onnxruntime's value, also of a type that numpy lacks."""
    make = import_module("onnxruntime").OrtValue
    number = _BY_NAME.get(data.dtype.name)
    if number is None:
        return make.ortvalue_from_numpy(data)
    numpy = import_module("numpy")
    bits = numpy.ascontiguousarray(data).view(f"u{data.itemsize}").reshape(data.shape)
    if _NUMBERS[number].endswith("int4"):  # two in each byte of the first half
        pairs = numpy.append(bits.ravel() & 15, numpy.uint8(0))
        packed = pairs[:-1:2] | pairs[1::2][: (bits.size + 1) // 2] << 4
        bits = numpy.resize(packed, bits.shape) if bits.size else bits
    return make.ortvalue_from_numpy_with_onnx_type(bits, number)


def _taken(value: Any) -> Any:
    """Return onnxruntime's value as an array, also of a type that numpy lacks."""
    name = _NUMBERS.get(value.element_type())
    if name is None:
        return value.numpy()
    numpy = import_module("numpy")
    nbytes = value.tensor_size_in_bytes()
    bits = ctypes.string_at(value.data_ptr(), nbytes) if nbytes else b""
    dtype = getattr(import_module("ml_dtypes"), name)
    if not name.endswith("int4"):
        return numpy.frombuffer(bytearray(bits), dtype).reshape(value.shape())
    packed = numpy.frombuffer(bits, numpy.uint8)
    halves = numpy.stack((packed & 15, packed >> 4), 1).ravel()
    signed = halves.astype(numpy.int8) - 16 * (halves > 7) if name == "int4" else halves
    return signed[: numpy.prod(value.shape(), dtype=int)].astype(dtype).reshape(value.shape())


class Channel:
    """Sends and receives Python objects; their large arrays travel in files.

    Args:
        incoming: read from.
        outgoing: written to.
        folder: for the files, on which there may be little room.
    """

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes], folder: str) -> None:
        self.incoming, self._outgoing, self.folder = incoming, outgoing, folder

    def send(self, thing: object) -> None:
        """Send an object.

        Raises:
            OSError: nobody receives it.
        """
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(thing, 5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        sizes = [part.nbytes for part in parts]
        if sum(sizes) > _LARGE and disk_usage(self.folder).free > 2 * sum(sizes):
            pickle.dump((head, sizes, self._written(parts)), self._outgoing, 5)
        else:
            pickle.dump((head, sizes, [bytearray(part) for part in parts]), self._outgoing, 5)
        self._outgoing.flush()

    def receive(self) -> Any:
        """Wait for an object.

        Raises:
            EOFError: the other side has ended.
        """
        head, sizes, parts = pickle.load(self.incoming)
        return pickle.loads(
            head, buffers=_mapped(parts, sizes) if isinstance(parts, str) else parts
        )

    def close(self) -> None:
        """Stop sending.

        Raises:
            OSError: nobody receives what was sent last.
        """
        self._outgoing.close()

    def _written(self, parts: Sequence[memoryview]) -> str:
        handle, name = mkstemp(dir=self.folder)
        with open(handle, "wb") as file:
            for part in parts:
                file.write(part)
                file.write(bytes(-part.nbytes % _ALIGNMENT))
        return name


def _mapped(name: str, sizes: Sequence[int]) -> list[memoryview]:
    """Return the parts of a file, writable in memory alone; the file goes with them."""
    with open(name, "rb") as file:
        whole = memoryview(mmap(file.fileno(), 0, access=ACCESS_COPY))
    with suppress(OSError):  # Windows keeps what is mapped; the folder goes later
        os.unlink(name)
    parts: list[memoryview] = []
    start = 0
    for size in sizes:
        parts.append(whole[start : start + size])
        start += size + -size % _ALIGNMENT
    return parts


def serve(channel: Channel) -> NoReturn:
    """Answer requests until the other side ends.

    A request is a number of a session and what is asked of it: ``open``, ``run``, ``repeat`` or
    ``close``, with arguments whose types tercet does not define. To open one comes with the current
    folder and the environment of the other side. The answer is a result and the seconds that it
    took, or the text of an exception. The other side may end while onnxruntime never does, so
    another thread listens, and removes the folder, which may be in memory.
    """
    requests: SimpleQueue[Any] = SimpleQueue()

    def listen() -> NoReturn:
        code = 0
        try:
            while True:
                requests.put(channel.receive())
        except (EOFError, OSError):
            rmtree(channel.folder, ignore_errors=True)
        except Exception:  # an unreadable request: the caller is told
            print_exc()
            code = 1
        os._exit(code)

    Thread(target=listen, daemon=True).start()
    with suppress(ImportError):
        import_module("onnxruntime")
    with suppress(OSError):  # Windows keeps what is a current folder
        os.chdir(channel.folder)
    sessions: dict[int, Session] = {}
    while True:
        number, what, *given = requests.get()
        start = perf_counter()
        try:
            result = _answer(sessions, number, what, given)
            channel.send((True, result, perf_counter() - start))
        except Exception as error:  # whatever onnxruntime raises is the answer
            channel.send((False, str(error), 0.0))


def _answer(sessions: dict[int, Session], number: int, what: str, given: Sequence[Any]) -> Any:
    if what == "open":
        model, setup, folder, environment = given
        os.environ.clear()
        os.environ.update(environment)
        with chdir(folder):
            session = sessions[number] = Session(model, Setup(**setup))
        return session.outputs, session.providers
    if what == "close":
        sessions.pop(number, None)
        return None
    return getattr(sessions[number], what)(*given)


def main() -> NoReturn:
    """Serve the process that started this program, through its standard input and output."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print there
    serve(Channel(sys.stdin.buffer, answers, sys.argv[1]))


if __name__ == "__main__":
    main()
