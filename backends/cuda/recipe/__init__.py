"""Launches as plain data: what is compiled, with what it is called, on how many threads."""
