// What runs the kernels that emulator.hpp makes host functions of: blocks, fibers, meetings.

#include "emulator.hpp"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <map>
#include <memory>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim, clusterDim;
unsigned current;
unsigned long long exchanged[2][1024];
Meeting meetings[1 + 32], named[16], groups[1024];

// Bytes of a stack. Those of up to `APART` threads begin at different places in the processor's caches,
// as all threads use the same part of theirs.
constexpr size_t STACK = 256 << 10, SHIFT = 320, APART = 128;

// Where a function goes on, for the compiler's own jumps, which save no registers but these.
using Jump = void*[5];

// A stack, made for the first block that needs it. A switch is a jump, as `swapcontext` asks the
// system for the signal mask each time.
struct Fiber {
    std::unique_ptr<char[]> stack;
    Jump here;
    // The meeting that it waits for, of the threads from `first` to `last`; null if it can go on.
    const Meeting* at = nullptr;
    unsigned number, first, last;
};

static std::vector<Fiber> fibers;
static Jump scheduler;
// Which threads of the block have ended, and how many.
static bool done[1024];
static unsigned ended;
static unsigned upcoming;  // where the scheduler goes on

// Returns how many threads from `first` to `last` have not ended.
static unsigned alive(unsigned first, unsigned last)
{
    if (first == 0 && last >= blockDim.x) return blockDim.x - ended;
    unsigned count = std::min(last, blockDim.x) - first;
    if (ended)
        for (unsigned t = first; t < last && t < blockDim.x; ++t) count -= done[t];
    return count;
}

// Whether a thread would only give way again.
static bool still_waits(const Fiber& fiber)
{
    return fiber.at && fiber.at->number == fiber.number && fiber.at->waiting < alive(fiber.first, fiber.last);
}

// Returns the first thread from this one on that can go on; the number of threads if there is none.
static unsigned able_from(unsigned thread)
{
    while (thread < blockDim.x && (done[thread] || still_waits(fibers[thread]))) ++thread;
    return thread;
}

static void place(unsigned thread) { threadIdx.x = current = thread; }

// No function may have both ends of a jump.
__attribute__((noinline, noreturn)) static void go_to(Jump& there) { __builtin_longjmp(there, 1); }

// Goes on with the next thread of this round; with the scheduler if that has to begin, or there is none.
__attribute__((noinline, noreturn)) static void go_on()
{
    upcoming = able_from(current + 1);
    if (upcoming == blockDim.x || !fibers[upcoming].stack) go_to(scheduler);
    place(upcoming);
    go_to(fibers[upcoming].here);
}

__attribute__((noinline)) void give_way()
{
    if (!__builtin_setjmp(fibers[current].here)) go_on();
}

void meet(Meeting& at, unsigned first, unsigned last)
{
    const unsigned number = at.number;
    if (++at.waiting < alive(first, last)) {
        Fiber& own = fibers[current];
        own.at = &at, own.number = number, own.first = first, own.last = last;
        give_way();
        fibers[current].at = nullptr;
    }
    if (at.number != number) return;
    at.waiting = 0;
    ++at.number;
}

// ── clusters ──────────────────────────────────────────────────────────────────────────────────

static std::vector<std::vector<char>> left;
// What was written to each block: by the number of waits before it, and by place in its memory.
static std::vector<std::map<std::pair<unsigned, size_t>, float>> sent;
// How often the block that runs has waited for its cluster, and the most that any has.
static unsigned waits, most_waits;
static bool has_received;

// For emulator.py, which lets the grid run again.
extern "C" unsigned cluster_waits() { return most_waits; }
extern "C" void forget_clusters()
{
    left.clear();
    sent.clear();
    most_waits = 0;
}

static size_t place_in_grid(unsigned x, unsigned y, unsigned z)
{
    return ((size_t)z * gridDim.y + y) * gridDim.x + x;
}

static size_t own_place_in_grid() { return place_in_grid(blockIdx.x, blockIdx.y, blockIdx.z); }

// The place of a block of the cluster that runs.
static size_t place_in_grid(unsigned block)
{
    const dim3 c = clusterDim;
    return place_in_grid(blockIdx.x / c.x * c.x + block % c.x, blockIdx.y / c.y * c.y + block / c.x % c.y,
                         blockIdx.z / c.z * c.z + block / (c.x * c.y));
}

static size_t blocks_in_grid() { return (size_t)gridDim.x * gridDim.y * gridDim.z; }

void leave_behind(const char* shared)
{
    left.resize(blocks_in_grid());
    left[own_place_in_grid()].assign(shared, shared + DYNAMIC_SHARED);
}

const char* left_behind(unsigned block)
{
    const std::vector<char>& there = left[place_in_grid(block)];
    return there.empty() ? nullptr : there.data();
}

void send(unsigned block, size_t place, float x)
{
    sent.resize(blocks_in_grid());
    sent[place_in_grid(block)][{waits, place}] = x;
}

void receive(char* shared)
{
    if (!sent.empty()) {
        const auto& all = sent[own_place_in_grid()];
        for (auto x = all.lower_bound({waits, 0}); x != all.end() && x->first.first == waits; ++x)
            memcpy(shared + x->first.second, &x->second, sizeof(x->second));
    }
    most_waits = std::max(most_waits, ++waits);
}

void receive_all(char* shared)
{
    if (!has_received && !sent.empty())
        for (const auto& [place, x] : sent[own_place_in_grid()]) memcpy(shared + place.second, &x, sizeof(x));
    has_received = true;
}

// ── copies that signal a barrier ──────────────────────────────────────────────────────────────

// Copies may end in any order, here as late as possible: the last one first, once all threads that wait for barriers
// have waited in vain.

struct Barrier {
    int arrivals, pending, bytes, copies;  // copies that have begun
    unsigned phase;

    void arrive(int count)
    {
        if (count > pending && copies) abort();  // the phase is not complete
        pending -= count;
        if (pending == 0 && bytes == 0) {
            pending = arrivals;
            ++phase;
        }
    }
};
static std::map<unsigned, Barrier> barriers;

struct Copy {
    dim3 block;
    unsigned barrier;
    int bytes;
    Ending ending;
};
static std::vector<Copy> copies;  // that have not ended
static unsigned vain;             // waits since a thread went on

void begin_copy(unsigned barrier, int bytes, const Ending& ending)
{
    copies.push_back({blockIdx, barrier, bytes, ending});
    ++barriers[barrier].copies;
}

static void end_copy()
{
    const Copy last = copies.back();
    copies.pop_back();
    last.ending.end(last.ending.given);
    Barrier& barrier = barriers[last.barrier];
    barrier.bytes -= last.bytes;
    barrier.arrive(0);
    --barrier.copies;
}

void mbarrier_init(unsigned barrier, int count)
{
    if (!copies.empty() && memcmp(&copies.back().block, &blockIdx, sizeof(blockIdx))) abort();  // its block has ended
    barriers[barrier] = {count, count};
}

void mbarrier_arrive(unsigned barrier) { barriers[barrier].arrive(1); }

void mbarrier_expect_tx(unsigned barrier, int bytes)
{
    barriers[barrier].bytes += bytes;
    barriers[barrier].arrive(1);
}

void mbarrier_wait(unsigned barrier, unsigned parity)
{
    const Barrier& at = barriers[barrier];
    while (at.phase % 2 == parity) {
        if (++vain > 2 * blockDim.x && !copies.empty()) end_copy(), vain = 0;
        else if (vain < 1 << 25) give_way();
        else abort();  // no thread can go on
    }
    vain = 0;
}

// ── launches ──────────────────────────────────────────────────────────────────────────────────

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

// Has a thread begin on a stack of its own.
__attribute__((noinline)) static void begin(Fiber& fiber)
{
    fiber.stack.reset(new char[STACK + APART * SHIFT]);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack = {fiber.stack.get() + current % APART * SHIFT, 0, STACK};
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
    setcontext(&context);
}

// Runs a thread, and those behind it, until one has to begin.
__attribute__((noinline)) static void resume(Fiber& fiber)
{
    if (__builtin_setjmp(scheduler)) return;
    fiber.stack ? go_to(fiber.here) : begin(fiber);
}

// Runs each thread of the block until it gives way.
static void run_threads()
{
    for (upcoming = able_from(0); upcoming < blockDim.x;) {
        place(upcoming);
        resume(fibers[upcoming]);
    }
}

static void run_block(bool barriers)
{
    const unsigned threads = blockDim.x;
    waits = 0;
    has_received = false;
    if (!barriers) {
        for (unsigned t = 0; t < threads; ++t) place(t), body(body_arguments);
        return;
    }
    if (fibers.size() < threads) fibers.resize(threads);
    memset(meetings, 0, sizeof(meetings));
    memset(named, 0, sizeof(named));
    memset(groups, 0, sizeof(groups));
    memset(done, 0, sizeof(done));
    for (ended = 0; ended < threads;) run_threads();
}

// ── cooperative launches ──────────────────────────────────────────────────────────────────────

// Blocks take turns: one runs until some of its threads wait for another block.

struct Block {
    std::vector<Fiber> fibers = std::vector<Fiber>(blockDim.x);
    std::vector<char> shared, shown;
    Meeting meetings[1 + 32] = {}, named[16] = {}, groups[1024] = {};
    unsigned long long exchanged[2][1024] = {};
    bool done[1024] = {};
    unsigned ended = 0;

    // Exchanges all that the block has for what there is.
    void change_places()
    {
        std::swap(fibers, ::fibers);
        std::swap(meetings, ::meetings);
        std::swap(named, ::named);
        std::swap(groups, ::groups);
        std::swap(exchanged, ::exchanged);
        std::swap(done, ::done);
        std::swap(ended, ::ended);
    }
};

static char *shared_memory, *shown_words;
static size_t shown_bytes;
static bool has_waited;  // whether a thread of the block that runs has waited for another block

void take_turns(char* shared, void* shown, size_t bytes)
{
    shared_memory = shared;
    shown_words = (char*)shown;
    shown_bytes = bytes;
    has_waited = true;
    give_way();
}

static void run_together()
{
    std::vector<Block> blocks(blocks_in_grid());
    for (size_t left = blocks.size(), i = 0; left; i = (i + 1) % blocks.size()) {
        Block& block = blocks[i];
        if (block.ended == blockDim.x) continue;
        blockIdx = {(unsigned)(i % gridDim.x), (unsigned)(i / gridDim.x % gridDim.y), (unsigned)(i / gridDim.x / gridDim.y)};
        block.change_places();
        if (!block.shared.empty()) {
            memcpy(shared_memory, block.shared.data(), DYNAMIC_SHARED);
            memcpy(shown_words, block.shown.data(), shown_bytes);
        }
        has_waited = false;
        while (ended < blockDim.x && !has_waited) run_threads();
        if (has_waited) {
            block.shared.assign(shared_memory, shared_memory + DYNAMIC_SHARED);
            block.shown.assign(shown_words, shown_words + shown_bytes);
        }
        block.change_places();
        left -= block.ended == blockDim.x;
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

static void run_blocks(bool barriers)
{
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
    blockDim = {threads, 1, 1};
    if (!_setjmp(outside)) grid[6] ? run_together() : run_blocks(barriers);
    else fibers.clear(), copies.clear();
    sigaction(SIGSEGV, &before, nullptr);
    return fault;
}
