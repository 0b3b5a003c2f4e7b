"""Passes that move views, transposes and pads to where they merge or vanish."""
