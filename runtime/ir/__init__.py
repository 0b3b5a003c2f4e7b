"""The graph: values, nodes, operators, types, and type inference."""
