// The CUDA driver: contexts, modules and launches. A module is PTX; it is
// translated to C++ and compiled (compile.sh), kept in $EMU_HOME/modules and
// loaded. Left out: cubins, linking, contexts other than the primary ones.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "devices.h"
#include "kernel_table.h"

using namespace emu;

static const int VERSION = 12090;
static const int ILLEGAL_ADDRESS = 700;

namespace {

struct Module {
  void* library;
  int device, generation;
  const KernelInfo* kernels;
  RunKernel run;
};

struct Function {
  Module* module;
  const KernelInfo* kernel;
};

bool is_stale(const Module* module) {
  return module->generation != state().devices[module->device].generation;
}

bool exists(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0;
}

// Translates and compiles a module. The PTX file has a unique name, because
// processes may compile the same module at once.
bool compile(const char* ptx, const std::string& library) {
  std::string source = library + "." + std::to_string(getpid()) + ".ptx";
  FILE* file = fopen(source.c_str(), "w");
  if (!file) return false;
  fputs(ptx, file);
  fclose(file);
  std::string command = "'" + options().home + "/source/compile.sh' '" +
                        source + "' '" + library + "'" +
                        (options().check ? " -DEMU_CHECK" : "");
  if (!system(command.c_str())) return true;
  say("this module cannot be translated: %s", source.c_str());
  return false;
}

}  // namespace

// Versions, errors

EXPORT CUresult cuInit(unsigned) {
  return device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

EXPORT CUresult cuDriverGetVersion(int* version) {
  *version = VERSION;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                                : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
  bool sticky = error && (int)error == state().sticky;
  *text = sticky ? state().sticky_text.c_str() : "driver error";
  return CUDA_SUCCESS;
}

EXPORT CUresult cuGetExportTable(const void** table, const CUuuid*) {
  *table = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

// Devices and contexts

EXPORT CUresult cuDeviceGetCount(int* number) {
  *number = device_count();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count())
    return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  device_uuid(state().devices[device].physical, (unsigned char*)uuid->bytes);
  return CUDA_SUCCESS;
}

static CUcontext context_of(int device) {
  return (CUcontext)(size_t)(device + 1);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Lock lock;
  if (int error = make_context(device)) return (CUresult)error;
  *context = context_of(device);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  Lock lock;
  if (ordinal < 0 || ordinal >= device_count())
    return CUDA_ERROR_INVALID_DEVICE;
  Device& device = state().devices[ordinal];
  unsigned arrays = 0, streams = 0;
  size_t bytes = 0;
  auto& memory = state().memory;
  for (auto next = memory.begin(); next != memory.end();) {
    auto one = next++;
    if (one->second.device != ordinal) continue;
    arrays++;
    bytes += one->second.requested;
    release(one);
  }
  for (Stream* stream : state().streams)
    if (stream->device == ordinal && stream->generation == device.generation) {
      streams++;
      stream->work.clear();
    }
  if (options().verbose || arrays)
    say("the primary context of device %d is reset: %u allocations of %zu "
        "bytes and %u streams were alive",
        device.physical, arrays, bytes, streams);
  device.generation++;
  device.has_context = false;
  device.used = 0;
  device.null_stream.work.clear();
  return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags,
                                           int* active) {
  if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = state().devices[device].has_context;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  bool made = device_count() && state().devices[current_device].has_context;
  *context = made ? context_of(current_device) : nullptr;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  if (state().sticky) return (CUresult)state().sticky;
  if (context) current_device = (int)(size_t)context - 1;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  Lock lock;
  Stream* stream = stream_of(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  *context = context_of(stream->device);
  return CUDA_SUCCESS;
}

// Modules

EXPORT CUresult cuModuleLoadData(CUmodule* handle, const void* image) {
  Lock lock;
  count("cuModuleLoadData");
  if (int error = enter()) return (CUresult)error;
  const char* ptx = (const char*)image;
  if (!strstr(ptx, ".version")) {
    say("a module is not PTX: is CUPY_COMPILE_WITH_PTX set?");
    return CUDA_ERROR_INVALID_IMAGE;
  }
  char name[40];
  snprintf(name, sizeof name, "/modules/%016zx%s.so",
           std::hash<std::string>()(ptx), options().check ? "-checked" : "");
  std::string path = options().home + name;
  if (!exists(path) && !compile(ptx, path)) return CUDA_ERROR_INVALID_PTX;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    say("%s", dlerror());
    return CUDA_ERROR_INVALID_PTX;
  }
  auto connect = (ConnectKernels)dlsym(library, "emu_connect");
  connect(emu_is_reachable);
  *handle = (CUmodule) new Module{
      library, current_device, state().devices[current_device].generation,
      (const KernelInfo*)dlsym(library, "emu_kernels"),
      (RunKernel)dlsym(library, "emu_run")};
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoad(CUmodule*, const char*) {
  return CUDA_ERROR_FILE_NOT_FOUND;
}

EXPORT CUresult cuModuleUnload(CUmodule handle) {
  Lock lock;
  if (state().sticky) return (CUresult)state().sticky;
  Module* module = (Module*)handle;
  if (!is_stale(module)) return CUDA_SUCCESS;
  count("STALE cuModuleUnload");
  static int told = 0;
  if (told++ < 3)
    say("STALE: a module (%s) is unloaded after its context was reset",
        module->kernels->name ? module->kernels->name : "no kernel");
  return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

EXPORT CUresult cuModuleGetFunction(CUfunction* handle, CUmodule of,
                                    const char* name) {
  Module* module = (Module*)of;
  for (const KernelInfo* kernel = module->kernels; kernel->name; kernel++)
    if (!strcmp(kernel->name, name)) {
      *handle = (CUfunction) new Function{module, kernel};
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr*, size_t*, CUmodule,
                                     const char*) {
  return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                   CUfunction handle) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = (int)((Function*)handle)->kernel->shared_bytes;
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) {
  return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                            CUfunction, int,
                                                            size_t) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block,
                                                 CUfunction, CUoccupancyB2DSize,
                                                 size_t, int) {
  *grid = 264;
  *block = 128;
  return CUDA_SUCCESS;
}

// Launches

EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x,
                               unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y,
                               unsigned block_z, unsigned shared_bytes,
                               CUstream in, void** arguments, void**) {
  Lock lock;
  auto [module, kernel] = *(Function*)handle;
  if (module->device != current_device) {
    say("kernel %s of a module of device %d is launched on %d", kernel->name,
        module->device, current_device);
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (is_stale(module)) {
    say("STALE: kernel %s is launched after its context was reset",
        kernel->name);
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  Stream* stream = stream_of(in);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->device != current_device) {
    say("kernel %s of device %d is launched in a stream of %d", kernel->name,
        current_device, stream->device);
    return CUDA_ERROR_INVALID_HANDLE;
  }
  unsigned long threads = 1ul * block_x * block_y * block_z;
  if (!grid_x || !grid_y || !grid_z || !threads || threads > 1024 ||
      block_z > 64 || grid_x > 2147483647u || grid_y > 65535 ||
      grid_z > 65535) {
    say("kernel %s is launched with a grid of %u %u %u and blocks of %u %u %u",
        kernel->name, grid_x, grid_y, grid_z, block_x, block_y, block_z);
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (state().sticky) return (CUresult)state().sticky;
  std::vector<char> packed(kernel->parameter_bytes + 16);
  for (unsigned i = 0; i < kernel->parameters; i++)
    memcpy(packed.data() + kernel->offsets[i], arguments[i], kernel->sizes[i]);
  state().kernels[kernel->name].number++;
  RunKernel run = module->run;
  bool lost = ++state().launches == options().lose_at;
  int error = submit(stream, [=]() mutable {
    if (lost) return lose(options().lose_error, "the device is lost");
    if (options().skip_kernels) return;
    const unsigned grid[3] = {grid_x, grid_y, grid_z},
                   block[3] = {block_x, block_y, block_z};
    double begin = seconds();
    const char* fault = run(kernel, packed.data(), grid, block, shared_bytes);
    state().kernels[kernel->name].seconds += seconds() - begin;
    if (!fault) return;
    lose(ILLEGAL_ADDRESS, std::string(kernel->name) + ": " + fault);
    say("kernel %s fails: %s", kernel->name, fault);
  });
  return (CUresult)error;
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x,
                                          unsigned grid_y, unsigned grid_z,
                                          unsigned block_x, unsigned block_y,
                                          unsigned block_z,
                                          unsigned shared_bytes,
                                          CUstream stream, void** arguments) {
  say("a cooperative launch: grid-wide barriers are not emulated");
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y,
                        block_z, shared_bytes, stream, arguments, nullptr);
}
