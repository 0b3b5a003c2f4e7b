"""`tercet generate`: text generation."""
