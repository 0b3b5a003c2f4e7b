"""`tercet doctor`."""
