// `adapt` on CUDA: one kernel for the whole loop, one block a task, which stops by itself. The
// algebra is in common/adapt.h.
//
// Up to 32 kMaxHeld classes, and unless there are very many queries, a warp takes a query at a time and holds its classes in registers, as
// well as its share of the counts; the logits are in shared memory if they fit. With more classes
// the rows' normalisers are kept instead, and threads that own a class sum over the queries. Sums
// are taken in a fixed order, without atomics.

#include "cuda/adapt.h"

#include "common/adapt.h"
#include "common/check.h"
#include "common/device.cuh"
#include "common/reduce.cuh"
#include "common/rows.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxHeld = 16;  // classes of a lane; more would spill
// Shared memory for the logits of a task, such that two blocks fit a multiprocessor.
constexpr int64_t kStaged = 100 * 1024;
constexpr int kTerms = 256;  // a longer float sum is a sum of such sums

__device__ double block_sum(double value, double* scratch) {
    value = warp_sum(value);
    __syncthreads();  // the scratch of the sum before has been read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    double sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += scratch[warp];
    return sum;
}

__device__ double block_max(double value, double* scratch) {
    for (int step = 16; step > 0; step /= 2) {
        value = fmax(value, __shfl_xor_sync(kAllLanes, value, step));
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    double most = scratch[0];
    for (int warp = 1; warp < kWarps; ++warp) most = fmax(most, scratch[warp]);
    return most;
}

// The next concentration and e from the counts. Counts(k) gives N_k, and exchange(k, N) the one of
// the iteration before; set(k, e) takes the result. Returns how far a count moved.
template <typename Counts, typename Exchange, typename Set>
__device__ double update_prior(double& a, double total, int64_t K, const Counts& counts,
                               const Exchange& exchange, const Set& set, double* scratch) {
    double digammas = 0, trigammas = 0, moved = 0;
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        const double count = counts(k);
        const Polygamma own = polygamma(count + a);
        digammas += own.digamma;
        trigammas += own.trigamma;
        moved = fmax(moved, fabs(count - exchange(k, count)));
    }
    digammas = block_sum(digammas, scratch);
    trigammas = block_sum(trigammas, scratch);
    moved = block_max(moved, scratch);
    a = next_concentration(a, digammas, trigammas, total, double(K));
    const double all = polygamma(total + double(K) * a).digamma;
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        set(k, float(polygamma(counts(k) + a).digamma - all));
    }
    return moved;
}

// What is told of a task, once its probabilities are written.
template <typename Counts, typename Dual>
__device__ void write_task(const AdaptParams& p, int64_t task, double a, double moved,
                           int iterations, double normalisers, const Counts& counts,
                           const Dual& dual, double* scratch) {
    const double K = double(p.K), total = p.weight * double(p.Q);
    double bound = 0;
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
        const double count = counts(k);
        const float e = dual(k);
        bound += log_gamma(count + a) - count * double(e);
        static_cast<float*>(p.proportions)[task * p.K + k] = float((count + a) / (total + K * a));
        static_cast<float*>(p.dual)[task * p.K + k] = e;
    }
    bound = block_sum(bound, scratch);
    if (threadIdx.x != 0) return;
    static_cast<float*>(p.concentration)[task] = float(a);
    static_cast<float*>(p.criterion)[task] = float(moved);
    static_cast<float*>(p.bound)[task] =
        float(p.weight * normalisers + bound + prior_bound(a, total, K));
    p.iterations[task] = iterations;
}

__device__ bool goes_on(const AdaptParams& p, int iterations, double moved) {
    return iterations < p.max_iter && !(p.tol > 0 && moved <= p.tol);
}

// -inf becomes a number that is one also less any offset.
template <typename Logit>
__device__ float logit(const Logit* row, int64_t k) {
    return fmaxf(to_float(row[k]), Range<float>::kMinusInfinity / 2);
}

// The largest logit of a row, by a warp. It is taken off before the dual is added, or a common
// offset would swallow the dual.
template <typename Logit>
__device__ float row_offset(const Logit* row, int64_t K) {
    float most = Range<float>::kMinusInfinity;
    for (int64_t k = threadIdx.x % 32; k < K; k += 32) most = fmaxf(most, logit(row, k));
    return warp_max(most);
}

// --- few classes: in registers --------------------------------------------------------------------

struct FewShared {
    float* logits;    // [Q, K] if staged
    float* offset;    // [Q]
    float* part;      // [kWarps, K]  counts of a warp's queries
    float* dual;      // [K]
    double* counts;   // [K]
    double* before;   // [K]
    double* scratch;  // [kWarps]
    int64_t bytes;

    __host__ __device__ FewShared(void* base, int64_t Q, int64_t K, bool staged) {
        SharedArena arena(base);
        counts = arena.take<double>(K);
        before = arena.take<double>(K);
        scratch = arena.take<double>(kWarps);
        part = arena.take<float>(kWarps * K);
        dual = arena.take<float>(K);
        offset = arena.take<float>(Q);
        logits = arena.take<float>(staged ? Q * K : 0);
        bytes = arena.used();
    }
};

// One pass over the queries: counts, and if kWrite probabilities and labels. Returns the warp's sum
// of its rows' normalisers.
template <int kHeld, bool kWrite, typename Logit>
__device__ double assign(const AdaptParams& p, int64_t task, const FewShared& s,
                         const Logit* logits) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int K = int(p.K);
    float dual[kHeld], held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int k = lane + 32 * i;
        dual[i] = k < K ? s.dual[k] : 0.0f;
        held[i] = 0;
    }
    double normalisers = 0;
    for (int64_t q = warp; q < p.Q; q += kWarps) {
        float z[kHeld], most = Range<float>::kMinusInfinity, sum = 0;
        const float offset = s.offset[q];
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const int k = lane + 32 * i;
            z[i] =
                k < K ? logit(logits + q * K, k) - offset + dual[i] : Range<float>::kMinusInfinity;
            most = fmaxf(most, z[i]);
        }
        most = warp_max(most);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            z[i] = lane + 32 * i < K ? expf(z[i] - most) : 0.0f;
            sum += z[i];
        }
        sum = warp_sum(sum);
        const float share = 1.0f / sum;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[i] += z[i] * share;
        if constexpr (kWrite) {
            normalisers += double(offset) + double(most) + log(double(sum));
            float* const out = static_cast<float*>(p.probabilities) + (task * p.Q + q) * K;
            float best = -1.0f;
            int label = 0;
#pragma unroll
            for (int i = 0; i < kHeld; ++i) {
                const int k = lane + 32 * i;
                if (k >= K) continue;
                const float u = z[i] * share;
                out[k] = u;
                if (u > best) {
                    best = u;
                    label = k;
                }
            }
            label = warp_argmax(best, label);
            if (lane == 0) p.labels[task * p.Q + q] = label;
        }
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int k = lane + 32 * i;
        if (k < K) s.part[warp * K + k] = held[i];
    }
    return normalisers;
}

template <int kHeld, typename Logit>
__global__ void __launch_bounds__(kThreads) adapt_few_kernel(AdaptParams p, bool staged) {
    extern __shared__ double memory[];
    const FewShared s(memory, p.Q, p.K, staged);
    const int64_t task = blockIdx.x, K = p.K;
    const Logit* const given = static_cast<const Logit*>(p.logits) + task * p.Q * K;
    if (staged) {
        for (int64_t i = threadIdx.x; i < p.Q * K; i += kThreads) s.logits[i] = to_float(given[i]);
    }
    for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
        const float offset = row_offset(given + q * K, K);
        if (threadIdx.x % 32 == 0) s.offset[q] = offset;
    }
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        s.dual[k] = 0;
        s.before[k] = 0;
    }
    __syncthreads();

    const double total = p.weight * double(p.Q);
    double a = kFirstConcentration, moved = 0, normalisers = 0;
    int iterations = 0;
    const auto sum_parts = [&] {
        __syncthreads();  // every warp has written its part
        for (int64_t k = threadIdx.x; k < K; k += kThreads) {
            float sum = 0;
            for (int warp = 0; warp < kWarps; ++warp) sum += s.part[warp * K + k];
            s.counts[k] = p.weight * double(sum);
        }
    };
    const auto counts = [&](int64_t k) { return s.counts[k]; };
    do {
        if (staged) {
            assign<kHeld, false>(p, task, s, s.logits);
        } else {
            assign<kHeld, false>(p, task, s, given);
        }
        sum_parts();
        const auto exchange = [&](int64_t k, double count) {
            const double old = s.before[k];
            s.before[k] = count;
            return old;
        };
        const auto set = [&](int64_t k, float e) { s.dual[k] = e; };
        moved = update_prior(a, total, K, counts, exchange, set, s.scratch);
        __syncthreads();  // the new dual is there for all warps
    } while (goes_on(p, ++iterations, moved));

    normalisers =
        staged ? assign<kHeld, true>(p, task, s, s.logits) : assign<kHeld, true>(p, task, s, given);
    sum_parts();
    // Every lane of a warp has the same sum of normalisers.
    normalisers = block_sum(threadIdx.x % 32 == 0 ? normalisers : 0.0, s.scratch);
    const auto dual = [&](int64_t k) { return s.dual[k]; };
    write_task(p, task, a, moved, iterations, normalisers, counts, dual, s.scratch);
}

// --- many classes: normalisers of the rows, then a thread for each class --------------------------

// ln sum_k exp(l_k + e_k) of each row, in `row_log`; with kWrite labels too. The warp's sum of them.
template <bool kWrite, typename Logit>
__device__ double normalise_rows(const AdaptParams& p, int64_t task, const Logit* logits,
                                 const float* dual, const float* offset, float* row_log) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double total = 0;
    for (int64_t q = warp; q < p.Q; q += kWarps) {
        const Logit* const row = logits + q * p.K;
        float most = Range<float>::kMinusInfinity;
        int label = 0;
        for (int64_t k = lane; k < p.K; k += 32) {
            const float z = logit(row, k) - offset[q] + dual[k];
            if (z > most) {
                most = z;
                label = int(k);
            }
        }
        if constexpr (kWrite) {
            label = warp_argmax(most, label);
            if (lane == 0) p.labels[task * p.Q + q] = label;
        }
        most = warp_max(most);
        float sum = 0;
        for (int64_t k = lane; k < p.K; k += 32) {
            sum += expf(logit(row, k) - offset[q] + dual[k] - most);
        }
        const double log_sum = double(most) + log(double(warp_sum(sum)));
        if (lane == 0) row_log[q] = float(log_sum);
        total += double(offset[q]) + log_sum;
    }
    return total;
}

// Counts of all classes into `counts`; with kWrite the probabilities too.
template <bool kWrite, typename Logit>
__device__ void count_classes(const AdaptParams& p, int64_t task, const Logit* logits,
                              const float* dual, const float* offset, const float* row_log,
                              float* counts) {
    float* const out = static_cast<float*>(p.probabilities) + task * p.Q * p.K;
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
        const float e = dual[k];
        double sum = 0;
        for (int64_t first = 0; first < p.Q; first += kTerms) {
            const int64_t end = min(p.Q, first + kTerms);
            float part = 0;
            for (int64_t q = first; q < end; ++q) {
                const float z = logit(logits + q * p.K, k) - offset[q] + e;
                const float u = expf(z - row_log[q]);
                part += u;
                if constexpr (kWrite) out[q * p.K + k] = u;
            }
            sum += double(part);
        }
        counts[k] = float(p.weight * sum);
    }
}

// The dual and the counts are kept where their results go, the rows' normalisers and the counts of
// the iteration before in the workspace.
template <typename Logit>
__global__ void __launch_bounds__(kThreads) adapt_many_kernel(AdaptParams p) {
    __shared__ double scratch[kWarps];
    const int64_t task = blockIdx.x, K = p.K;
    const Logit* const logits = static_cast<const Logit*>(p.logits) + task * p.Q * K;
    float* const dual = static_cast<float*>(p.dual) + task * K;
    float* const counts = static_cast<float*>(p.proportions) + task * K;
    float* const offset = static_cast<float*>(p.workspace) + task * (2 * p.Q + K);
    float* const row_log = offset + p.Q;
    float* const before = row_log + p.Q;
    for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
        const float most = row_offset(logits + q * K, K);
        if (threadIdx.x % 32 == 0) offset[q] = most;
    }
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        dual[k] = 0;
        before[k] = 0;
    }
    __syncthreads();

    const double total = p.weight * double(p.Q);
    double a = kFirstConcentration, moved = 0;
    int iterations = 0;
    const auto count = [&](int64_t k) { return double(counts[k]); };
    do {
        normalise_rows<false>(p, task, logits, dual, offset, row_log);
        __syncthreads();
        count_classes<false>(p, task, logits, dual, offset, row_log, counts);
        const auto exchange = [&](int64_t k, double now) {
            const double old = double(before[k]);
            before[k] = float(now);
            return old;
        };
        const auto set = [&](int64_t k, float e) { dual[k] = e; };
        moved = update_prior(a, total, K, count, exchange, set, scratch);
        __syncthreads();
    } while (goes_on(p, ++iterations, moved));

    double normalisers = normalise_rows<true>(p, task, logits, dual, offset, row_log);
    __syncthreads();
    count_classes<true>(p, task, logits, dual, offset, row_log, counts);
    normalisers = block_sum(threadIdx.x % 32 == 0 ? normalisers : 0.0, scratch);
    const auto dual_of = [&](int64_t k) { return dual[k]; };
    write_task(p, task, a, moved, iterations, normalisers, count, dual_of, scratch);
}

template <int kHeld, typename Logit>
void launch_few(const AdaptParams& p, cudaStream_t stream) {
    const bool staged = FewShared(nullptr, p.Q, p.K, true).bytes <= kStaged;
    const int64_t bytes = FewShared(nullptr, p.Q, p.K, staged).bytes;
    const auto kernel = adapt_few_kernel<kHeld, Logit>;
    allow_all_shared(kernel);
    kernel<<<grid_size(p.B), kThreads, size_t(bytes), stream>>>(p, staged);
    check_launch("adapt_few_kernel");
}

bool has_few(const AdaptParams& p) {
    return p.K <= 32 * kMaxHeld && FewShared(nullptr, p.Q, p.K, false).bytes <= kStaged;
}

template <typename Logit>
void launch(const AdaptParams& p, cudaStream_t stream) {
    if (has_few(p)) {
        if (p.K <= 32) return launch_few<1, Logit>(p, stream);
        if (p.K <= 64) return launch_few<2, Logit>(p, stream);
        if (p.K <= 128) return launch_few<4, Logit>(p, stream);
        if (p.K <= 256) return launch_few<8, Logit>(p, stream);
        return launch_few<kMaxHeld, Logit>(p, stream);
    }
    require_workspace(p.workspace_bytes, adapt_cuda_workspace(p, 0));
    adapt_many_kernel<Logit><<<grid_size(p.B), kThreads, 0, stream>>>(p);
    check_launch("adapt_many_kernel");
}

}  // namespace

int64_t adapt_cuda_workspace(const AdaptParams& p, int) {
    return has_few(p) ? 0 : p.B * (2 * p.Q + p.K) * int64_t(sizeof(float));
}

void adapt_cuda(const AdaptParams& p, int device, void* stream) {
    require(p.K <= INT32_MAX, "num_classes must be fewer than 2^31, got ", p.K);
    const DeviceGuard guard(device);
    with_feature_type(p.dtype, [&](auto* type) {
        using Logit = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
        launch<Logit>(p, static_cast<cudaStream_t>(stream));
    });
}

}  // namespace paddle_ext
