// CUDA's language on a CPU, for tests: enough of it to run the kernels of bin/octane on a machine
// without a GPU.
//
// Threads of a block are fibers of one operating system thread. A fiber runs until it waits for
// others (a barrier, a shuffle), then the next one does; blocks come one after the other. `order`
// says which fiber, and which block, comes first: what differs between orders depends on a race.
// Shared memory is filled with NaN before each block. A barrier that not all threads reach stops
// the program with a message, where a GPU would hang or go on with wrong values.
//
// Included once per library; static, so that libraries do not share what they hold.

#pragma once

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ucontext.h>

#define __global__
#define __device__ static
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))

extern "C" unsigned char __start_cuda_shared[] __attribute__((weak));
extern "C" unsigned char __stop_cuda_shared[] __attribute__((weak));

struct Index3 {
    unsigned x = 1, y = 1, z = 1;
};
static Index3 gridDim, blockDim, blockIdx{0, 0, 0}, threadIdx{0, 0, 0};

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace on_cpu {

constexpr unsigned lanes = 32;

[[noreturn]] inline void stop(const char *why) {
    std::fprintf(stderr, "CUDA on the CPU: %s\n", why);
    std::abort();
}

// Threads that wait for one another. `tally` gathers while they arrive; `told` is what it was when
// the last did.
struct Meeting {
    unsigned size = 0, arrived = 0, round = 0;
    long tally = 0, told = 0;
};

struct Fiber {
    std::unique_ptr<char[]> stack;
    ucontext_t start;
    jmp_buf here;
    bool started = false, done = false;
    Meeting *waits_for = nullptr;
    unsigned round = 0;
};

static std::vector<std::unique_ptr<Fiber>> fibers;
static Fiber *running = nullptr;
static jmp_buf scheduler;
static std::function<void()> body;
static Meeting block;
static std::vector<Meeting> warps;
static std::uint64_t exchange[1024];
static int order = 0;

inline void pause() {
    if (!_setjmp(running->here))
        _longjmp(scheduler, 1);
}

inline long meet(Meeting &meeting, long value) {
    meeting.tally += value;
    if (++meeting.arrived == meeting.size) {
        meeting.told = meeting.tally;
        meeting.tally = 0;
        meeting.arrived = 0;
        ++meeting.round;
    } else {
        running->waits_for = &meeting;
        running->round = meeting.round;
    }
    // The last to arrive pauses too, so that the order of threads holds after a meeting as before.
    pause();
    return meeting.told;
}

inline void fiber_main() {
    for (;;) {
        body();
        running->done = true;
        pause();
    }
}

inline void resume(Fiber &fiber) {
    running = &fiber;
    if (_setjmp(scheduler))
        return;
    if (fiber.started)
        _longjmp(fiber.here, 1);
    fiber.started = true;
    setcontext(&fiber.start);
}

inline void run_block(unsigned threads) {
    while (fibers.size() < threads) {
        auto fiber = std::make_unique<Fiber>();
        constexpr std::size_t bytes = 64 << 10;
        fiber->stack = std::make_unique<char[]>(bytes);
        getcontext(&fiber->start);
        fiber->start.uc_stack.ss_sp = fiber->stack.get();
        fiber->start.uc_stack.ss_size = bytes;
        fiber->start.uc_link = nullptr;
        makecontext(&fiber->start, fiber_main, 0);
        fibers.push_back(std::move(fiber));
    }
    std::memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
    block = Meeting{threads};
    warps.clear();
    for (unsigned t = 0; t < threads; t += lanes)
        warps.push_back(Meeting{threads - t < lanes ? threads - t : lanes});
    for (unsigned t = 0; t < threads; ++t) {
        fibers[t]->done = false;
        fibers[t]->waits_for = nullptr;
    }
    for (unsigned left = threads; left;) {
        bool moved = false;
        for (unsigned turn = 0; turn < threads; ++turn) {
            // Any odd factor visits each of a power of two once, others are visited as they come.
            const bool mixed = order == 2 && !(threads & (threads - 1));
            const unsigned t =
                order == 1 ? threads - 1 - turn : mixed ? (turn * 77 + 13) % threads : turn;
            Fiber &fiber = *fibers[t];
            if (fiber.done || (fiber.waits_for && fiber.waits_for->round == fiber.round))
                continue;
            fiber.waits_for = nullptr;
            threadIdx.x = t;
            resume(fiber);
            moved = true;
            if (!fiber.done)
                continue;
            --left;
            // A thread that has ended counts as arrived at the block's barrier.
            if (--block.size && block.arrived == block.size) {
                block.told = block.tally;
                block.tally = 0;
                block.arrived = 0;
                ++block.round;
            }
        }
        if (!moved)
            stop("a barrier or shuffle that not all of its threads reach");
    }
}

// A value of another lane: all give theirs, then all take, so that no one overwrites too early.
template <typename T> T shuffle(unsigned mask, T value, int from) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    const unsigned t = threadIdx.x, warp = t / lanes;
    if (mask != 0xffffffffu || warps[warp].size != lanes)
        stop("a shuffle of a part of a warp");
    std::memcpy(&exchange[t], &value, sizeof(T));
    meet(warps[warp], 0);
    std::memcpy(&value, &exchange[warp * lanes + from], sizeof(T));
    meet(warps[warp], 0);
    return value;
}

template <typename T> struct Code;
template <typename T> struct Code<const T *> : Code<T *> {};
#define ON_CPU_CODE(type, code)                                                                    \
    template <> struct Code<type> {                                                                \
        static constexpr const char *value = code;                                                 \
    };
ON_CPU_CODE(long long, "integer")
ON_CPU_CODE(double, "real")
ON_CPU_CODE(float *, "float32")
ON_CPU_CODE(float2 *, "float32")
ON_CPU_CODE(float4 *, "float32")
ON_CPU_CODE(double *, "float64")
ON_CPU_CODE(double2 *, "float64")
ON_CPU_CODE(int *, "int32")
ON_CPU_CODE(unsigned *, "uint32")
ON_CPU_CODE(short *, "int16")
ON_CPU_CODE(unsigned short *, "uint16")
ON_CPU_CODE(signed char *, "int8")
ON_CPU_CODE(unsigned char *, "uint8")
ON_CPU_CODE(long long *, "int64")
ON_CPU_CODE(unsigned long long *, "uint64")
#undef ON_CPU_CODE

// What a kernel takes, so that the caller can check what it gives: a GPU would not.
template <typename... A> std::string signature(void (*)(A...)) {
    std::string text;
    ((text += Code<A>::value, text += ' '), ...);
    return text;
}

template <typename... A, std::size_t... I>
void launch(void (*kernel)(A...), unsigned blocks, unsigned threads, void **arguments,
            std::index_sequence<I...>) {
    if (threads > 1024)
        stop("more than 1024 threads a block");
    gridDim.x = blocks;
    blockDim.x = threads;
    body = [=] { kernel(*static_cast<A *>(arguments[I])...); };
    for (unsigned b = 0; b < blocks; ++b) {
        blockIdx.x = order == 1 ? blocks - 1 - b : b;
        run_block(threads);
    }
}

} // namespace on_cpu

extern "C" void on_cpu_order(int order) { on_cpu::order = order; }

// What the loader of the library calls.
#define KERNEL(name)                                                                               \
    extern "C" const char *signature_##name() {                                                    \
        static const std::string text = on_cpu::signature(name);                                   \
        return text.c_str();                                                                       \
    }                                                                                              \
    extern "C" void launch_##name(unsigned blocks, unsigned threads, void **arguments) {           \
        [&]<typename... A>(void (*kernel)(A...)) {                                                 \
            on_cpu::launch(kernel, blocks, threads, arguments, std::index_sequence_for<A...>{});   \
        }(name);                                                                                   \
    }

inline void __syncthreads() { on_cpu::meet(on_cpu::block, 0); }
inline int __syncthreads_or(int value) { return on_cpu::meet(on_cpu::block, value != 0) != 0; }

template <typename T> T __shfl_sync(unsigned mask, T value, int lane) {
    return on_cpu::shuffle(mask, value, lane);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T value, int lanes) {
    return on_cpu::shuffle(mask, value, (threadIdx.x % on_cpu::lanes) ^ lanes);
}
template <typename T> T __shfl_up_sync(unsigned mask, T value, int by) {
    const int lane = threadIdx.x % on_cpu::lanes;
    return on_cpu::shuffle(mask, value, lane < by ? lane : lane - by);
}

template <typename T> T atomicAdd(T *to, T value) {
    const T before = *to;
    *to += value;
    return before;
}
template <typename T> T atomicMin(T *to, T value) {
    const T before = *to;
    *to = value < before ? value : before;
    return before;
}

inline float __fdiv_rn(float a, float b) { return a / b; }
inline unsigned __float2uint_rn(float a) { return static_cast<unsigned>(std::nearbyint(a)); }
inline int __float_as_int(float a) {
    int bits;
    std::memcpy(&bits, &a, sizeof bits);
    return bits;
}
inline float __int_as_float(int a) {
    float value;
    std::memcpy(&value, &a, sizeof value);
    return value;
}
inline int __clz(int a) { return __builtin_clz(a); }
inline unsigned __brev(unsigned a) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit)
        reversed |= (a >> bit & 1u) << (31 - bit);
    return reversed;
}
