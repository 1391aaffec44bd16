// `adapt` for one SIMD level: one task on one thread. The algebra is in common/adapt.h.
//
// The likelihoods A_qk = exp(l_qk - max_k l_qk) are computed once, in the output array. With
// g_k = exp(e_k - max_k e_k) an iteration is two products, s = A g and
// N_k = w g_k sum_q A_qk / s_q.

template <typename T>
struct AdaptTask {
    // Limit on the rows of a float sum, so that rounding does not accumulate.
    static constexpr int64_t kTerms = 256;
    // Underflow in A is negligible for a sum of at least this. A row with less is recomputed from
    // its logits.
    static constexpr T kFaint = sizeof(T) == 4 ? T(1e-28) : T(1e-280);
    static constexpr T kLowest =
        Range<T>::kMinusInfinity / 2;  // still finite after subtracting any offset

    Arena& arena;
    const AdaptParams& p;
    int64_t Q = p.Q, K = p.K, Kp = round_up(K, Simd<float>::kLanes);
    const T* logits = nullptr;     // [Q, K]
    T* likelihood = nullptr;       // [Q, K]  A, and at the end the probabilities
    T* offset = arena.take<T>(Q);  // largest logit of a row
    T* e = arena.take<T>(Kp);      // mean log proportions, ...
    T most = 0;                    // ... its largest, ...
    T* g = arena.take<T>(Kp);      // ... and exp(e - most)
    T* row = arena.take<T>(Kp);    // probabilities of a row
    T* part = arena.take<T>(Kp);   // sum of A / s over a block of rows
    double* counts = arena.take<double>(Kp);
    double* before = arena.take<double>(Kp);  // counts of the previous iteration
    double* x = arena.take<double>(Kp);       // argument of the digamma function, then its value
};

template <typename T>
static void make_likelihood(AdaptTask<T>& t) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const int64_t whole = t.K / kLanes * kLanes;
    for (int64_t q = 0; q < t.Q; ++q) {
        const T* __restrict__ l = t.logits + q * t.K;
        Vec<T> largest = splat(t.kLowest);
        for (int64_t k = 0; k < whole; k += kLanes) largest = vmax<T>(largest, load(l + k));
        T most = horizontal_max<T>(largest);
        for (int64_t k = whole; k < t.K; ++k) most = l[k] > most ? l[k] : most;
        t.offset[q] = most;
        for (int64_t k = 0; k < t.K; ++k) t.row[k] = std::max(l[k], t.kLowest) - most;
        for (int64_t k = 0; k < t.Kp; k += kLanes) store(t.row + k, vexp<T>(load(t.row + k)));
        __builtin_memcpy(t.likelihood + q * t.K, t.row, sizeof(T) * t.K);
    }
}

// g from e.
template <typename T>
static void make_weights(AdaptTask<T>& t) {
    t.most = *std::max_element(t.e, t.e + t.K);
    for (int64_t k = 0; k < t.K; ++k) t.row[k] = t.e[k] - t.most;
    for (int64_t k = t.K; k < t.Kp; ++k) t.row[k] = t.kLowest;
    for (int64_t k = 0; k < t.Kp; k += Simd<T>::kLanes) {
        store(t.g + k, vexp<T>(load(t.row + k)));
    }
}

// The probabilities of a query, into t.row, from its logits; returns ln sum_k exp(l_k + e_k).
template <typename T>
static double exact_row(const AdaptTask<T>& t, int64_t q) {
    const T* const l = t.logits + q * t.K;
    T most = t.kLowest;
    for (int64_t k = 0; k < t.Kp; ++k) {
        t.row[k] = k < t.K ? std::max(l[k], t.kLowest) - t.offset[q] + t.e[k] : t.kLowest;
        most = t.row[k] > most ? t.row[k] : most;
    }
    Vec<T> sums = splat(T(0));
    for (int64_t k = 0; k < t.Kp; k += Simd<T>::kLanes) {
        const Vec<T> value = vexp<T>(load(t.row + k) - most);
        store(t.row + k, value);
        sums += value;
    }
    const T sum = horizontal_sum<T>(sums), share = 1 / sum;
    for (int64_t k = 0; k < t.Kp; ++k) t.row[k] *= share;
    return double(t.offset[q]) + double(most) + std::log(double(sum));
}

template <typename T>
static void count_queries(AdaptTask<T>& t, double weight) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const int64_t whole = t.K / kLanes * kLanes;
    for (int64_t k = 0; k < t.K; ++k) t.counts[k] = 0;
    for (int64_t first = 0; first < t.Q; first += t.kTerms) {
        for (int64_t k = 0; k < t.Kp; ++k) t.part[k] = 0;
        const int64_t end = std::min(t.Q, first + t.kTerms);
        for (int64_t q = first; q < end; ++q) {
            const T* __restrict__ a = t.likelihood + q * t.K;
            const T sum = dot(a, t.g, t.K);
            if (!(sum > t.kFaint)) {
                exact_row(t, q);
                for (int64_t k = 0; k < t.K; ++k) t.counts[k] += weight * double(t.row[k]);
                continue;
            }
            const T share = 1 / sum;
            for (int64_t k = 0; k < whole; k += kLanes) {
                store(t.part + k, load(t.part + k) + load(a + k) * share);
            }
            for (int64_t k = whole; k < t.K; ++k) t.part[k] += a[k] * share;
        }
        for (int64_t k = 0; k < t.K; ++k) {
            t.counts[k] += weight * double(t.part[k] * t.g[k]);
        }
    }
}

// The next concentration from the counts, and the dual. Returns the largest change of a count.
template <typename T>
static double update_prior(AdaptTask<T>& t, double& a, double total) {
    constexpr int64_t kLanes = Simd<double>::kLanes;
    const double K = double(t.K);
    double slope = 0, curvature = 0, moved = 0;
    for (int which = 0; which < 3; ++which) {
        const PriorTerm term = prior_term(which, a, total, K);
        slope += term.slope;
        curvature += term.curvature;
    }
    for (int64_t k = t.K; k < t.Kp; ++k) t.counts[k] = 1;  // any number with a logarithm
    for (int64_t k = 0; k < t.Kp; k += kLanes) {
        const Vec<double> x = load(t.counts + k) + a;
        const auto found = polygamma<Vec<double>>(x, vlog<double>(x + kShift));
        for (int64_t lane = 0; lane < kLanes && k + lane < t.K; ++lane) {
            slope += found.digamma[lane];
            curvature += found.trigamma[lane];
        }
    }
    for (int64_t k = 0; k < t.K; ++k) {
        moved = std::max(moved, std::fabs(t.counts[k] - t.before[k]));
        t.before[k] = t.counts[k];
    }
    // One class holds all queries under any prior: the slope is a difference of two logarithms.
    a = t.K == 1 ? a : next_concentration(a, slope, curvature);
    const double all = polygamma(total + K * a).digamma;
    for (int64_t k = 0; k < t.Kp; k += kLanes) {
        const Vec<double> x = load(t.counts + k) + a;
        store(t.x + k, polygamma<Vec<double>>(x, vlog<double>(x + kShift)).digamma - all);
    }
    for (int64_t k = 0; k < t.K; ++k) t.e[k] = T(t.x[k]);
    return moved;
}

// The index of the largest number; of equal ones, the first.
template <typename T>
static int64_t largest(const T* x, int64_t n) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    Vec<T> most = splat(x[0]);
    for (int64_t i = 0; i + kLanes <= n; i += kLanes) most = vmax<T>(most, load(x + i));
    T best = horizontal_max<T>(most);
    for (int64_t i = n / kLanes * kLanes; i < n; ++i) best = x[i] > best ? x[i] : best;
    int64_t at = 0;
    while (at < n - 1 && x[at] != best) ++at;
    return at;
}

// Writes probabilities and labels; returns the sum of the rows' normalisers.
template <typename T>
static double write_rows(AdaptTask<T>& t, double weight, int64_t* labels) {
    double normalisers = 0;
    for (int64_t k = 0; k < t.K; ++k) t.counts[k] = 0;
    for (int64_t q = 0; q < t.Q; ++q) {
        T* const u = t.likelihood + q * t.K;
        const T sum = dot(u, t.g, t.K);
        if (sum > t.kFaint) {
            const T share = 1 / sum;
            for (int64_t k = 0; k < t.K; ++k) u[k] *= t.g[k] * share;
            normalisers += double(t.offset[q]) + double(t.most) + std::log(double(sum));
        } else {
            normalisers += exact_row(t, q);
            __builtin_memcpy(u, t.row, sizeof(T) * t.K);
        }
        for (int64_t k = 0; k < t.K; ++k) t.counts[k] += weight * double(u[k]);
        labels[q] = largest(u, t.K);
    }
    return normalisers;
}

template <typename T>
static void adapt_task(const AdaptParams& p, int64_t task, void* scratch, int = 1) {
    Arena arena(scratch);
    AdaptTask<T> t{arena, p};
    t.logits = static_cast<const T*>(p.logits) + task * t.Q * t.K;
    t.likelihood = static_cast<T*>(p.probabilities) + task * t.Q * t.K;
    const double K = double(t.K), total = p.weight * double(t.Q);
    double a = kFirstConcentration, moved = 0;
    for (int64_t k = 0; k < t.Kp; ++k) {
        t.e[k] = t.row[k] = 0;
        t.before[k] = 0;
    }
    make_likelihood(t);
    make_weights(t);
    int iteration = 0;
    do {
        count_queries(t, p.weight);
        moved = update_prior(t, a, total);
        make_weights(t);
        if (given_up(iteration, double(p.Q) * double(p.K))) return;
    } while (++iteration < p.max_iter && !(p.tol > 0 && !(moved > p.tol)));

    double bound = p.weight * write_rows(t, p.weight, p.labels + task * t.Q);
    T* const proportions = static_cast<T*>(p.proportions) + task * t.K;
    T* const dual = static_cast<T*>(p.dual) + task * t.K;
    for (int64_t k = 0; k < t.K; ++k) {
        bound += log_gamma(t.counts[k] + a) - t.counts[k] * double(t.e[k]);
        proportions[k] = T((t.counts[k] + a) / (total + K * a));
        dual[k] = t.e[k];
    }
    static_cast<T*>(p.concentration)[task] = T(a);
    static_cast<T*>(p.criterion)[task] = T(moved);
    static_cast<T*>(p.bound)[task] = T(bound + prior_bound(a, total, K));
    p.iterations[task] = iteration;
}

static Work adapt_work(const AdaptParams& p) {
    const double iterations = p.max_iter < 20 ? p.max_iter : 20;  // typical for a task
    const double entries = double(p.Q) * double(p.K);
    // The digammas of a class cost about 100.
    const double iteration = 2.0 * entries + 100.0 * double(p.K);
    return {p.B, 20.0 * entries + iteration * iterations, 0};
}

constexpr TaskKernels<AdaptParams> kAdaptKernels = {
    "logits",
    adapt_work,
    {bytes_of<AdaptTask<float>>, bytes_of<AdaptTask<double>>},
    {adapt_task<float>, adapt_task<double>},
};
