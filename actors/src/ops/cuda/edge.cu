// Computes luma and the magnitude of its Sobel gradient. The arithmetic is that of `image::edge`, operation
// by operation.

// `hw` may be the red plane, because the thread that writes an element has read it before.
__device__ void luma_of(const float *chw, float *hw, size_t plane) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < plane; i += step)
        hw[i] = 0.299f * chw[i] + 0.587f * chw[plane + i] + 0.114f * chw[2 * plane + i];
}

__device__ void sobel_of(const float *luma, float *hw, unsigned width, unsigned height) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    unsigned left = x > 0 ? x - 1 : 0, right = min(x + 1, width - 1);
    const float *above = luma + (size_t)(y > 0 ? y - 1 : 0) * width;
    const float *here = luma + (size_t)y * width;
    const float *below = luma + (size_t)min(y + 1, height - 1) * width;
    float nw = above[left], n = above[x], ne = above[right];
    float w = here[left], e = here[right];
    float sw = below[left], s = below[x], se = below[right];
    float gx = (ne - nw) + 2.0f * (e - w) + (se - sw);
    float gy = (sw - nw) + 2.0f * (s - n) + (se - ne);
    hw[(size_t)y * width + x] = sqrtf(gx * gx + gy * gy);
}

extern "C" __global__ void luma(const float *chw, float *hw, size_t plane) { luma_of(chw, hw, plane); }

extern "C" __global__ void luma_in_place(float *chw, size_t plane) { luma_of(chw, chw, plane); }

// Reads the first plane and writes the second, in a buffer of two planes or an image of three.
extern "C" __global__ void sobel_to_next_plane(float *planes, unsigned width, unsigned height) {
    sobel_of(planes, planes + (size_t)width * height, width, height);
}
