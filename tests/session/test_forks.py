"""Processes that are forked while other threads plan and run, as servers and data loaders do."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import tercet

from ..packages import needs_fork

pytestmark = needs_fork

#: Seconds after which a child that hangs is given up: far more than it takes.
PATIENCE = 120


def test_locks_are_open_in_the_child() -> None:
    """Whatever another thread holds at that time, and whatever it has of a model."""
    source = """
import os, sys, threading
import numpy as np
import onnx.parser
import tercet
from tercet.runtime.base import forks

model = tercet.load(onnx.parser.parse_model('''
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n, 16] x) => (float[n, 16] y) { y = MatMul(x, x) }
'''))
x = np.eye(16, dtype=np.float32)
model(x)
held, left = list(forks._locks), threading.Event()
ready = threading.Event()

def hold():
    for lock in held:
        lock.acquire()
    model._programs.pool._entries.popitem()  # a program that this thread has
    ready.set()
    left.wait()

thread = threading.Thread(target=hold, daemon=True)
thread.start()
ready.wait()
child = os.fork()
if child == 0:
    same = np.array_equal(model(x)[0], x)
    model.close()
    os._exit(0 if same and len(held) > 5 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), forks.generation())
left.set()
"""
    assert run(source) == "0 0\n"


def test_forks_while_threads_plan_and_run() -> None:
    source = """
import os, threading
import numpy as np
import onnx.helper, onnx.numpy_helper, onnx.parser
import tercet

proto = onnx.parser.parse_model('''
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n, 8, a, a] x) => (float[n, m] y) {
        c = Conv<pads = [1, 1, 1, 1]>(x, w)
        r = Relu(c)
        p = GlobalAveragePool(r)
        y = Flatten(p)
    }
''')
random = np.random.default_rng(0)
weights = random.standard_normal((64, 8, 3, 3)).astype(np.float32)
proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
model = tercet.load(proto, max_plans=4)
feeds = [random.standard_normal((1, 8, 20 + n, 20 + n)).astype(np.float32) for n in range(12)]
wants = [model(x)[0] for x in feeds]
stopped = threading.Event()

def work(first):
    number = first
    while not stopped.is_set():
        model(feeds[number % len(feeds)])
        number += 5

threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(3)]
for thread in threads:
    thread.start()
codes = set()
for number in range(25):
    child = os.fork()
    if child == 0:
        pairs = [(number + i) % len(feeds) for i in range(2)]
        same = all(np.array_equal(model(feeds[i])[0], wants[i]) for i in pairs)
        os._exit(0 if same else 1)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stopped.set()
for thread in threads:
    thread.join()
print(codes)
"""
    assert run(source) == "{0}\n"


def test_objects_that_are_equal_are_each_told_of_the_fork() -> None:
    """And none that is gone."""
    source = """
import os
from tercet.runtime.base import forks

class Equal:
    told = 0
    def __init__(self):
        forks.forget_in_child(self.forget)
    def forget(self):
        Equal.told += 1
    def __eq__(self, other):
        return isinstance(other, Equal)
    def __hash__(self):
        return 1

kept = [Equal() for _ in range(3)]
del kept[1]
child = os.fork()
if child == 0:
    os._exit(Equal.told)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(source) == "2\n"


def run(source: str) -> str:
    root = Path(tercet.__file__).parent.parent
    environment = {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "2"}
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert child.stderr == ""
    return child.stdout


def test_every_lock_is_opened_in_the_child() -> None:
    """Only `runtime.base.forks` makes locks; those of one step do not outlive its process."""
    root, locks = Path(tercet.__file__).parent.parent, re.compile(r"\b(R?Lock|Condition)\b")
    rooms = ("runtime", "backends", "importers", "tercet", "tools")
    texts = {file: file.read_text() for room in rooms for file in (root / room).rglob("*.py")}
    found = {
        str(file.relative_to(root))
        for file, text in texts.items()
        if locks.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and locks.fullmatch(ast.unparse(node.func).split(".")[-1])
    }
    assert found == {"runtime/base/forks.py", "backends/numpy/engine/thread_pool.py"}
