"""No system but POSIX has some parts of Python; tercet loads, runs and compares without them."""

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import parser

#: What Windows and macOS lack, or Windows alone.
SETUP = """
import builtins, mmap, os, signal, sys
from pathlib import Path

WANTED = {os: (
    "O_CLOEXEC O_NONBLOCK O_NOFOLLOW O_DIRECTORY O_SYNC O_NOCTTY pread pwrite preadv fork forkpty "
    "register_at_fork sched_getaffinity sched_setaffinity sysconf getuid geteuid getgid fchmod "
    "fchown chown mkfifo getloadavg killpg setsid wait3 wait4 memfd_create posix_fadvise "
    "posix_fallocate sendfile statvfs fstatvfs"
), signal: "SIGALRM SIGKILL SIGPIPE SIGUSR1 SIGUSR2 SIGHUP setitimer getitimer alarm pause",
   mmap: "PROT_READ PROT_WRITE MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS"}
# What follows is the business of Python itself, and of other packages.
import subprocess, tempfile, multiprocessing, concurrent.futures, shutil, socket, zipfile
import asyncio, ctypes.util, platform, uuid, threading, traceback
import onnx, numpy, ml_dtypes, rich.console, typer, onnxruntime
platform.uname(); platform.processor()
numpy.dot(numpy.ones((4, 4)), numpy.ones((4, 4)))
os.process_cpu_count = os.cpu_count  # where there is no sched_getaffinity, Python 3.13 has it so
for module, names in WANTED.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks = set(), set(), set()

real = builtins.__import__
gone = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog"}
for name in gone:
    sys.modules.pop(name, None)
def without(name, *args, **kwargs):
    if name.split(".")[0] in gone:
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)
    return real(name, *args, **kwargs)
builtins.__import__ = without

real_open = os.open
def open_plain(path, flags, mode=0o777, *, dir_fd=None):
    assert dir_fd is None, "no open relative to a folder"
    assert not os.path.isdir(path), "no descriptors of folders"
    return real_open(path, flags, mode)
os.open = open_plain
real_exists = Path.exists
Path.exists = lambda self, **how: not str(self).startswith("/proc") and real_exists(self, **how)
"""

USES = {
    "load and run": "print(tercet.load('m.onnx').run({'x': x})['y'].sum())",
    "external data": "print(tercet.load('e.onnx')(x)[0].sum())",
    "compare": "assert tercet.compare('m.onnx', ['numpy', 'onnxruntime'], {'x': x}, repeat=1).ok",
    "inspect": "print(tercet.inspect('m.onnx', placement='numpy', memory=True, passes=True))",
    "export": "tercet.export('m.onnx', 'o.onnx'); tercet.simplify('m.onnx', 's.onnx')",
    "profile": "print(tercet.profile('m.onnx', repeat=2))",
    "bench": "print(tercet.bench('m.onnx', ['numpy'], duration=0.01))",
    "diagnose": "print(tercet.diagnose())",
    "available": "print(tercet.available())",
    "command line": "from tercet.tools.cli import main; main(['run', 'm.onnx', '--timeout', '60'])",
}


RUN = """
import numpy as np
import tercet
x = np.ones((3, 2), np.float32)
for name, code in USES.items():
    try:
        exec(code)
    except SystemExit as ended:
        print(f"== {name}: {'' if ended.code == 0 else ended.code}")
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(f"== {name}: {type(error).__name__}: {error}; {where}")
    else:
        print(f"== {name}: ")
"""


@pytest.fixture(scope="module")
def troubles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What became of every use, in one process; empty for those that went well."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 2] x) => (float[n, 2] y) <float[2, 2] w = {1, 2, 3, 4}>
        { h = MatMul (x, w)  y = Relu (h) }"""
    )
    folder = tmp_path_factory.mktemp("portable")
    onnx.save(model, folder / "m.onnx")
    onnx.save(model, folder / "e.onnx", save_as_external_data=True, size_threshold=0)
    done = subprocess.run(
        [sys.executable, "-c", f"{SETUP}\nUSES = {USES!r}\n{RUN}"],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")]
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("use", USES)
def test_without_what_windows_lacks(troubles: dict[str, str], use: str) -> None:
    assert troubles[use] == ""
