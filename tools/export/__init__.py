"""`tercet export`, `simplify` and `extract`."""
