"""From a graph with integer shapes to bound rows: the backend interface, claims, plans."""
