// See devices.h.
#include "devices.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace emu {

thread_local int current_device = 0, last_error = 0;

static const size_t GRANULE = 2 << 20;  // cudaMalloc's granularity
static const size_t GUARD = 4096;       // unreadable bytes behind it
static const size_t CONTEXT_BYTES = 500000000;
static const size_t POISONED_BELOW = 256 << 20;

static std::string text(const char* name, const char* fallback = "") {
  const char* value = getenv(name);
  return value && *value ? value : fallback;
}

[[noreturn]] static void refuse(const char* name, const std::string& value) {
  fprintf(stderr, "emulated CUDA: %s=%s is not understood\n", name,
          value.c_str());
  _exit(2);  // without destructors: CUDA is not initialized yet
}

static long long number(const char* name, const char* fallback) {
  std::string value = text(name, fallback);
  char* end;
  double parsed = strtod(value.c_str(), &end);
  if (*end || parsed < -1) refuse(name, value);
  return (long long)parsed;
}

static Options read_options() {
  Options read;
  read.devices = (int)number("EMU_DEVICES", "1");
  read.memory = (size_t)number("EMU_MEMORY", "8e9");
  read.busy = (int)number("EMU_BUSY", "-1");
  read.fastest = (int)number("EMU_FASTEST", "0");
  read.uuid_zero = (int)number("EMU_UUID_ZERO", "-1");
  read.compute = (int)number("EMU_COMPUTE", "90");
  read.seed = (unsigned)number("EMU_SEED", "1");
  read.verbose = number("EMU_VERBOSE", "0");
  read.check = number("EMU_CHECK", "0");
  read.luid = number("EMU_LUID", "0");
  read.skip_kernels = number("EMU_SKIP_KERNELS", "0");
  read.fail_allocation = number("EMU_FAIL_ALLOCATION", "0");
  read.lose_at = number("EMU_LOSE_AT", "0");
  read.lose_error = (int)number("EMU_LOSE_ERROR", "719");
  std::string mode = text("EMU_MODE", "late");
  if (mode == "late")
    read.mode = Mode::late;
  else if (mode == "eager")
    read.mode = Mode::eager;
  else if (mode == "random")
    read.mode = Mode::random;
  else
    refuse("EMU_MODE", mode);
  if (read.devices > 16) refuse("EMU_DEVICES", std::to_string(read.devices));
  read.home = text("EMU_HOME");
  return read;
}

const Options& options() {
  static const Options* read = new Options(read_options());
  return *read;
}

std::string uuid_text(int physical) {
  unsigned char bytes[16];
  device_uuid(physical, bytes);
  std::string out = "GPU-";
  for (int i = 0; i < 16; i++) {
    char digits[3];
    snprintf(digits, sizeof digits, "%02x", bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += digits;
  }
  return out;
}

// Physical numbers of the devices in CUDA_VISIBLE_DEVICES, in its order. Like
// CUDA, it stops at the first invalid entry.
static std::vector<int> visible_devices() {
  std::vector<int> all, visible;
  for (int i = 0; i < options().devices; i++) all.push_back(i);
  // CUDA lists the fastest first, unless CUDA_DEVICE_ORDER is PCI_BUS_ID.
  int fastest = options().fastest;
  if (fastest > 0 && fastest < options().devices &&
      text("CUDA_DEVICE_ORDER") != "PCI_BUS_ID")
    std::rotate(all.begin(), all.begin() + fastest, all.begin() + fastest + 1);
  const char* listed = getenv("CUDA_VISIBLE_DEVICES");
  if (!listed) return all;
  std::istringstream entries(listed);
  std::string entry;
  while (std::getline(entries, entry, ',')) {
    int found = -1;
    for (int i = 0; i < (int)all.size(); i++)
      if (entry == std::to_string(i) ||
          (entry.size() > 4 && uuid_text(all[i]).rfind(entry, 0) == 0))
        found = all[i];
    if (found < 0) break;
    visible.push_back(found);
  }
  return visible;
}

static bool started = false;
bool has_started() { return started; }

State& state() {
  static State* only = [] {
    started = true;
    State* made = new State();
    made->random.seed(options().seed);
    for (int physical : visible_devices()) {
      Device device;
      device.physical = physical;
      device.null_stream.device = (int)made->devices.size();
      made->devices.push_back(device);
    }
    return made;
  }();
  return *only;
}

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

void say(const char* format, ...) {
  static FILE* log =
      text("EMU_LOG").empty() ? stderr : fopen(getenv("EMU_LOG"), "a");
  if (!log) return;
  std::string line = "emulated CUDA: " + std::string(format) + "\n";
  va_list arguments;
  va_start(arguments, format);
  vfprintf(log, line.c_str(), arguments);
  va_end(arguments);
  fflush(log);
}

// At the end of the process: calls, launches and allocations.
__attribute__((destructor)) static void write_counts() {
  std::string path = text("EMU_COUNTS");
  State& all = state();
  if (path.empty() || (all.calls.empty() && all.kernels.empty())) return;
  FILE* file = fopen(path.c_str(), "a");
  if (!file) return;
  fprintf(file, "process %d\n", getpid());
  for (auto& [name, times] : all.calls)
    fprintf(file, "call %s %lu\n", name.c_str(), times);
  for (auto& [name, of] : all.kernels)
    fprintf(file, "kernel %s %lu, %.3f s\n", name.c_str(), of.number,
            of.seconds);
  for (auto& device : all.devices)
    fprintf(file, "device %d contexts %d, peak %zu bytes\n", device.physical,
            device.contexts_made, device.peak);
  fclose(file);
}

int device_count() { return (int)state().devices.size(); }

int ordinal_of(int physical) {
  for (int i = 0; i < device_count(); i++)
    if (state().devices[i].physical == physical) return i;
  return -1;
}

void device_uuid(int physical, unsigned char* uuid) {
  for (int i = 0; i < 16; i++)
    uuid[i] = (unsigned char)((0x11 * (i + 1) + 2 * physical) | 1);
  int zero = options().uuid_zero;
  if (zero >= 0 && zero < 16) uuid[zero] = 0;
}

int make_context(int ordinal) {
  if (ordinal < 0 || ordinal >= device_count())
    return device_count() ? cudaErrorInvalidDevice : cudaErrorNoDevice;
  Device& device = state().devices[ordinal];
  if (state().sticky) return state().sticky;
  if (device.has_context) return 0;
  if (options().busy == device.physical) return cudaErrorMemoryAllocation;
  device.has_context = true;
  device.contexts_made++;
  device.null_stream.generation = device.generation;
  device.used += CONTEXT_BYTES;
  if (options().verbose)
    say("process %d makes the primary context of device %d", getpid(),
        device.physical);
  return 0;
}

Stream* stream_of(void* handle) {
  // 0, 1 and 2: the null, the legacy and the per-thread default stream. The
  // last is treated as the legacy one.
  if ((size_t)handle <= 2)
    return enter() ? nullptr : &state().devices[current_device].null_stream;
  Stream* stream = (Stream*)handle;
  if (!state().streams.count(stream)) {
    say("STALE: stream %p is not there", handle);
    return nullptr;
  }
  if (stream->generation != state().devices[stream->device].generation) {
    say("STALE: the context of stream %p was reset", handle);
    return nullptr;
  }
  return stream;
}

static void step(Stream* stream) {
  Work work = std::move(stream->work.front());
  stream->work.pop_front();
  stream->done++;
  if (!state().sticky) work();
}

void finish(Stream* stream, unsigned long until) {
  while (!stream->work.empty() && stream->done < until) step(stream);
}

void finish_device(int ordinal) {
  Device& device = state().devices[ordinal];
  if (device.has_context) finish(&device.null_stream);
  for (Stream* stream : state().streams)
    if (stream->device == ordinal) finish(stream);
}

// The legacy stream waits for all blocking streams, and they wait for it.
void finish_what_it_waits_for(Stream* stream) {
  Stream* null_stream = &state().devices[stream->device].null_stream;
  if (stream != null_stream) {
    if (!stream->non_blocking) finish(null_stream);
    return;
  }
  for (Stream* other : state().streams)
    if (other->device == stream->device && !other->non_blocking) finish(other);
}

static void run_some_at_random() {
  State& all = state();
  for (Stream* stream : all.streams)
    if (all.random() % 3 == 0)
      for (unsigned n = all.random() % 4; n && !stream->work.empty(); n--)
        step(stream);
}

void lose(int error, const std::string& text) {
  state().sticky = error;
  state().sticky_text = text;
}

int submit(Stream* stream, Work work) {
  if (state().sticky) return state().sticky;
  finish_what_it_waits_for(stream);
  stream->work.push_back(std::move(work));
  if (options().mode == Mode::eager) finish(stream);
  if (options().mode == Mode::random) run_some_at_random();
  return state().sticky;
}

Allocation* allocation_of(const void* pointer, size_t size) {
  auto& memory = state().memory;
  auto found = memory.upper_bound((char*)pointer);
  if (found == memory.begin()) return nullptr;
  --found;
  bool inside = (char*)pointer + size <= found->first + found->second.requested;
  return inside ? &found->second : nullptr;
}

bool is_pinned(const void* pointer, size_t size) {
  auto& pinned = state().pinned;
  auto found = pinned.upper_bound((char*)pointer);
  if (found == pinned.begin()) return false;
  --found;
  return (char*)pointer + size <= found->first + found->second;
}

int allocate(void** pointer, size_t size) {
  *pointer = nullptr;
  // CuPy's pool tries three times before it gives up: its retries fail too.
  static thread_local int repeats = 0;
  if (repeats) return repeats--, cudaErrorMemoryAllocation;
  if (++state().allocations == options().fail_allocation)
    return repeats = 2, cudaErrorMemoryAllocation;
  Device& device = state().devices[current_device];
  size_t mapped = (size + GRANULE - 1) / GRANULE * GRANULE;
  if (size > options().memory || device.used + mapped > options().memory)
    return cudaErrorMemoryAllocation;
  void* made = mmap(nullptr, mapped + GUARD, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return cudaErrorMemoryAllocation;
  mprotect((char*)made + mapped, GUARD, PROT_NONE);
  // NaN in every float, so that reads of uninitialized memory show.
  if (mapped < POISONED_BELOW) memset(made, 0xff, mapped);
  state().memory[(char*)made] = {size, mapped, current_device};
  device.used += mapped;
  device.peak = std::max(device.peak, device.used);
  *pointer = made;
  return 0;
}

void release(std::map<char*, Allocation>::iterator allocation) {
  state().devices[allocation->second.device].used -= allocation->second.mapped;
  // A module's variables are in the module's own memory.
  if (allocation->second.mapped)
    munmap(allocation->first, allocation->second.mapped + GUARD);
  state().memory.erase(allocation);
}

// For the other emulated libraries, which are linked against this one.
EXPORT void* emu_stream_of(void* handle) { return stream_of(handle); }
EXPORT int emu_submit(void* stream, Work* work) {
  return submit((Stream*)stream, std::move(*work));
}
EXPORT void emu_count(const char* name) { count(name); }
EXPORT int emu_generation(int device) {
  return state().devices[device].generation;
}
EXPORT int emu_device() { return current_device; }
EXPORT void emu_lock(bool take) {
  if (take)
    state().mutex.lock();
  else
    state().mutex.unlock();
}
EXPORT bool emu_is_reachable(const void* pointer, size_t size) {
  return allocation_of(pointer, size) || is_pinned(pointer, size);
}

}  // namespace emu
