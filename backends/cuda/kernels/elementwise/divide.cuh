// Division by numbers known on the host, as one multiplication.

struct Divisor {  // n / d is n * factor >> shift, for n below 2^31
    u32 factor;
    int shift;
};

__device__ __forceinline__ int divide(int n, const Divisor& d)
{
    return (int)((uint64)(u32)n * d.factor >> d.shift);
}
