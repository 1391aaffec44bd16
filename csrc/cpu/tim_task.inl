// TIM for one SIMD level: a task from its features to its results.
//
// An iteration is two products with the rows of the task, X [N, D], which never change and are laid
// out once for each product: scores = W X^T, then sums = A X with A = dL/dlogit. Softmax and
// derivatives are computed while a panel of rows is in the L1 cache, Adam's step while a class is.
// Threads inside a task own whole panels or whole classes, so the result does not depend on them.

#include "cpu/tim_steps.inl"

// --- rows ----------------------------------------------------------------------------------------
//
// From the features of a task to its rows, centred and scaled, in the layouts of the two products.

// The rows of a task, support first, then queries: N = S + Q in all, padded with zeros to Np.
template <typename T>
struct TimRows {
    Arena& arena;
    const TaskSizes& n;
    int64_t Np, Dp;
    // Of the queries, in the coordinates of the (normalised) features.
    T* mean = arena.take<T>(n.D);
    T* norms = arena.take<T>(n.S + n.Q);  // inverse norms, or ones
    T* by_row = arena.take<T>(Np * n.D);  // [Np/P, D, P]  panels of rows
    T* by_dim = arena.take<T>(Np * Dp);   // [Dp/P, Np, P] panels of features
    double unit = 1.0;  // a power of two: a coordinate of one, in the coordinates of the features
};

template <typename T>
static T largest_centred(const T* __restrict__ x, int64_t D, T norm, const T* mean) {
    T largest = 0;
    for (int64_t d = 0; d < D; ++d) {
        largest = std::max(largest, T(__builtin_fabs(x[d] * norm - mean[d])));
    }
    return largest;
}

template <typename T>
static void tim_rows(const TimParams& p, int64_t task, TimRows<T>& out) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const auto& n = p.size;
    const auto support = rows_of<T>(p.support, nullptr, n.support_shared ? 0 : task, n.S, n);
    const auto query = rows_of<T>(p.query, nullptr, task, n.Q, n);
    const auto row = [&](int64_t i) { return i < n.S ? support(i) : query(i - n.S); };
    for (int64_t i = 0; i < n.S + n.Q; ++i) {
        out.norms[i] = p.normalize ? inverse_norm(row(i), n.D) : T(1);
    }
    mean_row(query, n.Q, n.D, out.norms + n.S, out.mean);

    double largest = 0, farthest = 0, nearest = Range<double>::kInfinity;
    for (int64_t i = 0; i < n.S + n.Q; ++i) {
        const double reach = largest_centred(row(i), n.D, out.norms[i], out.mean);
        if (i >= n.S) largest = __builtin_fmax(largest, reach);
        if (i < n.S) farthest = __builtin_fmax(farthest, reach);
        if (i < n.S) nearest = __builtin_fmin(nearest, reach);
    }
    if (largest == 0) largest = farthest;
    out.unit = tim_unit<T>(largest, p.solver == TimSolver::kGradient ? p.learning_rate : 0.0);
    // As in PADDLE, labelled rows beyond kFarAway are clamped only where that changes nothing.
    const bool decisive = is_decisive<T>(p.temperature, out.unit);
    const double kept = decisive ? __builtin_fmin(farthest, kNearFar * nearest) : farthest;
    out.unit = __builtin_ldexp(out.unit, exponent_beyond<T>(kept / out.unit));

    const T down = T(1.0 / out.unit), far = T(Range<T>::kFarAway);
    __builtin_memset(out.by_row, 0, sizeof(T) * out.Np * n.D);
    __builtin_memset(out.by_dim, 0, sizeof(T) * out.Np * out.Dp);
    for (int64_t i = 0; i < n.S + n.Q; ++i) {
        const T* x = row(i);
        T* const to_row = out.by_row + i / kPanel * n.D * kPanel + i % kPanel;
        for (int64_t d = 0; d < n.D; ++d) {
            const T value = bounded((x[d] * out.norms[i] - out.mean[d]) * down, far);
            to_row[d * kPanel] = value;
            out.by_dim[(d / kPanel * out.Np + i) * kPanel + d % kPanel] = value;
        }
    }
}

// --- tasks ---------------------------------------------------------------------------------------

// Work unit of a thread: rows of a product, in whole tiles, and panels.
constexpr int64_t kTimClasses = 8 * PADDLE_EXT_ROW_TILE;
constexpr int64_t kTimPanels = 4;

template <typename T>
struct TimPass {
    const TimParams& params;
    const TimRows<T>& rows;
    TimState<T>& s;
    double* fit;  // [panels]  sums of cross-entropies
    TimUnits<T> units{rows.unit, params.temperature, params.learning_rate, params.weight};
    TimAlternating<T> alternating{params.weight, params.learning_rate, double(s.S), double(s.Q)};
    TimOrder<T> order[3] = {TimOrder<T>(params.alpha[0]), TimOrder<T>(params.alpha[1]),
                            TimOrder<T>(params.alpha[2])};
    bool want_loss = params.losses != nullptr;
    int64_t iteration = 0;

    bool by_gradient() const { return params.solver == TimSolver::kGradient; }
};

template <typename T>
static void tim_start(const TimParams& p, int64_t task, const TimRows<T>& rows, TimState<T>& s) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const int64_t* labels = p.support_labels + (p.size.support_shared ? 0 : task * s.S);
    T* const zero[] = {s.w, s.first, s.second, s.pull};
    for (T* x : zero) __builtin_memset(x, 0, sizeof(T) * s.K * s.Dp);
    for (int64_t k = 0; k < s.K; ++k) s.shots[k] = 0;
    for (int64_t i = 0; i < s.S; ++i) {
        const int64_t k = labels[i];
        if (k < 0 || k >= s.K) continue;  // only without validation
        s.shots[k] += 1;
        for (int64_t d = 0; d < s.D; ++d) {
            s.w[k * s.Dp + d] += rows.by_dim[(d / kPanel * s.Np + i) * kPanel + d % kPanel];
        }
    }
    for (int64_t k = 0; k < s.K; ++k) {
        const T inverse = T(1.0 / safe_mass(s.shots[k]));
        T* const w = s.w + k * s.Dp;
        for (int64_t d = 0; d < s.D; ++d) w[d] *= inverse;
        s.half_norm[k] = dot(w, w, s.D) / 2;
    }
    for (int64_t i = 0; i < s.Np; ++i) {
        s.own[i] = i < s.S ? typename Lanes<T>::Int(labels[i]) : -1;
        s.share[i] = i >= s.S && i < s.N ? T(1) / T(s.Q) : T(0);
    }
}

// Scores of a group of panels.
template <typename T>
static void tim_scores(const TimPass<T>& pass, int64_t first, int64_t count) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const TimState<T>& s = pass.s;
    multiply_rows<T>({s.w, s.Dp, 1}, 0, s.K, pass.rows.by_row + first * s.D * kPanel, s.D, count,
                     {s.p + first * kPanel, s.stride, kPanel}, false);
}

// Probabilities of a group of panels, and the derivatives of those without queries.
template <typename T>
static void tim_assign_group(const TimPass<T>& pass, int64_t group) {
    const TimState<T>& s = pass.s;
    const int64_t first = group * kTimPanels, rest = s.panels() - first;
    const int64_t count = rest < kTimPanels ? rest : kTimPanels;
    tim_scores(pass, first, count);
    const bool by_gradient = pass.by_gradient();
    const T weight = by_gradient ? T(pass.units.weight[0] / double(s.S)) : pass.alternating.support;
    for (int64_t panel = first; panel < first + count; ++panel) {
        T* const logs = by_gradient || panel < s.first_query ? nullptr : s.panel_slopes(panel);
        pass.fit[panel] = tim_softmax(s, T(pass.units.temperature), panel, logs, pass.order[0],
                                      weight, !by_gradient, pass.want_loss);
    }
}

// The derivatives of the queries, which depend on all queries; the loss on request.
template <typename T>
static double tim_couple_queries(const TimPass<T>& pass) {
    const TimState<T>& s = pass.s;
    const double* weight = pass.params.weight;
    const TimOrder<double> order(pass.params.alpha[1]);
    double marginal = 0, conditional = 0;
    for (int64_t k = 0; k < s.K; ++k) {
        const double mean = tim_mean_probability(s, k), log = tim_log(mean, order);
        marginal += tim_entropy(mean, log, order);
        if (pass.by_gradient()) {
            s.marginal[k] = T(-pass.units.weight[1] * tim_entropy_slope(mean, log, order));
        } else {
            tim_class_use(s, pass.alternating, k);
            s.mass[k] = pass.alternating.support * T(s.shots[k]);
        }
    }
    for (int64_t panel = s.first_query; panel < s.panels(); ++panel) {
        if (pass.by_gradient()) {
            conditional += tim_query_derivatives(s, panel, pass.order[2], T(pass.units.weight[2]),
                                                 pass.want_loss);
        } else {
            if (pass.want_loss) conditional += tim_panel_entropy(s, panel, pass.order[2]);
            tim_auxiliary(s, panel, pass.alternating.query);
        }
    }
    double fit = 0;
    for (int64_t panel = 0; panel < s.panels(); ++panel) fit += pass.fit[panel];
    return weight[0] * fit / double(s.S) - weight[1] * marginal + weight[2] * conditional;
}

// The step of one block of classes.
template <typename T>
static void tim_update_classes(const TimPass<T>& pass, int64_t block) {
    TimState<T>& s = pass.s;
    const int64_t first = block * kTimClasses, rest = s.K - first;
    const int64_t count = rest < kTimClasses ? rest : kTimClasses;
    multiply_rows<T>({s.p, s.stride, 1}, first, first + count, pass.rows.by_dim, s.Np,
                     panels_of<T>(s.D), {s.pull, s.Dp, Simd<T>::kPanel}, false);
    const TimAdam<T> adam(pass.units.rate, pass.units.epsilon, tim_bias(kAdamBeta1, pass.iteration),
                          tim_bias(kAdamBeta2, pass.iteration));
    for (int64_t k = first; k < first + count; ++k) {
        Vec<T> total{};
        for (int64_t at = 0; at < s.Np; at += Simd<T>::kLanes)
            total += load(s.p + k * s.stride + at);
        const T sum = horizontal_sum<T>(total);
        T* const w = s.w + k * s.Dp;
        if (pass.by_gradient()) {
            tim_adam_row(adam, s.pull + k * s.Dp, sum, s.Dp, s.first + k * s.Dp,
                         s.second + k * s.Dp, w);
        } else {
            tim_alternating_row(pass.alternating, s.pull + k * s.Dp, sum, s.mass[k], s.Dp, w);
        }
        s.half_norm[k] = dot(w, w, s.D) / 2;
    }
}

template <typename T>
static void tim_write(const TimPass<T>& pass, int64_t task) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const TimState<T>& s = pass.s;
    const TimParams& p = pass.params;
    int64_t* const labels = p.labels + task * s.Q;
    T* const probabilities = reals<T>(p.probabilities, task * s.Q * s.K);
    T* const prototypes = reals<T>(p.prototypes, task * s.K * s.D);
    tim_scores(pass, s.first_query, s.panels() - s.first_query);
    for (int64_t q = 0; q < s.Q; ++q) {
        const T* score = s.p + s.S + q;
        labels[q] = 0;
        T best = score[0] - s.half_norm[0];
        for (int64_t k = 1; k < s.K; ++k) {
            const T value = score[k * s.stride] - s.half_norm[k];
            if (value > best) {
                best = value;
                labels[q] = k;
            }
        }
    }
    for (int64_t panel = s.first_query; panel < s.panels(); ++panel) {
        tim_softmax<T>(s, T(pass.units.temperature), panel, nullptr, pass.order[0], T(0), true,
                       false);
        for (int64_t i = panel * kPanel; i < (panel + 1) * kPanel; ++i) {
            if (i < s.S || i >= s.N) continue;
            T* const to = probabilities + (i - s.S) * s.K;
            double sum = 0;  // a sum in T of a hundred classes is off by 1e-6
            for (int64_t k = 0; k < s.K; ++k) sum += double(s.p[k * s.stride + i]);
            for (int64_t k = 0; k < s.K; ++k) to[k] = T(double(s.p[k * s.stride + i]) / sum);
        }
    }
    for (int64_t k = 0; k < s.K; ++k) {
        for (int64_t d = 0; d < s.D; ++d) {
            const T offset = s.w[k * s.Dp + d] * T(pass.rows.unit);
            prototypes[k * s.D + d] = bounded(pass.rows.mean[d] + offset, Range<T>::kInfinity);
        }
    }
}

template <typename T>
struct TimMemory {
    Arena& arena;
    const TimParams& p;
    TimState<T> s{arena, p.size};
    TimRows<T> rows{arena, p.size, s.Np, s.Dp};
    double* fit = arena.take<double>(s.panels());
};

template <typename T>
static void tim_task(const TimParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    TimMemory<T> memory{arena, p};
    TimState<T>& s = memory.s;
    TimRows<T>& rows = memory.rows;
    tim_rows(p, task, rows);
    tim_start(p, task, rows, s);
    TimPass<T> pass{p, rows, s, memory.fit};
    const int64_t groups = (s.panels() + kTimPanels - 1) / kTimPanels;
    const int64_t blocks = (s.K + kTimClasses - 1) / kTimClasses;
    const double work = double(s.N) * double(s.K) * double(s.D);
    while (++pass.iteration <= p.max_iter) {
        if (given_up(pass.iteration, work)) return;
        parallel_for(groups, threads, [&](int64_t i, int) { tim_assign_group(pass, i); });
        const double loss = tim_couple_queries(pass);
        if (pass.want_loss) {
            reals<T>(p.losses)[(pass.iteration - 1) * p.size.B + task] = T(loss);
        }
        parallel_for(blocks, threads, [&](int64_t i, int) { tim_update_classes(pass, i); });
    }
    tim_write(pass, task);
}

static Work tim_work(const TimParams& p) {
    const auto& n = p.size;
    const double iteration = double(n.S + n.Q) * double(n.K) * double(n.D);
    return {n.B, double(p.max_iter) * iteration, iteration};
}
