// Normalises each channel in place. The arithmetic is that of `image::normalise`, operation by operation. A
// block's second index is its channel, whose `plane` values are side by side.

struct Channels {
    float mean[3], deviation[3];
};

extern "C" __global__ void normalise(float *chw, size_t plane, Channels of) {
    float mean = of.mean[blockIdx.y], deviation = of.deviation[blockIdx.y];
    float *values = chw + blockIdx.y * plane;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < plane; i += step)
        values[i] = (values[i] / 255.0f - mean) / deviation;
}

extern "C" __global__ void denormalise(float *chw, size_t plane, Channels of) {
    float mean = of.mean[blockIdx.y], deviation = of.deviation[blockIdx.y];
    float *values = chw + blockIdx.y * plane;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < plane; i += step)
        values[i] = (values[i] * deviation + mean) * 255.0f;
}
