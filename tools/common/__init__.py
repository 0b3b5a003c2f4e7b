"""What all commands share: inputs, consoles, clocks, limits."""
