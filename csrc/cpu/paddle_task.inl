// PADDLE for one SIMD level: a task from its features to its results.

// --- from features to scaled, centred queries and class sums -------------------------------------

using std::int64_t;

// 1 / ||x||; 0 for a zero row, which therefore stays zero; at most the largest number, so that rows
// of subnormal numbers stay shorter than one.
template <typename T>
static T inverse_norm(const T* x, int64_t D) {
    const T squared = dot(x, x, D);
    if (squared > Range<T>::kMinSquaredNorm && squared < Range<T>::kMaxSquaredNorm) {
        return T(1) / __builtin_sqrt(squared);
    }
    T largest = 0;
    for (int64_t d = 0; d < D; ++d) largest = __builtin_fmax(largest, __builtin_fabs(x[d]));
    if (largest == 0) return 0;
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) {
        const double scaled = double(x[d]) / double(largest);
        sum += scaled * scaled;
    }
    const double inverse = 1.0 / (double(largest) * __builtin_sqrt(sum));
    return T(__builtin_fmin(inverse, double(Range<T>::kInfinity)));
}

// sums[k] = sum over the support rows of class k of (row - shift); rows are first normalised on
// request.
template <typename T>
static void class_sums(const FeatureRows<T>& row, const int64_t* labels, const TaskSizes& n,
                       bool unit_norm, const T* shift, T* sums, double* count) {
    __builtin_memset(sums, 0, sizeof(T) * n.K * n.D);
    for (int64_t k = 0; k < n.K; ++k) count[k] = 0;
    for (int64_t s = 0; s < n.S; ++s) {
        const int64_t k = labels[s];
        if (k < 0 || k >= n.K) continue;  // only without validation
        const T* __restrict__ x = row(s);
        const T norm = unit_norm ? inverse_norm(x, n.D) : T(1);
        T* __restrict__ sum = sums + k * n.D;
        for (int64_t d = 0; d < n.D; ++d) sum[d] += x[d] * norm - shift[d];
        count[k] += 1;
    }
}

// The shared support in its own coordinates: shifted by one of its rows, so that a common offset
// does not cost precision; every task converts it to its own coordinates.
template <typename T>
struct SupportSummary {
    Arena& arena;
    const PaddleParams& p;
    const TaskSizes& n = p.size;
    T* shift = arena.take<T>(n.D);
    T* sums = arena.take<T>(n.K * n.D);
    double* count = arena.take<double>(n.K);
};

template <typename T>
static void mean_row(const FeatureRows<T>& row, int64_t count, int64_t D, const T* norms, T* mean) {
    const T* first = row(0);
    const T first_norm = norms == nullptr ? T(1) : norms[0];
    for (int64_t d = 0; d < D; ++d) mean[d] = 0;
    for (int64_t i = 1; i < count; ++i) {
        const T* __restrict__ x = row(i);
        const T norm = norms == nullptr ? T(1) : norms[i];
        for (int64_t d = 0; d < D; ++d) mean[d] += x[d] * norm - first[d] * first_norm;
    }
    for (int64_t d = 0; d < D; ++d) mean[d] = first[d] * first_norm + mean[d] / T(count);
}

template <typename T>
static void summarise_support(const PaddleParams& p) {
    const auto& n = p.size;
    Arena arena(p.workspace);
    SupportSummary<T> summary{arena, p};
    const auto row = support_rows<T>(p, 0);
    const bool unit_norm = p.scaling == Scaling::kAuto;
    const T norm = unit_norm ? inverse_norm(row(0), n.D) : T(1);
    for (int64_t d = 0; d < n.D; ++d) summary.shift[d] = row(0)[d] * norm;
    class_sums(row, p.support_labels, n, unit_norm, summary.shift, summary.sums, summary.count);
}

// The task in scaled coordinates: queries in panels and class sums, both centred at the query mean.
template <typename T>
struct Prepared {
    Arena& arena;
    const TaskSizes& n;
    int64_t Qp;
    T* mean = arena.take<T>(n.D);    // in the coordinates of the rows (unit-norm ones for "auto")
    T* scale = arena.take<T>(n.D);   // factor on a centred row
    T* norms = arena.take<T>(n.Q);   // inverse norms of the queries ("auto" only)
    T* z = arena.take<T>(Qp * n.D);  // queries, [Qp/P, D, P]
    T* sums = arena.take<T>(n.K * n.D);
    double* count = arena.take<double>(n.K);  // shots
    double unit = 1.0;  // one scaled unit, in the units of the reported criterion
};

template <typename T>
static void scale_queries(const PaddleParams& p, int64_t task, Prepared<T>& out) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const auto& n = p.size;
    const auto row = query_rows<T>(p, task);
    const bool unit_norm = p.scaling == Scaling::kAuto;
    if (unit_norm) {
        for (int64_t q = 0; q < n.Q; ++q) out.norms[q] = inverse_norm(row(q), n.D);
    }
    mean_row(row, n.Q, n.D, unit_norm ? out.norms : nullptr, out.mean);

    // 1) Per-feature factor, and the largest centred value under it.
    T* low = out.sums;  // free until the class sums are computed
    T* high = out.scale;
    for (int64_t d = 0; d < n.D; ++d) low[d] = high[d] = 0;
    for (int64_t q = 0; q < n.Q; ++q) {
        const T* __restrict__ x = row(q);
        const T norm = unit_norm ? out.norms[q] : T(1);
        for (int64_t d = 0; d < n.D; ++d) {
            const T centred = x[d] * norm - out.mean[d];
            low[d] = q == 0 || centred < low[d] ? centred : low[d];
            high[d] = q == 0 || centred > high[d] ? centred : high[d];
        }
    }
    T largest = 0;
    for (int64_t d = 0; d < n.D; ++d) {
        const T range = high[d] - low[d];
        const bool spread = p.scaling == Scaling::kMinMax && range > T(Range<T>::kMinSpread);
        const T factor = spread ? T(1) / range : T(1);
        const T offset = __builtin_fabs(out.mean[d]) * T(Range<T>::kOffsetResolution);
        const T reach = __builtin_fmax(__builtin_fmax(high[d], -low[d]), offset) * factor;
        largest = __builtin_fmax(largest, reach);
        out.scale[d] = factor;
    }

    // 2) A power of two brings the task near one: exact, and squares can neither overflow nor
    //    vanish. "auto" is near one already.
    out.unit = 1.0;
    if (!unit_norm && largest > 0 && largest < __builtin_inf()) {
        out.unit = unit_for<T>(double(largest));
        for (int64_t d = 0; d < n.D; ++d) out.scale[d] = T(out.scale[d] / out.unit);
    }

    // 3) Queries into panels; the padding is zero.
    __builtin_memset(out.z, 0, sizeof(T) * out.Qp * n.D);
    for (int64_t q = 0; q < n.Q; ++q) {
        const T* x = row(q);
        const T norm = unit_norm ? out.norms[q] : T(1);
        T* to = out.z + q / kPanel * n.D * kPanel + q % kPanel;
        for (int64_t d = 0; d < n.D; ++d) {
            to[d * kPanel] = (x[d] * norm - out.mean[d]) * out.scale[d];
        }
    }
}

template <typename T>
static T bounded(T value, T most) {
    return value > most ? most : (value < -most ? -most : value);
}

// The distance of the nearest prototype; `most` is the largest coordinate of all.
template <typename T>
static double nearest_prototype(const TaskSizes& n, T most, const Prepared<T>& task) {
    double nearest = Range<double>::kInfinity;
    for (int64_t k = 0; k < n.K; ++k) {
        double squared = 0;
        for (int64_t d = 0; d < n.D; ++d) {
            const double share = double(task.sums[k * n.D + d]) / double(most);
            squared += share * share;
        }
        const double length = __builtin_sqrt(squared) / safe_mass(task.count[k]);
        nearest = __builtin_fmin(nearest, length * double(most));
    }
    return nearest;
}

// For prototypes beyond kFarAway: a larger unit if the task needs it, and a clamp for those still
// beyond.
template <typename T>
static void bound_sums(const PaddleParams& p, T most, Prepared<T>& out) {
    const auto& n = p.size;
    const bool decisive = is_decisive<T>(p.temperature, out.unit);
    const double reach = decisive ? kNearFar * nearest_prototype(n, most, out) : double(most);
    const int exponent = exponent_beyond<T>(reach);
    const double down = __builtin_ldexp(1.0, -exponent);
    out.unit = __builtin_ldexp(out.unit, exponent);
    for (int64_t i = 0; i < out.Qp * n.D; ++i) out.z[i] = T(double(out.z[i]) * down);
    for (int64_t k = 0; k < n.K; ++k) {
        T* const sum = out.sums + k * n.D;
        const T clamp = T(Range<T>::kFarAway * safe_mass(out.count[k]));
        for (int64_t d = 0; d < n.D; ++d) sum[d] = bounded(T(double(sum[d]) * down), clamp);
    }
}

template <typename T>
static void scale_sums(const PaddleParams& p, int64_t task, Prepared<T>& out) {
    const auto& n = p.size;
    if (n.support_shared) {
        Arena arena(p.workspace);
        const SupportSummary<T> summary{arena, p};
        for (int64_t k = 0; k < n.K; ++k) {
            const T shots = T(summary.count[k]);
            out.count[k] = summary.count[k];
            const T* __restrict__ from = summary.sums + k * n.D;
            T* __restrict__ to = out.sums + k * n.D;
            for (int64_t d = 0; d < n.D; ++d) {
                to[d] = from[d] - shots * (out.mean[d] - summary.shift[d]);
            }
        }
    } else {
        class_sums(support_rows<T>(p, task), p.support_labels + task * n.S, n,
                   p.scaling == Scaling::kAuto, out.mean, out.sums, out.count);
    }
    T most = 0;
    for (int64_t k = 0; k < n.K; ++k) {
        T* __restrict__ sum = out.sums + k * n.D;
        const T* __restrict__ scale = out.scale;
        T largest = 0;
        for (int64_t d = 0; d < n.D; ++d) {
            sum[d] = bounded(sum[d] * scale[d], Range<T>::kInfinity);
            largest = __builtin_fmax(largest, __builtin_fabs(sum[d]));
        }
        most = __builtin_fmax(most, T(largest / safe_mass(out.count[k])));
    }
    if (most > T(Range<T>::kFarAway)) bound_sums(p, most, out);
}

#include "cpu/paddle_gram.inl"

// --- tasks ---------------------------------------------------------------------------------------

// Labels, probabilities, proportions and dual from the class-major probabilities u.
template <typename T>
static void write_result(const PaddleParams& p, int64_t task, const T* u, int64_t Qp,
                         const Outcome& outcome, double criterion) {
    const auto& n = p.size;
    T* const probabilities = reals<T>(p.probabilities, task * n.Q * n.K);
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
        reals<T>(p.proportions)[task * n.K + k] = T(proportion);
        reals<T>(p.dual)[task * n.K + k] = T(1.0 + __builtin_log(proportion + p.epsilon));
    }
    p.iterations[task] = outcome.iterations;
    reals<T>(p.criterion)[task] = bounded(T(criterion), Range<T>::kInfinity);
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
    T* const out = reals<T>(p.prototypes, task * n.K * n.D);
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
static int64_t padded_queries(const TaskSizes& n) {
    return round_up(n.Q, Simd<T>::kPanel);
}

// Depends on the shape of a task only, never on the batch. An iteration costs Q Q K here and 2 Q K D
// with explicit prototypes, which are slower for small tasks.
template <typename T>
static int64_t paddle_scratch_bytes(const PaddleParams& p) {
    if (p.size.Q > 512 && (p.size.Q > 2 * p.size.D || p.size.Q > 4096)) return kTooLarge;
    Arena arena;
    const int64_t Qp = padded_queries<T>(p.size);
    static_cast<void>(Prepared<T>{arena, p.size, Qp});
    static_cast<void>(GramState<T>{arena, p.size.Q, p.size.K, Qp});
    return arena.used();
}

template <typename T>
static void paddle_task(const PaddleParams& p, int64_t task_number, void* scratch, int = 1) {
    const int64_t Qp = padded_queries<T>(p.size);
    Arena arena(scratch);
    Prepared<T> task{arena, p.size, Qp};
    scale_queries(p, task_number, task);
    scale_sums(p, task_number, task);
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
    if (p.prototypes == nullptr) return;
    write_prototypes(p, task_number, state.u, Qp, task.mean, task.count);
}

template <typename T>
static int64_t paddle_shared_bytes(const PaddleParams& p) {
    return p.size.support_shared ? bytes_of<SupportSummary<T>>(p) : 0;
}

static Work paddle_work(const PaddleParams& p) {
    const double Q = double(p.size.Q), K = double(p.size.K), D = double(p.size.D);
    // The products at the start, then a few dozen iterations over all queries and classes.
    return {p.size.B, double(p.size.S) * D + Q * (Q + K) * D + 50.0 * Q * K, 0};
}

constexpr TaskKernels<PaddleParams> kPaddleKernels = {
    "features",
    paddle_work,
    {paddle_scratch_bytes<float>, paddle_scratch_bytes<double>},
    {paddle_task<float>, paddle_task<double>},
    {paddle_shared_bytes<float>, paddle_shared_bytes<double>},
    {summarise_support<float>, summarise_support<double>},
};
