// The model of the devices that all emulated libraries share: contexts, memory,
// streams, options, the log and the counts.
//
// A stream is a queue of host functions. Work that CUDA would do asynchronously
// is queued there and runs at once, at random moments, or as late as the calls
// allow (EMU_MODE). One lock covers everything, so nothing runs concurrently.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emu {

enum class Mode { late, eager, random };

// The environment variables EMU_*, read once; see README.md.
struct Options {
  int devices, busy, fastest, uuid_zero, compute, lose_error;
  size_t memory;
  unsigned long fail_allocation, lose_at;
  Mode mode;
  unsigned seed;
  bool verbose, check, luid, skip_kernels;
  std::string home;
};
const Options& options();

using Work = std::function<void()>;

struct Stream {
  int device = 0;
  int generation = 0;  // of the context it was made in
  bool non_blocking = false;
  std::deque<Work> work;
  unsigned long done = 0;
  unsigned long submitted() const { return done + work.size(); }
};

struct Device {
  int physical = 0;  // NVML's index, which ignores CUDA_VISIBLE_DEVICES
  bool has_context = false;
  int generation = 0;  // how often its context was reset
  int contexts_made = 0;
  size_t used = 0, peak = 0;
  Stream null_stream;
};

struct Allocation {
  size_t requested, mapped;
  int device;
};

struct Launches {
  unsigned long number = 0;
  double seconds = 0;
};

// Never destroyed: Python calls CUDA until the very end of the process.
struct State {
  std::recursive_mutex mutex;
  std::vector<Device> devices;
  std::map<char*, Allocation> memory;
  std::map<char*, size_t> pinned;
  std::set<Stream*> streams;
  std::map<std::string, unsigned long> calls;
  unsigned long allocations = 0, launches = 0;
  std::map<std::string, Launches> kernels;
  int sticky = 0;  // error of a failed kernel, which all later calls return
  std::string sticky_text;
  std::mt19937 random;
};
State& state();
bool has_started();  // CUDA reads CUDA_VISIBLE_DEVICES when it starts

extern thread_local int current_device, last_error;

struct Lock : std::lock_guard<std::recursive_mutex> {
  Lock() : lock_guard(state().mutex) {}
};

double seconds();
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline void count(const char* name, unsigned long times = 1) {
  state().calls[name] += times;
}

// Remembers an error for cudaGetLastError and returns it.
inline int fail(int error) { return last_error = error; }

int device_count();
int ordinal_of(int physical);  // -1 when CUDA_VISIBLE_DEVICES hides it
void device_uuid(int physical, unsigned char* uuid);
std::string uuid_text(int physical);  // as NVML writes it

// Creates a device's primary context if needed; 0 or CUDA's error.
int make_context(int device);
inline int enter() { return make_context(current_device); }

// The stream of a handle; null, with a line in the log, if the stream was
// destroyed or its context was reset.
Stream* stream_of(void* handle);
// Queues work in a stream, after the waits that the legacy stream requires.
int submit(Stream* stream, Work work);
// Loses the process's devices: every later call fails with the error.
void lose(int error, const std::string& text);
void finish(Stream* stream, unsigned long until = ~0ul);
void finish_device(int device);
void finish_what_it_waits_for(Stream* stream);

Allocation* allocation_of(const void* pointer, size_t size);
bool is_pinned(const void* pointer, size_t size);
int allocate(void** pointer, size_t size);
void release(std::map<char*, Allocation>::iterator allocation);

}  // namespace emu
