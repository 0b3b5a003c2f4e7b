"""`tercet tune`, `tercet compile`, and the algorithms that `tercet inspect` lists."""
