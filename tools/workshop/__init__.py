"""Tools for developers, run from a checkout: peers, sweeps, studies, sanitizer, fuzzing."""
