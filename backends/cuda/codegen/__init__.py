"""Generated code: elementwise chains, epilogues, rounding."""
