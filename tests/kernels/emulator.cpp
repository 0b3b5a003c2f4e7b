// What runs the kernels that emulator.hpp makes host functions of: blocks, fibers, meetings.

#include "emulator.hpp"

#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;
unsigned current;
unsigned long long exchanged[1024];
Meeting meetings[1 + 32];

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;

// Returns how many threads from `first` to `last` have not ended.
static unsigned alive(unsigned first, unsigned last)
{
    unsigned count = 0;
    for (unsigned t = first; t < last && t < blockDim.x; ++t) count += !fibers[t].done;
    return count;
}

void give_way() { swapcontext(&fibers[current].context, &scheduler); }

void meet(Meeting& at, unsigned first, unsigned last)
{
    const unsigned number = at.number;
    ++at.waiting;
    while (at.number == number) {
        if (at.waiting >= alive(first, last)) {
            at.waiting = 0;
            ++at.number;
            break;
        }
        give_way();
    }
}

static void (*body)(void**);
static void** body_arguments;

static void enter()
{
    body(body_arguments);
    fibers[current].done = true;
    give_way();
}

static void place(unsigned thread) { threadIdx.x = current = thread; }

static void run_block(bool barriers)
{
    const unsigned threads = blockDim.x;
    if (!barriers) {
        for (unsigned t = 0; t < threads; ++t) place(t), body(body_arguments);
        return;
    }
    if (fibers.size() < threads) fibers.resize(threads);
    memset(meetings, 0, sizeof(meetings));
    for (unsigned t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[t];
        fiber.stack.resize(256 << 10);
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
    }
    for (bool alive = true; alive;) {
        alive = false;
        for (unsigned t = 0; t < threads; ++t)
            if (!fibers[t].done) {
                place(t);
                swapcontext(&scheduler, &fibers[t].context);
                alive = true;
            }
    }
}

void run_grid(void (*kernel)(void**), void** arguments, const unsigned* grid,
              unsigned threads, bool barriers)
{
    body = kernel;
    body_arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                run_block(barriers);
            }
}
