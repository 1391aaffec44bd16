// PADDLE for one SIMD level: a task from its features to its results.

#include "cpu/paddle_prepare.inl"
#include "cpu/paddle_gram.inl"

// Labels, probabilities, proportions and dual from the class-major probabilities u.
template <typename T>
static void write_result(const PaddleParams& p, int64_t task, const T* u, int64_t Qp,
                         const Outcome& outcome, double criterion) {
    const auto& n = p.size;
    T* const probabilities = static_cast<T*>(p.probabilities) + task * n.Q * n.K;
    int64_t* const labels = p.labels + task * n.Q;
    for (int64_t q = 0; q < n.Q; ++q) {
        T best = -1;
        labels[q] = 0;
        for (int64_t k = 0; k < n.K; ++k) {
            const T value = u[k * Qp + q];
            probabilities[q * n.K + k] = value < 0 ? T(0) : value;
            if (value > best) {
                best = value;
                labels[q] = k;
            }
        }
    }
    for (int64_t k = 0; k < n.K; ++k) {
        double held = 0;
        for (int64_t q = 0; q < n.Q; ++q) held += probabilities[q * n.K + k];
        const double proportion = held / double(n.Q);
        static_cast<T*>(p.proportions)[task * n.K + k] = T(proportion);
        static_cast<T*>(p.dual)[task * n.K + k] = T(1.0 + __builtin_log(proportion + p.epsilon));
    }
    p.iterations[task] = outcome.iterations;
    static_cast<T*>(p.criterion)[task] = bounded(T(criterion), Range<T>::kInfinity);
}

constexpr int64_t kSumWidth = 64;  // features summed at once

// Adds the weighted queries, minus their mean, to features [first, first + width) of a class sum.
// The shares of an empty class are tiny: added one by one to the sum they would be rounded off.
template <typename T, typename Rows>
static void add_queries(const Rows& query, const T* weights, int64_t Q, int64_t first,
                        int64_t width, const T* mean, T* w) {
    constexpr int kTerms = 256;  // per partial sum, which starts at zero
    T total[kSumWidth] = {}, part[kSumWidth] = {};
    const auto add_part = [&] {
        for (int64_t d = 0; d < width; ++d) {
            total[d] += part[d];
            part[d] = 0;
        }
    };
    int terms = 0;
    for (int64_t q = 0; q < Q; ++q) {
        if (!(weights[q] > 0)) continue;
        const T* __restrict__ x = query(q) + first;
        for (int64_t d = 0; d < width; ++d) part[d] += weights[q] * (x[d] - mean[first + d]);
        if (++terms % kTerms == 0) add_part();
    }
    add_part();
    for (int64_t d = 0; d < width; ++d) w[first + d] += total[d];
}

// Prototypes in the coordinates of the inputs: means of the rows themselves, weighted by the
// probabilities.
template <typename T>
static void write_prototypes(const PaddleParams& p, int64_t task, const T* u, int64_t Qp, T* mean,
                             double* count) {
    const auto& n = p.size;
    T* const out = static_cast<T*>(p.prototypes) + task * n.K * n.D;
    const auto query = query_rows<T>(p, task);
    mean_row<T>(query, n.Q, n.D, nullptr, mean);
    const int64_t* labels = p.support_labels + (n.support_shared ? 0 : task * n.S);
    class_sums(support_rows<T>(p, task), labels, n, false, mean, out, count);
    for (int64_t k = 0; k < n.K; ++k) {
        T* const w = out + k * n.D;
        double mass = count[k];
        for (int64_t q = 0; q < n.Q; ++q) mass += std::max(u[k * Qp + q], T(0));
        for (int64_t first = 0; first < n.D; first += kSumWidth) {
            add_queries(query, u + k * Qp, n.Q, first, std::min(n.D - first, kSumWidth), mean, w);
        }
        const T inverse = T(1.0 / safe_mass(mass));
        for (int64_t d = 0; d < n.D; ++d) w[d] = mean[d] + w[d] * inverse;
    }
}

template <typename T>
static int64_t padded_queries(const PaddleSizes& n) {
    return round_up(n.Q, Simd<T>::kPanel);
}

template <typename T>
static int64_t paddle_scratch_bytes(const PaddleParams& p) {
    Arena arena;
    const int64_t Qp = padded_queries<T>(p.size);
    Prepared<T>{arena, p.size, Qp};
    GramState<T>{arena, p.size.Q, p.size.K, Qp};
    return arena.used();
}

template <typename T>
static void paddle_task(const PaddleCall& call, int64_t task_number, void* scratch) {
    const PaddleParams& p = *call.params;
    const int64_t Qp = padded_queries<T>(p.size);
    Arena arena(scratch);
    Prepared<T> task{arena, p.size, Qp};
    scale_queries(p, task_number, Qp, task);
    scale_sums(call, task_number, Qp, task);
    GramState<T> state{arena, p.size.Q, p.size.K, Qp};
    gram_products(task, p.size, state);
    double unit = task.unit;  // one scaled unit, in the coordinates of the scaling
    double temperature = folded_temperature<T>(p.temperature * task.unit, task.unit);
    if (p.scaling == Scaling::kAuto) {
        const double squared = auto_factor(state);
        temperature = folded_temperature<T>(p.temperature, squared);
        unit = __builtin_sqrt(squared);
    }
    const auto outcome = iterate_gram(p, task.count, temperature, p.tol / unit, state);
    if (interrupted()) return;
    write_result(p, task_number, state.u, Qp, outcome, outcome.criterion * unit);
    if (p.prototypes != nullptr) {
        write_prototypes(p, task_number, state.u, Qp, task.mean, task.count);
    }
}

constexpr PaddleKernels kPaddleKernels = {
    {paddle_scratch_bytes<float>, paddle_scratch_bytes<double>},
    {bytes_of<SupportSummary<float>>, bytes_of<SupportSummary<double>>},
    {summarise_support<float>, summarise_support<double>},
    {paddle_task<float>, paddle_task<double>},
};
