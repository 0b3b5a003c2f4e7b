"""Text from decoders: folders as exporters write them, tokens, sampling, and `Generator`."""
