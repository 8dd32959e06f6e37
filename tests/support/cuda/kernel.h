// Support for translated PTX: arithmetic as PTX defines it, and a scheduler
// that runs a grid block by block on one CPU thread.
//
// Threads of a block that synchronize (barriers, shuffles, votes) are fibers
// with their own stacks; others run one after the other. EMU_ORDER sets the
// order of blocks and threads. Shared memory starts as NaN in every block, and
// its bounds are checked; with EMU_CHECK so is every access to global memory.
// A barrier that not all threads reach is reported as a deadlock.
// Not supported: divergent warps (a shuffle needs the entire warp), clusters,
// mbarrier, tensor cores, half2 and bfloat16 arithmetic.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "kernel_table.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef unsigned __int128 u128;
typedef _Float16 h16;

struct Launch {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z;
  unsigned dynamic_offset, shared_bytes, threads;
};
struct Block {
  unsigned x, y, z;
};
struct Thread {
  unsigned x, y, z, id, lane;
  unsigned exchanges;  // so far; even and odd ones use separate buffers
};
struct Fault {
  std::string text;
};

// Memory

static IsReachable is_reachable;

[[noreturn]] static void refuse_access(const char* what, const char* p,
                                       size_t n) {
  char text[99];
  snprintf(text, sizeof text, "%s access to %zu bytes at %p", what, n, p);
  throw Fault{text};
}
static inline void check_global(const char* p, size_t n) {
  if ((size_t)p % n) refuse_access("misaligned", p, n);
#ifdef EMU_CHECK
  if (!is_reachable(p, n)) refuse_access("illegal", p, n);
#endif
}
static inline void check_shared(const char* p, size_t n, const char* shared,
                                const Launch& launch) {
  if ((size_t)(p - shared) + n > launch.shared_bytes)
    throw Fault{"shared memory out of bounds"};
}
template <class T>
static inline T load(const char* p) {
  T value;
  memcpy(&value, p, sizeof value);
  return value;
}
template <class T>
static inline void store(char* p, T value) {
  memcpy(p, &value, sizeof value);
}

// Bits

template <class To, class From>
static inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline float as_f32(u32 b) { return bit_cast<float>(b); }
static inline double as_f64(u64 b) { return bit_cast<double>(b); }
static inline h16 as_f16(u16 b) { return bit_cast<h16>(b); }
static inline u32 bits(float f) { return bit_cast<u32>(f); }
static inline u64 bits(double f) { return bit_cast<u64>(f); }
static inline u16 bits(h16 f) { return bit_cast<u16>(f); }

static inline u32 op_clz(u32 x) { return x ? __builtin_clz(x) : 32; }
static inline u32 op_clz(u64 x) { return x ? __builtin_clzll(x) : 64; }
static inline u32 op_popc(u32 x) { return __builtin_popcount(x); }
static inline u32 op_popc(u64 x) { return __builtin_popcountll(x); }
template <class T>
static inline T op_brev(T x) {
  const int width = sizeof(T) * 8;
  T reversed = 0;
  for (int i = 0; i < width; i++) reversed |= (x >> i & 1) << (width - 1 - i);
  return reversed;
}
// Floating point

struct Rounding {
  int before = fegetround();
  explicit Rounding(int mode) { fesetround(mode); }
  ~Rounding() { fesetround(before); }
};
template <class T>
static inline bool is_nan(T x) {
  return x != x;
}
static inline float flush(float x) {  // .ftz
  u32 b = bits(x);
  return b & 0x7f800000u ? x : as_f32(b & 0x80000000u);
}
template <class T>
static inline T saturate(T x) {
  return x > 0 ? (x < 1 ? x : (T)1) : (T)0;
}
static inline float fused(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
static inline double fused(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
template <class T>
static inline T fused_rounded(int mode, T x, T y, T z) {
  Rounding rounding(mode);
  volatile T a = x, b = y, c = z, result = fused(a, b, c);
  return result;
}
template <class T>
static inline T min_number(T a, T b) {
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  return a < b || (a == b && std::signbit((double)a)) ? a : b;
}
template <class T>
static inline T max_number(T a, T b) {
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  return a > b || (a == b && !std::signbit((double)a)) ? a : b;
}
template <class T>
static inline T op_rcp(T x) {
  return 1 / x;
}
// The hardware only approximates these; here they are exact to the last bit.
static inline float op_ex2(float x) { return (float)std::exp2((double)x); }
template <class T>
static inline T to_integral_rni(T x) {
  return (T)std::nearbyint(x);
}
template <class T>
static inline T to_integral_rzi(T x) {
  return (T)std::trunc(x);
}
template <class T>
static inline T to_integral_rmi(T x) {
  return (T)std::floor(x);
}
template <class T>
static inline T to_integral_rpi(T x) {
  return (T)std::ceil(x);
}
// From an integral value: clamped to the integer's range, 0 for NaN.
template <class To, class From>
static inline To float_to_int(From from) {
  typedef std::numeric_limits<To> Limits;
  double x = (double)from;
  if (is_nan(x)) return 0;
  if (x <= (double)Limits::min()) return Limits::min();
  if (x >= (double)Limits::max()) return Limits::max();
  return (To)x;
}

// Integers

template <class T>
static inline T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
static inline T max_of(T a, T b) {
  return a > b ? a : b;
}
template <class T>
static inline T op_div(T a, T b) {
  if (b == 0) return (T)-1;
  if (std::is_signed<T>::value && b == (T)-1) return (T)(0 - a);
  return a / b;
}
template <class T>
static inline T op_rem(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed<T>::value && b == (T)-1) return 0;
  return a % b;
}

// Atomics: nothing runs concurrently, so a read and a write suffice.

template <class T, class F>
static inline T atomic(char* p, F change) {
  T old = load<T>(p);
  store<T>(p, change(old));
  return old;
}
template <class T>
static inline T atomic_add(char* p, T v) {
  return atomic<T>(p, [=](T old) { return (T)(old + v); });
}
template <class T>
static inline T atomic_min(char* p, T v) {
  return atomic<T>(p, [=](T old) { return v < old ? v : old; });
}

// Fibers

extern "C" void emu_switch(void** save, void* to)
    __attribute__((visibility("hidden")));
asm(R"(
.text
.type emu_switch,@function
.hidden emu_switch
.globl emu_switch
emu_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
)");

static const size_t STACK = 32768;
static const unsigned WARP = 32;

struct Fiber {
  void* stack_pointer;
  Thread thread;
  bool done;
};

// A running block whose threads synchronize.
struct Meeting {
  struct Warp {
    unsigned size, alive, arrived;
    u64 phase;
    u32 slots[2][WARP];
  };
  void* scheduler;  // its stack pointer
  const KernelInfo* kernel;
  Launch* launch;
  Block* block;
  char *params, *shared;
  std::vector<Fiber> fibers;
  std::vector<Fiber*> sequence;  // the fibers in the order of EMU_ORDER
  unsigned current;              // index of the running one in sequence
  unsigned arrived, alive;
  u64 phase;
  int true_now, true_before;  // threads whose value was true
  std::vector<Warp> warps;
  std::string fault;
};
static Meeting* meeting;  // one at a time: the emulator's lock is held

// Continues with the next fiber, or after the last one with the scheduler.
static void yield() {
  Meeting& m = *meeting;
  Fiber* self = m.sequence[m.current];
  size_t number = m.sequence.size();
  do m.current++;
  while (m.current < number && m.sequence[m.current]->done);
  emu_switch(&self->stack_pointer, m.current < number
                                       ? m.sequence[m.current]->stack_pointer
                                       : m.scheduler);
}

static void open_barrier(Meeting& m) {
  if (!m.arrived || m.arrived != m.alive) return;
  m.true_before = m.true_now;
  m.arrived = m.true_now = 0;
  m.phase++;
}

// Number of threads that passed a true value to the barrier.
static int barrier(bool value) {
  Meeting& m = *meeting;
  m.arrived++;
  m.true_now += value;
  u64 phase = m.phase;
  open_barrier(m);
  while (m.phase == phase) yield();
  return m.true_before;
}

static void open_warp(Meeting::Warp& warp) {
  if (!warp.arrived || warp.arrived != warp.alive) return;
  warp.arrived = 0;
  warp.phase++;
}

static void warp_barrier(Thread& thread) {
  Meeting::Warp& warp = meeting->warps[thread.id / WARP];
  warp.arrived++;
  u64 phase = warp.phase;
  open_warp(warp);
  while (warp.phase == phase) yield();
}

// The value of every lane of the warp.
static u32* exchange(Thread& thread, u32 value, u32 mask) {
  Meeting::Warp& warp = meeting->warps[thread.id / WARP];
  u32 all = warp.size == WARP ? ~0u : (1u << warp.size) - 1;
  if (!(mask >> thread.lane & 1)) throw Fault{"a lane outside of its own mask"};
  if ((mask & all) != all)
    throw Fault{"a shuffle of a part of a warp is not emulated"};
  if (warp.alive != warp.size) throw Fault{"a shuffle after lanes have left"};
  u32* slots = warp.slots[thread.exchanges++ & 1];
  slots[thread.lane] = value;
  warp_barrier(thread);
  return slots;
}

enum Shuffle { UP, DOWN, BUTTERFLY, INDEX };

template <Shuffle kind>
static u32 shuffle(Thread& thread, u32 value, u32 by, u32 clamp, u32 mask,
                   bool& valid) {
  u32* slots = exchange(thread, value, mask);
  u32 segment = clamp >> 8 & 31, bound = clamp & 31;
  u32 first = thread.lane & segment;
  u32 limit = first | (bound & ~segment);
  by &= 31;
  int from = kind == UP      ? (int)thread.lane - (int)by
             : kind == DOWN  ? (int)(thread.lane + by)
             : kind == INDEX ? (int)(first | (by & ~segment))
                             : (int)(thread.lane ^ by);
  valid = kind == UP ? from >= (int)limit : from <= (int)limit;
  if (!valid) return value;
  if ((unsigned)from >= meeting->warps[thread.id / WARP].size)
    throw Fault{"a shuffle from a lane that is not there"};
  return slots[from];
}

static void fiber_main() {
  Meeting& m = *meeting;
  Fiber* fiber = m.sequence[m.current];
  try {
    m.kernel->body(*m.launch, *m.block, fiber->thread, m.params, m.shared);
  } catch (Fault& fault) {
    if (m.fault.empty()) m.fault = fault.text;
  }
  fiber->done = true;
  Meeting::Warp& warp = m.warps[fiber->thread.id / WARP];
  m.alive--;
  warp.alive--;
  open_barrier(m);
  open_warp(warp);
  for (;;) yield();
}

// The order of blocks and of the threads of a block.
enum class Order { forward, backward, mixed };

static Order read_order() {
  const char* set = getenv("EMU_ORDER");
  if (!set || !*set || !strcmp(set, "forward")) return Order::forward;
  if (!strcmp(set, "backward")) return Order::backward;
  if (!strcmp(set, "mixed")) return Order::mixed;
  fprintf(stderr, "emulated CUDA: EMU_ORDER=%s is not understood\n", set);
  _exit(2);
}
static const Order order = read_order();

// The i-th of n in the order; mixed uses a step coprime to n.
static u64 in_order(u64 i, u64 n) {
  if (order == Order::forward) return i;
  if (order == Order::backward) return n - 1 - i;
  u64 step = 7;
  while (std::gcd(step, n) != 1) step += 2;
  return (u64)((u128)i * step % n);
}

static Thread thread_of(unsigned id, const Launch& launch) {
  return {id % launch.block_x,
          id / launch.block_x % launch.block_y,
          id / launch.block_x / launch.block_y,
          id,
          id % WARP,
          0};
}

static void run_apart(const KernelInfo& kernel, Launch& launch, Block& block,
                      char* params, char* shared) {
  for (unsigned i = 0; i < launch.threads; i++) {
    Thread thread = thread_of(in_order(i, launch.threads), launch);
    kernel.body(launch, block, thread, params, shared);
  }
}

static void run_together(Meeting& m, char* stacks) {
  unsigned threads = m.launch->threads;
  if (m.fibers.size() != threads) {
    m.fibers.resize(threads);
    m.sequence.resize(threads);
    for (unsigned i = 0; i < threads; i++)
      m.sequence[i] = &m.fibers[in_order(i, threads)];
  }
  m.alive = threads;
  m.arrived = m.true_now = 0;
  m.phase = 0;
  m.warps.assign((threads + WARP - 1) / WARP, {WARP, WARP, 0, 0, {}});
  if (threads % WARP)
    m.warps.back().size = m.warps.back().alive = threads % WARP;
  for (unsigned t = 0; t < threads; t++) {
    Fiber& fiber = m.fibers[t];
    fiber.thread = thread_of(t, *m.launch);
    fiber.done = false;
    // emu_switch pops these: six registers, then the return address.
    void** top = (void**)(stacks + STACK * (t + 1) - 64);
    *--top = nullptr;
    *--top = (void*)fiber_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.stack_pointer = top;
  }
  auto progress = [&] {
    u64 sum = m.phase + threads - m.alive;
    for (auto& warp : m.warps) sum += warp.phase;
    return sum;
  };
  while (m.alive) {
    u64 before = progress();
    m.current = 0;
    while (m.sequence[m.current]->done) m.current++;
    emu_switch(&m.scheduler, m.sequence[m.current]->stack_pointer);
    if (!m.fault.empty()) throw Fault{m.fault};
    if (progress() == before)
      throw Fault{"deadlock: not all threads reach a barrier"};
  }
}

static const char* run_grid(const KernelInfo& kernel, char* params,
                            const unsigned* grid, const unsigned* block_size,
                            unsigned dynamic_bytes) {
  static thread_local std::string fault;
  Launch launch{
      grid[0], grid[1], grid[2], block_size[0], block_size[1], block_size[2],
      0,       0,       0};
  launch.threads = block_size[0] * block_size[1] * block_size[2];
  launch.dynamic_offset = (kernel.shared_bytes + 15) / 16 * 16;
  launch.shared_bytes = launch.dynamic_offset + dynamic_bytes;
  if (launch.shared_bytes > (dynamic_bytes ? 227u << 10 : 48u << 10))
    return "too much shared memory";
  std::vector<char> shared_room(launch.shared_bytes + 64);
  static thread_local std::vector<char> stack_room;  // kept: it is large
  auto aligned = [](std::vector<char>& room) {
    return (char*)(((size_t)room.data() + 63) / 64 * 64);
  };
  char* shared = aligned(shared_room);
  Block block;
  Meeting m{};
  meeting = &m;
  m.kernel = &kernel;
  m.launch = &launch;
  m.block = &block;
  m.params = params;
  m.shared = shared;
  size_t stacks = kernel.meets ? STACK * launch.threads + 64 : 0;
  if (stack_room.size() < stacks) stack_room.resize(stacks);
  u64 blocks = (u64)grid[0] * grid[1] * grid[2];
  try {
    for (u64 i = 0; i < blocks; i++) {
      u64 place = in_order(i, blocks);
      block.x = place % grid[0];
      block.y = place / grid[0] % grid[1];
      block.z = place / grid[0] / grid[1];
      memset(shared, 0xff, launch.shared_bytes);
      if (kernel.meets)
        run_together(m, aligned(stack_room));
      else
        run_apart(kernel, launch, block, params, shared);
    }
  } catch (Fault& found) {
    fault = found.text;
    return fault.c_str();
  }
  return nullptr;
}

extern "C" void emu_connect(IsReachable function) { is_reachable = function; }
extern "C" const char* emu_run(const KernelInfo* kernel, char* params,
                               const unsigned* grid, const unsigned* block,
                               unsigned dynamic_bytes) {
  return run_grid(*kernel, params, grid, block, dynamic_bytes);
}
