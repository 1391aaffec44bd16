// `posterior` for one SIMD level: one task, its products on several threads. The algebra is in
// common/adaptive.h.

template <typename T>
struct PosteriorScratch {
    Arena& arena;
    const PosteriorParams& p;
    int64_t Q = p.size.Q, K = p.size.K, D = p.size.D;
    int64_t C = factor_columns(p.size.M);  // columns of the factor
    int64_t E = D + C;                     // numbers of a row: its features, then Z x
    int64_t Kp = round_up(K, Simd<T>::kPanel), Qp = round_up(Q, Simd<T>::kPanel);
    int64_t task, at;             // and its likelihood
    bool by_rows = p.size.N > K;  // see common/adaptive.h
    bool has_products = has_gram(double(Q), double(D), double(K));
    T plain = 1, projected = 0;       // a product in the metric: plain x.y + projected (Z x).(Z y)
    CoordinatesParams coordinates{};  // for this task only, like the next ones
    AdaptParams adapt;
    T* x = arena.take<T>(Q * E);                    // scaled queries, and Z x
    T* weighed = arena.take<T>(C > 0 ? Q * E : 0);  // products with x are those in the metric
    T* panels = arena.take<T>(std::max((has_products ? std::max(Kp, Qp) : Kp) * E,
                                       C* std::max(by_rows ? D : 0, kFactorBlock)));
    T* cross = arena.take<T>(Q * Kp);
    T* inner = arena.take<T>(Q * Kp);
    T* logits = arena.take<T>(Q * Kp);  // then the weights of the queries, as [K in panels, Q]
    T* gram = arena.take<T>(has_products ? Q * Qp : 0);
    T* given = arena.take<T>(Q * K);  // probabilities before the step
    T* own = arena.take<T>(Q);
    // Of the absorb step.
    T* step = arena.take<T>(7 * Kp);
    double* step_sums = arena.take<double>(2 * Kp);
    void* adapt_scratch;

    PosteriorScratch(Arena& arena, const PosteriorParams& p, int64_t task = 0)
        : arena(arena), p(p), task(task), at(p.size.L == 1 ? 0 : task),
          adapt(adapt_of<T>(p, task)) {
        coordinates.B = 1, coordinates.N = 1, coordinates.D = D, coordinates.shared = true;
        coordinates.rows = reals<T>(p.query, task * Q * D);
        coordinates.centre = reals<T>(p.centre, at * D);
        coordinates.scale = reals<T>(p.scale, at * D);
        coordinates.finite = p.finite + task;
        adapt.logits = logits, adapt.probabilities = given;
        adapt_scratch = arena.take<char>(bytes_of<AdaptTask<T>>(adapt));
    }
};

// The scaled queries, and Z times them.
template <typename T>
static void find_rows(const PosteriorScratch<T>& s, int threads) {
    const int64_t Q = s.Q, D = s.D, E = s.E, M = s.p.size.M, C = s.C;
    CoordinatesParams row = s.coordinates;
    *row.finite = true;
    for (int64_t q = 0; q < Q; ++q) {
        row.rows = reals<T>(s.coordinates.rows, q * D);
        row.x = s.x + q * E;
        coordinates_rows<T>(row, 0, 1);
    }
    if (E == D) return;
    if (s.by_rows) {
        const T* const offsets = reals<T>(s.p.rows, s.at * s.p.size.N * D);
        pack_rows(offsets, D, M, D, T(1), s.panels, D);
        multiply<T>({s.x, E, 1}, Q, s.panels, D, M, {s.x + D, E, Simd<T>::kPanel}, threads);
    }
    for (int64_t q = 0; q < Q; ++q) {
        T* const x = s.x + q * E;
        if (!s.by_rows) std::copy_n(x, D, x + D);
        std::fill_n(x + D + M, C - M, T(0));
    }
    const T* const factor = reals<T>(s.p.factor, s.at * C * C);
    substitute<T>(s.x + D, E, Q, {factor, C, s.panels, threads});
}

// Products of the queries with the class means.
template <typename T>
static void mean_products(const PosteriorScratch<T>& s, int threads) {
    const int64_t K = s.K, D = s.D, E = s.E, C = s.C;
    const T* const means = reals<T>(s.p.rows, ((s.at + 1) * s.p.size.N - K) * D);
    pack_rows(means, D, K, D, s.plain, s.panels, E);
    if (E > D) {
        const T* const solved = reals<T>(s.p.solved, s.at * K * C);
        pack_rows(solved, C, K, C, s.projected, s.panels + D * Simd<T>::kPanel, E);
    }
    multiply_closed(s.x, E, s.Q, s.panels, E, K, s.cross, threads);
}

// The weights of the queries in the classes, in panels.
template <typename T>
static void weigh_queries(const PosteriorScratch<T>& s, T trust) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    for (int64_t k0 = 0; k0 < s.K; k0 += kPanel) {
        const int64_t width = std::min(s.K - k0, kPanel);
        T* const to = s.logits + k0 * s.Q;
        for (int64_t q = 0; q < s.Q; ++q) {
            const T* const u = s.given + q * s.K + k0;
            for (int64_t i = 0; i < width; ++i) to[q * kPanel + i] = query_weight(u[i], trust);
            for (int64_t i = width; i < kPanel; ++i) to[q * kPanel + i] = 0;
        }
    }
}

// Products of the queries with their weighted sums, and with themselves.
template <typename T>
static void query_products(const PosteriorScratch<T>& s, int threads) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const int64_t Q = s.Q, K = s.K, E = s.E;
    const T* const weighed = E > s.D ? s.weighed : s.x;
    for (int64_t q = 0; q < Q; ++q) {
        const T* const row = s.x + q * E;
        if (E > s.D) {
            T* __restrict__ to = s.weighed + q * E;
            for (int64_t d = 0; d < s.D; ++d) to[d] = row[d] * s.plain;
            for (int64_t d = s.D; d < E; ++d) to[d] = row[d] * s.projected;
        }
        s.own[q] = dot(row, weighed + q * E, E);
    }
    if (s.has_products) {
        pack_rows(s.x, E, Q, E, T(1), s.panels, E);
        multiply<T>({weighed, E, 1}, Q, s.panels, E, Q, {s.gram, s.Qp, kPanel}, threads);
        multiply_closed(s.gram, s.Qp, Q, s.logits, Q, K, s.inner, threads);
        return;
    }
    multiply<T>({s.x, 1, E}, E, s.logits, Q, K, {s.panels, kPanel, E * kPanel}, threads);
    multiply_closed(weighed, E, Q, s.panels, E, K, s.inner, threads);
}

// Prototypes absorb the queries, each query classified without itself: on one thread.
template <typename T>
static void absorb_step(const PosteriorScratch<T>& s) {
    const PosteriorParams& p = s.p;
    const int64_t Q = s.Q, K = s.K, task = s.task, at = task * Q * K, shared = s.at;
    const T *const given = s.given, *const cross = s.cross, *const inner = s.inner;
    const T* const added = p.added == nullptr ? nullptr : reals<T>(p.added, at);
    const T* __restrict__ shots = reals<T>(p.shots, shared * K);
    const T* const squares = reals<T>(p.squares, shared * K);
    const T variance = reals<T>(p.variance)[shared], mean_shots = T(p.mean_shots);
    const T* const bias = reals<T>(p.bias, task * K);
    T* const proportions = reals<T>(p.proportions, task * K);
    const T* const measure = chosen_measure<T>(p, task);
    const T a = reals<T>(p.concentration)[task], share = absorb_share(a);
    const T f = reals<T>(p.sharpness)[task], sharpness = f * share;
    const T temper = T(p.temper), reduced = temper * share;
    const T weight = T(p.weight), trust = T(trust_of(Q, K)), count = total_count(p.weight, Q, K, a);
    const T two_classes = chance_of_two_classes(a, K);
    T* const out = reals<T>(p.probabilities, at);
    const int64_t Kp = round_up(K, Simd<T>::kLanes);
    T* __restrict__ square = s.step;
    T* __restrict__ mass = s.step + s.Kp;
    T* __restrict__ row = s.step + 2 * s.Kp;
    T* __restrict__ left = s.step + 3 * s.Kp;
    T* __restrict__ constant = s.step + 4 * s.Kp;
    T* __restrict__ total = s.step + 5 * s.Kp;
    T* __restrict__ prior = s.step + 6 * s.Kp;
    double* __restrict__ held = s.step_sums;            // sums of the probabilities, ...
    double* __restrict__ counted = s.step_sums + s.Kp;  // ... and numbers of labels

    for (int64_t k = 0; k < Kp; ++k) left[k] = 1;
    for (int64_t k = 0; k < K; ++k) {
        square[k] = shots[k] * shots[k] * squares[k];
        mass[k] = shots[k];
        held[k] = counted[k] = 0;
    }
    for (int64_t q = 0; q < Q; ++q) {
        const T* __restrict__ u = given + q * K;
        const T* __restrict__ x = cross + q * K;
        const T* __restrict__ y = inner + q * K;
        for (int64_t k = 0; k < K; ++k) {
            const T w = query_weight(u[k], trust);
            square[k] += w * (2 * shots[k] * x[k] + y[k]);
            mass[k] += w;
        }
    }
    for (int64_t k = 0; k < K; ++k) {
        const T early = excess_distance(variance, shots[k], mean_shots, K);
        const T late = excess_distance(variance, mass[k], mass[k] + (mean_shots - shots[k]), K);
        constant[k] = (bias[k] + f / 2 * (squares[k] - early + late)) * share;
        prior[k] = measure == nullptr ? a : a * measure[k];
        const T before = std::max(proportions[k] * count - prior[k], T(0));
        const T kept = kept_share(before, shots[k], two_classes);
        constant[k] += std::log(kept);
        prior[k] /= kept;
        total[k] = before + prior[k];
        if (prior[k] > 0) continue;
        constant[k] = T(kImpossible);
        prior[k] = 1;  // any number with a logarithm
    }
    for (int64_t q = 0; q < Q; ++q) {
        const T* __restrict__ u = given + q * K;
        const T* __restrict__ x = cross + q * K;
        const T* __restrict__ y = inner + q * K;
        const T self = s.own[q];
        for (int64_t k = 0; k < K; ++k) {
            const T w = query_weight(u[k], trust);
            const T half = half_distance(w, shots[k] * x[k], y[k], self, square[k], mass[k]);
            row[k] = temper * (sharpness * half + constant[k]);
            if (added != nullptr) row[k] += reduced * added[q * K + k];
        }
        for (int64_t k = 0; k < K; ++k) left[k] = std::max(total[k] - weight * u[k], prior[k]);
        for (int64_t k = K; k < Kp; ++k) row[k] = Range<T>::kMinusInfinity;
        Vec<T> mosts = splat(Range<T>::kMinusInfinity);
        for (int64_t k = 0; k < Kp; k += Simd<T>::kLanes) {
            store(row + k, load(row + k) + temper * vlog<T>(load(left + k)));
            mosts = vmax<T>(mosts, load(row + k));
        }
        const T unit = 1 / exponentials<T>(row, horizontal_max<T>(mosts), Kp);
        for (int64_t k = 0; k < K; ++k) {
            out[q * K + k] = row[k] * unit;
            held[k] += double(out[q * K + k]);
        }
        const int64_t label = p.labels[task * Q + q] = largest(out + q * K, K);
        counted[label] += 1;
    }
    const double some = double(K - std::count(counted, counted + K, 0.0)) / double(K);
    for (int64_t k = 0; k < K; ++k) proportions[k] = T(class_share(counted[k], held[k], some, Q));
}

template <typename T>
static void posterior_task(const PosteriorParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    PosteriorScratch<T> s(arena, p, task);
    const int64_t K = s.K;
    const T sharpness = reals<T>(p.sharpness)[task];
    const T* __restrict__ bias = reals<T>(p.bias, task * K);
    const T* const added = p.added == nullptr ? nullptr : reals<T>(p.added, task * s.Q * K);
    if (p.size.M > 0) {
        const T* const shares = reals<T>(p.shares, s.at * 3);
        s.plain = shares[1], s.projected = shares[2];
    }
    find_rows(s, threads);
    const NoSubnormals fast;
    mean_products(s, threads);
    for (int64_t q = 0; q < s.Q; ++q) {
        const T* __restrict__ cross = s.cross + q * K;
        T* __restrict__ to = s.logits + q * K;
        for (int64_t k = 0; k < K; ++k) to[k] = bias[k] + sharpness * cross[k];
        for (int64_t k = 0; added != nullptr && k < K; ++k) to[k] += added[q * K + k];
    }
    adapt_task<T>(s.adapt, 0, s.adapt_scratch);
    weigh_queries(s, T(trust_of(s.Q, K)));
    query_products(s, threads);
    absorb_step(s);
}

static Work posterior_work(const PosteriorParams& p) {
    const double Q = double(p.size.Q), K = double(p.size.K), D = double(p.size.D);
    const double M = double(p.size.M), E = D + M, offsets = p.size.N > p.size.K ? M * D : 0;
    const double inner = has_gram(Q, D, K) ? Q * Q * (E + K) : 2 * Q * K * E;
    const double products = Q * (K * E + offsets + M * M / 2) + inner;
    // The proportions and the step cost about 100 per query and class.
    return {p.size.B, products + 100.0 * Q * K, products};
}
