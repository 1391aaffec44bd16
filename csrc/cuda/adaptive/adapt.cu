// `adapt` on CUDA: one kernel for the whole loop, one block per task, which stops on its own. The
// algebra is in common/adapt.h.

#include "cuda/adaptive/adapt.cuh"

namespace paddle_ext {

namespace {

// --- more classes than the registers of a warp hold ----------------------------------------------
//
// Two passes over the likelihoods per iteration: one warp per row, then one thread per class.

constexpr int kManyThreads = 1024, kManyWarps = kManyThreads / 32;
constexpr int kManyTerms = 256;    // longer float sums are split
constexpr int64_t kNearby = 8192;  // numbers of a row or a column that fit in shared memory

// The likelihoods are stored in the probabilities' array, the counts in the proportions' array, the
// rest in the workspace.
struct ManyTask {
    const AdaptParams& p;
    int64_t task;
    Logits logits{p, task};
    float* likelihood = floats(p.probabilities, task* p.Q* p.K);  // [Q, K]
    float* counts = floats(p.proportions, task* p.K);             // [K]
    // [Q] 1 / s; 0 for a row that is recomputed from its logits ...
    float* share = floats(p.workspace, task* numbers(p));
    float* row_log = share + p.Q;   // [Q] ... with this normaliser
    float* offset = row_log + p.Q;  // [Q] largest logit of a row
    float* dual = offset + p.Q;     // [K] minus its shift, ...
    float* g = dual + p.K;          // [K] ... and its exponential
    float* before = g + p.K;        // [K]
    float* best = before + p.K;     // [K] dual under the best measure

    __device__ ManyTask(const AdaptParams& p, int64_t task) : p(p), task(task) {
        extern __shared__ float nearby[];  // the most-read data of an iteration
        if (p.Q <= kNearby) share = nearby;
        if (p.K <= kNearby) g = nearby + (p.Q <= kNearby ? p.Q : 0);
    }

    // In the workspace.
    static __host__ __device__ int64_t numbers(const AdaptParams& p) { return 3 * p.Q + 4 * p.K; }

    __device__ float shifted(int64_t q, int64_t k) const {
        return logits(q, k) - offset[q] + dual[k];
    }

    // Computes share and row_log of each row; returns the warp's sum of the rows' normalisers.
    __device__ double normalise_rows() {
        const int lane = threadIdx.x % 32;
        double total = 0;
        for (int64_t q = threadIdx.x / 32; q < p.Q; q += kManyWarps) {
            const float* const a = likelihood + q * p.K;
            float sum = 0;
#pragma unroll 8
            for (int64_t k = lane; k < p.K; k += 32) sum += a[k] * g[k];
            sum = warp_sum(sum);
            const bool faint = !(sum > kFaint);
            double log_sum = log(double(sum));
            if (faint) {
                float most = Range<float>::kMinusInfinity;
                for (int64_t k = lane; k < p.K; k += 32) most = fmaxf(most, shifted(q, k));
                most = warp_max(most);
                float again = 0;
                for (int64_t k = lane; k < p.K; k += 32) again += expf(shifted(q, k) - most);
                log_sum = double(most) + log(double(warp_sum(again)));
            }
            if (lane == 0) {
                share[q] = faint ? 0.0f : 1.0f / sum;
                row_log[q] = float(log_sum);
            }
            total += double(offset[q]) + log_sum;
        }
        return total;
    }

    __device__ float probability(int64_t q, int64_t k) const {
        if (share[q] > 0) return likelihood[q * p.K + k] * g[k] * share[q];
        return expf(shifted(q, k) - row_log[q]);
    }

    // Counts of all classes; with kWrite the probabilities overwrite the likelihoods.
    template <bool kWrite>
    __device__ void count_classes() {
        for (int64_t k = threadIdx.x; k < p.K; k += kManyThreads) {
            double sum = 0;
            for (int64_t first = 0; first < p.Q; first += kManyTerms) {
                const int64_t end = min(p.Q, first + kManyTerms);
                float part = 0;
#pragma unroll 8
                for (int64_t q = first; q < end; ++q) {
                    const float u = probability(q, k);
                    part += u;
                    if constexpr (kWrite) likelihood[q * p.K + k] = u;
                }
                sum += double(part);
            }
            counts[k] = float(p.weight * sum);
        }
    }

    __device__ void write_labels() {
        const int lane = threadIdx.x % 32;
        for (int64_t q = threadIdx.x / 32; q < p.Q; q += kManyWarps) {
            float best = -1.0f;
            int label = 0;
            for (int64_t k = lane; k < p.K; k += 32) {
                const float u = likelihood[q * p.K + k];
                if (u > best) {
                    best = u;
                    label = int(k);
                }
            }
            label = warp_argmax(best, label);
            if (lane == 0) p.labels[blockIdx.x * p.Q + q] = label;
        }
    }
};

template <bool kGiven>
__global__ void __launch_bounds__(kManyThreads) adapt_many_kernel(AdaptParams p) {
    __shared__ Update<float> scratch[kManyWarps];
    __shared__ double sums[kManyWarps];
    ManyTask t(p, blockIdx.x);
    for (int64_t q = threadIdx.x / 32; q < p.Q; q += kManyWarps) {
        const float most = t.logits.likelihood(q, t.likelihood + q * p.K);
        if (threadIdx.x % 32 == 0) t.offset[q] = most;
    }

    const auto set = [&](int64_t k, float e) {
        t.dual[k] = e;
        t.g[k] = expf(e);
    };
    const auto normalise = [&] {
        const double normalisers = t.normalise_rows();
        __syncthreads();
        t.count_classes<false>();
        return block_sum(threadIdx.x % 32 == 0 ? normalisers : 0.0, sums);
    };
    const auto iterate = [&](Loop& loop, const Measure<kGiven>& measure) {
        t.normalise_rows();
        __syncthreads();
        t.count_classes<false>();
        update_prior(loop, p, measure, t.counts, t.before, set, scratch);
        __syncthreads();
    };
    const Loop loop = learn<kGiven>(p, blockIdx.x, t.counts, t.before, t.dual, t.best, set, iterate,
                                    normalise, sums);

    double normalisers = t.normalise_rows();
    __syncthreads();
    t.count_classes<true>();
    normalisers = block_sum(threadIdx.x % 32 == 0 ? normalisers : 0.0, sums);
    t.write_labels();
    write_task<kGiven>(p, blockIdx.x, loop, normalisers, t.counts, t.dual, sums);
}

int64_t adapt_many_workspace(const AdaptParams& p) {
    return p.B * ManyTask::numbers(p) * int64_t(sizeof(float));
}

void launch_adapt_many(const AdaptParams& p, cudaStream_t stream) {
    require_workspace(p.workspace_bytes, adapt_many_workspace(p));
    const int64_t numbers = (p.Q <= kNearby ? p.Q : 0) + (p.K <= kNearby ? p.K : 0);
    const int64_t bytes = numbers * int64_t(sizeof(float));
    const auto kernel = p.measures == nullptr ? adapt_many_kernel<false> : adapt_many_kernel<true>;
    allow_all_shared(kernel);
    launch("adapt_many_kernel", kernel, p.B, kManyThreads, bytes, stream, p);
}

// --- few classes ---------------------------------------------------------------------------------
//
// The likelihoods A_qk = exp(l_qk - max_k l_qk) are computed once, in shared memory if they fit,
// else in the output array. With g_k = exp(e_k - max_k e_k) an iteration is two products, s = A g
// and N_k = w g_k sum_q A_qk / s_q. A warp takes a few queries at a time and keeps their classes,
// and its share of the counts, in registers. Sums are taken in a fixed order, without atomics.

constexpr int kMaxHeld = 16;  // classes per lane; more would spill
// Threads of a block, for many queries if a lane holds few classes.
constexpr int kFewThreads = 256, kMostThreads = 1024, kMostThreadsHeld = 4;
constexpr int64_t kManyQueries = 512;
// Limit on the shared memory of a block, so that several fit on a multiprocessor.
constexpr int64_t kStaged = 100 * 1024;

struct FewShared {
    SharedArena arena;
    int64_t Q, K, priors;
    bool staged;
    int warps;
    float* counts = arena.take<float>(K);
    float* before = arena.take<float>(K);
    Update<float>* scratch = arena.take<Update<float>>(warps);
    double* sums = arena.take<double>(warps);
    float* part = arena.take<float>(warps * K);  // counts of a warp's queries
    float* dual = arena.take<float>(K);          // minus its shift
    float* best = arena.take<float>(priors > 0 ? K : 0);
    float* likelihood = arena.take<float>(staged ? Q * K : 0);

    static int64_t bytes(const AdaptParams& p, bool staged, int warps) {
        return FewShared{SharedArena(nullptr), p.Q, p.K, p.priors, staged, warps}.arena.used();
    }
};

// The task of a block, from the view of one thread.
template <int kHeld, int kThreads>
struct FewTask {
    static constexpr int kWarps = kThreads / 32;
    static constexpr int kTerms = 256 * kWarps;  // longer sums over queries are split

    const AdaptParams& p;
    const FewShared& s;
    Logits logits;
    const float* likelihood;  // [Q, K]
    float* out;               // [Q, K] may be the same
    int64_t* labels;          // [Q]
    int K;
    float g[kHeld];  // exp(dual) of the lane's classes, 0 beyond K

    __device__ int column(int i) const { return int(threadIdx.x % 32) + 32 * i; }

    __device__ void load_weights() {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) g[i] = column(i) < K ? __expf(s.dual[column(i)]) : 0.0f;
    }

    // z = A g of a row, and this lane's part of their sum.
    __device__ float weighted(int64_t q, float* z) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            z[i] = column(i) < K ? likelihood[q * K + column(i)] * g[i] : 0.0f;
            sum += z[i];
        }
        return sum;
    }

    // The same from the logits, for a row whose likelihoods are too small; subtracts the returned
    // offset.
    __device__ float exact(int64_t q, float* z, float& sum) const {
        const float offset = logits.offset(q);
        float most = Range<float>::kMinusInfinity;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const int k = column(i);
            z[i] = k < K ? logits(q, k) - offset + s.dual[k] : Range<float>::kMinusInfinity;
            most = fmaxf(most, z[i]);
        }
        most = warp_max(most);
        sum = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            z[i] = expf(z[i] - most);
            sum += z[i];
        }
        sum = warp_sum(sum);
        return most;
    }

    // Counts of the queries of a warp, kRows at a time to hide latency.
    template <int kRows>
    __device__ void count_rows(int64_t& q, int64_t end, float* held) const {
        for (; q + (kRows - 1) * kWarps < end; q += kRows * kWarps) {
            float z[kRows][kHeld], sum[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) sum[r] = weighted(q + r * kWarps, z[r]);
#pragma unroll
            for (int r = 0; r < kRows; ++r) sum[r] = warp_sum(sum[r]);
            unsigned faint = 0;
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const bool clear = sum[r] > kFaint;
                faint |= clear ? 0u : 1u << r;
                const float share = clear ? inverse(sum[r]) : 0.0f;
#pragma unroll
                for (int i = 0; i < kHeld; ++i) held[i] += z[r][i] * share;
            }
            for (int r = 0; faint != 0; ++r, faint >>= 1) {
                if (faint % 2 == 0) continue;
                exact(q + r * kWarps, z[0], sum[0]);
                const float share = 1.0f / sum[0];
#pragma unroll
                for (int i = 0; i < kHeld; ++i) held[i] += z[0][i] * share;
            }
        }
    }

    __device__ void count() {
        constexpr int kRows = kHeld <= 5 ? 5 : kHeld <= 8 ? 4 : 2;
        load_weights();
        float total[kHeld] = {};
        int64_t q = threadIdx.x / 32;
        for (int64_t end = kTerms; end - kTerms < p.Q; end += kTerms) {
            float held[kHeld] = {};
            count_rows<kRows>(q, min(end, p.Q), held);
            count_rows<1>(q, min(end, p.Q), held);
            add(total, held);
        }
        sum_counts(total);
    }

    __device__ static void add(float* total, const float* held) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) total[i] += held[i];
    }

    // Counts of all classes, summed over the warps.
    __device__ void sum_counts(const float* held) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            if (column(i) < K) s.part[int(threadIdx.x / 32) * K + column(i)] = held[i];
        }
        __syncthreads();
        for (int k = threadIdx.x; k < K; k += kThreads) {
            float sum = 0;
#pragma unroll
            for (int warp = 0; warp < kWarps; ++warp) sum += s.part[warp * K + k];
            s.counts[k] = float(p.weight) * sum;
        }
    }

    // Recounts, and returns the sum of the rows' normalisers; with kWrite, writes probabilities and
    // labels.
    template <bool kWrite>
    __device__ double normalise() {
        const int lane = threadIdx.x % 32;
        float total[kHeld] = {}, held[kHeld] = {}, z[kHeld];
        load_weights();
        double normalisers = 0;
        for (int64_t q = threadIdx.x / 32; q < p.Q; q += kWarps) {
            if (q % kTerms < kWarps) {
                add(total, held);
#pragma unroll
                for (int i = 0; i < kHeld; ++i) held[i] = 0;
            }
            const double offset = logits.offset(q);
            float sum = warp_sum(weighted(q, z)), most = 0;
            if (!(sum > kFaint)) most = exact(q, z, sum);
            // Without kWrite only the difference of two bounds counts, and single precision will do.
            normalisers += offset + double(most) + (kWrite ? log(double(sum)) : double(logf(sum)));
            const float share = 1.0f / sum;
            float best = -1.0f;
            int label = 0;
#pragma unroll
            for (int i = 0; i < kHeld; ++i) {
                const int k = column(i);
                const float u = z[i] * share;
                held[i] += u;
                if (kWrite && k < K) out[q * K + k] = u;
                if (kWrite && k < K && u > best) {
                    best = u;
                    label = k;
                }
            }
            if constexpr (kWrite) {
                label = warp_argmax(best, label);
                if (lane == 0) labels[q] = label;
            }
        }
        add(total, held);
        sum_counts(total);
        return block_sum(lane == 0 ? normalisers : 0.0, s.sums);
    }
};

template <int kHeld, int kThreads, bool kGiven>
__global__ void __launch_bounds__(kThreads, kThreads == kMostThreads ? 1
                                            : kHeld <= 8             ? 3
                                                                     : 2)
    adapt_few_kernel(AdaptParams p, bool staged) {
    extern __shared__ double memory[];
    const FewShared s{SharedArena(memory), p.Q, p.K, p.priors, staged, kThreads / 32};
    const int64_t task = blockIdx.x, K = p.K;
    const Logits logits(p, task);
    float* const out = floats(p.probabilities, task * p.Q * K);
    float* const likelihood = staged ? s.likelihood : out;
    // Each warp reads only rows that it wrote itself.
    for (int64_t q = threadIdx.x / 32; q < p.Q; q += kThreads / 32) {
        logits.likelihood(q, likelihood + q * K);
    }

    FewTask<kHeld, kThreads> t{p, s, logits, likelihood, out, p.labels + task * p.Q, int(K), {}};
    const auto set = [&](int64_t k, float e) { s.dual[k] = e; };
    const auto iterate = [&](Loop& loop, const Measure<kGiven>& measure) {
        t.count();
        update_prior(loop, p, measure, s.counts, s.before, set, s.scratch);
        __syncthreads();  // the new dual is visible to all warps
    };
    const auto normalise = [&] { return t.template normalise<false>(); };
    const Loop loop =
        learn<kGiven>(p, task, s.counts, s.before, s.dual, s.best, set, iterate, normalise, s.sums);
    const double normalisers = t.template normalise<true>();
    write_task<kGiven>(p, task, loop, normalisers, s.counts, s.dual, s.sums);
}

template <int kHeld, int kThreads>
void launch_with_threads(const AdaptParams& p, cudaStream_t stream) {
    const bool staged = FewShared::bytes(p, true, kThreads / 32) <= kStaged;
    const int64_t bytes = FewShared::bytes(p, staged, kThreads / 32);
    const auto kernel = p.measures == nullptr ? adapt_few_kernel<kHeld, kThreads, false>
                                              : adapt_few_kernel<kHeld, kThreads, true>;
    allow_all_shared(kernel);
    launch("adapt_few_kernel", kernel, p.B, kThreads, bytes, stream, p, staged);
}

// The threads depend on the shape of a task only, because sums depend on them.
template <int kHeld>
void launch_few(const AdaptParams& p, cudaStream_t stream) {
    if constexpr (kHeld <= kMostThreadsHeld) {
        if (p.Q >= kManyQueries) return launch_with_threads<kHeld, kMostThreads>(p, stream);
    }
    launch_with_threads<kHeld, kFewThreads>(p, stream);
}

bool has_few(const AdaptParams& p) { return p.K <= 32 * kMaxHeld; }

void launch_adapt_few(const AdaptParams& p, cudaStream_t stream) {
    switch (ceil_div(p.K, int64_t(32))) {
        case 1: return launch_few<1>(p, stream);
        case 2: return launch_few<2>(p, stream);
        case 3: return launch_few<3>(p, stream);
        case 4: return launch_few<4>(p, stream);
        case 5: return launch_few<5>(p, stream);
        case 6:
        case 7:
        case 8: return launch_few<8>(p, stream);
        default: return launch_few<kMaxHeld>(p, stream);
    }
}

}  // namespace

int64_t workspace_cuda(const AdaptParams& p) { return has_few(p) ? 0 : adapt_many_workspace(p); }

void run_cuda(const AdaptParams& p, cudaStream_t stream) {
    require(p.K <= INT32_MAX, "num_classes must be fewer than 2^31, got ", p.K);
    has_few(p) ? launch_adapt_few(p, stream) : launch_adapt_many(p, stream);
}

}  // namespace paddle_ext
