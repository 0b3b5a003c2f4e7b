"""The style sheet of reports, for light and dark."""

from __future__ import annotations

import re
from collections.abc import Mapping

LIGHT = {
    **{"page": "#ffffff", "surface": "#f5f6f8", "line": "#d9dde3", "text": "#1c2127"},
    **{"soft": "#5b6673", "c0": "#2f6fce", "c1": "#d07a1f", "c2": "#2f8f57", "c3": "#ab3f7c"},
    **{"c4": "#7257c4", "c5": "#1f8a99", "rest": "#98a2ae", "hot": "#c2331f"},
    **{"good": "#23804a", "bad": "#b3261e"},
}
DARK = {
    **{"page": "#14171b", "surface": "#1d2228", "line": "#363d46", "text": "#e5e9ee"},
    **{"soft": "#9aa5b1", "c0": "#6ea3f2", "c1": "#eaa353", "c2": "#62c08a", "c3": "#dd7db0"},
    **{"c4": "#a991ee", "c5": "#59bfce", "rest": "#6c7682", "hot": "#f0664f"},
    **{"good": "#62c08a", "bad": "#ff8a7d"},
}
#: Rules of drawings.
_DRAWN = """
svg { display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
svg text.soft { fill: var(--soft); } svg text.small { font-size: 11px; }
.edge { stroke: var(--soft); stroke-width: 1.2; fill: none; }
.node { stroke: var(--soft); stroke-width: 1; }
.ends { fill: var(--page); stroke: var(--c0); stroke-width: 1.2; }
"""
_HEAT = ".heat { fill: color-mix(in srgb, var(--hot) var(--heat), var(--page)); }"
_PAGE = """
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px 20px 64px; max-width: 1080px; background: var(--page);
  color: var(--text); font: 14px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif;
}
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 40px 0 8px; border-bottom: 1px solid var(--line); }
h3 { font-size: 15px; margin: 24px 0 6px; }
p { margin: 4px 0 8px; max-width: 76ch; }
nav a { color: var(--c0); margin-right: 14px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-line; }
.scroll { overflow: auto; max-height: 640px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 4px 0; }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; position: sticky; top: 0; background: var(--page); }
.text { text-align: left; overflow-wrap: break-word; }
.number { text-align: right; white-space: nowrap; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 600; }
.unsure { color: var(--c1); font-weight: 600; }
figure { margin: 16px 0; padding: 12px 14px; background: var(--surface); border-radius: 8px; }
figcaption { color: var(--soft); margin-bottom: 8px; } figcaption strong { color: var(--text); }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.whisker { stroke: var(--text); stroke-width: 1.5; fill: none; }
.roof { stroke: var(--text); stroke-width: 2; fill: none; }
.area { fill: var(--c0); fill-opacity: 0.25; stroke: var(--c0); stroke-width: 1.5; }
.dot { fill-opacity: 0.6; stroke: var(--surface); stroke-width: 1; }
.ring { fill-opacity: 0; stroke: var(--soft); stroke-width: 1.5; }
.block { fill-opacity: 0.55; stroke: var(--surface); stroke-width: 0.7; }
.part { stroke: var(--surface); stroke-width: 0.7; }
.wrong { stroke: var(--text); stroke-width: 1.5; }
.k0 { fill: var(--c0); } .k1 { fill: var(--c1); } .k2 { fill: var(--c2); } .k3 { fill: var(--c3); }
.k4 { fill: var(--c4); } .k5 { fill: var(--c5); } .rest { fill: var(--rest); }
"""


def _root(palette: Mapping[str, str]) -> str:
    colours = " ".join(f"--{name}: {colour};" for name, colour in palette.items())
    return f":root {{ {colours} }}"


def _dark(rules: str) -> str:
    return f"@media (prefers-color-scheme: dark) {{ {rules} }}"


def _literal(rules: str, palette: Mapping[str, str]) -> str:
    """Return rules with the colours of a palette in place of its variables."""
    return re.sub(r"var\(--(\w+)\)", lambda found: palette.get(found[1], found[0]), rules)


def mixed(share: float) -> str:
    """Return a colour between that of the light page, at 0, and the hottest, at 1."""
    ends = ([int(LIGHT[name][i : i + 2], 16) for i in (1, 3, 5)] for name in ("page", "hot"))
    parts = (round(cold + share * (hot - cold)) for cold, hot in zip(*ends, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


#: Of pages.
STYLE = f"{_root(LIGHT)}\n{_dark(_root(DARK))}{_PAGE}{_DRAWN}{_HEAT}\n"
_IN_THE_DARK = f"svg {{ background: var(--page); }}{_DRAWN}{_HEAT}"
#: Of a drawing in a file of its own; programs that know neither variables nor media show the first.
DRAWING = f"{_literal(_DRAWN, LIGHT)}{_dark(_literal(_IN_THE_DARK, DARK))}"
