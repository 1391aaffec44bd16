// `likelihood` for one SIMD level: one task, its products on several threads. The algebra is in
// common/likelihood.h.

template <typename T>
struct LikelihoodScratch {
    LabelledParams labelled;    // for this task only
    CalibrateParams calibrate;  // likewise
    T *means, *scale, *squares, *shots;
    T* panels;     // [K in panels, D] the weights
    T* cross;      // [R, K]           products of calibration rows with them
    T* distances;  // [R, K]
    T* off;        // [R]
    T* drawn;      // [K]
    int64_t* judging;
    void *labelled_scratch, *calibrate_scratch;

    LikelihoodScratch(Arena& arena, const LikelihoodParams& p, int64_t task);
};

template <typename T>
LikelihoodScratch<T>::LikelihoodScratch(Arena& arena, const LikelihoodParams& p, int64_t task)
    : labelled{}, calibrate{} {
    const int64_t S = p.S, K = p.K, D = p.D, R = p.R, Kp = round_up(K, Simd<T>::kPanel);
    const auto of_task = [&](void* base, int64_t size) {
        return static_cast<T*>(base) + task * size;
    };
    means = of_task(p.means, K * D);
    scale = of_task(p.scale, D);
    squares = of_task(p.squares, K);
    shots = of_task(p.shots, K);
    panels = arena.take<T>(Kp * D);
    cross = arena.take<T>(R * Kp);
    distances = arena.take<T>(R * K);
    off = arena.take<T>(R);
    drawn = arena.take<T>(K);
    judging = arena.take<int64_t>(1);
    labelled.B = 1, labelled.S = S, labelled.K = K, labelled.D = D, labelled.R = R;
    labelled.support = static_cast<const T*>(p.support) + task * S * D;
    labelled.labels = p.labels + task * S;
    labelled.first = arena.take<T>(S);
    labelled.second = arena.take<T>(S);
    labelled.centre = of_task(p.centre, D);
    labelled.means = means, labelled.shots = shots, labelled.scale = scale;
    labelled.own = arena.take<int64_t>(R);
    labelled.judging = judging;
    labelled.x = arena.take<T>(R * D);
    labelled.off = off;
    calibrate.B = 1, calibrate.R = R, calibrate.K = K;
    calibrate.distances = distances;
    calibrate.labels = labelled.own;
    calibrate.count = judging;
    calibrate.centre = p.prior_sharpness, calibrate.spread = p.spread;
    calibrate.sharpness = of_task(p.sharpness, 1);
    calibrate.objective = arena.take<T>(1);
    calibrate.drawn = drawn;
    labelled_scratch = arena.take<char>(labelled_scratch_bytes<T>(labelled));
    calibrate_scratch = arena.take<char>(calibrate_scratch_bytes<T>(calibrate));
}

// Whether every row is plainly finite and has a class, and every class has a row.
template <typename T>
static bool has_finite_rows(const LikelihoodScratch<T>& s) {
    const T* const first = static_cast<const T*>(s.labelled.first);
    T rows = 0;
    bool finite = true;
    for (int64_t k = 0; k < s.labelled.K; ++k) {
        finite = finite && s.shots[k] > 0;
        rows += s.shots[k];
    }
    for (int64_t i = 0; i < s.labelled.S; ++i) finite = finite && plainly_finite(first[i]);
    return finite && rows == T(s.labelled.S);
}

// Weights, and their products with the means.
template <typename T>
static void weigh_means(const LikelihoodScratch<T>& s, T* weights) {
    const int64_t K = s.labelled.K, D = s.labelled.D;
    for (int64_t k = 0; k < K; ++k) {
        const T* const mean = s.means + k * D;
        T* __restrict__ to = weights + k * D;
        for (int64_t d = 0; d < D; ++d) to[d] = mean[d] * s.scale[d];
        s.squares[k] = dot(mean, weights + k * D, D);
    }
}

// Distances of the calibration rows, each left out of its class mean.
template <typename T>
static void left_out_distances(const LikelihoodScratch<T>& s) {
    const int64_t K = s.labelled.K;
    const int64_t* const own = s.labelled.own;
    const T* __restrict__ squares = s.squares;
    for (int64_t i = 0; i < s.labelled.R; ++i) {
        const T* __restrict__ cross = s.cross + i * K;
        T* __restrict__ to = s.distances + i * K;
        for (int64_t k = 0; k < K; ++k) to[k] = squares[k] - 2 * cross[k];
        to[own[i]] += (left_out_rate(s.shots[own[i]]) - 1) * s.off[i];
    }
}

template <typename T>
static void likelihood_task(const LikelihoodParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    const LikelihoodScratch<T> s(arena, p, task);
    const int64_t K = p.K, D = p.D, R = p.R;
    T* const weights = static_cast<T*>(p.weights) + task * K * D;
    labelled_task<T>(s.labelled, 0, s.labelled_scratch);
    p.finite[task] = has_finite_rows(s);
    weigh_means(s, weights);
    pack_rows(weights, K, D, static_cast<const T*>(nullptr), s.panels);
    multiply_closed(static_cast<const T*>(s.labelled.x), D, R, s.panels, D, K, s.cross, threads);
    left_out_distances(s);
    calibrate_task<T>(s.calibrate, 0, s.calibrate_scratch);
    double mean = 0;
    for (int64_t k = 0; k < K; ++k) mean += double(s.drawn[k]);
    mean /= double(K);
    const double rows = double(*s.judging) / double(K);
    const T half = static_cast<T*>(p.sharpness)[task] / 2;
    T* const bias = static_cast<T*>(p.bias) + task * K;
    for (int64_t k = 0; k < K; ++k) {
        bias[k] = T(hub_bias(double(s.drawn[k]), mean, rows)) - half * s.squares[k];
    }
}

template <typename T>
static int64_t likelihood_scratch_bytes(const LikelihoodParams& p) {
    Arena arena(nullptr);
    LikelihoodScratch<T>(arena, p, 0);
    return arena.used();
}

static Work likelihood_work(const LikelihoodParams& p) {
    const double K = double(p.K), D = double(p.D), R = double(p.R), products = R * K * D;
    // The calibration takes about 8 steps of 20 per distance.
    return {p.B, products + 6.0 * double(p.S) * D + 160.0 * R * K, products};
}

constexpr TaskKernels<LikelihoodParams> kLikelihoodKernels = {
    "support",
    likelihood_work,
    {likelihood_scratch_bytes<float>, likelihood_scratch_bytes<double>},
    {likelihood_task<float>, likelihood_task<double>},
};
