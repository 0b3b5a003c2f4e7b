"""`tercet demo`."""
