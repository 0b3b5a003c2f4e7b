"""`tercet tune`, and the algorithms that `tercet inspect` lists."""
