// Resizes bilinearly, from HWC bytes to CHW floats. The arithmetic is that of `image::resize`, operation by
// operation.

struct Tap {
    unsigned lo, hi;
    float w0, w1;
};

// The integers are exact in 32 bits for sides up to MAX_SIDE.
__device__ Tap tap(unsigned x, unsigned src, unsigned dst) {
    unsigned num = (2 * x + 1) * src;
    num = num > dst ? num - dst : 0;
    Tap tap;
    tap.lo = num / (2 * dst);
    tap.hi = min(tap.lo + 1, src - 1);
    tap.w1 = (float)(num % (2 * dst)) / (float)(2 * dst);
    tap.w0 = 1.0f - tap.w1;
    return tap;
}

extern "C" __global__ void resize(const unsigned char *hwc, unsigned src_width, unsigned src_height, float *chw,
                                  unsigned dst_width, unsigned dst_height, unsigned unit) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= dst_width || y >= dst_height) return;
    Tap column = tap(x, src_width, dst_width), row = tap(y, src_height, dst_height);
    const unsigned char *upper = hwc + (size_t)row.lo * src_width * 3;
    const unsigned char *lower = hwc + (size_t)row.hi * src_width * 3;
    size_t lo = (size_t)column.lo * 3, hi = (size_t)column.hi * 3;
    for (unsigned c = 0; c < 3; c++) {
        float top = column.w0 * (float)upper[lo + c] + column.w1 * (float)upper[hi + c];
        float bottom = column.w0 * (float)lower[lo + c] + column.w1 * (float)lower[hi + c];
        float value = row.w0 * top + row.w1 * bottom;
        chw[((size_t)c * dst_height + y) * dst_width + x] = unit ? value / 255.0f : value;
    }
}
