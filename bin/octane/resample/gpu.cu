// The kernel of octane.resample.gpu: a banded operator along one axis.
//
// Compiled by NVRTC through CuPy; it includes nothing. Integers are 64 bits wide in every signature,
// as CuPy passes Python's. INPUT and OUTPUT are the types in memory, WORK the one to compute in;
// LOWEST and HIGHEST are the range of an integer result.
//
// Taps are summed in order, and the compiler options disable fused multiply-adds: every output has
// the same arithmetic wherever a block is cut, and that of the host's code.

typedef long long Int;

struct Half {
    unsigned short bits;
};

// Concurrent threads per multiprocessor. For this many, the compiler uses 40 registers instead of
// 58, without spilling, so that more loads are in flight while others wait for memory. Turing's
// multiprocessors hold at most 1024.
#if __CUDA_ARCH__ == 750
constexpr int AT_ONCE = 1024;
#else
constexpr int AT_ONCE = 1536;
#endif

// CuPy appends -ftz=true to the options, with which C++ flushes subnormal float32 to zero. These
// instructions keep them, as the host does.
__device__ inline float times(float a, float b) {
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
    return product;
}
__device__ inline float plus(float a, float b) {
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
    return sum;
}
__device__ inline double times(double a, double b) { return a * b; }
__device__ inline double plus(double a, double b) { return a + b; }

template <class T> __device__ inline WORK number(T value) { return (WORK)value; }
__device__ inline WORK number(Half value) {
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(value.bits));
    return number;
}

__device__ inline void put(float value, float &to) { to = value; }
__device__ inline void put(double value, double &to) { to = value; }
__device__ inline void put(float value, double &to) {
    asm("cvt.f64.f32 %0, %1;" : "=d"(to) : "f"(value));
}
__device__ inline void put(double value, float &to) {
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(to) : "d"(value));
}
__device__ inline void put(float value, Half &to) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}
__device__ inline void put(double value, Half &to) {
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(to.bits) : "d"(value));
}
__device__ inline void put(WORK value, bool &to) { to = value >= (WORK)0.5; }
// Integers: in double, so that one function serves both types; the limits are values of WORK. NaN
// becomes 0, as on the host.
template <class T> __device__ inline void put(WORK value, T &to) {
    to = value != value ? (T)0 : (T)fmin(fmax(rint((double)value), LOWEST), HIGHEST);
}

// (outer, samples, inner) to (outer, outputs, inner). `apart` is the distance of values along outer,
// `row` that along samples; the result is contiguous. Output m is the sum over k of
// weight[k * outputs + m] times sample start[m] + k.
//
// In the y pass of a volume, outer are its planes and inner is x; in the z pass, inner are rows and
// columns of a plane; in the x pass, outer are rows (and inner the components of complex values).
// Neighbouring lanes have neighbouring `inner`, and along x neighbouring outputs, so that every load
// of a warp consists of a few complete cache lines.
//
// A thread computes `stretch` outputs one after the other. Their windows overlap, and shared samples
// come from the first-level cache: a block of 256 float32 columns holds 10 KiB of 10 taps. From the
// levels below, a sample is read once, and again where one thread's stretch meets the next.
extern "C" __global__ void __launch_bounds__(THREADS, AT_ONCE / THREADS)
band(const INPUT *__restrict__ values, Int outer, Int apart, Int row, Int inner,
     const int *__restrict__ start, const WORK *__restrict__ weight, Int taps, Int outputs,
     Int stretch, OUTPUT *__restrict__ result) {
    const Int pieces = (outputs + stretch - 1) / stretch;
    const Int thread = (Int)blockIdx.x * THREADS + threadIdx.x;
    if (thread >= outer * pieces * inner)
        return;
    const Int i = thread % inner, piece = thread / inner % pieces, o = thread / inner / pieces;
    const int from = (int)(piece * stretch), last = (int)outputs;
    const int stop = last - from < (int)stretch ? last : from + (int)stretch;
    const INPUT *column = values + o * apart + i;
    OUTPUT *out = result + (o * outputs + from) * inner + i;
    for (int m = from; m < stop; m++, out += inner) {
        const INPUT *sample = column + start[m] * row;
        const WORK *factor = weight + m;
        WORK total = times(number(*sample), *factor);
#pragma unroll 4
        for (int k = 1; k < (int)taps; k++) {
            sample += row;
            factor += last;
            total = plus(total, times(number(*sample), *factor));
        }
        put(total, *out);
    }
}
