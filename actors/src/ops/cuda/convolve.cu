// Convolves each plane with a square of weights. The arithmetic is that of `image::convolve`, operation by
// operation.

extern "C" __global__ void convolve(const float *planes, const float *weights, int side, float *out, int width,
                                    int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const float *plane = planes + (size_t)blockIdx.z * width * height;
    int reach = side / 2;
    float sum = 0.0f;
    for (int dy = -reach; dy <= reach; dy++) {
        const float *row = plane + (size_t)min(max(y + dy, 0), height - 1) * width;
        for (int dx = -reach; dx <= reach; dx++)
            sum = sum + weights[(dy + reach) * side + dx + reach] * row[min(max(x + dx, 0), width - 1)];
    }
    out[((size_t)blockIdx.z * height + y) * width + x] = sum;
}
