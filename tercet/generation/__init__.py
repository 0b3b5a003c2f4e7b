"""Text generation: model folders, tokenizers, sampling, and the `Generator` that combines them."""
