"""`tercet bisect`: the rewrite, the node or the precision that makes a result wrong."""
