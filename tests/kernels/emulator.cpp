// What runs the kernels that emulator.hpp makes host functions of: blocks, fibers, meetings.

#include "emulator.hpp"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim, clusterDim;
unsigned current;
unsigned long long exchanged[1024];
Meeting meetings[1 + 32], named[16], groups[1024];

// A stack, made for the first block that needs it. A switch is a jump, as `swapcontext` asks the
// system for the signal mask each time.
struct Fiber {
    std::vector<char> stack;
    jmp_buf here;
};

static std::vector<Fiber> fibers;
static jmp_buf scheduler;
// Which threads of the block have ended, and how many.
static bool done[1024];
static unsigned ended;

// Returns how many threads from `first` to `last` have not ended.
static unsigned alive(unsigned first, unsigned last)
{
    unsigned count = std::min(last, blockDim.x) - first;
    if (ended)
        for (unsigned t = first; t < last && t < blockDim.x; ++t) count -= done[t];
    return count;
}

void give_way()
{
    if (!_setjmp(fibers[current].here)) _longjmp(scheduler, 1);
}

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

// Runs one block after the other.
static void enter()
{
    for (;;) {
        body(body_arguments);
        done[current] = true;
        ++ended;
        give_way();
    }
}

// Runs a thread until it gives way.
static void resume(Fiber& fiber)
{
    if (_setjmp(scheduler)) return;
    if (!fiber.stack.empty()) _longjmp(fiber.here, 1);
    fiber.stack.resize(256 << 10);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = {fiber.stack.data(), 0, fiber.stack.size()};
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    setcontext(&context);
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
    memset(named, 0, sizeof(named));
    memset(groups, 0, sizeof(groups));
    memset(done, 0, sizeof(done));
    for (ended = 0; ended < threads;)
        for (unsigned t = 0; t < threads; ++t)
            if (!done[t]) {
                place(t);
                resume(fibers[t]);
            }
}

static jmp_buf outside;
static void* fault;

// Leaves the kernel, whose threads are lost.
static void leave(int, siginfo_t* about, void*)
{
    fault = about->si_addr ? about->si_addr : (void*)1;
    _longjmp(outside, 1);
}

static void run_blocks(unsigned threads, bool barriers)
{
    blockDim = {threads, 1, 1};
    for (unsigned z = 0; z < gridDim.z; ++z)
        for (unsigned y = 0; y < gridDim.y; ++y)
            for (unsigned x = 0; x < gridDim.x; ++x) {
                blockIdx = {x, y, z};
                run_block(barriers);
            }
}

void* run_grid(void (*kernel)(void**), void** arguments, const unsigned* grid, unsigned threads,
               bool barriers)
{
    body = kernel;
    body_arguments = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    clusterDim = {grid[3], grid[4], grid[5]};
    fault = nullptr;
    struct sigaction handler = {}, before;
    handler.sa_sigaction = leave;
    handler.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &handler, &before);
    if (!_setjmp(outside)) run_blocks(threads, barriers);
    else fibers.clear();
    sigaction(SIGSEGV, &before, nullptr);
    return fault;
}
