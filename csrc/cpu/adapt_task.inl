// `adapt` for one SIMD level: one task on one thread, nothing allocated. The algebra is in
// common/adapt.h. Exponentials are taken in every iteration, from the logits themselves: factors
// that were kept would underflow for a class that is unlikely at first and likely later. The largest
// logit of a row is taken off before e is added, or a common offset would swallow e.

template <typename T>
struct AdaptTask {
    // Counts are sums of sums of so many rows, or rounding would add up.
    static constexpr int64_t kTerms = 256;

    int64_t Q, K, Kp;
    T* offset;       // [Q]   largest logit of a row
    T* e;            // [Kp]  mean of the logarithms of the proportions; 0 beyond K
    T* row;          // [Kp]  logits of a row, then its probabilities
    T* part;         // [Kp]  sum of the probabilities of some rows
    double* counts;  // [K]
    double* before;  // [K]   counts of the iteration before

    AdaptTask(Arena& arena, int64_t Q, int64_t K)
        : Q(Q), K(K), Kp(round_up(K, Simd<T>::kLanes)), offset(arena.take<T>(Q)),
          e(arena.take<T>(Kp)), row(arena.take<T>(Kp)), part(arena.take<T>(Kp)),
          counts(arena.take<double>(K)), before(arena.take<double>(K)) {}
};

// The probabilities of one query in t.row; returns ln sum_k exp(l_k + e_k).
template <typename T>
static double adapt_row(const AdaptTask<T>& t, const T* __restrict__ logits, T offset) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    constexpr T kLowest = Range<T>::kMinusInfinity / 2;  // less any offset it is still a number
    const int64_t whole = t.K / kLanes * kLanes;
    Vec<T> largest = splat(kLowest);
    for (int64_t k = 0; k < whole; k += kLanes) {
        const Vec<T> z = vmax<T>(load(logits + k), splat(kLowest)) - offset + load(t.e + k);
        store(t.row + k, z);
        largest = vmax<T>(largest, z);
    }
    T most = horizontal_max<T>(largest);
    for (int64_t k = whole; k < t.Kp; ++k) {
        t.row[k] = k < t.K ? std::max(logits[k], kLowest) - offset + t.e[k] : kLowest;
        most = t.row[k] > most ? t.row[k] : most;
    }
    Vec<T> sums = splat(T(0));
    for (int64_t k = 0; k < t.Kp; k += kLanes) {
        const Vec<T> value = vexp<T>(load(t.row + k) - most);
        store(t.row + k, value);
        sums += value;
    }
    const T sum = horizontal_sum<T>(sums), share = 1 / sum;
    for (int64_t k = 0; k < t.Kp; k += kLanes) store(t.row + k, load(t.row + k) * share);
    return double(offset) + double(most) + std::log(double(sum));
}

// One pass over the queries: counts, and with `out` the probabilities and labels. Returns the sum
// of the rows' normalisers.
template <typename T>
static double adapt_rows(AdaptTask<T>& t, const T* logits, double weight, T* out, int64_t* labels) {
    double normalisers = 0;
    for (int64_t k = 0; k < t.K; ++k) t.counts[k] = 0;
    for (int64_t first = 0; first < t.Q; first += AdaptTask<T>::kTerms) {
        for (int64_t k = 0; k < t.Kp; ++k) t.part[k] = 0;
        const int64_t end = std::min(t.Q, first + AdaptTask<T>::kTerms);
        for (int64_t q = first; q < end; ++q) {
            normalisers += adapt_row(t, logits + q * t.K, t.offset[q]);
            for (int64_t k = 0; k < t.Kp; k += Simd<T>::kLanes) {
                store(t.part + k, load(t.part + k) + load(t.row + k));
            }
            if (out == nullptr) continue;
            int64_t best = 0;
            for (int64_t k = 0; k < t.K; ++k) {
                out[q * t.K + k] = t.row[k];
                best = t.row[k] > t.row[best] ? k : best;
            }
            labels[q] = best;
        }
        for (int64_t k = 0; k < t.K; ++k) t.counts[k] += weight * double(t.part[k]);
    }
    return normalisers;
}

template <typename T>
static void adapt_task(const AdaptParams& p, int64_t task, void* scratch) {
    Arena arena(scratch);
    AdaptTask<T> t(arena, p.Q, p.K);
    const T* const logits = static_cast<const T*>(p.logits) + task * t.Q * t.K;
    const double K = double(t.K), total = p.weight * double(t.Q);
    double a = kFirstConcentration, moved = 0;
    for (int64_t q = 0; q < t.Q; ++q) {
        t.offset[q] = *std::max_element(logits + q * t.K, logits + (q + 1) * t.K);
    }
    for (int64_t k = 0; k < t.Kp; ++k) t.e[k] = 0;
    for (int64_t k = 0; k < t.K; ++k) t.before[k] = 0;
    int iteration = 0;
    do {
        adapt_rows<T>(t, logits, p.weight, nullptr, nullptr);
        double slope = 0, curvature = 0;
        moved = 0;
        for (int which = 0; which < 3; ++which) {
            const PriorTerm term = prior_term(which, a, total, K);
            slope += term.slope;
            curvature += term.curvature;
        }
        for (int64_t k = 0; k < t.K; ++k) {
            const PriorTerm term = class_term(t.counts[k], a);
            slope += term.slope;
            curvature += term.curvature;
            moved = std::max(moved, std::fabs(t.counts[k] - t.before[k]));
            t.before[k] = t.counts[k];
        }
        a = next_concentration(a, slope, curvature);
        const double all = polygamma(total + K * a).digamma;
        for (int64_t k = 0; k < t.K; ++k) t.e[k] = T(polygamma(t.counts[k] + a).digamma - all);
    } while (++iteration < p.max_iter && !(p.tol > 0 && moved <= p.tol));

    double bound = p.weight * adapt_rows<T>(t, logits, p.weight,
                                            static_cast<T*>(p.probabilities) + task * t.Q * t.K,
                                            p.labels + task * t.Q);
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

template <typename T>
static int64_t adapt_scratch_bytes(const AdaptParams& p) {
    Arena arena(nullptr);
    AdaptTask<T>(arena, p.Q, p.K);
    return arena.used();
}

constexpr AdaptKernels kAdaptKernels = {
    {adapt_scratch_bytes<float>, adapt_scratch_bytes<double>},
    {adapt_task<float>, adapt_task<double>},
};
