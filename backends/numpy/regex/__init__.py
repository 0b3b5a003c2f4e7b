"""RE2's regular expressions, matched in linear time."""
