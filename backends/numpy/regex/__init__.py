"""RE2 regular expressions, matched in linear time."""
