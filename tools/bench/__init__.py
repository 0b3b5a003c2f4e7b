"""`tercet bench`."""
