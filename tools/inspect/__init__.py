"""`tercet inspect`."""
