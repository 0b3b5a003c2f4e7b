"""The style sheet of reports, for light and dark."""

STYLE = """
:root {
  --page: #ffffff; --surface: #f5f6f8; --line: #d9dde3; --text: #1c2127; --soft: #5b6673;
  --c0: #2f6fce; --c1: #d07a1f; --c2: #2f8f57; --c3: #ab3f7c; --c4: #7257c4; --c5: #1f8a99;
  --rest: #98a2ae; --hot: #c2331f; --good: #23804a; --bad: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --surface: #1d2228; --line: #363d46; --text: #e5e9ee; --soft: #9aa5b1;
    --c0: #6ea3f2; --c1: #eaa353; --c2: #62c08a; --c3: #dd7db0; --c4: #a991ee; --c5: #59bfce;
    --rest: #6c7682; --hot: #f0664f; --good: #62c08a; --bad: #ff8a7d;
  }
}
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
svg { display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--text); }
svg text.soft { fill: var(--soft); } svg text.small { font-size: 11px; }
.grid { stroke: var(--line); stroke-width: 1; fill: none; }
.whisker { stroke: var(--text); stroke-width: 1.5; fill: none; }
.roof { stroke: var(--text); stroke-width: 2; fill: none; }
.edge { stroke: var(--soft); stroke-width: 1.2; fill: none; }
.area { fill: var(--c0); fill-opacity: 0.25; stroke: var(--c0); stroke-width: 1.5; }
.dot { fill-opacity: 0.6; stroke: var(--surface); stroke-width: 1; }
.ring { fill-opacity: 0; stroke: var(--soft); stroke-width: 1.5; }
.block { fill-opacity: 0.55; stroke: var(--surface); stroke-width: 0.7; }
.part { stroke: var(--surface); stroke-width: 0.7; }
.node { stroke: var(--soft); stroke-width: 1; }
.ends { fill: var(--page); stroke: var(--c0); stroke-width: 1.2; }
.heat { fill: color-mix(in srgb, var(--hot) var(--heat), var(--page)); }
.wrong { stroke: var(--text); stroke-width: 1.5; }
.k0 { fill: var(--c0); } .k1 { fill: var(--c1); } .k2 { fill: var(--c2); } .k3 { fill: var(--c3); }
.k4 { fill: var(--c4); } .k5 { fill: var(--c5); } .rest { fill: var(--rest); }
"""
