// The strides of an operand with batch entries, heads and positions.

struct Steps {  // distances, in elements
    long long batch, head, row;
};
