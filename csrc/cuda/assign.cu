// Rows of large tasks on CUDA, from products to probabilities and their sums by class. A warp takes
// a row at a time, a block kRowsOfBlock rows and up to kTile classes, whose sums stay in registers.
// With more classes, an earlier launch finds each row's largest logit and sum. Sums are taken in a
// fixed order, without atomics.

#include "cuda/assign.h"

#include "common/arena.h"
#include "common/assign.h"
#include "common/check.h"
#include "common/device.cuh"
#include "common/reduce.cuh"
#include "common/step.h"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRowsOfBlock = 32;
constexpr int kTile = 1024;            // classes per block
constexpr float kNothing = -INFINITY;  // logit of padding

// Neighbouring numbers, read and written at once.
template <int kWidth, typename T = float>
struct alignas(kWidth * sizeof(T)) Some {
    T x[kWidth];
};

template <int kWidth, typename T>
__device__ Some<kWidth, T> load(const T* from) {
    return *reinterpret_cast<const Some<kWidth, T>*>(from);
}

// The largest logit of a row, and 1 / the sum of exponentials relative to it.
struct RowStats {
    float most, share;
};

// The position of a block: task, first row and first class. Blocks of a task and tile are
// neighbours.
struct Place {
    int64_t task, block, first_row, first_class;

    __device__ Place(int64_t N, int64_t tiles) {
        const int64_t blocks = ceil_div(N, int64_t(kRowsOfBlock));
        block = blockIdx.x % blocks;
        first_row = block * kRowsOfBlock;
        first_class = blockIdx.x / blocks % tiles * kTile;
        task = blockIdx.x / blocks / tiles;
    }
};

// The logits of the rows of one task.
struct Logits {
    const float *products, *length, *bias;
    float slope;
    int64_t K, stride, pieces;

    __device__ Logits(const AssignParams& p, int64_t task)
        : products(static_cast<const float*>(p.products) + task * p.N * p.stride),
          length(p.length == nullptr ? nullptr : static_cast<const float*>(p.length) + task * p.N),
          bias(static_cast<const float*>(p.bias) + task * p.K),
          slope(static_cast<const float*>(p.slope)[task]), K(p.K), stride(p.stride),
          pieces(p.pieces) {}

    __device__ float length_of(int64_t row) const { return length == nullptr ? 1.0f : length[row]; }

    // `factor` is the slope times the length of the row.
    __device__ float operator()(int64_t row, int64_t k, float factor) const {
        const float* const at = products + row * stride + k;
        const float product = pieces == 1 ? *at : at[0] + at[K];
        return fmaf(factor, product, bias[k]);
    }

    // The logits of kWidth classes from k on; k and K must be multiples of it.
    template <int kWidth>
    __device__ void read(int64_t row, int64_t k, float factor, float* out) const {
        const float* const at = products + row * stride + k;
        Some<kWidth> product = load<kWidth>(at);
        if (pieces > 1) {
            const Some<kWidth> more = load<kWidth>(at + K);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) product.x[j] += more.x[j];
        }
        const Some<kWidth> base = load<kWidth>(bias + k);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) out[j] = fmaf(factor, product.x[j], base.x[j]);
    }
};

// One warp per row: the stats of all rows, for tasks with more classes than a block handles.
__global__ void __launch_bounds__(kThreads) stats_kernel(AssignParams p, RowStats* stats) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const int lane = threadIdx.x % 32;
    const Logits logits(p, row / p.N);
    const int64_t q = row % p.N;
    const float factor = logits.slope * logits.length_of(q);
    float most = kNothing, sum = 0;
    for (int64_t k = lane; k < p.K; k += 32) most = fmaxf(most, logits(q, k, factor));
    most = warp_max(most);
    for (int64_t k = lane; k < p.K; k += 32) sum += expf(logits(q, k, factor) - most);
    sum = warp_sum(sum);
    if (lane == 0) stats[row] = {most, 1.0f / sum};
}

template <typename Written>
__device__ Written rounded(float value);
template <>
__device__ float rounded<float>(float value) {
    return value;
}
template <>
__device__ __half rounded<__half>(float value) {
    return __float2half_rn(value);
}

// A lane has kVectors times kWidth classes of a tile: those from width * (lane + 32 i) on.
template <int kWidth>
__device__ int class_of(int i) {
    return kWidth * (int(threadIdx.x % 32) + 32 * i);
}

// Writes the class sums held by the lanes of all warps to a line of `parts`.
template <int kVectors, int kWidth>
__device__ void write_sums(const float (&held)[kVectors][kWidth], float* part, int64_t count) {
    __shared__ float sums[kWarps][kVectors * kWidth * 32];
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sums[warp][class_of<kWidth>(i) + j] = held[i][j];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += kThreads) {
        float sum = 0;
        for (int other = 0; other < kWarps; ++other) sum += sums[other][k];
        part[k] = sum;
    }
}

// The largest classes of a row, one after the other, from the values in all lanes, which are
// overwritten; of equal ones, the smaller number first.
template <int kVectors, int kWidth>
__device__ void write_top(const AssignParams& p, int64_t row, float share, int classes,
                          float (&value)[kVectors][kWidth]) {
    for (int64_t rank = 0; rank < p.top; ++rank) {
        float best = -1.0f;
        int label = 0x7fffffff;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                const int k = class_of<kWidth>(i) + j;
                if (k < classes && value[i][j] > best) {
                    best = value[i][j];
                    label = k;
                }
            }
        }
        label = warp_argmax(best, label);
        best = warp_max(best);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                if (class_of<kWidth>(i) + j == label) value[i][j] = -2.0f;
            }
        }
        if (threadIdx.x % 32 == 0) {
            p.top_classes[row * p.top + rank] = label;
            static_cast<float*>(p.top_probabilities)[row * p.top + rank] = best * share;
        }
    }
}

template <int kVectors, int kWidth, typename Written>
__global__ void __launch_bounds__(kThreads, 2)
    assign_kernel(AssignParams p, const RowStats* stats, float* parts, double* log_parts) {
    const int64_t tiles = ceil_div(p.K, int64_t(kTile));
    const Place at(p.N, tiles);
    const Logits logits(p, at.task);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t end = min(p.N, at.first_row + kRowsOfBlock);
    const int classes = int(min(p.K - at.first_class, int64_t(kTile)));
    Written* const out = static_cast<Written*>(p.probabilities);
    Written* const rest = static_cast<Written*>(p.rest);
    const float* const trust =
        p.trust == nullptr ? nullptr
                           : static_cast<const float*>(p.trust) + at.task * p.K + at.first_class;
    float held[kVectors][kWidth] = {};
    double log_sum = 0;
    for (int64_t q = at.first_row + warp; q < end; q += kWarps) {
        const float length = logits.length_of(q), factor = logits.slope * length;
        float value[kVectors][kWidth];
        float most = kNothing, share;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            if (k < classes) {
                logits.read<kWidth>(q, at.first_class + k, factor, value[i]);
            } else {
#pragma unroll
                for (int j = 0; j < kWidth; ++j) value[i][j] = kNothing;
            }
#pragma unroll
            for (int j = 0; j < kWidth; ++j) most = fmaxf(most, value[i][j]);
        }
        most = stats == nullptr ? warp_max(most) : stats[at.task * p.N + q].most;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                value[i][j] = expf(value[i][j] - most);
                sum += value[i][j];
            }
        }
        share = stats == nullptr ? 1.0f / warp_sum(sum) : stats[at.task * p.N + q].share;
        if (p.log_sums != nullptr) log_sum += double(most - logf(share));
        const float scale = p.normalise ? share : float(kLikelihoodUnit);
        const float written = p.weigh ? scale * length : scale;
        const int64_t first = (at.task * p.N + q) * p.K + at.first_class;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            if (k >= classes) continue;
            if (trust != nullptr) {
#pragma unroll
                for (int j = 0; j < kWidth; ++j) {
                    const float w = value[i][j] * scale * trust[k + j];
                    value[i][j] = w * w / scale;
                }
            }
            Some<kWidth, Written> high;
            float kept[kWidth];
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                high.x[j] = rounded<Written>(value[i][j] * written);
                kept[j] = to_float(high.x[j]);
            }
            if (out != nullptr) {
                *reinterpret_cast<Some<kWidth, Written>*>(out + first + k) = high;
            }
            if (rest != nullptr) {
                Some<kWidth, Written> low;
#pragma unroll
                for (int j = 0; j < kWidth; ++j) {
                    low.x[j] = rounded<Written>(value[i][j] * written - kept[j]);
                    kept[j] += to_float(low.x[j]);
                }
                *reinterpret_cast<Some<kWidth, Written>*>(rest + first + k) = low;
            }
            // The weights of a mean and their sum must agree.
#pragma unroll
            for (int j = 0; j < kWidth; ++j) held[i][j] += p.weigh ? value[i][j] * scale : kept[j];
        }
        if (p.top > 0 && stats == nullptr) write_top(p, at.task * p.N + q, share, classes, value);
    }
    const int64_t blocks = ceil_div(p.N, int64_t(kRowsOfBlock));
    if (p.held != nullptr) {
        write_sums(held, parts + (at.task * blocks + at.block) * p.K + at.first_class, classes);
    }
    if (p.log_sums != nullptr && at.first_class == 0) {
        __shared__ double sums[kWarps];
        if (lane == 0) sums[warp] = log_sum;
        __syncthreads();
        if (threadIdx.x != 0) return;
        for (int other = 1; other < kWarps; ++other) log_sum += sums[other];
        log_parts[at.task * blocks + at.block] = log_sum;
    }
}

// Adds the parts of all blocks: a block handles 32 classes, each of its warps some of the parts.
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int64_t blocks, int64_t K, int64_t total, double* held) {
    __shared__ double sums[kWarps][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t at = blockIdx.x * int64_t(32) + lane;
    double sum = 0;
    if (at < total) {
        const float* const part = parts + at / K * blocks * K + at % K;
#pragma unroll 8
        for (int64_t block = warp; block < blocks; block += kWarps) {
            sum += double(part[block * K]);
        }
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || at >= total) return;
    for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
    held[at] += sum;
}

// One block per task.
__global__ void __launch_bounds__(kThreads)
    add_logs_kernel(const double* parts, int64_t blocks, double* sums) {
    __shared__ double warps[kWarps];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += kThreads) sum += parts[blockIdx.x * blocks + i];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < kWarps; ++i) sum += warps[i];
    sums[blockIdx.x] += sum;
}

// One warp per row: the largest classes, one after the other; of equal ones, the smaller number
// first.
__global__ void __launch_bounds__(kThreads) top_kernel(AssignParams p) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const int lane = threadIdx.x % 32;
    const Logits logits(p, row / p.N);
    const int64_t q = row % p.N;
    const float factor = logits.slope * logits.length_of(q);
    float before = INFINITY, most = 0, share = 0;
    int64_t before_class = -1;
    for (int64_t rank = 0; rank < p.top; ++rank) {
        float best = kNothing;
        int label = 0x7fffffff;
        for (int64_t k = lane; k < p.K; k += 32) {
            const float value = logits(q, k, factor);
            const bool left = value < before || (value == before && k > before_class);
            if (left && value > best) {
                best = value;
                label = int(k);
            }
        }
        label = warp_argmax(best, label);
        best = warp_max(best);
        if (rank == 0) {
            most = best;
            float sum = 0;
            for (int64_t k = lane; k < p.K; k += 32) sum += expf(logits(q, k, factor) - most);
            share = 1.0f / warp_sum(sum);
        }
        if (lane == 0) {
            p.top_classes[row * p.top + rank] = label;
            static_cast<float*>(p.top_probabilities)[row * p.top + rank] =
                expf(best - most) * share;
        }
        before = best;
        before_class = label;
    }
}

// One warp per row: the lead of the nearest class over the median one in squared distance, and the
// distance of the median one minus the square of the row.
__global__ void __launch_bounds__(kThreads) leads_kernel(AssignParams p, double* parts) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const int lane = threadIdx.x % 32;
    const Logits logits(p, row / p.N);
    const int64_t q = row % p.N;
    const float factor = logits.slope * logits.length_of(q);
    float* const behind = static_cast<float*>(p.products) + row * p.stride;
    float best = kNothing;
    for (int64_t k = lane; k < p.K; k += 32) best = fmaxf(best, logits(q, k, factor));
    best = warp_max(best);
    for (int64_t k = lane; k < p.K; k += 32) behind[k] = 2.0f * (best - logits(q, k, factor));
    __syncwarp();
    const float lead = warp_select_rank<32>(behind, p.K, p.K / 2);
    if (lane == 0) {
        parts[row / p.N * 2 * p.N + q] = double(lead);
        parts[(row / p.N * 2 + 1) * p.N + q] = double(lead) - 2.0 * double(best);
    }
}

// Class data of the late step; see LateParams.
struct Late {
    const float *bias, *trust, *square, *mass, *constant, *total, *prototypes;
    float slope, sharper, prior, weight, temper, plain;

    __device__ explicit Late(const LateParams& p)
        : bias(static_cast<const float*>(p.bias)), trust(static_cast<const float*>(p.trust)),
          square(static_cast<const float*>(p.square)), mass(static_cast<const float*>(p.mass)),
          constant(static_cast<const float*>(p.constant)),
          total(static_cast<const float*>(p.total)),
          prototypes(static_cast<const float*>(p.prototypes)), slope(float(p.slope)),
          sharper(float(p.sharper)), prior(float(p.prior)), weight(float(p.weight)),
          temper(float(p.temper)), plain(float(p.plain)) {}

    // The new logit of a class, from its previous probability u and the products of the row.
    __device__ float operator()(int64_t k, float u, float cross, float all, float own,
                                float length) const {
        const float w = query_weight(u, trust[k]);
        float z = sharper * half_distance(w, 0.0f, all, own, square[k], mass[k]);
        if (prototypes != nullptr)
            z += plain * prototypes[k] * (cross * length - 0.5f * prototypes[k]);
        return temper * (z + constant[k] + logf(fmaxf(total[k] - weight * u, prior)));
    }
};

// The late step, one warp per row; its products with the prototypes stay in registers.
template <int kVectors, int kWidth>
__global__ void __launch_bounds__(kThreads) late_kernel(LateParams p) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32, K = p.K;
    if (row >= p.N) return;
    const Late late(p);
    float* const cross = static_cast<float*>(p.products) + row * 2 * K;
    const float own = static_cast<const float*>(p.own)[row];
    const float length = p.length == nullptr ? 0.0f : static_cast<const float*>(p.length)[row];
    float value[kVectors][kWidth], most = kNothing, sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        const int k = class_of<kWidth>(i);
        if (k >= K) continue;
        const Some<kWidth> x = load<kWidth>(cross + k), bias = load<kWidth>(late.bias + k);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            value[i][j] = fmaf(late.slope, x.x[j], bias.x[j]);
            most = fmaxf(most, value[i][j]);
        }
    }
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        if (class_of<kWidth>(i) >= K) continue;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            value[i][j] = expf(value[i][j] - most);
            sum += value[i][j];
        }
    }
    const float share = 1.0f / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
        const int k = class_of<kWidth>(i);
        if (k >= K) continue;
        const Some<kWidth> x = load<kWidth>(cross + k), all = load<kWidth>(cross + K + k);
        Some<kWidth> z;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            z.x[j] = late(k + j, value[i][j] * share, x.x[j], all.x[j], own, length);
        }
        *reinterpret_cast<Some<kWidth>*>(cross + k) = z;
    }
}

// The same for any number of classes.
__global__ void __launch_bounds__(kThreads) late_of_many_kernel(LateParams p) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32, K = p.K;
    if (row >= p.N) return;
    const int lane = threadIdx.x % 32;
    const Late late(p);
    float* const cross = static_cast<float*>(p.products) + row * 2 * K;
    const float own = static_cast<const float*>(p.own)[row];
    const float length = p.length == nullptr ? 0.0f : static_cast<const float*>(p.length)[row];
    const auto logit = [&](int64_t k) { return fmaf(late.slope, cross[k], late.bias[k]); };
    float most = kNothing, sum = 0;
    for (int64_t k = lane; k < K; k += 32) most = fmaxf(most, logit(k));
    most = warp_max(most);
    for (int64_t k = lane; k < K; k += 32) sum += expf(logit(k) - most);
    const float share = 1.0f / warp_sum(sum);
    for (int64_t k = lane; k < K; k += 32) {
        cross[k] = late(k, expf(logit(k) - most) * share, cross[k], cross[K + k], own, length);
    }
}

// --- stored likelihoods -------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) row_sums_kernel(CountParams p, float* shares) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const __half* const a = static_cast<const __half*>(p.likelihood) + row * p.K;
    const float* const g = static_cast<const float*>(p.weights) + row / p.N * p.K;
    float sum = 0;
    for (int64_t k = threadIdx.x % 32; k < p.K; k += 32) sum += to_float(a[k]) * g[k];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shares[row] = sum;
}

template <int kVectors, int kWidth>
__global__ void __launch_bounds__(kThreads, 2)
    count_kernel(CountParams p, const float* sums, float* parts, double* faint_parts) {
    const int64_t tiles = ceil_div(p.K, int64_t(kTile));
    const Place at(p.N, tiles);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t end = min(p.N, at.first_row + kRowsOfBlock);
    const int classes = int(min(p.K - at.first_class, int64_t(kTile)));
    const float* const weights =
        static_cast<const float*>(p.weights) + at.task * p.K + at.first_class;
    float held[kVectors][kWidth] = {};
    int faint = 0;
    for (int64_t q = at.first_row + warp; q < end; q += kWarps) {
        const int64_t row = at.task * p.N + q;
        const __half* const a =
            static_cast<const __half*>(p.likelihood) + row * p.K + at.first_class;
        float value[kVectors][kWidth], sum = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            Some<kWidth, __half> likelihood{};
            Some<kWidth> weight{};
            if (k < classes) {
                likelihood = load<kWidth>(a + k);
                weight = load<kWidth>(weights + k);
            }
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                value[i][j] = to_float(likelihood.x[j]) * weight.x[j];
                sum += value[i][j];
            }
        }
        sum = sums == nullptr ? warp_sum(sum) : sums[row];
        faint += sum < float(kFaintRow);
        const float share = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) held[i][j] = fmaf(value[i][j], share, held[i][j]);
        }
    }
    const int64_t blocks = ceil_div(p.N, int64_t(kRowsOfBlock));
    write_sums(held, parts + (at.task * blocks + at.block) * p.K + at.first_class, classes);
    if (at.first_class != 0) return;
    __shared__ int counts[kWarps];
    if (lane == 0) counts[warp] = faint;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int other = 1; other < kWarps; ++other) faint += counts[other];
    faint_parts[at.task * blocks + at.block] = double(faint);
}

int64_t blocks_of(int64_t N) { return ceil_div(N, int64_t(kRowsOfBlock)); }

// The workspace of both kernels.
struct Workspace {
    float* parts;       // [B, blocks, K]
    double* log_parts;  // [B, blocks], or [B, 2, N] for leads
    void* rows;         // [B, N] stats, for more classes than a block handles

    Workspace(Arena& arena, int64_t B, int64_t N, int64_t K)
        : parts(arena.take<float>(B * blocks_of(N) * K)), log_parts(arena.take<double>(B * N * 2)),
          rows(arena.take<RowStats>(K > kTile ? B * N : 0)) {}
};

int64_t workspace_bytes(int64_t B, int64_t N, int64_t K) {
    Arena arena;
    Workspace all(arena, B, N, K);
    return arena.used();
}

unsigned row_blocks(int64_t rows) { return grid_size(ceil_div(rows, int64_t(kWarps))); }

template <int kVectors_, int kWidth_>
struct Shape {
    static constexpr int kVectors = kVectors_, kWidth = kWidth_;
};

// Calls launch(shape) with the fewest registers that hold the classes of a lane; four are read at
// once if they are aligned.
template <typename Launch>
void with_shape(int64_t K, const Launch& launch) {
    if (K % 4 != 0) {
        if (K <= 128) return launch(Shape<4, 1>());
        if (K <= 512) return launch(Shape<16, 1>());
        return launch(Shape<32, 1>());
    }
    if (K <= 128) return launch(Shape<1, 4>());
    if (K <= 256) return launch(Shape<2, 4>());
    if (K <= 512) return launch(Shape<4, 4>());
    launch(Shape<8, 4>());
}

void add_parts(const Workspace& all, int64_t B, int64_t N, int64_t K, double* held,
               cudaStream_t stream) {
    add_parts_kernel<<<grid_size(ceil_div(B * K, int64_t(32))), kThreads, 0, stream>>>(
        all.parts, blocks_of(N), K, B * K, held);
    check_launch("add_parts_kernel");
}

void add_logs(const double* parts, int64_t lines, int64_t length, double* sums,
              cudaStream_t stream) {
    add_logs_kernel<<<grid_size(lines), kThreads, 0, stream>>>(parts, length, sums);
    check_launch("add_logs_kernel");
}

template <typename Written>
void launch_assign(const AssignParams& p, const Workspace& all, cudaStream_t stream) {
    RowStats* stats = nullptr;
    if (p.K > kTile) {
        stats = static_cast<RowStats*>(all.rows);
        stats_kernel<<<row_blocks(p.B * p.N), kThreads, 0, stream>>>(p, stats);
        check_launch("stats_kernel");
    }
    const int64_t tiles = ceil_div(p.K, int64_t(kTile));
    const unsigned blocks = grid_size(p.B * tiles * blocks_of(p.N));
    with_shape(p.K, [&](auto shape) {
        using S = decltype(shape);
        assign_kernel<S::kVectors, S::kWidth, Written>
            <<<blocks, kThreads, 0, stream>>>(p, stats, all.parts, all.log_parts);
    });
    check_launch("assign_kernel");
}

}  // namespace

int64_t assign_cuda_workspace(const AssignParams& p, int) { return workspace_bytes(p.B, p.N, p.K); }

void assign_cuda(const AssignParams& p, int device, void* on) {
    require(p.dtype == DType::kFloat32, "products on CUDA must be float32 for the native code");
    require(p.K < (int64_t(1) << 31), "num_classes must be fewer than 2^31, got ", p.K);
    require_workspace(p.workspace_bytes, assign_cuda_workspace(p, device));
    const DeviceGuard guard(device);
    const auto stream = static_cast<cudaStream_t>(on);
    Arena arena(p.workspace);
    const Workspace all(arena, p.B, p.N, p.K);
    if (p.top > 0 && p.K > kTile) {
        top_kernel<<<row_blocks(p.B * p.N), kThreads, 0, stream>>>(p);
        check_launch("top_kernel");
    }
    if (p.probabilities != nullptr || p.held != nullptr || p.log_sums != nullptr || p.top > 0) {
        if (p.written == DType::kFloat16) {
            launch_assign<__half>(p, all, stream);
        } else {
            launch_assign<float>(p, all, stream);
        }
        if (p.held != nullptr) add_parts(all, p.B, p.N, p.K, p.held, stream);
        if (p.log_sums != nullptr) {
            add_logs(all.log_parts, p.B, blocks_of(p.N), p.log_sums, stream);
        }
    }
    if (p.leads != nullptr) {
        leads_kernel<<<row_blocks(p.B * p.N), kThreads, 0, stream>>>(p, all.log_parts);
        check_launch("leads_kernel");
        add_logs(all.log_parts, 2 * p.B, p.N, p.leads, stream);
    }
}

int64_t late_cuda_workspace(const LateParams&, int) { return 0; }

void late_cuda(const LateParams& p, int device, void* stream) {
    require(p.dtype == DType::kFloat32, "products on CUDA must be float32 for the native code");
    const DeviceGuard guard(device);
    const auto on = static_cast<cudaStream_t>(stream);
    if (p.K > kTile) {
        late_of_many_kernel<<<row_blocks(p.N), kThreads, 0, on>>>(p);
    } else {
        with_shape(p.K, [&](auto shape) {
            using S = decltype(shape);
            late_kernel<S::kVectors, S::kWidth><<<row_blocks(p.N), kThreads, 0, on>>>(p);
        });
    }
    check_launch("late_kernel");
}

int64_t count_cuda_workspace(const CountParams& p, int) { return workspace_bytes(p.B, p.N, p.K); }

void count_cuda(const CountParams& p, int device, void* on) {
    require(p.dtype == DType::kFloat16, "likelihood on CUDA must be float16");
    require_workspace(p.workspace_bytes, count_cuda_workspace(p, device));
    const DeviceGuard guard(device);
    const auto stream = static_cast<cudaStream_t>(on);
    Arena arena(p.workspace);
    const Workspace all(arena, p.B, p.N, p.K);
    float* sums = nullptr;
    if (p.K > kTile) {
        sums = static_cast<float*>(all.rows);
        row_sums_kernel<<<row_blocks(p.B * p.N), kThreads, 0, stream>>>(p, sums);
        check_launch("row_sums_kernel");
    }
    const int64_t tiles = ceil_div(p.K, int64_t(kTile));
    const unsigned blocks = grid_size(p.B * tiles * blocks_of(p.N));
    with_shape(p.K, [&](auto shape) {
        using S = decltype(shape);
        count_kernel<S::kVectors, S::kWidth>
            <<<blocks, kThreads, 0, stream>>>(p, sums, all.parts, all.log_parts);
    });
    check_launch("count_kernel");
    add_parts(all, p.B, p.N, p.K, p.held, stream);
    add_logs(all.log_parts, p.B, blocks_of(p.N), p.faint, stream);
}

}  // namespace paddle_ext
