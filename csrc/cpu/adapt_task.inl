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
    double* measure = arena.take<double>(Kp);
    double even = 1;  // the measure of all possible classes; 0 if they differ
    T* best = arena.take<T>(p.priors > 1 ? K : 0);  // e of the best measure so far
};

// The result of the iteration under one measure.
struct Learned {
    double a = kFirstConcentration, least = kMinConcentration, moved = 0, bound = 0;
    int iterations = 0;
    Race race{};
    bool lost = false;
};

// The largest number, at least `least`.
template <typename T>
static inline T largest_of(const T* x, int64_t n, T least) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    Vec<T> most = splat(least);
    for (int64_t i = 0; i + kLanes <= n; i += kLanes) most = vmax<T>(most, load(x + i));
    T best = horizontal_max<T>(most);
    for (int64_t i = n / kLanes * kLanes; i < n; ++i) best = x[i] > best ? x[i] : best;
    return best;
}

template <typename T>
static void make_likelihood(AdaptTask<T>& t) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    for (int64_t q = 0; q < t.Q; ++q) {
        const T* __restrict__ l = t.logits + q * t.K;
        const T most = t.offset[q] = largest_of(l, t.K, t.kLowest);
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
    const T sum = exponentials(t.row, most, t.Kp), share = 1 / sum;
    for (int64_t k = 0; k < t.Kp; ++k) t.row[k] *= share;
    return double(t.offset[q]) + double(most) + std::log(double(sum));
}

// With kLog, returns the sum of the rows' normalisers.
template <bool kLog, typename T>
static double count_queries(AdaptTask<T>& t, double weight) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const int64_t whole = t.K / kLanes * kLanes;
    double normalisers = 0, product = 1;  // of sums whose logarithm is still to be taken
    for (int64_t k = 0; k < t.K; ++k) t.counts[k] = 0;
    for (int64_t first = 0; first < t.Q; first += t.kTerms) {
        for (int64_t k = 0; k < t.Kp; ++k) t.part[k] = 0;
        const int64_t end = std::min(t.Q, first + t.kTerms);
        for (int64_t q = first; q < end; ++q) {
            const T* __restrict__ a = t.likelihood + q * t.K;
            const T sum = dot(a, t.g, t.K);
            if (!(sum > t.kFaint)) {
                normalisers += exact_row(t, q);
                for (int64_t k = 0; k < t.K; ++k) t.counts[k] += weight * double(t.row[k]);
                continue;
            }
            const T share = 1 / sum;
            if (kLog) {
                normalisers += double(t.offset[q]) + double(t.most);
                product *= double(sum);
                if (!(product > 1e-20 && product < 1e20)) {
                    normalisers += std::log(product);
                    product = 1;
                }
            }
            for (int64_t k = 0; k < whole; k += kLanes) {
                store(t.part + k, load(t.part + k) + load(a + k) * share);
            }
            for (int64_t k = whole; k < t.K; ++k) t.part[k] += a[k] * share;
        }
        for (int64_t k = 0; k < t.K; ++k) {
            t.counts[k] += weight * double(t.part[k] * t.g[k]);
        }
    }
    return normalisers + std::log(product);
}

// The next concentration from the counts, and the dual. Returns the largest change of a count.
template <typename T>
static double update_prior(AdaptTask<T>& t, double& a, double least, double total) {
    constexpr int64_t kLanes = Simd<double>::kLanes;
    const double K = double(t.K);
    double moved = 0;
    auto [slope, curvature] = whole_term(a, total, K);
    const auto functions = [](Vec<double> x) { return polygamma(x, vlog<double>(x + kShift)); };
    Polygamma<Vec<double>> without = functions(splat(a * t.even));
    for (int64_t k = t.K; k < t.Kp; ++k) t.counts[k] = 1;  // any number with a logarithm
    for (int64_t k = 0; k < t.Kp; k += kLanes) {
        const Vec<double> m = load(t.measure + k), own = a * m, grown = load(t.counts + k) + own;
        Vec<double> shifted = grown + kShift;
        if (!(t.even > 0)) {  // one logarithm for the difference of two digammas
            without = polygamma(own, splat(0.0));
            shifted /= own + kShift;
        }
        const auto with = polygamma(grown, vlog<double>(shifted));
        const Vec<double> first = m * (with.digamma - without.digamma);
        const Vec<double> second = m * m * (with.trigamma - without.trigamma);
        for (int64_t lane = 0; lane < kLanes && k + lane < t.K; ++lane) {
            if (!(m[lane] > 0)) continue;
            slope += first[lane];
            curvature += second[lane];
        }
    }
    for (int64_t k = 0; k < t.K; ++k) {
        moved = std::max(moved, std::fabs(t.counts[k] - t.before[k]));
        t.before[k] = t.counts[k];
    }
    // One class holds all queries under any prior: the slope is a difference of two logarithms.
    a = t.K == 1 ? a : next_concentration(a, slope, curvature, least);
    const double all = polygamma(total + K * a).digamma;
    for (int64_t k = 0; k < t.Kp; k += kLanes) {
        store(t.x + k, functions(load(t.counts + k) + a * load(t.measure + k)).digamma - all);
    }
    for (int64_t k = 0; k < t.K; ++k) t.e[k] = T(t.measure[k] > 0 ? t.x[k] : kImpossible);
    return moved;
}

// The index of the largest number; of equal ones, the first.
template <typename T>
static int64_t largest(const T* x, int64_t n) {
    const T best = largest_of(x, n, x[0]);
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

// Reads a measure of the task.
template <typename T>
static void take_measure(AdaptTask<T>& t, int64_t task, int64_t prior) {
    const T* const from = reals<T>(t.p.measures, (task * t.p.priors + prior) * t.K);
    for (int64_t k = 0; k < t.Kp; ++k) {
        t.measure[k] = t.p.measures == nullptr || k >= t.K ? 1.0 : double(from[k]);
    }
    t.even = *std::max_element(t.measure, t.measure + t.K);
    for (int64_t k = 0; k < t.K; ++k) {
        if (t.measure[k] > 0 && t.measure[k] < t.even) t.even = 0;
    }
}

// From the sum of the rows' normalisers.
template <typename T>
static double bound_of(const AdaptTask<T>& t, double a, double normalisers) {
    constexpr int64_t kLanes = Simd<double>::kLanes;
    double bound = t.p.weight * normalisers + whole_bound(a, t.p.weight * double(t.Q), double(t.K));
    const auto value = [](Vec<double> x) {
        return log_gamma(x, vlog<double>(x + kShift), vlog<double>(rising_product(x)));
    };
    for (int64_t k = 0; k < t.Kp; k += kLanes) {
        const Vec<double> own = a * load(t.measure + k);
        const Vec<double> grown = value(load(t.counts + k) + own) - value(own);
        for (int64_t lane = 0; lane < kLanes && k + lane < t.K; ++lane) {
            if (own[lane] > 0) bound += grown[lane] - t.counts[k + lane] * double(t.e[k + lane]);
        }
    }
    return bound;
}

// Iterates from the start under the measure; false if the call is cancelled.
template <typename T>
static bool learn(AdaptTask<T>& t, Learned& now) {
    const AdaptParams& p = t.p;
    for (int64_t k = 0; k < t.Kp; ++k) {
        t.e[k] = T(first_dual(t.measure[k]));
        t.row[k] = 0;
        t.before[k] = 0;
    }
    make_weights(t);
    do {
        if (!now.race.due(now.iterations)) {
            count_queries<false>(t, p.weight);
        } else {
            const double bound = bound_of(t, now.a, count_queries<true>(t, p.weight));
            now.lost = now.race.lost(bound, now.iterations);
            if (now.lost) return true;
        }
        now.moved = update_prior(t, now.a, now.least, p.weight * double(t.Q));
        make_weights(t);
        if (given_up(now.iterations, double(p.Q) * double(p.K))) return false;
    } while (++now.iterations < p.max_iter && !(p.tol > 0 && !(now.moved > p.tol)));
    return true;
}

template <typename T>
static void adapt_task(const AdaptParams& p, int64_t task, void* scratch, int = 1) {
    const NoSubnormals fast;
    Arena arena(scratch);
    AdaptTask<T> t{arena, p};
    t.logits = reals<T>(p.logits, task * t.Q * t.K);
    t.likelihood = reals<T>(p.probabilities, task * t.Q * t.K);
    for (int64_t k = 0; k < t.Kp; ++k) t.row[k] = 0;
    make_likelihood(t);
    Learned best;
    double least = kMinConcentration;
    p.chosen[task] = 0;
    for (int64_t prior = 0; prior == 0 || prior < p.priors; ++prior) {
        Learned now;
        if (prior > 0) {
            now.a = kMaxConcentration;
            now.least = least;
            now.race.rival = best.bound;
        }
        take_measure(t, task, prior);
        if (!learn(t, now)) return;
        if (prior == 0) least = now.a;
        if (now.lost) continue;
        if (prior + 1 < p.priors || !now.race.decided()) {
            now.bound = bound_of(t, now.a, count_queries<true>(t, p.weight));
        }
        if (!now.race.decided() && !(now.bound > best.bound)) continue;
        best = now;
        p.chosen[task] = int32_t(prior);
        if (p.priors > 1) std::copy_n(t.e, t.K, t.best);
    }
    if (p.priors > 1) {
        take_measure(t, task, p.chosen[task]);
        std::copy_n(t.best, t.K, t.e);
        make_weights(t);
    }
    const double normalisers = write_rows(t, p.weight, p.labels + task * t.Q);
    T* const proportions = reals<T>(p.proportions, task * t.K);
    T* const dual = reals<T>(p.dual, task * t.K);
    const double mass = p.weight * double(t.Q) + double(t.K) * best.a;
    for (int64_t k = 0; k < t.K; ++k) {
        proportions[k] = T((t.counts[k] + best.a * t.measure[k]) / mass);
        dual[k] = t.e[k];
    }
    reals<T>(p.concentration)[task] = T(best.a);
    reals<T>(p.criterion)[task] = T(best.moved);
    reals<T>(p.bound)[task] = T(bound_of(t, best.a, normalisers));
    p.iterations[task] = best.iterations;
}

static Work adapt_work(const AdaptParams& p) {
    const double iterations = p.max_iter < 20 ? p.max_iter : 20;  // typical for a task
    const double entries = double(p.Q) * double(p.K);
    // The digammas of a class cost about 100.
    const double iteration = 2.0 * entries + 100.0 * double(p.K);
    return {p.B, 20.0 * entries + iteration * iterations, 0};
}
