// The kernels of octane.processes.n4.cuda: one N4 iteration on the device, and the division by the field.
//
// Compiled by NVRTC through CuPy, and by a C++ compiler in the tests, so the file includes nothing
// and uses only what both support. In every signature, integers are 64 bits wide and scalars
// double, as CuPy passes Python's numbers. octane.processes.n4.cuda defines the macros.
//
// Deterministic: atomics only touch integers, and the order of every floating-point sum depends
// only on sizes. The compiler options disable contraction, so the same statements round the same
// way in every kernel; a fused multiply-add is written explicitly where it is wanted.
//
// Blocks are whole warps wherever shuffles are used, and all lanes take part in every shuffle.
// Each grid row belongs to one warp. `starts[row]` is its first compact voxel, `columns` the
// position along x of every compact voxel (null without a mask). `state` holds the minimum that
// ITK finds in u and the bin width, which is 0 for a constant image.

typedef long long Int;
typedef unsigned long long Word;

constexpr int WARP = 32;

// Four control points along x, added in the order of octane.processes.n4.bspline.evaluate_region, so that the
// field is the same bit for bit.
__device__ inline float along_x(const float *points, float4 taps) {
    float value = points[0] * taps.x;
    value += points[1] * taps.y;
    value += points[2] * taps.z;
    value += points[3] * taps.w;
    return value;
}

#ifdef INPUT

// Division by the field: INPUT and OUTPUT are the voxel types, WORK is the type to compute in.
// CLIPPED is defined for integer outputs, with their range LOWEST to HIGHEST.

__device__ inline float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline double divide(double a, double b) { return a / b; }
__device__ inline float exponential(float a) { return expf(a); }
__device__ inline double exponential(double a) { return exp(a); }
__device__ inline float nearest(float a) { return rintf(a); }
__device__ inline double nearest(double a) { return rint(a); }
__device__ inline float clip(float a, float low, float high) { return fminf(fmaxf(a, low), high); }
__device__ inline double clip(double a, double low, double high) { return fmin(fmax(a, low), high); }

extern "C" __global__ void __launch_bounds__(256)
apply(const INPUT *values, Int n_rows, Int nx, const float *points, Int cx, const int *first,
      const float4 *taps, double strength, OUTPUT *corrected, float *log_field) {
    const int lane = threadIdx.x % WARP;
    const Int warps = (Int)gridDim.x * (blockDim.x / WARP);
    const WORK part = (WORK)strength;
    for (Int row = ((Int)blockIdx.x * blockDim.x + threadIdx.x) / WARP; row < n_rows; row += warps) {
        const float *row_points = points + row * cx;
        for (Int x = lane; x < nx; x += WARP) {
            const Int i = row * nx + x;
            const float field = along_x(row_points + first[x], taps[x]);
            if (log_field)
                log_field[i] = field;
            const WORK value = (WORK)values[i];
            WORK result = divide(value, exponential((WORK)field));
            if (part < 1)
                result = value + (result - value) * part;
#ifdef CLIPPED
            corrected[i] = (OUTPUT)clip(nearest(result), (WORK)LOWEST, (WORK)HIGHEST);
#else
            corrected[i] = (OUTPUT)result;
#endif
        }
    }
}

#else

constexpr unsigned ALL = 0xffffffffu;
constexpr int WORDS_PER_THREAD = MAX_BINS / THREADS;

// The same for the x of all points, and for their y.
__device__ inline float2 along_x(const float2 *points, float4 taps) {
    const float2 a = points[0], b = points[1], c = points[2], d = points[3];
    const float x[4] = {a.x, b.x, c.x, d.x}, y[4] = {a.y, b.y, c.y, d.y};
    return make_float2(along_x(x, taps), along_x(y, taps));
}

template <typename T> __device__ inline T warp_sum(T value) {
    for (int apart = WARP / 2; apart; apart /= 2)
        value += __shfl_xor_sync(ALL, value, apart);
    return value;
}

__device__ inline float warp_max(float value) {
    for (int apart = WARP / 2; apart; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL, value, apart));
    return value;
}

__device__ inline float warp_min(float value) {
    for (int apart = WARP / 2; apart; apart /= 2)
        value = fminf(value, __shfl_xor_sync(ALL, value, apart));
    return value;
}

// The sum, in each lane, of this and all lower lanes.
__device__ inline int warp_scan(int value) {
    const int lane = threadIdx.x % WARP;
    for (int apart = 1; apart < WARP; apart *= 2) {
        const int lower = __shfl_up_sync(ALL, value, apart);
        if (lane >= apart)
            value += lower;
    }
    return value;
}

// ITK divides in float32; multiplying by the reciprocal would visibly change the field.
__device__ inline float bin_of(float u, float low, float slope) {
    return __fdiv_rn(u - low, slope);
}

// Summary of the voxels that a thread or block has updated.
struct Summary {
    double total, squares;
    float largest, low, high;
};

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

__device__ inline Summary none() { return {0, 0, 0, infinity(), -infinity()}; }

__device__ inline Summary merged(const Summary &a, const Summary &b) {
    return {a.total + b.total, a.squares + b.squares, fmaxf(a.largest, b.largest),
            fminf(a.low, b.low), fmaxf(a.high, b.high)};
}

// The merged summaries of a block's threads, valid in thread 0.
__device__ inline Summary over_block(Summary mine) {
    __shared__ double sums[2][THREADS / WARP];
    __shared__ float extremes[3][THREADS / WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const double total = warp_sum(mine.total), squares = warp_sum(mine.squares);
    const float largest = warp_max(mine.largest);
    const float low = warp_min(mine.low), high = warp_max(mine.high);
    if (lane == 0) {
        sums[0][warp] = total;
        sums[1][warp] = squares;
        extremes[0][warp] = largest;
        extremes[1][warp] = low;
        extremes[2][warp] = high;
    }
    __syncthreads();
    Summary all = none();
    if (threadIdx.x == 0)
        for (int w = 0; w < THREADS / WARP; w++)
            all = merged(all, {sums[0][w], sums[1][w], extremes[0][w], extremes[1][w],
                               extremes[2][w]});
    return all;
}

// Count the voxels per bin, and sum their shares of the next bin as multiples of 2**-24:
// `histogram` has the counts, then the shares.
//
// Shared memory adds 32-bit words natively, but 64-bit words in a retry loop. The two sums are
// therefore held in two 32-bit words that cannot overflow within a tile of 4096 voxels: the lower
// 18 bits of a share (up to 2**30), and its upper bits (up to 2**18) below the count (up to 2**12).
//
// Lanes that add to the same word take turns. Where the memory for `MAX_BINS` holds several copies of
// the histogram, neighbouring lanes add to different ones; the copies of a bin are neighbours too, in
// different banks.
extern "C" __global__ void __launch_bounds__(THREADS)
count_bins(const float *u, Int n, const float *state, Int bins, Word *histogram) {
    __shared__ unsigned fine[MAX_BINS], coarse[MAX_BINS];
    const float low = state[0], slope = state[1], last = (float)(bins - 1);
    if (!(slope > 0))
        return;
    const int most = __clz((int)bins - 1) - __clz(MAX_BINS - 1), doublings = most < 5 ? most : 5;
    const int copies = 1 << doublings, words = (int)bins << doublings;
    const int copy = threadIdx.x & (copies - 1);
    Word counted[WORDS_PER_THREAD] = {}, shares[WORDS_PER_THREAD] = {};
    for (int k = threadIdx.x; k < words; k += THREADS)
        fine[k] = coarse[k] = 0;
    __syncthreads();
    for (Int tile = (Int)blockIdx.x * TILE; tile < n; tile += (Int)gridDim.x * TILE) {
#pragma unroll 4
        for (int j = 0; j < TILE; j += THREADS) {
            const Int i = tile + j + threadIdx.x;
            if (i >= n)
                continue;
            const float c = bin_of(u[i], low, slope);
            // Not counted, as in ITK: below the minimum it found, or rounded past the last bin.
            if (c < 0 || c > last)
                continue;
            const int bin = (int)c, k = bin << doublings | copy;
            const unsigned share = __float2uint_rn((c - (float)bin) * 16777216.0f);
            atomicAdd(&fine[k], share & 0x3ffffu);
            atomicAdd(&coarse[k], 1u << 19 | share >> 18);
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < WORDS_PER_THREAD; j++) {
            const int k = j * THREADS + threadIdx.x;
            if (k < words) {
                counted[j] += coarse[k] >> 19;
                shares[j] += ((Word)(coarse[k] & 0x7ffffu) << 18) + fine[k];
                fine[k] = coarse[k] = 0;
            }
        }
        __syncthreads();
    }
    for (int apart = copies / 2; apart; apart /= 2)
#pragma unroll
        for (int j = 0; j < WORDS_PER_THREAD; j++) {
            counted[j] += __shfl_xor_sync(ALL, counted[j], apart);
            shares[j] += __shfl_xor_sync(ALL, shares[j], apart);
        }
#pragma unroll
    for (int j = 0; j < WORDS_PER_THREAD; j++) {
        const int bin = (j * THREADS + threadIdx.x) >> doublings;
        if (copy == 0 && counted[j]) {
            atomicAdd(&histogram[bin], counted[j]);
            atomicAdd(&histogram[bins + bin], shares[j]);
        }
    }
}

// Transforms of 2 * blockDim.x points, a power of 2, one butterfly per thread. `forward` stores
// frequency k at k's bit-reversed index, where `inverse` (which does not divide by the size) expects
// it. `roots` are cos and sin of 2 pi k / size. An unrolled stage would take as many instructions.
__device__ inline void forward(double *re, double *im, const double2 *roots) {
    const int stages = 32 - __clz(blockDim.x), t = threadIdx.x;
#pragma unroll 1
    for (int stage = 0; stage < stages; stage++) {
        const int apart = blockDim.x >> stage, j = t & (apart - 1), a = 2 * t - j, b = a + apart;
        const double2 root = roots[j << stage];
        const double x = re[a] - re[b], y = im[a] - im[b];
        re[a] += re[b];
        im[a] += im[b];
        re[b] = fma(x, root.x, y * root.y);
        im[b] = fma(y, root.x, -(x * root.y));
        __syncthreads();
    }
}

__device__ inline void inverse(double *re, double *im, const double2 *roots) {
    const int stages = 32 - __clz(blockDim.x), t = threadIdx.x;
#pragma unroll 1
    for (int stage = stages - 1; stage >= 0; stage--) {
        const int apart = blockDim.x >> stage, j = t & (apart - 1), a = 2 * t - j, b = a + apart;
        const double2 root = roots[j << stage];
        const double x = fma(re[b], root.x, -(im[b] * root.y));
        const double y = fma(im[b], root.x, re[b] * root.y);
        re[b] = re[a] - x;
        im[b] = im[a] - y;
        re[a] += x;
        im[a] += y;
        __syncthreads();
    }
}

// Deconvolve the histogram (octane.processes.n4.sharpening) and clear it for the next iteration. `table`
// receives the expected value of each bin and its difference to that of the next.
//
// Real sequences are transformed in pairs: histogram and Gaussian forward, then the sharpened
// histogram and its first moment forward and back (the Gaussian's transform is real). One block of
// half as many threads as points.
extern "C" __global__ void __launch_bounds__(MAX_BINS)
sharpen(const float *state, Int bins, Int voxels, double fwhm, double noise, const double2 *roots,
        Word *histogram, float2 *table) {
    __shared__ double re[2 * MAX_BINS], im[2 * MAX_BINS];
    const int half = blockDim.x, size = 2 * half, t = threadIdx.x;
    const int offset = (size - (int)bins) / 2, unused = __clz(size) + 1;
    const double low = state[0], slope = state[1];
    if (!(slope > 0))
        return;
    const double ln2 = 0.693147180559945309417, pi = 3.14159265358979323846;
    const double width = fwhm / slope, height = 2 * sqrt(ln2 / pi) / width;
    for (int i = t; i < size; i += half) {
        const int k = i - offset, distance = i < half ? i : size - i;
        double counted = 0;
        if (k >= 0 && k < bins) {
            const Word taken = histogram[bins + k], given = k ? histogram[bins + k - 1] : 0;
            counted = (double)histogram[k] - (double)taken / 16777216 + (double)given / 16777216;
        }
        // As a fraction of the voxels, so that both parts of the transform are of similar magnitude.
        re[i] = counted / (double)voxels;
        im[i] = height * exp(-4 * ln2 * ((double)distance * distance) / (width * width));
    }
    __syncthreads();
    for (int i = t; i < 2 * bins; i += half)
        histogram[i] = 0;
    forward(re, im, roots);

    double blur[2], sharp_re[2], sharp_im[2];
    for (int s = 0; s < 2; s++) {
        const int i = t + s * half;
        const int mirror = (size - (int)(__brev(i) >> unused)) & (size - 1);
        const int m = (int)(__brev(mirror) >> unused);
        blur[s] = (im[i] + im[m]) / 2;
        const double wiener = blur[s] / (blur[s] * blur[s] + noise);
        sharp_re[s] = (re[i] + re[m]) / 2 * wiener;
        sharp_im[s] = (im[i] - im[m]) / 2 * wiener;
    }
    __syncthreads();
    for (int s = 0; s < 2; s++) {
        re[t + s * half] = sharp_re[s];
        im[t + s * half] = sharp_im[s];
    }
    __syncthreads();
    inverse(re, im, roots);

    for (int i = t; i < size; i += half) {
        const double sharp = fmax(re[i] / size, 0.0);
        re[i] = sharp;
        im[i] = (low + (i - offset) * slope) * sharp;
    }
    __syncthreads();
    forward(re, im, roots);
    for (int s = 0; s < 2; s++) {
        re[t + s * half] *= blur[s];
        im[t + s * half] *= blur[s];
    }
    __syncthreads();
    inverse(re, im, roots);

    for (int i = t; i < size; i += half)
        re[i] = re[i] != 0 ? im[i] / re[i] : 0;
    __syncthreads();
    for (int k = t; k < bins; k += half) {
        const float value = (float)re[k + offset];
        const float next = k + 1 < bins ? (float)re[k + 1 + offset] : value;
        table[k] = make_float2(value, next - value);
    }
}

// The first of four control points is complete: write its sum over the warp's lanes, and move the
// four on by one.
__device__ inline void complete(float *sum, float *out) {
    const float whole = warp_sum(sum[0]);
    if (threadIdx.x % WARP == 0)
        *out = whole;
    sum[0] = sum[1];
    sum[1] = sum[2];
    sum[2] = sum[3];
    sum[3] = 0;
}

// Contract each row with the taps of its voxels into `sums`, (n_rows, cx), one warp per row. The
// contracted value is u minus its expected value, or 1 if `table` is null, times the voxel's weight
// if there are weights.
//
// Each lane sums for the four control points of the warp's current span. When the warp moves to the
// next span, the first of the four is complete and is summed over the lanes.
extern "C" __global__ void __launch_bounds__(THREADS)
contract_x(const float *u, const float *weights, const unsigned short *columns, const Int *starts,
           Int n_rows, Int cx, const int *first, const float4 *taps, const float *state, Int bins,
           const float2 *table, float *sums) {
    __shared__ float2 expected[MAX_BINS];
    const int lane = threadIdx.x % WARP;
    const Int row = ((Int)blockIdx.x * THREADS + threadIdx.x) / WARP;
    const float low = state[0], slope = state[1], last_bin = (float)(bins - 1);
    const bool sharpened = table && slope > 0;
    if (sharpened)
        for (Int k = threadIdx.x; k < bins; k += THREADS)
            expected[k] = table[k];
    __syncthreads();
    if (row >= n_rows)
        return;
    const Int begin = starts[row], end = starts[row + 1];
    float *out = sums + row * cx;
    float sum[4] = {0, 0, 0, 0};
    int span = 0;
    for (Int base = begin; base < end; base += WARP) {
        const Int i = base + lane;
        const bool mine = i < end;
        int at = -1;
        float residual = 0;
        float4 tap = make_float4(0, 0, 0, 0);
        if (mine) {
            const int x = columns ? columns[i] : (int)(i - begin);
            at = first[x];
            tap = taps[x];
            residual = table ? 0 : 1;
            if (sharpened) {
                float c = bin_of(u[i], low, slope);
                if (c < 0 || c > last_bin)
                    c = last_bin;  // as in ITK, for values that it does not count
                const int k = (int)c;
                residual = u[i] - (expected[k].x + expected[k].y * (c - (float)k));
            }
            if (weights)
                residual *= weights[i];
        }
        const int last = __shfl_sync(ALL, at, end - base < WARP ? (int)(end - base) - 1 : WARP - 1);
        for (;; span++) {
            if (at == span) {
                sum[0] = fmaf(residual, tap.x, sum[0]);
                sum[1] = fmaf(residual, tap.y, sum[1]);
                sum[2] = fmaf(residual, tap.z, sum[2]);
                sum[3] = fmaf(residual, tap.w, sum[3]);
            }
            if (span == last)
                break;
            complete(sum, out + span);
        }
    }
    for (; span < cx; span++)
        complete(sum, out + span);
}

// Contract one line of samples, `stride` apart, for one control point, which samples
// `bounds[0] .. bounds[1] - 1` use. All lanes return the sum.
template <typename T>
__device__ inline double contract(const T *line, Int stride, int control, const int *first,
                                  const double *taps, const int *bounds) {
    double sum = 0;
    for (int i = bounds[0] + threadIdx.x % WARP; i < bounds[1]; i += WARP)
        sum = fma(taps[4 * i + control - first[i]], (double)line[i * stride], sum);
    return warp_sum(sum);
}

// (nz, ny, cx) to (nz, cy, cx), one warp per value.
extern "C" __global__ void __launch_bounds__(THREADS)
contract_y(const float *rows, Int nz, Int ny, Int cy, Int cx, const int *first, const double *taps,
           const int *bounds, double *columns) {
    const Int value = ((Int)blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (value >= nz * cy * cx)
        return;
    const Int x = value % cx, z = value / (cy * cx);
    const int y = (int)(value / cx % cy);
    const double sum = contract(rows + z * ny * cx + x, cx, y, first, taps, bounds + 2 * y);
    if (threadIdx.x % WARP == 0)
        columns[value] = sum;
}

// (nz, plane) to (cz, plane), one warp per value; a plane is cy * cx. The sums times `reciprocal`
// are added to `lattice`; if that is null, `reciprocal` receives their reciprocals instead, 0 for
// sums up to `floor`.
extern "C" __global__ void __launch_bounds__(THREADS)
contract_z(const double *columns, Int plane, Int cz, const int *first, const double *taps,
           const int *bounds, double floor, double *reciprocal, float *lattice) {
    const Int value = ((Int)blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (value >= cz * plane)
        return;
    const int z = (int)(value / plane);
    const double sum =
        contract(columns + value % plane, plane, z, first, taps, bounds + 2 * z);
    if (threadIdx.x % WARP)
        return;
    if (lattice)
        lattice[value] += (float)(sum * reciprocal[value]);
    else
        reciprocal[value] = sum > floor ? 1 / sum : 0;
}

// Evaluate the lattice along z and y into the x of `rows`, (nz, ny, cx), and move the old x to y.
// A thread computes `length` values along y for one z and one control point of x: the four values
// along z that they share change only from span to span.
extern "C" __global__ void __launch_bounds__(THREADS)
expand(const float *lattice, Int nz, Int ny, Int cy, Int cx, const int *first_z,
       const double *taps_z, const int *first_y, const double *taps_y, Int length,
       float2 *rows) {
    const Int pieces = (ny + length - 1) / length;
    const Int thread = (Int)blockIdx.x * THREADS + threadIdx.x;
    if (thread >= nz * pieces * cx)
        return;
    const Int x = thread % cx, piece = thread / cx % pieces, z = thread / cx / pieces;
    const Int stop = (piece + 1) * length < ny ? (piece + 1) * length : ny;
    const float *points = lattice + (Int)first_z[z] * cy * cx + x;
    const double *tap_z = taps_z + 4 * z;
    double along_z[4] = {0, 0, 0, 0};
    int known = -4;
    for (Int y = piece * length; y < stop; y++) {
        const int first = first_y[y];
        for (known = known < first - 4 ? first - 4 : known; known < first; known++) {
            const float *column = points + (known + 4) * cx;
            double value = 0;
            for (int k = 0; k < 4; k++)
                value = fma(tap_z[k], (double)column[k * cy * cx], value);
            along_z[0] = along_z[1];
            along_z[1] = along_z[2];
            along_z[2] = along_z[3];
            along_z[3] = value;
        }
        double value = 0;
        for (int k = 0; k < 4; k++)
            value = fma(taps_y[4 * y + k], along_z[k], value);
        const Int i = (z * ny + y) * cx + x;
        rows[i] = make_float2((float)value, rows[i].x);
    }
}

// Subtract the field of `rows` from the log image, into u, and summarize its change: the x of `rows`
// are the control points of the new field, the y of the old one. With p = exp(old - new), `sums`
// (2 per block) receives the sums of p - 1 and of its square; `extremes` (3 per block) the largest
// |p - 1| and the lowest and highest u. Each block processes `length` rows.
extern "C" __global__ void __launch_bounds__(THREADS)
update(const float *log, const unsigned short *columns, const Int *starts, Int n_rows, Int length,
       Int cx, const int *first, const float4 *taps, const float2 *rows, float *u, double *sums,
       float *extremes) {
    const int lane = threadIdx.x % WARP;
    const Int from = (Int)blockIdx.x * length;
    const Int stop = from + length < n_rows ? from + length : n_rows;
    Summary mine = none();
    for (Int row = from + threadIdx.x / WARP; row < stop; row += THREADS / WARP) {
        const Int begin = starts[row], end = starts[row + 1];
        const float2 *points = rows + row * cx;
        // A row's sums are in float32: consumer and workstation GPUs are slow in float64.
        float total = 0, squares = 0;
        for (Int i = begin + lane; i < end; i += WARP) {
            const int x = columns ? columns[i] : (int)(i - begin);
            const float2 field = along_x(points + first[x], taps[x]);
            const float change = expf(field.y - field.x) - 1.0f;
            const float value = log[i] - field.x;
            u[i] = value;
            total += change;
            squares = fmaf(change, change, squares);
            mine.largest = fmaxf(mine.largest, fabsf(change));
            mine.low = fminf(mine.low, value);
            mine.high = fmaxf(mine.high, value);
        }
        mine.total += total;
        mine.squares += squares;
    }
    const Summary all = over_block(mine);
    if (threadIdx.x == 0) {
        sums[2 * blockIdx.x] = all.total;
        sums[2 * blockIdx.x + 1] = all.squares;
        extremes[3 * blockIdx.x] = all.largest;
        extremes[3 * blockIdx.x + 1] = all.low;
        extremes[3 * blockIdx.x + 2] = all.high;
    }
}

// Merge the summaries of the blocks of `update`. `result` receives the sum, the sum of squares, the
// largest change, and 1 if u was constant before; `state` is prepared for the next iteration.
//
// ITK's scan for the minimum skips every voxel that is a new maximum. These are the voxels before
// the first that is not above its predecessor, and later ones that cannot be the minimum. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
finish(const float *u, Int n, const Int *starts, Int n_rows, Int length, Int n_blocks,
       const double *sums, const float *extremes, Int bins, float *state, double *result) {
    __shared__ Word looked_at, split;
    const int t = threadIdx.x;
    if (t == 0) {
        looked_at = n;
        split = 0;
    }
    for (Int base = 1; base < n; base += THREADS) {
        const Int i = base + t;
        const bool falls = i < n && u[i] <= u[i - 1];
        if (__syncthreads_or(falls)) {
            if (falls)
                atomicMin(&looked_at, (Word)i);
            break;
        }
    }
    __syncthreads();
    const Int from = looked_at;
    Summary mine = none();
    for (Int b = t; b < n_blocks; b += THREADS) {
        const Int begin = starts[b * length];
        const Int end = starts[(b + 1) * length < n_rows ? (b + 1) * length : n_rows];
        // A block's minimum counts if the scan looks at all its voxels.
        const float low = begin < from ? infinity() : extremes[3 * b + 1];
        if (begin < from && from < end)
            split = end;
        mine = merged(mine, {sums[2 * b], sums[2 * b + 1], extremes[3 * b], low,
                             extremes[3 * b + 2]});
    }
    __syncthreads();
    for (Int i = from + t; i < (Int)split; i += THREADS)
        mine.low = fminf(mine.low, u[i]);
    const Summary all = over_block(mine);
    if (t == 0) {
        const float low = from < n ? all.low : u[0];
        result[0] = all.total;
        result[1] = all.squares;
        result[2] = all.largest;
        result[3] = state[1] > 0 ? 0 : 1;
        state[0] = low;
        state[1] = __fdiv_rn(all.high - low, (float)(bins - 1));
    }
}

// The first `head` values of p = exp(old field - new field).
extern "C" __global__ void __launch_bounds__(THREADS)
change(const unsigned short *columns, const Int *starts, Int n_rows, Int cx, const int *first,
       const float4 *taps, const float2 *rows, Int head, float *p) {
    const Int row = ((Int)blockIdx.x * THREADS + threadIdx.x) / WARP;
    if (row >= n_rows)
        return;
    const Int begin = starts[row], end = starts[row + 1] < head ? starts[row + 1] : head;
    for (Int i = begin + threadIdx.x % WARP; i < end; i += WARP) {
        const int x = columns ? columns[i] : (int)(i - begin);
        const float2 field = along_x(rows + row * cx + first[x], taps[x]);
        p[i] = expf(field.y - field.x);
    }
}

// Every value of ITK's float32 running mean of p (positive): mean = float(mean * (1 - 1 / N) +
// p / N), the product and the sum in double.
//
// As kernels.follow, but for a chunk of voxels at a time: guess the mean before each voxel, compute
// each voxel's step from its guess, sum the steps to the next guess, and repeat until nothing
// changes. A fixed point is the sequence itself, and each pass settles at least one value. Steps are
// counted in units in the last place, as differences of the floats' bits, so that sums are exact.
// Once the mean hardly moves, a chunk takes one or two passes. One block.
extern "C" __global__ void __launch_bounds__(1024)
running_mean(const float *p, Int n, float *mean) {
    __shared__ int totals[WARP];
    __shared__ float reached;
    const int t = threadIdx.x, lane = t % WARP, warp = t / WARP;
    if (t == 0)
        mean[0] = reached = p[0];
    if (t < WARP)
        totals[t] = 0;
    __syncthreads();
    for (Int start = 1; start < n;) {
        // While N is small, means depend strongly on the previous ones: long chunks need many passes.
        Int length = start / 2 > 64 ? start / 2 : 64;
        length = length < blockDim.x ? length : blockDim.x;
        length = length < n - start ? length : n - start;
        const bool mine = t < length;
        const float origin = reached;
        double keep = 1, step = 0;
        if (mine) {
            const Int count = start + t + 1;
            keep = 1 - 1 / (double)count;
            step = __fdiv_rn(p[start + t], (float)count);
        }
        float before = origin, after = origin;
        for (bool again = false;; again = true) {
            after = (float)((double)before * keep + step);
            const int moved = __float_as_int(after) - __float_as_int(before);
            const int in_warp = warp_scan(moved);
            if (lane == WARP - 1)
                totals[warp] = in_warp;
            if (!__syncthreads_or(moved) && !again)
                break;
            const int others = warp_scan(totals[lane]) - totals[lane];
            const int path = __shfl_sync(ALL, others, warp) + in_warp - moved;
            const float next = __int_as_float(__float_as_int(origin) + path);
            const bool differs = mine && next != before;
            before = next;
            if (!__syncthreads_or(differs))
                break;
        }
        if (mine)
            mean[start + t] = after;
        if (t == length - 1)
            reached = after;
        __syncthreads();
        start += length;
    }
}

// The sums of (p - mean before it)**2 * (N - 1) / N and of (p - last mean)**2, and that mean, into
// `partials` (3 per block).
extern "C" __global__ void __launch_bounds__(THREADS)
scatter(const float *p, const float *mean, Int n, double *partials) {
    const double last = mean[n - 1];
    Summary mine = none();
    for (Int i = (Int)blockIdx.x * THREADS + threadIdx.x; i < n; i += (Int)gridDim.x * THREADS) {
        const double rest = (double)p[i] - last;
        mine.squares += rest * rest;
        if (i) {
            const double distance = p[i] - mean[i - 1];
            mine.total += distance * distance * ((double)i / (double)(i + 1));
        }
    }
    const Summary all = over_block(mine);
    if (threadIdx.x == 0) {
        partials[3 * blockIdx.x] = all.total;
        partials[3 * blockIdx.x + 1] = all.squares;
        partials[3 * blockIdx.x + 2] = last;
    }
}

#endif
