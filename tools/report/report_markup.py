"""Pieces of HTML and SVG; escaping of texts and attributes happens only here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

#: Tags without content.
_EMPTY = {"meta", "line", "rect", "circle", "path", "polyline"}


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


#: Where a name may be broken: after a slash, and after a dot in front of a letter.
_BREAKS = re.compile(r"/|\.(?=[A-Za-z_])")

#: Text, or a number; None for nothing.
Part: TypeAlias = str | float | None
#: Markup, text and numbers, in nested lists.
Content: TypeAlias = "Part | Iterable[Content]"


def element(name: str, /, *content: Content, **attributes: Part) -> Markup:
    """Return an element.

    Args:
        name: its tag.
        *content: markup unchanged, everything else escaped.
        **attributes: underscores become hyphens, and a trailing one is dropped, so that ``class_``
            is ``class``; None omits the attribute.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(_flat(content))
    if not inner and name in _EMPTY:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{inner}</{name}>")


def _flat(content: Iterable[Content]) -> Iterable[str]:
    for part in content:
        if part is None:
            continue
        if isinstance(part, str | float | int):
            yield part if isinstance(part, Markup) else escape(_text(part))
        else:
            yield from _flat(part)


def _text(value: Part) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)


def table(titles: Sequence[str], rows: Iterable[Sequence[Part]], left: int = 1) -> Markup:
    """Return a table that scrolls independently; the first `left` columns are text.

    Without rows there is none.
    """
    kinds = ["text" if i < left else "number" for i in range(len(titles))]
    head = [element("th", title, class_=kind) for title, kind in zip(titles, kinds, strict=True)]
    body = [
        element(
            "tr",
            [element("td", _breakable(x), class_=k) for x, k in zip(row, kinds, strict=True)],
        )
        for row in rows
    ]
    if not body:
        return Markup("")
    whole = element("table", element("thead", element("tr", head)), element("tbody", body))
    return element("div", whole, class_="scroll")


def _breakable(cell: Part) -> Part:
    """Return a cell whose long names are broken between their parts, and not within words."""
    if not isinstance(cell, str) or isinstance(cell, Markup):
        return cell
    return Markup(_BREAKS.sub(r"\g<0><wbr>", escape(cell)))


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return names with descriptions."""
    parts = [(element("dt", name), element("dd", text)) for name, text in pairs if text]
    return element("dl", [part for pair in parts for part in pair])


def figure(kind: str, caption: str, image: Markup, note: str = "") -> Markup:
    """Return an image with a caption.

    Args:
        kind: the kind of chart, for style sheets and tests.
        caption: its title.
        image: an SVG element.
        note: how to read it.
    """
    said = element("figcaption", element("strong", caption), " " if note else "", note)
    return element("figure", said, element("div", image, class_="scroll"), data_kind=kind)


def svg(width: float, height: float, label: str, *content: Content) -> Markup:
    """Return an image of this size in pixels, which scrolls on a narrow page."""
    return element(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {_text(float(width))} {_text(float(height))}",
        role="img",
        aria_label=label,
    )


def page(title: str, style: str, *content: Content) -> str:
    """Return a complete document without external resources or scripts."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *content), lang='en')}\n"
