"""The script of the process that renders chat templates, within limits that the system enforces.

It imports nothing of tercet. Arguments: folders to import jinja2 from, joined as in PATH; bytes of
memory; seconds of processor time per template; characters of a text. A question is ``{"template",
"values"}``, and an answer ``{"text"}``, ``{"error"}``, or ``{"limit"}``: the one that was reached.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides when it ends
    sys.path += sys.argv[1].split(os.pathsep)

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

try:
    import resource
except ImportError:  # not on Windows
    resource = None


class MarkedAnswers(Extension):
    """``{% generation %}``, which marks the model's answers for training: a block of its own."""

    tags = {"generation"}  # noqa: RUF012 - as declared by the base class

    def parse(self, parser: Any) -> Any:
        """Return the node of a block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_block")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _block(self, caller: Any) -> str:
        return caller()


class TooLong(Exception):
    """A text with more characters than allowed."""


def as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize as templates expect: JSON without HTML escapes."""
    how: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def raise_exception(text: str) -> NoReturn:
    """What templates call to reject a conversation."""
    raise jinja2.TemplateError(text)


def strftime_now(form: str) -> str:
    """The current date, which some templates include."""
    return datetime.now().strftime(form)


@lru_cache(maxsize=1)
def compiled(template: str) -> jinja2.Template:
    """Return a template with the functions that transformers gives to it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[MarkedAnswers, loopcontrols]
    )
    environment.filters["tojson"] = as_json
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment.from_string(template)


def pieces(template: str, values: dict[str, Any], most: int) -> Iterator[str]:
    """Yield the parts of the text; raises TooLong."""
    for piece in compiled(template).generate(values):
        most -= len(piece)
        if most < 0:
            raise TooLong
        yield piece


def answer(line: bytes, most: int) -> bytes:
    """Return the answer to a question, both as lines."""
    try:
        question = json.loads(line)
        found = {"text": "".join(pieces(question["template"], question["values"], most))}
        return json.dumps(found).encode()
    except MemoryError:
        return b'{"limit": "memory"}'
    except RecursionError:
        return b'{"limit": "depth"}'
    except TooLong:
        return b'{"limit": "length"}'
    except Exception as error:  # whatever a template raises is the answer
        text = str(error)[:1000] or type(error).__name__
        return json.dumps({"error": text}).encode()


def limit(kind: str, most: int) -> None:
    """Set a limit of the system, where there is this kind."""
    number = getattr(resource, kind, None)
    if resource is not None and number is not None:
        _, hard = resource.getrlimit(number)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(number, (most, hard))
        except (OSError, ValueError):  # macOS has a constant for memory, and no limit
            return


def main(folders: str, memory: str, seconds: str, characters: str) -> None:
    """Answer questions from standard input until it is closed."""
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_AS", int(memory))
    reply = b"{}"
    while True:
        sys.stdout.buffer.write(reply + b"\n")
        sys.stdout.buffer.flush()
        line = sys.stdin.buffer.readline()
        if not line:
            return
        if resource is not None:  # for a template that the caller no longer waits for
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit("RLIMIT_CPU", int(used.ru_utime + used.ru_stime) + 1 + int(seconds))
        reply = answer(line, int(characters))


if __name__ == "__main__":
    main(*sys.argv[1:])
