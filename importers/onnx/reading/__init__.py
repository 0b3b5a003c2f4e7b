"""Files → graphs."""
