"""A loaded model: its inputs and outputs, and the programs cached for it."""
