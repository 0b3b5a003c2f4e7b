"""From a graph with integer shapes to rows in memory: the backend interface, claims, plans."""
