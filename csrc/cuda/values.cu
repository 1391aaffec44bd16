// `values` on CUDA: one launch, in which the first blocks read the labels of one task each, and the
// others the numbers.

#include "common/values.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 512;
constexpr int kAtOnce = 4;  // loads of a thread

// The order of the blocks does not matter, because they are combined by a minimum.
__device__ void report(const ValuesParams& p, int K) {
    auto* const found = reinterpret_cast<long long*>(p.found);
    atomicMin(found, static_cast<long long>(K));
    atomicMin(found + 1, -static_cast<long long>(K));
}

// Reports K if the labels of a task are in [0, K) and every class has one; else 0.
__device__ void read_labels(const ValuesParams& p, const int64_t* labels) {
    __shared__ unsigned seen[kValuesRows / 32];
    __shared__ int largest;
    const int S = int(p.S);
    for (int word = threadIdx.x; word < ceil_div(S, 32); word += kThreads) seen[word] = 0;
    if (threadIdx.x == 0) largest = -1;
    __syncthreads();
    bool bad = false;
    int own = -1;
    for (int first = threadIdx.x; first < S; first += kThreads * kAtOnce) {
        int64_t label[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            label[i] = labels[min(first + i * kThreads, S - 1)];  // at the end, the last again
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            if (label[i] < 0 || label[i] >= S) {  // K classes have at least K rows
                bad = true;
                continue;
            }
            const int at = int(label[i]);
            own = max(own, at);
            atomicOr(seen + at / 32, 1u << at % 32);
        }
    }
    own = __reduce_max_sync(kAllLanes, own);
    if (threadIdx.x % 32 == 0) atomicMax(&largest, own);
    __syncthreads();
    const int most = largest;
    for (int word = threadIdx.x; 32 * word <= most; word += kThreads) {
        const unsigned all = word < most / 32 ? kAllLanes : (2u << most % 32) - 1;
        bad |= seen[word] != all;
    }
    bad = __syncthreads_or(bad) != 0;
    if (threadIdx.x == 0) report(p, bad ? 0 : most + 1);
}

// A number at an address that is a multiple of its size; the rest of the word is zero.
__device__ uint64_t load_number(const char* at, int bytes) {
    uint64_t word = 0;
    for (int i = 0; i < bytes; i += 2) {
        word |= uint64_t(*reinterpret_cast<const uint16_t*>(at + i)) << (8 * i);
    }
    return word;
}

// Reports 0 if a number is beyond the limit; `block` of `blocks`.
__device__ void read_numbers(const ValuesParams& p, const Within& within, int size, int64_t block,
                             int64_t blocks) {
    const int64_t thread = block * kThreads + threadIdx.x, step = blocks * kThreads;
    uint64_t beyond = 0;
    for (int i = 0; i < kValuesArrays; ++i) {
        // Sixteen bytes at a time between the first and the last multiple of sixteen.
        const char* const from = static_cast<const char*>(p.numbers[i]);
        const int64_t bytes = p.counts[i] * size;
        const int64_t head = min(bytes, int64_t(-reinterpret_cast<uintptr_t>(from) % 16));
        const int64_t loads = (bytes - head) / 16, tail = head + 16 * loads;
        const auto* const words = reinterpret_cast<const ulonglong2*>(from + head);
#pragma unroll kAtOnce
        for (int64_t at = thread; at < loads; at += step) {
            const ulonglong2 word = __ldg(words + at);
            beyond |= within.beyond(word.x) | within.beyond(word.y);
        }
        const int64_t place = thread * size;
        if (place < head) beyond |= within.beyond(load_number(from + place, size));
        if (place < bytes - tail) beyond |= within.beyond(load_number(from + tail + place, size));
    }
    const bool bad = __syncthreads_or((beyond & within.sign) != 0) != 0;
    if (bad && threadIdx.x == 0) report(p, 0);
}

__global__ void __launch_bounds__(kThreads) values_kernel(ValuesParams p, Within within, int size) {
    const int64_t block = blockIdx.x;
    if (block < p.B) {
        read_labels(p, p.labels + block * p.S);
    } else {
        read_numbers(p, within, size, block - p.B, gridDim.x - p.B);
    }
}

}  // namespace

void run_cuda(const ValuesParams& p, cudaStream_t stream) {
    require(p.S <= kValuesRows, "labels must have at most ", kValuesRows, " rows, got ", p.S);
    const Within within(p.dtype, p.most);
    const int size = Within::bytes_of(p.dtype);
    fill_bytes(p.found, 0x7f, 2 * sizeof(int64_t), stream);
    int64_t bytes = 0;
    for (const int64_t count : p.counts) bytes += count * size;
    const int64_t filled = 4 * device_attribute(cudaDevAttrMultiProcessorCount);
    const int64_t readers = min(filled, ceil_div(bytes, int64_t(16 * kThreads * kAtOnce)));
    if (p.B + readers == 0) return;
    launch("values_kernel", values_kernel, p.B + readers, kThreads, 0, stream, p, within, size);
}

}  // namespace paddle_ext
