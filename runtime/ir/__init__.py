"""The graph: values, nodes, operators, types, and their inference."""
