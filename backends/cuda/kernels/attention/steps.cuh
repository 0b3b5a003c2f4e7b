// Where an operand lies that has batch entries, heads and positions.

struct Steps {  // distances, in elements
    long long batch, head, row;
};
