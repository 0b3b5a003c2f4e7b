"""`tercet bisect`: finds the rewrite, node or precision that makes a result wrong."""
