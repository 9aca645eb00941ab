// Computes the statistics of `image::stats`. Sums are double. Their order depends on the number of elements
// alone, so the same tensor gives the same bits every time. The host adds in another order.

typedef unsigned long long u64;

#define THREADS 256

// The number of words of one block's part: finite elements, checksum, sum, smallest, largest.
#define PART 5

__device__ u64 mix(u64 seed) {
    u64 z = seed + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

struct Part {
    u64 finite, checksum;
    double sum;
    float least, most;
};

__device__ Part nothing() {
    Part part = {0, 0, 0.0, __int_as_float(0x7f800000), __int_as_float(0xff800000)};
    return part;
}

__device__ Part both(Part a, Part b) {
    a.finite += b.finite;
    a.checksum += b.checksum;
    a.sum += b.sum;
    a.least = fminf(a.least, b.least);
    a.most = fmaxf(a.most, b.most);
    return a;
}

// Joins the parts of the whole block. Only thread 0 gets the result.
__device__ Part join(Part own) {
    __shared__ Part parts[THREADS];
    parts[threadIdx.x] = own;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] = both(parts[threadIdx.x], parts[threadIdx.x + half]);
    }
    return parts[0];
}

__device__ double add(double own) {
    __shared__ double sums[THREADS];
    sums[threadIdx.x] = own;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    return sums[0];
}

__device__ bool is_finite(float value) { return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u; }

extern "C" __global__ void stats_parts(const float *values, u64 n, u64 *words) {
    Part part = nothing();
    u64 step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        float value = values[i];
        part.checksum += mix(i << 32 | __float_as_uint(value));
        if (is_finite(value)) {
            part.finite += 1;
            part.sum += (double)value;
            part.least = fminf(part.least, value);
            part.most = fmaxf(part.most, value);
        }
    }
    part = join(part);
    if (threadIdx.x == 0) {
        u64 *own = words + 7 + blockIdx.x * PART;
        own[0] = part.finite;
        own[1] = part.checksum;
        own[2] = __double_as_longlong(part.sum);
        own[3] = __float_as_uint(part.least);
        own[4] = __float_as_uint(part.most);
    }
}

// Runs as one block. The words are: count, not finite, smallest, largest, mean, deviation, checksum.
extern "C" __global__ void stats_join(u64 n, u64 *words, unsigned blocks) {
    Part part = nothing();
    for (unsigned block = threadIdx.x; block < blocks; block += THREADS) {
        const u64 *of = words + 7 + block * PART;
        Part other = {of[0], of[1], __longlong_as_double(of[2]), __uint_as_float((unsigned)of[3]),
                      __uint_as_float((unsigned)of[4])};
        part = both(part, other);
    }
    part = join(part);
    if (threadIdx.x == 0) {
        bool some = part.finite > 0;
        words[0] = n;
        words[1] = n - part.finite;
        words[2] = some ? __float_as_uint(part.least) : 0x7fc00000u;
        words[3] = some ? __float_as_uint(part.most) : 0x7fc00000u;
        words[4] = some ? __double_as_longlong(part.sum / (double)part.finite) : 0x7ff8000000000000ull;
        words[5] = 0x7ff8000000000000ull;
        words[6] = part.checksum;
    }
}

extern "C" __global__ void stats_squares(const float *values, u64 n, u64 *words) {
    double mean = __longlong_as_double(words[4]), sum = 0.0;
    u64 step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) {
        if (is_finite(values[i])) {
            double off = (double)values[i] - mean;
            sum += off * off;
        }
    }
    sum = add(sum);
    if (threadIdx.x == 0) words[7 + blockIdx.x * PART] = __double_as_longlong(sum);
}

// Runs as one block.
extern "C" __global__ void stats_deviation(u64 *words, unsigned blocks) {
    double sum = 0.0;
    for (unsigned block = threadIdx.x; block < blocks; block += THREADS)
        sum += __longlong_as_double(words[7 + block * PART]);
    sum = add(sum);
    u64 finite = words[0] - words[1];
    if (threadIdx.x == 0 && finite > 0) words[5] = __double_as_longlong(sqrt(sum / (double)finite));
}
