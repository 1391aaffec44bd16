// The rounds of a batch for one SIMD level; the algebra is in common/rounds.h. Rows of a part, or the
// products of a task.

// --- rows ---------------------------------------------------------------------------------------

// The classes of a row in vectors; the last may be partly empty.
template <typename T>
static inline Vec<T> load_some(const T* from, int64_t count, T fill = 0) {
    if (count >= Simd<T>::kLanes) return load(from);
    Vec<T> value = splat(fill);
    for (int64_t i = 0; i < count; ++i) value[i] = from[i];
    return value;
}

template <typename T>
static inline void store_some(T* to, Vec<T> value, int64_t count) {
    if (count >= Simd<T>::kLanes) return store<T>(to, value);
    for (int64_t i = 0; i < count; ++i) to[i] = value[i];
}

// The number of an array [B, N] for row `at`; 1 without the array.
template <typename T>
static inline T worth_of(const void* worth, int64_t at) {
    return worth == nullptr ? T(1) : reals<T>(worth)[at];
}

template <typename T>
static void weigh_rows(const WeighParams& p, int64_t task, int64_t first, int64_t end,
                       AssignSums& sums) {
    const NoSubnormals fast;
    for (int64_t k = 0; k < p.K; ++k) sums.held[k] = 0;
    for (int64_t q = task * p.N + first; q < task * p.N + end; ++q) {
        const T* const __restrict__ u = reals<T>(p.probabilities, q * p.K);
        T* const __restrict__ weights = reals<T>(p.weights, q * p.K);
        double* const __restrict__ held = sums.held;
        const T most = T(p.most) * worth_of<T>(p.worth, q);
        for (int64_t k = 0; k < p.K; ++k) {
            weights[k] = query_weight(u[k], most);
            held[k] += double(weights[k]);
        }
    }
}

// Some classes of a task, for all rows of a part.
template <typename T>
struct RoundClasses {
    static constexpr int64_t kMost = 128;  // at a time
    static_assert(kMost % Simd<T>::kLanes == 0);
    RoundClass<Vec<T>> of[kMost / Simd<T>::kLanes];

    RoundClasses(const AbsorbParams& p, int64_t task, int64_t first, int64_t count) {
        const T half = reals<T>(p.sharpness)[task] / 2, variance = reals<T>(p.variance)[task];
        for (int64_t i = 0; i < round_up(count, Simd<T>::kLanes); ++i) {
            const int64_t at = task * p.K + first + std::min(i, count - 1),
                          lane = i % Simd<T>::kLanes;
            const T mass = reals<T>(p.mass)[at], labelled_mass = reals<T>(p.labelled_mass)[at];
            RoundClass<Vec<T>>& k = of[i / Simd<T>::kLanes];
            k.square[lane] = reals<T>(p.square)[at];
            k.mass[lane] = mass;
            k.constant[lane] =
                round_constant(reals<T>(p.bias)[at], half, variance, mass, labelled_mass);
            k.count[lane] = p.counts == nullptr ? T(0) : T(p.counts[at]);
            k.prior[lane] = p.counts == nullptr ? T(1) : T(p.concentration[task] * p.measure[at]);
        }
    }
};

template <typename T>
static void absorb_rows(const AbsorbParams& p, int64_t task, int64_t first, int64_t end) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const NoSubnormals fast;
    const auto log = [](Vec<T> x) { return vlog<T>(x); };
    const bool absorbed = p.probabilities != nullptr;
    RoundTask<Vec<T>> of_task{splat(reals<T>(p.sharpness)[task] / 2),
                              splat(reals<T>(p.variance)[task]),
                              splat(T(p.weight)),
                              {}};
    for (int64_t start = 0; start < p.K; start += RoundClasses<T>::kMost) {
        const int64_t count = std::min(p.K - start, RoundClasses<T>::kMost);
        const RoundClasses<T> classes(p, task, start, count);
        for (int64_t q = task * p.N + first; q < task * p.N + end; ++q) {
            T* const row = reals<T>(p.products, q * p.K + start);
            const T* const given = absorbed ? reals<T>(p.probabilities, q * p.K + start) : nullptr;
            const T* const added =
                p.added == nullptr ? nullptr : reals<T>(p.added, q * p.K + start);
            const Vec<T> own = splat(reals<T>(p.own)[q]);
            of_task.most = splat(T(p.most) * worth_of<T>(p.worth, q));
            for (int64_t k = 0; k < count; k += kLanes) {
                const RoundClass<Vec<T>>& of = classes.of[k / kLanes];
                const int64_t left = count - k;
                const Vec<T> product = load_some(row + k, left);
                const Vec<T> u = absorbed ? load_some(given + k, left) : Vec<T>{};
                Vec<T> logit = logit_by_others<T>(of_task, of, own, product, u, log);
                if (p.counts != nullptr) logit += log_others<T>(of_task, of, u, log);
                if (added != nullptr) logit += load_some(added + k, left);
                store_some<T>(row + k, logit, left);
            }
        }
    }
}

template <typename T>
static void claim_rows(const ClaimParams& p, int64_t task, int64_t first, int64_t end) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const auto log = [](Vec<T> x) { return vlog<T>(x); };
    const T* const __restrict__ shots = reals<T>(p.shots, task * p.K);
    for (int64_t q = task * p.N + first; q < task * p.N + end; ++q) {
        const T* const u = reals<T>(p.probabilities, q * p.K);
        T* const logs = reals<T>(p.logs, q * p.K);
        T confidence = 0;
        for (int64_t k = 0; k < p.K; ++k) confidence += u[k] * kept_confidence(shots[k]);
        reals<T>(p.confidence)[q] = confidence;
        for (int64_t k = 0; k < p.K; k += kLanes) {
            const Vec<T> some = load_some(u + k, p.K - k, T(1));
            store_some<T>(logs + k, claim_log<T>(some, log), p.K - k);
        }
    }
}

constexpr RoundKernels kRoundKernels = {
    {weigh_rows<float>, weigh_rows<double>},
    {absorb_rows<float>, absorb_rows<double>},
    {claim_rows<float>, claim_rows<double>},
};

// --- prototypes by the products of queries --------------------------------------------------------

template <typename T>
struct GatherScratch {
    Arena& arena;
    const GatherParams& p;
    int64_t Kp = round_up(p.K, Simd<T>::kPanel);
    T* panels = arena.take<T>(p.Q * Kp);  // the weights
    T* inner = arena.take<T>(p.Q * Kp);   // products of the queries with their weighted sums
    double* terms = arena.take<double>(p.K);
};

template <typename T>
static void gather_task(const GatherParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    const GatherScratch<T> s{arena, p};
    const NoSubnormals fast;
    const int64_t Q = p.Q, K = p.K, of_task = task * Q * K;
    const T* const weights = reals<T>(p.weights, of_task);
    pack_columns(weights, Q, K, s.panels);
    multiply_closed(reals<T>(p.gram, task * Q * Q), Q, Q, s.panels, Q, K, s.inner, threads);

    const T* const before = reals<T>(p.before, task * K);
    const T* const mass = reals<T>(p.mass, task * K);
    std::fill_n(s.terms, K, 0.0);
    for (int64_t q = 0; q < Q; ++q) {
        const T* const __restrict__ w = weights + q * K;
        const T* const __restrict__ cross = reals<T>(p.cross, of_task + q * K);
        const T* const __restrict__ inner = s.inner + q * K;
        T* const __restrict__ products = reals<T>(p.products, of_task + q * K);
        double* const __restrict__ terms = s.terms;
        for (int64_t k = 0; k < K; ++k) {
            const Gathered<T> prototype{before[k], mass[k]};
            products[k] = prototype.product(cross[k], inner[k]);
            terms[k] += prototype.term(w[k], cross[k], inner[k]);
        }
    }
    for (int64_t k = 0; k < K; ++k) {
        const T square = reals<T>(p.squares, task * K)[k];
        reals<T>(p.square, task * K)[k] =
            Gathered<T>{before[k], mass[k]}.square(square, s.terms[k]);
    }
}

static Work gather_work(const GatherParams& p) {
    const double products = double(p.Q) * double(p.Q) * double(p.K);
    return {p.B, products + 10.0 * double(p.Q) * double(p.K), products};
}
