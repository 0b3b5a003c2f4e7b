"""Help texts: options under the titles of their groups, and examples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

#: Title of options without a group, and of those that every command has.
OWN, GENERAL = "Options", "General"
#: Titles of groups.
BACKEND, INPUTS, MODEL_FILE = "Backend", "Inputs", "Model file"
MEASUREMENT, WRITTEN_FILE = "Measurement", "Written file"
#: The groups that come last, in this order; others are in the order of a command's parameters.
LAST = MODEL_FILE, WRITTEN_FILE, GENERAL
_EXAMPLES = re.compile(r"\n *Examples:\n(?P<lines>.*)", re.DOTALL)


def split_examples(text: str) -> tuple[str, str]:
    """Return a docstring without its examples, and the examples, one per line."""
    found = _EXAMPLES.search(text)
    if found is None:
        return text.strip(), ""
    lines = (line.strip() for line in found["lines"].splitlines())
    return text[: found.start()].strip(), "\n".join(line for line in lines if line)


class SectionedCommand(TyperCommand):
    """A command whose help has one section per group of options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["help"], kwargs["epilog"] = split_examples(kwargs.get("help") or "")
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; errors say which command they are of, which some of the parser do not.

        Raises:
            UsageError: an option is unknown, or has the wrong number of values (click's).
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            failed: Any = error
            if getattr(failed, "ctx", ctx) is None:
                failed.ctx = ctx
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return ``[OPTIONS] MODEL OUT``."""
        arguments = (each for each in self.params if each.param_type_name == "argument")
        return [str(self.options_metavar), *(str(each.metavar) for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own options, and those of each group."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], OWN: []}
        last: dict[str, list[tuple[str, str]]] = {title: [] for title in LAST}
        for each in self.get_params(ctx):
            record, title = each.get_help_record(ctx), _title(each)
            if record is None:
                continue
            name, text = record
            if each.param_type_name == "argument":
                name, text, title = str(each.metavar), getattr(each, "help", ""), "Arguments"
            text = text.replace("\\[", "[")  # which old versions of typer escape for rich
            (last if title in last else sections).setdefault(title, []).append((name, text))
        _write(formatter, [*sections.items(), *last.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one per line."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class SectionedGroup(TyperGroup):
    """Commands, listed under the titles of their panels in the order of registration."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per title."""
        width = max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            record = f"{name:{width}}", command.short_help or ""
            sections.setdefault(_title(command), []).append(record)
        _write(formatter, sections.items())


def _title(item: Any) -> str:
    title = getattr(item, "rich_help_panel", None)
    is_help = getattr(item, "name", "") == "help"
    return GENERAL if is_help else title if isinstance(title, str) else OWN


def _write(formatter: Any, sections: Iterable[tuple[str, list[tuple[str, str]]]]) -> None:
    """Write the sections that are not empty."""
    for title, records in sections:
        if records:
            with formatter.section(title):
                formatter.write_dl(records)
