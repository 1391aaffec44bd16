// The rounds of a batch on CUDA; the algebra is in common/rounds.h. Rows are independent: one warp
// each. Sums are taken in a fixed order, without atomics.

#include "common/rounds.h"

#include "cuda/large/rows.cuh"

namespace paddle_ext {

namespace {

void require_float(DType dtype, const char* what) {
    require(dtype == DType::kFloat32, what, " on CUDA must be float32 for the native code");
}

// The number of an array [B, N] for row `at`; 1 without the array.
__device__ float worth_of(const void* worth, int64_t at) {
    return worth == nullptr ? 1.0f : floats(worth)[at];
}

// --- densities ----------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads) density_kernel(DensityParams p) {
    const int64_t at = blockIdx.x * int64_t(kThreads) + threadIdx.x;
    if (at >= p.B * p.K) return;
    const DensityTerms found = density_terms(
        double(floats(p.sharpness)[at / p.K]) / 2, double(floats(p.variance)[at / p.K]),
        double(floats(p.squares)[at]), double(floats(p.mass)[at]),
        double(floats(p.labelled_mass)[at]), double(floats(p.bias)[at]));
    floats(p.steepness)[at] = float(found.steepness);
    floats(p.constant)[at] = float(found.constant);
}

// --- weights ------------------------------------------------------------------------------------

// A block adds up some rows of up to kTile classes, in registers.
template <int kVectors, int kWidth, typename Written>
__global__ void __launch_bounds__(kThreads, 2) weigh_kernel(WeighParams p, RowsWorkspace all) {
    extern __shared__ __align__(16) float lines[];  // of each warp, for the sums
    const Place at{p.N, p.K, all.rows};
    const int64_t end = min(p.N, at.first_row + all.rows);
    const int classes = int(min(p.K - at.first_class, int64_t(kTile)));
    const float* const given = floats(p.probabilities);
    Written* const weights = static_cast<Written*>(p.weights);
    Written* const rest = static_cast<Written*>(p.rest);
    float held[kVectors][kWidth] = {};
    for (int64_t q = at.first_row + threadIdx.x / 32; q < end; q += kWarps) {
        const int64_t row = at.task * p.N + q, first = row * p.K + at.first_class;
        const float most = float(p.most) * worth_of(p.worth, row);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int k = class_of<kWidth>(i);
            if (k >= classes) continue;
            const Some<kWidth> u = load<kWidth>(given + first + k);
            Some<kWidth, Written> high, low;
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                const float weight = query_weight(u.x[j], most);
                high.x[j] = Written(weight);
                float kept = to_float(high.x[j]);
                low.x[j] = Written(weight - kept);
                if (rest != nullptr) kept += to_float(low.x[j]);
                held[i][j] += kept;  // the weights of a mean and their sum must agree
            }
            *reinterpret_cast<Some<kWidth, Written>*>(weights + first + k) = high;
            if (rest != nullptr) *reinterpret_cast<Some<kWidth, Written>*>(rest + first + k) = low;
        }
    }
    const int64_t part = at.task * all.blocks + at.block;
    write_sums(held, lines, all.parts + part * p.K + at.first_class, classes);
}

template <typename Written>
void launch_weigh(const WeighParams& p, const RowsWorkspace& all, cudaStream_t stream) {
    with_shape(p.K, [&](auto shape) {
        using S = decltype(shape);
        const auto kernel = weigh_kernel<S::kVectors, S::kWidth, Written>;
        constexpr int64_t kBytes = kWarps * 32 * S::kVectors * S::kWidth * sizeof(float);
        launch("weigh_kernel", kernel, all.grid(), kThreads, kBytes, stream, p, all);
    });
    add_parts(all, p.held, stream);
}

// --- logits -------------------------------------------------------------------------------------

// Class `at` of all tasks.
__device__ RoundClass<float> class_of_round(const AbsorbParams& p, int64_t at, float half,
                                            float variance) {
    const float mass = floats(p.mass)[at];
    const float constant =
        round_constant(floats(p.bias)[at], half, variance, mass, floats(p.labelled_mass)[at]);
    RoundClass<float> found{floats(p.square)[at], mass, constant, 0.0f, 1.0f};
    if (p.counts != nullptr) {
        found.count = float(p.counts[at]);
        found.prior = float(p.concentration[at / p.K] * p.measure[at]);
    }
    return found;
}

constexpr int kAbsorbRows = 8;  // of a task for a warp, which share what a lane finds of a class

__host__ __device__ int64_t absorb_warps(const AbsorbParams& p) {
    return p.B * ceil_div(p.N, int64_t(kAbsorbRows));
}

__global__ void __launch_bounds__(kThreads) absorb_kernel(AbsorbParams p) {
    const int64_t warp = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (warp >= absorb_warps(p)) return;
    const int64_t of_one_task = ceil_div(p.N, int64_t(kAbsorbRows));
    const int64_t task = warp / of_one_task, first = warp % of_one_task * kAbsorbRows;
    const int rows = int(min(p.N - first, int64_t(kAbsorbRows)));
    const int64_t row0 = task * p.N + first;
    const float half = floats(p.sharpness)[task] / 2, variance = floats(p.variance)[task];
    const Logarithm log;
    for (int64_t k = threadIdx.x % 32; k < p.K; k += 32) {
        const RoundClass<float> of_class = class_of_round(p, task * p.K + k, half, variance);
#pragma unroll 4
        for (int r = 0; r < rows; ++r) {
            const int64_t row = row0 + r, at = row * p.K + k;
            const RoundTask<float> of_task{half, variance, float(p.weight),
                                           float(p.most) * worth_of(p.worth, row)};
            const float own = floats(p.own)[row], product = floats(p.products)[at];
            const float u = p.probabilities == nullptr ? 0.0f : floats(p.probabilities)[at];
            float logit = logit_by_others<float>(of_task, of_class, own, product, u, log);
            if (p.counts != nullptr) logit += log_others<float>(of_task, of_class, u, log);
            if (p.added != nullptr) logit += floats(p.added)[at];
            floats(p.products)[at] = logit;
        }
    }
}

__global__ void __launch_bounds__(kThreads) claim_kernel(ClaimParams p) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32;
    if (row >= p.B * p.N) return;
    const float* const shots = floats(p.shots, row / p.N * p.K);
    const float* const u = floats(p.probabilities, row * p.K);
    float* const logs = floats(p.logs, row * p.K);
    float confidence = 0;
    for (int64_t k = threadIdx.x % 32; k < p.K; k += 32) {
        confidence += u[k] * kept_confidence(shots[k]);
        logs[k] = claim_log<float>(u[k], Logarithm());
    }
    confidence = warp_sum(confidence);
    if (threadIdx.x % 32 == 0) floats(p.confidence)[row] = confidence;
}

// --- prototypes by the products of queries -------------------------------------------------------

constexpr int kInnerRows = 80;     // queries per block, ...
constexpr int kInnerDepth = 32;    // ... others at a time, ...
constexpr int kInnerClasses = 64;  // ... and classes, two for each lane
constexpr int kInnerHeld = kInnerRows / kWarps;

__host__ __device__ int64_t inner_tiles(const GatherParams& p) {
    return ceil_div(p.Q, int64_t(kInnerRows)) * ceil_div(p.K, int64_t(kInnerClasses));
}

// Products of the queries with their weighted sums: a tile of gram W.
__global__ void __launch_bounds__(kThreads) inner_kernel(GatherParams p) {
    __shared__ __align__(16) float gram[kInnerRows][kInnerDepth];
    __shared__ float weights[kInnerDepth][kInnerClasses];
    const int64_t Q = p.Q, K = p.K, tiles = ceil_div(K, int64_t(kInnerClasses));
    const int64_t task = blockIdx.x / inner_tiles(p), tile = blockIdx.x % inner_tiles(p);
    const int64_t row0 = tile / tiles * kInnerRows, class0 = tile % tiles * kInnerClasses;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t weighed = class0 + threadIdx.x % kInnerClasses;  // for this thread
    const float* const all = floats(p.gram, task * Q * Q);
    const float* const given = floats(p.weights, task * Q * K);
    float sum[kInnerHeld][2] = {};
    for (int64_t first = 0; first < Q; first += kInnerDepth) {
        __syncthreads();  // the previous tiles have been read
#pragma unroll
        for (int i = 0; i < kInnerHeld; ++i) {
            const int64_t q = row0 + warp + i * kWarps, other = first + lane;
            gram[warp + i * kWarps][lane] = q < Q && other < Q ? all[q * Q + other] : 0.0f;
        }
#pragma unroll
        for (int i = threadIdx.x / kInnerClasses; i < kInnerDepth; i += kThreads / kInnerClasses) {
            const bool there = first + i < Q && weighed < K;
            weights[i][threadIdx.x % kInnerClasses] =
                there ? given[(first + i) * K + weighed] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < kInnerDepth; j += 4) {
            float w[4][2];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                w[i][0] = weights[j + i][lane];
                w[i][1] = weights[j + i][lane + 32];
            }
#pragma unroll
            for (int i = 0; i < kInnerHeld; ++i) {
                const float4 g = *reinterpret_cast<const float4*>(&gram[warp + i * kWarps][j]);
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    sum[i][c] += (g.x * w[0][c] + g.y * w[1][c]) + (g.z * w[2][c] + g.w * w[3][c]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kInnerHeld; ++i) {
        const int64_t q = row0 + warp + i * kWarps;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int64_t k = class0 + lane + 32 * c;
            if (q < Q && k < K) floats(p.products)[(task * Q + q) * K + k] = sum[i][c];
        }
    }
}

// Products with the new prototypes, and the squares of these: a block has 32 classes of a task, each
// of its warps some of the queries.
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherParams p) {
    __shared__ double parts[kWarps][32];
    const int64_t Q = p.Q, K = p.K, tiles = ceil_div(K, int64_t(32));
    const int64_t task = blockIdx.x / tiles;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t k = blockIdx.x % tiles * 32 + lane;
    const bool there = k < K;
    const int64_t of_class = task * K + k;
    const Gathered<float> prototype{there ? floats(p.before)[of_class] : 0.0f,
                                    there ? floats(p.mass)[of_class] : 1.0f};
    double terms = 0;
#pragma unroll 4
    for (int64_t q = warp; q < Q; q += kWarps) {
        if (!there) continue;
        const int64_t at = (task * Q + q) * K + k;
        const float cross = floats(p.cross)[at], inner = floats(p.products)[at];
        terms += prototype.term(floats(p.weights)[at], cross, inner);
        floats(p.products)[at] = prototype.product(cross, inner);
    }
    parts[warp][lane] = terms;
    __syncthreads();
    if (warp != 0 || !there) return;
    for (int other = 1; other < kWarps; ++other) terms += parts[other][lane];
    floats(p.square)[of_class] = prototype.square(floats(p.squares)[of_class], terms);
}

}  // namespace

int64_t workspace_cuda(const WeighParams& p) {
    return RowsWorkspace{Arena(), p.B, p.N, p.K}.arena.used();
}

void run_cuda(const WeighParams& p, cudaStream_t stream) {
    require_float(p.dtype, "probabilities");
    require(p.K <= INT32_MAX, "num_classes must be fewer than 2^31, got ", p.K);
    const RowsWorkspace all{Arena(p.workspace), p.B, p.N, p.K};
    require_workspace(p.workspace_bytes, all.arena.used());
    p.written == DType::kFloat16 ? launch_weigh<__half>(p, all, stream)
                                 : launch_weigh<float>(p, all, stream);
}

void run_cuda(const DensityParams& p, cudaStream_t stream) {
    require_float(p.dtype, "squares");
    launch("density_kernel", density_kernel, ceil_div(p.B * p.K, int64_t(kThreads)), kThreads, 0,
           stream, p);
}

void run_cuda(const AbsorbParams& p, cudaStream_t stream) {
    require_float(p.dtype, "products");
    launch("absorb_kernel", absorb_kernel, row_blocks(absorb_warps(p)), kThreads, 0, stream, p);
}

void run_cuda(const ClaimParams& p, cudaStream_t stream) {
    require_float(p.dtype, "probabilities");
    launch("claim_kernel", claim_kernel, row_blocks(p.B * p.N), kThreads, 0, stream, p);
}

int64_t workspace_cuda(const GatherParams&) { return 0; }

void run_cuda(const GatherParams& p, cudaStream_t stream) {
    require_float(p.dtype, "gram");
    require(p.Q <= INT32_MAX && p.K <= INT32_MAX, "queries and classes must be fewer than 2^31");
    launch("inner_kernel", inner_kernel, p.B * inner_tiles(p), kThreads, 0, stream, p);
    launch("gather_kernel", gather_kernel, p.B * ceil_div(p.K, int64_t(32)), kThreads, 0, stream,
           p);
}

}  // namespace paddle_ext
