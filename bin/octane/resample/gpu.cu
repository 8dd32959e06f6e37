// The kernel of octane.resample.gpu: a banded operator along one axis.
//
// Compiled by NVRTC through CuPy, and by a C++ compiler in the tests, so it includes nothing and
// keeps to what both take. Integers are 64 bits wide in every signature, as CuPy passes Python's.
//
// INPUT and OUTPUT are the types in memory, WORK the one to compute in. HALF_INPUT and HALF_OUTPUT
// are defined where 16 bits are a float16, TRUTH where the result is a mask, CLIPPED where it is an
// integer, with the range LOWEST to HIGHEST.
//
// Sums are taken one tap after the other, and no product is fused into them (the options say so):
// every output has the same arithmetic wherever a block is cut, and that of the host's code.

typedef long long Int;

// Threads of a multiprocessor that run at once, for which the compiler keeps to 40 registers instead
// of the 58 it would take; it spills none. With four loads each they hide the way to the memory, for
// which 15 KB must be under way on an H100's multiprocessor. Turing's hold no more than 1024.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int AT_ONCE = 1024;
#else
constexpr int AT_ONCE = 1536;
#endif

#ifdef HALF_INPUT
// Exact, also of subnormal numbers where the GPU's own float32 are flushed to zero.
__device__ inline WORK number(INPUT bits) {
    const unsigned sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u)
        return __int_as_float((int)(sign | 0x7f800000u | (rest & 0x3ffu) << 13));
    const float size = rest < 0x400u ? (float)rest * 5.9604644775390625e-08f
                                     : __int_as_float((int)((rest << 13) + (112u << 23)));
    return sign ? -size : size;
}
#else
__device__ inline WORK number(INPUT value) { return (WORK)value; }
#endif

#if defined(HALF_OUTPUT)
// To the nearest float16, half to even.
__device__ inline OUTPUT converted(WORK given) {
    const float value = (float)given, size = fabsf(value);
    const unsigned sign = (unsigned)__float_as_int(value) >> 16 & 0x8000u;
    if (size != size)
        return (OUTPUT)(sign | 0x7e00u);
    if (size >= 65520.0f)
        return (OUTPUT)(sign | 0x7c00u);
    if (size < 6.103515625e-05f)
        return (OUTPUT)(sign | (unsigned)rintf(size * 16777216.0f));
    const unsigned bits = (unsigned)__float_as_int(size) - (112u << 23);
    return (OUTPUT)(sign | (bits + 0xfffu + (bits >> 13 & 1u)) >> 13);
}
#elif defined(TRUTH)
__device__ inline OUTPUT converted(WORK value) { return value >= (WORK)0.5; }
#elif defined(CLIPPED)
// In double, so that one function does for both types; the limits are values of WORK.
__device__ inline OUTPUT converted(WORK value) {
    return (OUTPUT)fmin(fmax(rint((double)value), LOWEST), HIGHEST);
}
#else
__device__ inline OUTPUT converted(WORK value) { return (OUTPUT)value; }
#endif

// (outer, samples, inner) to (outer, outputs, inner). The values of one `outer` lie `apart` from
// those of the next, and a sample `row` from the next one; the result has no gaps. Output m is the
// sum over k of weight[k * outputs + m] times sample start[m] + k.
//
// The y pass of a volume has the planes as outer and x as inner, the z pass has rows and columns of
// a plane as inner, the x pass has rows as outer (and the components of complex values as inner).
// Neighbouring lanes have neighbouring `inner`, and along x neighbouring outputs, so that every
// load of a warp is of a few whole cache lines.
//
// A thread makes `stretch` outputs one after the other. Their windows overlap, and what several
// take comes from the first-level cache: a block of 256 float32 columns holds 10 KiB of 10 taps.
// From further away a sample comes once, and once more where one thread's stretch meets the next.
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
        WORK total = number(*sample) * *factor;
#pragma unroll 4
        for (int k = 1; k < (int)taps; k++) {
            sample += row;
            factor += last;
            total += number(*sample) * *factor;
        }
        *out = converted(total);
    }
}
