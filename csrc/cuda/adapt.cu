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

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMaxHeld = 16;  // classes of a lane; more would spill
// Shared memory for the logits of a task, such that two blocks fit a multiprocessor.
constexpr int64_t kStaged = 100 * 1024;
constexpr int kTerms = 256;  // a longer float sum is a sum of such sums
constexpr float kLn2 = 0.6931471805599453f;

// Sums of slope and curvature and the largest move, over the block, in a fixed order.
struct Update {
    double slope, curvature, moved;
};

__device__ Update block_reduce(Update own, Update* scratch) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        own.slope += __shfl_xor_sync(kAllLanes, own.slope, step);
        own.curvature += __shfl_xor_sync(kAllLanes, own.curvature, step);
        own.moved = fmax(own.moved, __shfl_xor_sync(kAllLanes, own.moved, step));
    }
    __syncthreads();  // what the reduction before left has been read
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = own;
    __syncthreads();
    Update all = scratch[0];
    for (int warp = 1; warp < kWarps; ++warp) {
        all.slope += scratch[warp].slope;
        all.curvature += scratch[warp].curvature;
        all.moved = fmax(all.moved, scratch[warp].moved);
    }
    return all;
}

__device__ double block_sum(double value, Update* scratch) {
    return block_reduce({value, 0, 0}, scratch).slope;
}

// The next concentration and dual from the counts. counts(k) gives N_k, exchange(k, N) the one of the
// iteration before, and set(k, e) takes the dual up to a constant, which changes no probability.
// Returns how far a count moved.
template <typename Counts, typename Exchange, typename Set>
__device__ double update_prior(double& a, double total, int64_t K, const Counts& counts,
                               const Exchange& exchange, const Set& set, Update* scratch) {
    Update own{0, 0, 0};
    for (int64_t i = threadIdx.x; i < K + 3; i += kThreads) {
        PriorTerm term;
        if (i < K) {
            const double count = counts(i);
            term = class_term(count, a);
            own.moved = fmax(own.moved, fabs(count - exchange(i, count)));
        } else {
            term = prior_term(int(i - K), a, total, double(K));
        }
        own.slope += term.slope;
        own.curvature += term.curvature;
    }
    const Update all = block_reduce(own, scratch);
    a = next_concentration(a, all.slope, all.curvature);
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        set(k, float(polygamma(counts(k) + a).digamma));
    }
    return all.moved;
}

// What is told of a task, once its probabilities are written; `normalisers` is of the dual without
// its constant.
template <typename Counts, typename Dual>
__device__ void write_task(const AdaptParams& p, int64_t task, double a, double moved,
                           int iterations, double normalisers, const Counts& counts,
                           const Dual& dual, Update* scratch) {
    const double K = double(p.K), total = p.weight * double(p.Q);
    const double constant = polygamma(total + K * a).digamma;
    double bound = 0;
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
        const double count = counts(k), e = dual(k);
        bound += log_gamma(count + a) - count * e;
        static_cast<float*>(p.proportions)[task * p.K + k] = float((count + a) / (total + K * a));
        static_cast<float*>(p.dual)[task * p.K + k] = float(e - constant);
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
    return fmaxf(to_float(row[k]), Range<float>::kMinusInfinity / 4);
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

// Logits and dual are in base 2 here, so that an exponential is one instruction.
struct FewShared {
    float* logits;    // [Q, K] less the row's offset, if staged
    float* offset;    // [Q] in base e
    float* part;      // [kWarps, K]  counts of a warp's queries
    float* dual;      // [K]
    double* counts;   // [K]
    double* before;   // [K]
    Update* scratch;  // [kWarps]
    int64_t bytes;

    __host__ __device__ FewShared(void* base, int64_t Q, int64_t K, bool staged) {
        SharedArena arena(base);
        counts = arena.take<double>(K);
        before = arena.take<double>(K);
        scratch = arena.take<Update>(kWarps);
        part = arena.take<float>(kWarps * K);
        dual = arena.take<float>(K);
        offset = arena.take<float>(Q);
        logits = arena.take<float>(staged ? Q * K : 0);
        bytes = arena.used();
    }
};

// Where the logits of a row come from: shared memory, or as they were given.
template <typename Logit>
struct FewLogits {
    const FewShared& s;
    const Logit* given;
    bool staged;

    __device__ float operator()(int64_t q, int k, int K) const {
        if (staged) return s.logits[q * K + k];
        return kLog2e<float> * (logit(given + q * K, k) - s.offset[q]);
    }
};

// Probabilities, up to the factor that is returned, of one query in z; `log2` is the logarithm of
// their sum. Lanes beyond K hold zeros.
template <int kHeld, typename Logits>
__device__ float probabilities(const Logits& logits, int64_t q, int K, const float* dual, float* z,
                               float& log2) {
    const int lane = threadIdx.x % 32;
    float most = Range<float>::kMinusInfinity, sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int k = lane + 32 * i;
        z[i] = k < K ? logits(q, k, K) + dual[i] : Range<float>::kMinusInfinity;
        most = fmaxf(most, z[i]);
    }
    most = warp_max(most);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        z[i] = exp2f(z[i] - most);
        sum += z[i];
    }
    sum = warp_sum(sum);
    log2 = most + log2f(sum);
    return 1.0f / sum;
}

template <int kHeld>
__device__ void load_dual(const FewShared& s, int K, float* dual) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int k = int(threadIdx.x % 32) + 32 * i;
        dual[i] = k < K ? s.dual[k] : 0.0f;
    }
}

// Counts of all classes, from what each warp holds of them.
template <int kHeld>
__device__ void sum_counts(const FewShared& s, int K, const float* held, double weight) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
        const int k = lane + 32 * i;
        if (k < K) s.part[warp * K + k] = held[i];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < K; k += kThreads) {
        float sum = 0;
        for (int other = 0; other < kWarps; ++other) sum += s.part[other * K + k];
        s.counts[k] = weight * double(sum);
    }
}

// One pass over the queries for their counts. Two queries at a time hide each other's latency.
template <int kHeld, typename Logits>
__device__ void count_queries(const AdaptParams& p, const FewShared& s, const Logits& logits) {
    const int K = int(p.K);
    float dual[kHeld], held[kHeld], first[kHeld], second[kHeld], unused;
    load_dual<kHeld>(s, K, dual);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = 0;
    int64_t q = threadIdx.x / 32;
    for (; q + kWarps < p.Q; q += 2 * kWarps) {
        const float a = probabilities<kHeld>(logits, q, K, dual, first, unused);
        const float b = probabilities<kHeld>(logits, q + kWarps, K, dual, second, unused);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[i] += first[i] * a + second[i] * b;
    }
    if (q < p.Q) {
        const float a = probabilities<kHeld>(logits, q, K, dual, first, unused);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) held[i] += first[i] * a;
    }
    sum_counts<kHeld>(s, K, held, p.weight);
}

// The same, and it writes probabilities and labels. Returns the sum of the rows' normalisers.
template <int kHeld, typename Logits>
__device__ double write_queries(const AdaptParams& p, int64_t task, const FewShared& s,
                                const Logits& logits) {
    const int lane = threadIdx.x % 32, K = int(p.K);
    float dual[kHeld], held[kHeld], z[kHeld], log2;
    load_dual<kHeld>(s, K, dual);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = 0;
    double normalisers = 0;
    for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
        const float share = probabilities<kHeld>(logits, q, K, dual, z, log2);
        normalisers += double(s.offset[q]) + double(kLn2) * double(log2);
        float* const out = static_cast<float*>(p.probabilities) + (task * p.Q + q) * K;
        float best = -1.0f;
        int label = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const int k = lane + 32 * i;
            const float u = z[i] * share;
            held[i] += u;
            if (k < K) out[k] = u;
            if (k < K && u > best) {
                best = u;
                label = k;
            }
        }
        label = warp_argmax(best, label);
        if (lane == 0) p.labels[task * p.Q + q] = label;
    }
    sum_counts<kHeld>(s, K, held, p.weight);
    return block_sum(lane == 0 ? normalisers : 0.0, s.scratch);
}

template <int kHeld, typename Logit>
__global__ void __launch_bounds__(kThreads) adapt_few_kernel(AdaptParams p, bool staged) {
    extern __shared__ double memory[];
    const FewShared s(memory, p.Q, p.K, staged);
    const int64_t task = blockIdx.x, K = p.K;
    const Logit* const given = static_cast<const Logit*>(p.logits) + task * p.Q * K;
    for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
        const float offset = row_offset(given + q * K, K);
        if (threadIdx.x % 32 == 0) s.offset[q] = offset;
        if (!staged) continue;
        for (int64_t k = threadIdx.x % 32; k < K; k += 32) {
            s.logits[q * K + k] = kLog2e<float> * (logit(given + q * K, k) - offset);
        }
    }
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        s.dual[k] = 0;
        s.before[k] = 0;
    }
    __syncthreads();

    const FewLogits<Logit> logits{s, given, staged};
    const auto counts = [&](int64_t k) { return s.counts[k]; };
    const auto exchange = [&](int64_t k, double count) {
        const double old = s.before[k];
        s.before[k] = count;
        return old;
    };
    const auto set = [&](int64_t k, float e) { s.dual[k] = kLog2e<float> * e; };
    const double total = p.weight * double(p.Q);
    double a = kFirstConcentration, moved = 0;
    int iterations = 0;
    do {
        count_queries<kHeld>(p, s, logits);
        moved = update_prior(a, total, K, counts, exchange, set, s.scratch);
        __syncthreads();  // the new dual is there for all warps
    } while (goes_on(p, ++iterations, moved));
    const double normalisers = write_queries<kHeld>(p, task, s, logits);
    const auto dual = [&](int64_t k) { return double(kLn2) * double(s.dual[k]); };
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
    __shared__ Update scratch[kWarps];
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
    const auto dual_of = [&](int64_t k) { return double(dual[k]); };
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
        switch (ceil_div(p.K, int64_t(32))) {
            case 1: return launch_few<1, Logit>(p, stream);
            case 2: return launch_few<2, Logit>(p, stream);
            case 3: return launch_few<3, Logit>(p, stream);
            case 4: return launch_few<4, Logit>(p, stream);
            case 5: return launch_few<5, Logit>(p, stream);
            case 6:
            case 7:
            case 8: return launch_few<8, Logit>(p, stream);
            default: return launch_few<kMaxHeld, Logit>(p, stream);
        }
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
