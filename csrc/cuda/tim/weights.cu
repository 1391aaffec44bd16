// From the products x.w to the softmax, and from it to the weight of every row in every class: the
// derivative of the loss by the logits, or the pull of the alternating solver on the prototypes.
// One warp per row; one block has all queries of a task, because their class means couple them.

#include "cuda/tim/chunk.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostShared = 96 * 1024;  // bytes; two blocks fit a multiprocessor

// One row of a task, by one warp.
struct Row {
    const float* products;  // x.w
    float* scores;          // x.w - ||w||^2 / 2, then the data of a stage; may be the same array
    __half* weights;
    int64_t K, classes;
    int lane;

    // 1) The score of every class relative to the best; returns the best score.
    __device__ float subtract_norms(const float* norm_parts, int64_t chunks) const {
        float best = Range<float>::kMinusInfinity;
        for (int64_t k = lane; k < K; k += 32) {
            float norm = 0.0f;
            for (int64_t chunk = 0; chunk < chunks; ++chunk) norm += norm_parts[chunk * K + k];
            const float score = products[k] - 0.5f * norm;
            scores[k] = score;
            best = fmaxf(best, score);
        }
        return warp_max(best);
    }

    __device__ void write(int64_t k, float weight) const {
        const HighLow halves = split(weight);
        const int64_t at = group_offset(k);
        weights[at] = halves.high;
        weights[at + kGroup] = halves.low;
    }

    __device__ void write_padding() const {
        for (int64_t k = K + lane; k < classes; k += 32) write(k, 0.0f);
    }
};

__device__ inline Row row_of(const TimChunk& c, int64_t task, int64_t number) {
    const bool has_products = number >= c.call.size.S || !c.plan.fused;
    float* const products = has_products ? products_of(c, task, number) : nullptr;
    return {products,      products,       weights_of(c, task, number),
            c.call.size.K, c.plan.classes, int(threadIdx.x % 32)};
}

struct Task {
    const TimChunk& c;
    int64_t number;
    const TimIteration& it;
    float* query_scores;  // shared memory, or null
    TimStage stage = it.stage;
    // The norms are already subtracted from the support's scores.
    bool measured = it.measured && stage == TimStage::kStep;
    bool alternating = c.call.solver == TimSolver::kAlternating;
    bool losses = c.call.losses != nullptr && stage == TimStage::kStep;
    float temperature = c.scale[number].temperature;
    int64_t chunks = c.plan.chunks;
    const float* norm_parts = c.norm_parts + number * chunks * c.call.size.K;  // [chunks, K]
    TimOrder<float> order[3] = {TimOrder<float>(c.call.alpha[0]), TimOrder<float>(c.call.alpha[1]),
                                TimOrder<float>(c.call.alpha[2])};
};

// --- support ------------------------------------------------------------------------------------

// The weights of one support row; returns its cross-entropy.
__device__ float support_row(const Task& t, const Row& row, int64_t label) {
    const float range = kHalfRange / support_range(t.c, t.number);
    if (t.stage == TimStage::kStart) {
        for (int64_t k = row.lane; k < row.K; k += 32) row.write(k, k == label ? range : 0.0f);
        row.write_padding();
        return 0.0f;
    }
    const float best = row.subtract_norms(t.norm_parts, t.measured ? 0 : t.chunks);
    float own = 0.0f, others = 0.0f;  // separate, because 1 - p would cancel
    for (int64_t k = row.lane; k < row.K; k += 32) {
        const float value = tim_exp(t.temperature * (row.scores[k] - best));
        (k == label ? own : others) += value;
    }
    own = warp_sum(own);
    others = warp_sum(others);
    const float inverse = 1.0f / (own + others), p = own * inverse;
    const float factor = t.alternating ? -1.0f : tim_support_factor(p, t.order[0]);
    if (t.stage == TimStage::kMeasure) {
        if (row.lane == 0) atomicMax(&t.c.largest_weight[t.number], __float_as_uint(factor));
        return 0.0f;
    }
    for (int64_t k = row.lane; k < row.K; k += 32) {
        const float value = tim_exp(t.temperature * (row.scores[k] - best));
        const float weight = factor * inverse * (k == label ? -others : value);
        row.write(k, weight * range);
        row.scores[k] = weight;
    }
    row.write_padding();
    return t.losses ? tim_cross_entropy(p, t.order[0]) : 0.0f;
}

// --- queries ------------------------------------------------------------------------------------

// Replaces the scores of a query by its probabilities or their logarithms.
__device__ void query_softmax(const Task& t, const Row& row, bool logarithms) {
    const float best = row.subtract_norms(t.norm_parts, t.chunks);
    float sum = 0.0f;
    for (int64_t k = row.lane; k < row.K; k += 32) {
        sum += tim_exp(t.temperature * (row.scores[k] - best));
    }
    sum = warp_sum(sum);
    const float inverse = 1.0f / sum, log_sum = logf(sum);
    for (int64_t k = row.lane; k < row.K; k += 32) {
        const float logit = t.temperature * (row.scores[k] - best);
        row.scores[k] = logarithms ? fmaxf(logit - log_sum, -float(TimRange<float>::kMaxLog))
                                   : tim_exp(logit) * inverse;
    }
}

// The derivatives of one query; returns its entropy.
__device__ float query_row(const Task& t, const Row& row, const float* column) {
    const auto slope = [&](int64_t k, float p, float log) {
        return column[k] + t.c.slope_weight[1] * tim_entropy_slope(p, log, t.order[2]);
    };
    float best = -1.0f;
    int likely = 0;
    for (int64_t k = row.lane; k < row.K; k += 32) {
        if (row.scores[k] > best) {
            best = row.scores[k];
            likely = int(k);
        }
    }
    likely = warp_argmax(best, likely);
    const float most = row.scores[likely];
    const float first = slope(likely, most, tim_log(most, t.order[2]));
    float mean = 0.0f, entropy = 0.0f;
    for (int64_t k = row.lane; k < row.K; k += 32) {
        const float p = row.scores[k], log = tim_log(p, t.order[2]);
        mean += p * (slope(k, p, log) - first);
        entropy += tim_entropy(p, log, t.order[2]);
    }
    mean = warp_sum(mean);
    const float stored = kHalfRange / t.c.query_range;
    for (int64_t k = row.lane; k < row.K; k += 32) {
        const float p = row.scores[k];
        const float more = slope(k, p, tim_log(p, t.order[2])) - first;
        const float weight = tim_query_derivative(p, more, mean);
        row.write(k, weight * stored);
        row.scores[k] = weight;
    }
    row.write_padding();
    return warp_sum(entropy);
}

// The alternating solver's target for a query minus its current probabilities; scores become the
// target.
__device__ void alternating_row(const Row& row, const TimAlternating<float>& adm,
                                const float* column) {
    float best = Range<float>::kMinusInfinity;
    for (int64_t k = row.lane; k < row.K; k += 32) {
        best = fmaxf(best, adm.sharpened(row.scores[k]) - adm.power * column[k]);
    }
    best = warp_max(best);
    float sum = 0.0f;
    for (int64_t k = row.lane; k < row.K; k += 32) {
        sum += tim_exp(adm.sharpened(row.scores[k]) - adm.power * column[k] - best);
    }
    const float inverse = 1.0f / warp_sum(sum);
    for (int64_t k = row.lane; k < row.K; k += 32) {
        const float wanted =
            tim_exp(adm.sharpened(row.scores[k]) - adm.power * column[k] - best) * inverse;
        row.write(k, kHalfRange * (wanted - tim_exp(row.scores[k])));
        row.scores[k] = wanted;
    }
    row.write_padding();
}

// Sums the parts of the norms once for all rows, into shared memory behind the scores.
__device__ void share_norms(Task& t) {
    const TaskSizes& n = t.c.call.size;
    float* const norms = t.query_scores + n.Q * t.c.plan.classes;
    for (int64_t k = threadIdx.x; k < n.K; k += kThreads) {
        float norm = 0.0f;
        for (int64_t part = 0; part < t.chunks; ++part) norm += t.norm_parts[part * n.K + k];
        norms[k] = norm;
    }
    __syncthreads();
    t.norm_parts = norms;
    t.chunks = 1;
}

// Terms common to the rows of a class, from the queries' probabilities (or their logarithms) `all`,
// [Q, classes]; returns this thread's share of the marginal entropy.
__device__ float couple_queries(const Task& t, const TimAlternating<float>& adm, const float* all,
                                float* column, float* weight_sum) {
    const TaskSizes& n = t.c.call.size;
    const int64_t classes = t.c.plan.classes;
    float marginal_entropy = 0.0f;
    for (int64_t k = threadIdx.x; k < n.K; k += kThreads) {
        if (t.alternating) {
            float best = Range<float>::kMinusInfinity, sum = 0.0f, held = 0.0f;
            for (int64_t q = 0; q < n.Q; ++q) {
                best = fmaxf(best, adm.sharpened(all[q * classes + k]));
            }
            for (int64_t q = 0; q < n.Q; ++q) {
                sum += tim_exp(adm.sharpened(all[q * classes + k]) - best);
                held += tim_exp(all[q * classes + k]);
            }
            column[k] = best + logf(sum);
            weight_sum[k] = -held;
            if (t.losses) {
                const float mean = held / float(n.Q);
                marginal_entropy += tim_entropy(mean, tim_log(mean, t.order[1]), t.order[1]);
            }
        } else {
            float sum = 0.0f;
            for (int64_t q = 0; q < n.Q; ++q) sum += all[q * classes + k];
            const float mean = sum / float(n.Q), log = tim_log(mean, t.order[1]);
            column[k] = -t.c.slope_weight[0] * tim_entropy_slope(mean, log, t.order[1]);
            marginal_entropy += tim_entropy(mean, log, t.order[1]);
        }
    }
    return marginal_entropy;
}

// The weights of all queries of a task, and every warp's share of the loss.
__device__ void step_queries(Task t, float* warp_loss) {
    if (t.query_scores != nullptr) share_norms(t);
    const TaskSizes& n = t.c.call.size;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t classes = t.c.plan.classes;
    float* const column = t.c.column + t.number * n.K;
    // [Q, classes], in shared memory if it fits
    float* const all = t.query_scores != nullptr ? t.query_scores : products_of(t.c, t.number, n.S);
    const auto query = [&](int64_t q) {
        Row row = row_of(t.c, t.number, n.S + q);
        row.scores = all + q * classes;
        return row;
    };
    float* const weight_sum = t.c.weight_parts + t.number * (1 + t.c.plan.row_blocks) * n.K;
    const TimAlternating<float> adm(t.c.call.weight, t.c.call.learning_rate, double(n.S),
                                    double(n.Q));
    for (int64_t q = warp; q < n.Q; q += kWarps) {
        query_softmax(t, query(q), t.alternating);
    }
    __syncthreads();  // all rows are complete for the columns
    float marginal_entropy = couple_queries(t, adm, all, column, weight_sum);
    __syncthreads();  // the columns are complete for the rows

    float entropy = 0.0f;
    for (int64_t q = warp; q < n.Q; q += kWarps) {
        const Row row = query(q);
        if (!t.alternating) {
            entropy += query_row(t, row, column);
            continue;
        }
        if (t.losses) {
            float own = 0.0f;
            for (int64_t k = lane; k < n.K; k += 32) {
                const float p = tim_exp(row.scores[k]);
                own += tim_entropy(p, tim_log(p, t.order[2]), t.order[2]);
            }
            entropy += warp_sum(own);
        }
        alternating_row(row, adm, column);
    }
    __syncthreads();  // the rows are complete for their sums
    for (int64_t k = threadIdx.x; k < n.K; k += kThreads) {
        float sum = 0.0f;
        for (int64_t q = 0; q < n.Q; ++q) sum += all[q * classes + k];
        if (t.alternating) {
            const int64_t at = t.number * n.K + k;
            t.c.mass[at] = adm.support * t.c.count[at] + adm.query * sum;
            weight_sum[k] += sum;
        } else {
            weight_sum[k] = sum;
        }
    }
    marginal_entropy = warp_sum(marginal_entropy);
    if (lane == 0) {
        warp_loss[warp] = float(t.c.call.weight[2]) / float(n.Q) * entropy -
                          float(t.c.call.weight[1]) * marginal_entropy;
    }
}

// Probabilities and labels, from the final prototypes.
__device__ void finish_queries(const Task& t) {
    const TaskSizes& n = t.c.call.size;
    const int64_t task = t.c.first + t.number;
    for (int64_t q = threadIdx.x / 32; q < n.Q; q += kWarps) {
        const Row row = row_of(t.c, t.number, n.S + q);
        float* const out = static_cast<float*>(t.c.call.probabilities) + (task * n.Q + q) * n.K;
        // The label is taken from the scores: probabilities may be equal where scores are not.
        const float best = row.subtract_norms(t.norm_parts, t.chunks);
        double sum = 0.0;
        int label = int(n.K) - 1;  // no score is equal to a best one that is not a number
        for (int64_t k = row.lane; k < n.K; k += 32) {
            sum += double(tim_exp(t.temperature * (row.scores[k] - best)));
            if (row.scores[k] == best) label = min(label, int(k));
        }
        const float inverse = float(1.0 / warp_sum(sum));
        label = __reduce_min_sync(kAllLanes, label);
        for (int64_t k = row.lane; k < n.K; k += 32) {
            out[k] = tim_exp(t.temperature * (row.scores[k] - best)) * inverse;
        }
        if (row.lane == 0) t.c.call.labels[task * n.Q + q] = label;
    }
}

// The weights of kTimRows support rows, and every warp's share of the loss.
__device__ void step_support(const Task& t, int64_t part, float* warp_loss) {
    const TaskSizes& n = t.c.call.size;
    const int64_t first = part * kTimRows, last = min(first + kTimRows, n.S);
    // Only compared with classes, so a label out of range matches none (load_label).
    const int64_t* const labels = of_support(t.c.call.support_labels, n, t.c.first + t.number, n.S);
    float loss = 0.0f;
    for (int64_t s = first + threadIdx.x / 32; s < last; s += kWarps) {
        loss += support_row(t, row_of(t.c, t.number, s), labels[s]);
    }
    if (threadIdx.x % 32 == 0) {
        warp_loss[threadIdx.x / 32] = float(t.c.call.weight[0]) / float(n.S) * loss;
    }
    if (t.stage == TimStage::kMeasure) return;
    __syncthreads();  // the rows are complete for their sums
    float* const weight_sum =
        t.c.weight_parts + (t.number * (1 + t.c.plan.row_blocks) + 1 + part) * n.K;
    for (int64_t k = threadIdx.x; k < n.K; k += kThreads) {
        float sum = 0.0f;
        for (int64_t s = first; s < last; ++s) {
            sum += t.stage == TimStage::kStart ? float(labels[s] == k)
                                               : products_of(t.c, t.number, s)[k];
        }
        weight_sum[k] = sum;
    }
}

__global__ void __launch_bounds__(kThreads, 2)
    weights_kernel(TimChunk c, TimIteration it, int64_t support_parts, int64_t query_parts,
                   bool use_shared) {
    extern __shared__ float query_scores[];
    __shared__ float warp_loss[kWarps];
    const int64_t parts = support_parts + query_parts;
    const int64_t number = blockIdx.x / parts, part = blockIdx.x % parts;
    const Task t{c, number, it, use_shared ? query_scores : nullptr};
    if (it.stage == TimStage::kFinish) return finish_queries(t);
    const bool is_query = part >= support_parts;
    if (is_query) {
        step_queries(t, warp_loss);
    } else {
        step_support(t, part, warp_loss);
    }
    if (!t.losses) return;
    __syncthreads();  // the losses of all warps are complete
    if (threadIdx.x == 0) {
        float loss = 0.0f;
        for (int i = 0; i < kWarps; ++i) loss += warp_loss[i];
        c.loss_parts[number * (1 + c.plan.row_blocks) + (is_query ? 0 : 1 + part)] = loss;
    }
}

__global__ void sum_losses_kernel(TimChunk c, int iteration) {
    const int64_t number = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (number >= c.tasks) return;
    const int64_t parts = 1 + c.plan.row_blocks;
    float loss = 0.0f;
    for (int64_t i = 0; i < parts; ++i) loss += c.loss_parts[number * parts + i];
    floats(c.call.losses)[iteration * c.call.size.B + c.first + number] = loss;
}

}  // namespace

void launch_tim_weights(const TimChunk& c, const TimIteration& it) {
    const bool step = it.stage == TimStage::kStep, finish = it.stage == TimStage::kFinish;
    const bool losses = c.call.losses != nullptr && step;
    // The loss includes the entropies of the queries even if they have no weight.
    const int64_t query_parts = finish || losses || (step && c.plan.query_counts) ? 1 : 0;
    const int64_t support_parts = finish || (step && c.plan.fused) ? 0 : c.plan.row_blocks;
    const int64_t blocks = c.tasks * (support_parts + query_parts);
    const int64_t score_bytes = (c.call.size.Q + 1) * c.plan.classes * int64_t(sizeof(float));
    const bool use_shared = step && query_parts > 0 && score_bytes <= kMostShared;
    if (blocks > 0) {
        allow_shared(weights_kernel, kMostShared);
        launch("weights_kernel", weights_kernel, blocks, kThreads, use_shared ? score_bytes : 0,
               c.stream, c, it, support_parts, query_parts, use_shared);
    }
    if (!losses) return;
    launch("sum_losses_kernel", sum_losses_kernel, ceil_div(c.tasks, 128), 128, 0, c.stream, c,
           it.number);
}

}  // namespace paddle_ext
