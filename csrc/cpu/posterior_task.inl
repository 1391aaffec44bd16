// `posterior` for one SIMD level: one task, its products on several threads. The algebra is in
// common/likelihood.h.

template <typename T>
struct PosteriorScratch {
    int64_t Q, K, D;
    CoordinatesParams coordinates;  // for this task only, like those below
    AdaptParams adapt;
    StepParams step;
    T* x;         // [Q, D]           queries in the coordinates
    T* scaled;    // [Q, D]           times the feature scale
    T* panels;    // [K or Q in panels, D]
    T* cross;     // [Q, K]           padded to whole panels, like the next ones
    T* inner;     // [Q, K]
    T* logits;    // [Q, K]           then the weights of the queries, as [K in panels, Q]
    T* gram;      // [Q, Q]           if used
    T* given;     // [Q, K]           probabilities before the step
    T* own;       // [Q]
    T* constant;  // [K]
    T* total;     // [K]
    T* factors;   // [2]              sharpness and prior of the step
    void *adapt_scratch, *step_scratch;

    PosteriorScratch(Arena& arena, const PosteriorParams& p, int64_t task);
    bool has_products() const { return has_gram(double(Q), double(D), double(K)); }
};

template <typename T>
PosteriorScratch<T>::PosteriorScratch(Arena& arena, const PosteriorParams& p, int64_t task)
    : Q(p.Q), K(p.K), D(p.D), coordinates{}, adapt{}, step{} {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const int64_t Kp = round_up(K, kPanel), Qp = round_up(Q, kPanel);
    const auto of_task = [&](void* base, int64_t size) {
        return static_cast<T*>(base) + task * size;
    };
    x = arena.take<T>(Q * D);
    scaled = arena.take<T>(Q * D);
    panels = arena.take<T>((has_products() ? std::max(Kp, Qp) : Kp) * D);
    cross = arena.take<T>(Q * Kp);
    inner = arena.take<T>(Q * Kp);
    logits = arena.take<T>(Q * Kp);
    gram = arena.take<T>(has_products() ? Q * Qp : 0);
    given = arena.take<T>(Q * K);
    own = arena.take<T>(Q);
    constant = arena.take<T>(K);
    total = arena.take<T>(K);
    factors = arena.take<T>(2);
    coordinates.B = 1, coordinates.N = Q, coordinates.D = D, coordinates.shared = true;
    coordinates.rows = static_cast<const T*>(p.query) + task * Q * D;
    coordinates.centre = static_cast<const T*>(p.centre) + (p.shared ? 0 : task * D);
    coordinates.x = x, coordinates.finite = p.finite + task;
    adapt.B = 1, adapt.Q = Q, adapt.K = K;
    adapt.logits = logits;
    adapt.weight = p.weight, adapt.max_iter = p.max_iter, adapt.tol = p.tol;
    adapt.labels = p.labels + task * Q;
    adapt.probabilities = given;
    adapt.proportions = of_task(p.proportions, K);
    adapt.dual = of_task(p.dual, K);
    adapt.iterations = p.iterations + task;
    adapt.criterion = of_task(p.criterion, 1);
    adapt.concentration = of_task(p.concentration, 1);
    adapt.bound = of_task(p.bound, 1);
    step.B = 1, step.Q = Q, step.K = K, step.shared = true;
    step.weight = p.weight, step.temper = p.temper;
    step.given = given, step.cross = cross, step.inner = inner, step.own = own;
    step.constant = constant, step.total = total;
    step.sharpness = factors, step.prior = factors + 1;
    step.shots = static_cast<const T*>(p.shots) + (p.shared ? 0 : task * K);
    step.squares = static_cast<const T*>(p.squares) + (p.shared ? 0 : task * K);
    step.probabilities = of_task(p.probabilities, Q * K);
    step.labels = p.labels + task * Q;
    adapt_scratch = arena.take<char>(adapt_scratch_bytes<T>(adapt));
    step_scratch = arena.take<char>(step_scratch_bytes<T>(step));
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
static void query_products(const PosteriorScratch<T>& s, const T* __restrict__ scale, int threads) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const int64_t Q = s.Q, K = s.K, D = s.D, Qp = round_up(Q, kPanel);
    for (int64_t q = 0; q < Q; ++q) {
        const T* const row = s.x + q * D;
        T* __restrict__ to = s.scaled + q * D;
        for (int64_t d = 0; d < D; ++d) to[d] = row[d] * scale[d];
        s.own[q] = dot(row, s.scaled + q * D, D);
    }
    if (s.has_products()) {
        pack_rows(s.x, Q, D, static_cast<const T*>(nullptr), s.panels);
        multiply<T>({s.scaled, D, 1}, Q, s.panels, D, Q, {s.gram, Qp, kPanel}, threads);
        multiply_closed(s.gram, Qp, Q, s.logits, Q, K, s.inner, threads);
        return;
    }
    multiply<T>({s.x, 1, D}, D, s.logits, Q, K, {s.panels, kPanel, D * kPanel}, threads);
    multiply_closed(s.scaled, D, Q, s.panels, D, K, s.inner, threads);
}

template <typename T>
static void late_step(PosteriorScratch<T>& s, const PosteriorParams& p, int64_t at, int threads) {
    const int64_t Q = s.Q, K = s.K;
    const T sharpness = static_cast<const T*>(p.sharpness)[at];
    const T* const bias = static_cast<const T*>(p.bias) + at * K;
    const T* const squares = static_cast<const T*>(p.squares) + at * K;
    const T* const proportions = static_cast<const T*>(s.adapt.proportions);
    const T a = *static_cast<const T*>(s.adapt.concentration);
    const T mass = T(p.weight * double(Q) + double(K) * double(a));
    for (int64_t k = 0; k < K; ++k) s.total[k] = proportions[k] * mass;
    weigh_queries(s, T(trust_of(Q, K)));
    query_products(s, static_cast<const T*>(p.scale) + at * s.D, threads);
    const T share = late_share(a);
    for (int64_t k = 0; k < K; ++k) {
        s.constant[k] = (bias[k] + sharpness / 2 * squares[k]) * share;
    }
    s.factors[0] = sharpness * share;
    s.factors[1] = a;
    step_task<T>(s.step, 0, s.step_scratch);
}

template <typename T>
static void posterior_task(const PosteriorParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    PosteriorScratch<T> s(arena, p, task);
    const int64_t Q = s.Q, K = s.K, D = s.D, at = p.shared ? 0 : task;
    const T sharpness = static_cast<const T*>(p.sharpness)[at];
    const T* __restrict__ bias = static_cast<const T*>(p.bias) + at * K;
    *s.coordinates.finite = true;
    coordinates_rows<T>(s.coordinates, 0, Q);
    pack_rows(static_cast<const T*>(p.weights) + at * K * D, K, D, static_cast<const T*>(nullptr),
              s.panels);
    multiply_closed(s.x, D, Q, s.panels, D, K, s.cross, threads);
    for (int64_t q = 0; q < Q; ++q) {
        const T* __restrict__ cross = s.cross + q * K;
        T* __restrict__ to = s.logits + q * K;
        for (int64_t k = 0; k < K; ++k) to[k] = bias[k] + sharpness * cross[k];
    }
    adapt_task<T>(s.adapt, 0, s.adapt_scratch);
    late_step(s, p, at, threads);
}

template <typename T>
static int64_t posterior_scratch_bytes(const PosteriorParams& p) {
    Arena arena(nullptr);
    PosteriorScratch<T>(arena, p, 0);
    return arena.used();
}

static Work posterior_work(const PosteriorParams& p) {
    const double Q = double(p.Q), K = double(p.K), D = double(p.D);
    const double inner = has_gram(Q, D, K) ? Q * Q * (D + K) : 2 * Q * K * D;
    const double products = Q * K * D + inner;
    // The proportions and the step cost about 100 per query and class.
    return {p.B, products + 100.0 * Q * K, products};
}

constexpr TaskKernels<PosteriorParams> kPosteriorKernels = {
    "query",
    posterior_work,
    {posterior_scratch_bytes<float>, posterior_scratch_bytes<double>},
    {posterior_task<float>, posterior_task<double>},
};
