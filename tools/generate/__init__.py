"""`tercet generate`: text from a folder with a decoder."""
