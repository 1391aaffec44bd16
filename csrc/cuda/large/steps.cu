// Steps of large tasks on CUDA: moving prototypes, rows as halves, the end of an iteration.

#include "common/adaptive.h"
#include "common/large.h"
#include "cuda/adaptive/adapt.cuh"
#include "cuda/large/rows.cuh"

namespace paddle_ext {

namespace {

// --- prototypes: one block per class -------------------------------------------------------------

constexpr int kMoveThreads = 128, kMoveWarps = kMoveThreads / 32;

// Class number `at` of all tasks.
struct MovedClass {
    const MoveParams& p;
    int64_t at, task = at / p.K;
    float shots = p.sums == nullptr ? 0.0f : float(p.shots[at]);
    float mass = p.sums == nullptr ? 1.0f : float(safe_mass(p.shots[at] + p.held[at]));

    // Feature d of the sum of the rows, in the coordinates.
    __device__ float sum(int64_t d) const {
        const float* const sums = floats(p.sums);
        const float* const rest = floats(p.rest);
        float found = 0;
        for (int64_t part = 0; part < p.parts; ++part) {
            const int64_t line = (task * p.parts + part) * p.K + at % p.K;
            found += sums[line * p.width + d];
            if (p.width > p.D) found += sums[line * p.width + p.D + d];
            if (rest != nullptr) found += rest[line * p.D + d];
        }
        if (p.scale == nullptr) return found;
        const float scale = floats(p.scale)[task * p.D + d];
        const float centre = floats(p.centre)[task * p.D + d];
        return found * scale - float(p.held[at]) * centre;
    }

    __device__ float moved(int64_t d) const {
        return (floats(p.start)[at * p.D + d] * shots + sum(d)) / mass;
    }

    // Feature d as a factor of products.
    __device__ void write(int64_t d, float w) const {
        __half* const to = static_cast<__half*>(p.operand) + at * p.pieces * p.D + d;
        if (p.factor != nullptr) w *= floats(p.factor)[task * p.D + d];
        const __half high = __float2half_rn(w);
        to[0] = high;
        if (p.pieces == 1) return;
        if (p.pieces == 3) to[p.D] = high;
        to[(p.pieces - 1) * p.D] = __float2half_rn(w - __half2float(high));
    }
};

__global__ void __launch_bounds__(kMoveThreads) move_kernel(MoveParams p) {
    __shared__ double scratch[kMoveWarps];
    const MovedClass own{p, blockIdx.x};
    const bool moves = p.sums != nullptr && p.running[own.task] != 0;
    float* const prototype = floats(p.prototypes, own.at * p.D);
    float* const before = floats(p.before, own.at * p.D);
    const float* const centre = floats(p.centre);
    double squared = 0, half_square = 0;
    for (int64_t d = threadIdx.x; d < p.D; d += kMoveThreads) {
        float w = prototype[d];
        if (moves) {
            const float to = own.moved(d);
            const double away = double(to - w);
            squared += away * away;
            before[d] = w;
            prototype[d] = w = to;
        }
        half_square += double(w) * double(w) / 2;
        // Rows as they are have products with w that are larger by this.
        if (centre != nullptr) half_square += double(w) * double(centre[own.task * p.D + d]);
        if (p.pieces > 0) own.write(d, w);
    }
    squared = block_sum(squared, scratch);
    half_square = block_sum(half_square, scratch);
    if (threadIdx.x != 0) return;
    if (moves) p.away[own.at] = sqrt(squared);
    p.base[own.at] = -p.slope[own.task] * half_square;
}

// --- rows as halves, for products on tensor cores: one warp per row ------------------------------

__device__ void store4(__half* to, float4 x, bool aligned, int64_t left) {
    const __half2 first = __floats2half2_rn(x.x, x.y), second = __floats2half2_rn(x.z, x.w);
    if (aligned) {
        uint2 raw;
        raw.x = *reinterpret_cast<const unsigned*>(&first);
        raw.y = *reinterpret_cast<const unsigned*>(&second);
        *reinterpret_cast<uint2*>(to) = raw;
        return;
    }
    to[0] = first.x;
    if (left > 1) to[1] = first.y;
    if (left > 2) to[2] = second.x;
    if (left > 3) to[3] = second.y;
}

__device__ float low_of(float x) { return x - __half2float(__float2half_rn(x)); }

// A row minus the centre.
template <typename Feature>
struct Centred {
    const Feature* row;
    const float *scale, *centre;
    float length;
    int64_t D;
    bool aligned;

    __device__ float4 operator()(int64_t d) const {
        const float4 x = load_row4(row, d, D, aligned);
        const float4 s = load_row4(scale, d, D, aligned), c = load_row4(centre, d, D, aligned);
        return x * length * s - c;
    }
};

// 1 / norm, by one warp.
template <typename Feature>
__device__ float inverse_norm_of(const Centred<Feature>& x) {
    float sum = 0;
    for (int64_t d = threadIdx.x % 32 * 4; d < x.D; d += 128) sum += squared_norm(x(d));
    return inverse_of_centred(warp_sum(sum));
}

template <typename Feature, bool kUnit>
__global__ void __launch_bounds__(kThreads) split_kernel(SplitParams p, bool aligned) {
    const int64_t row = blockIdx.x * int64_t(kWarps) + threadIdx.x / 32, D = p.D;
    if (row >= p.B * p.N) return;
    const int64_t task = row / p.N;
    const int lane = threadIdx.x % 32;
    __half* const to = static_cast<__half*>(p.out) + row * p.pieces * D;
    const Feature* const from = static_cast<const Feature*>(p.rows) + row * D;
    Centred<Feature> x{from, p.scale + task * D, p.centre + task * D, 1.0f, D, aligned};
    if (kUnit) {
        x.length = warp_inverse_norm(from, D, aligned);
    } else if (p.length != nullptr) {
        x.length = p.length[row];
    }
    const float unit = kUnit ? inverse_norm_of(x) : 1.0f;
    float own = 0;
    for (int64_t d = lane * 4; d < D; d += 128) {
        float4 v = x(d);
        if (kUnit) {
            v = v * unit;
            if (p.own != nullptr) {
                const float4 m = load_row4(p.metric + task * D, d, D, aligned);
                own += v.x * v.x * m.x + v.y * v.y * m.y + v.z * v.z * m.z + v.w * v.w * m.w;
            }
        }
        store4(to + d, v, aligned, D - d);
        if (p.pieces == 1) continue;
        const float4 low = make_float4(low_of(v.x), low_of(v.y), low_of(v.z), low_of(v.w));
        store4(to + D + d, low, aligned, D - d);
        store4(to + 2 * D + d, v, aligned, D - d);
    }
    if (!kUnit) return;
    own = warp_sum(own);
    if (lane == 0 && p.own != nullptr) p.own[row] = own;
}

// --- the end of an iteration: one block per task -------------------------------------------------

constexpr int kDualThreads = 1024, kDualWarps = kDualThreads / 32;

__global__ void __launch_bounds__(kDualThreads) dual_kernel(DualParams p) {
    const int64_t task = blockIdx.x;
    if (p.running[task] != 1) return;
    if (p.weights != nullptr && p.faint[task] > 0) {
        __syncthreads();
        if (threadIdx.x == 0) p.running[task] = -1;
        return;
    }
    double* const held = p.held + task * p.K;
    double* const counts = p.counts + task * p.K;
    double* const dual = p.dual + task * p.K;
    Proportions proportions(p.prior, p.total, double(p.K), p.epsilon);
    proportions.concentration = p.concentration[task];
    const auto measure = [&](int64_t k) {
        return p.measure == nullptr ? 1.0 : p.measure[task * p.K + k];
    };
    __shared__ Update<double> scratch[kDualWarps];
    __shared__ double sums[kDualWarps];
    Update<double> own{0, 0, 0};
    double away = 0;
    for (int64_t k = threadIdx.x; k < p.K; k += kDualThreads) {
        const double count = p.weight * held[k];
        own.moved = fmax(own.moved, fabs(count - counts[k]));
        counts[k] = count;
        if (p.away != nullptr) away += p.away[task * p.K + k];
        if (!proportions.dirichlet) continue;
        const PriorTerm term = class_term(count, proportions.concentration, measure(k));
        own.slope += term.slope;
        own.curvature += term.curvature;
    }
    const Update<double> all = block_reduce(own, scratch);
    if (p.away != nullptr) away = block_sum(away, sums);
    if (proportions.dirichlet) proportions.learn(all.slope, all.curvature, p.least, p.learns);
    for (int64_t k = threadIdx.x; k < p.K; k += kDualThreads) {
        held[k] = 0;  // this thread has read it
        p.before[task * p.K + k] = dual[k];
        dual[k] = proportions.dual(counts[k], measure(k));
        if (p.base != nullptr) set_bias(p, task * p.K + k);
    }
    if (p.weights != nullptr) {
        double most = Range<double>::kMinusInfinity;
        for (int64_t at = task * p.K + threadIdx.x; at < (task + 1) * p.K; at += kDualThreads) {
            most = fmax(most, p.dual_weight * p.dual[at] - p.anchor[at]);
        }
        most = block_max(most, sums);
        for (int64_t at = task * p.K + threadIdx.x; at < (task + 1) * p.K; at += kDualThreads) {
            set_weight(p, at, most);
        }
    }
    __syncthreads();  // the state of the task has been read by all
    if (threadIdx.x != 0) return;
    const double moved = p.away == nullptr ? all.moved : away / double(p.K) * p.unit[task];
    p.concentration[task] = proportions.concentration;
    p.criterion[task] = moved;
    p.iterations[task] += 1;
    p.running[task] = !(p.tol > 0 && moved <= p.tol);
}

}  // namespace

void run_cuda(const MoveParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "prototypes on CUDA must be float32");
    launch("move_kernel", move_kernel, p.B * p.K, kMoveThreads, 0, stream, p);
}

void run_cuda(const SplitParams& p, cudaStream_t stream) {
    require(p.dtype != DType::kFloat64, "rows must be of half or single precision");
    require(p.pieces == 1 || p.pieces == 3, "pieces must be 1 or 3, got ", p.pieces);
    const bool aligned = rows_aligned(p.dtype, p.D, {p.rows, p.out}) &&
                         rows_aligned(DType::kFloat32, p.D, {p.scale, p.centre, p.metric});
    with_feature_type(p.dtype, [&](auto* feature) {
        using Feature = std::remove_pointer_t<decltype(feature)>;
        const auto kernel = p.unit ? split_kernel<Feature, true> : split_kernel<Feature, false>;
        launch("split_kernel", kernel, ceil_div(p.B * p.N, kWarps), kThreads, 0, stream, p,
               aligned);
    });
}

void run_cuda(const DualParams& p, cudaStream_t stream) {
    launch("dual_kernel", dual_kernel, p.B, kDualThreads, 0, stream, p);
}

}  // namespace paddle_ext
