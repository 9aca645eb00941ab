// Converts floats to gray bytes. The arithmetic is that of `image::quantise`, operation by operation.

extern "C" __global__ void to_gray8(const float *hw, float gain, unsigned char *out, size_t n) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float value = hw[i] * gain + 0.5f;
        // Every comparison with NaN is false, so in this order NaN becomes 0.
        out[i] = !(value > 0.0f) ? 0 : value >= 255.0f ? 255 : (unsigned char)value;
    }
}
