"""`tercet run`."""
