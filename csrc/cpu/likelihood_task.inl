// `likelihood` for one SIMD level: one task, its products on several threads. The algebra is in
// common/likelihood.h.

template <typename T>
struct LikelihoodScratch {
    LabelledParams labelled{};    // for this task only
    CalibrateParams calibrate{};  // likewise
    T* shots;
    T* distances;  // [R, K]
    T* drawn;      // [2, K] of the best mixture so far, and of another
    T* trial;      // [2]    sharpness and objective of the other
    int64_t* judging;
    void *labelled_scratch, *calibrate_scratch;

    LikelihoodScratch(Arena& arena, const LikelihoodParams& p, int64_t task);
};

template <typename T>
LikelihoodScratch<T>::LikelihoodScratch(Arena& arena, const LikelihoodParams& p, int64_t task) {
    const int64_t S = p.S, K = p.K, D = p.D, R = p.R;
    const auto of_task = [&](void* base, int64_t size) {
        return static_cast<T*>(base) + task * size;
    };
    shots = of_task(p.shots, K);
    distances = arena.take<T>(R * K);
    drawn = arena.take<T>(2 * K);
    trial = arena.take<T>(2);
    judging = arena.take<int64_t>(1);
    labelled.B = 1, labelled.S = S, labelled.K = K, labelled.D = D, labelled.R = R;
    labelled.support = static_cast<const T*>(p.support) + task * S * D;
    labelled.labels = p.labels + task * S;
    labelled.first = arena.take<T>(S);
    labelled.second = arena.take<T>(S);
    labelled.centre = of_task(p.centre, D);
    labelled.means = of_task(p.means, K * D), labelled.shots = shots;
    labelled.scale = of_task(p.scale, D);
    labelled.own = arena.take<int64_t>(R);
    labelled.judging = judging;
    calibrate.B = 1, calibrate.R = R, calibrate.K = K;
    calibrate.distances = distances;
    calibrate.labels = labelled.own;
    calibrate.count = judging;
    calibrate.centre = p.prior_sharpness, calibrate.spread = p.spread;
    calibrate.sharpness = of_task(p.sharpness, 1);
    calibrate.objective = arena.take<T>(1);
    calibrate.drawn = drawn;
    labelled_scratch = arena.take<char>(bytes_of<LabelledTask<T>>(labelled));
    calibrate_scratch = arena.take<char>(bytes_of<CalibrateScratch<T>>(calibrate));
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

// Calibrates distances in mixtures of metrics, see kStandardError. Returns the share of the full one.
template <typename T>
static T best_mixture(const LikelihoodScratch<T>& s, const JudgedScratch<T>& judged) {
    const int64_t K = judged.K;
    CalibrateParams trial = s.calibrate;
    T* const objective = static_cast<T*>(s.calibrate.objective);
    T best = 0;
    for (int step = 0; step <= (judged.C > 0 ? kMixtureSteps : 0) && !interrupted(); ++step) {
        const T mixture = T(step) / T(kMixtureSteps);
        for (int64_t i = 0; i < *s.judging; ++i) {
            T* __restrict__ to = s.distances + i * K;
            mix(judged, judged.judge[i], mixture, to);
            for (int64_t k = 0; k < K; ++k) to[k] -= judged.excess[k];
        }
        calibrate_task<T>(trial, 0, s.calibrate_scratch);
        trial.sharpness = s.trial, trial.objective = s.trial + 1, trial.drawn = s.drawn + K;
        if (step == 0) continue;
        if (!(s.trial[1] < *objective + T(kStandardError))) break;
        best = mixture;
        *objective = std::min(*objective, s.trial[1]);
        *static_cast<T*>(s.calibrate.sharpness) = s.trial[0];
        std::copy_n(s.drawn + K, K, s.drawn);
    }
    return best;
}

template <typename T>
static void likelihood_task(const LikelihoodParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    const LikelihoodScratch<T> s(arena, p, task);
    const JudgedScratch<T> judged{arena, p, task};
    const int64_t K = p.K;
    T* const squares = static_cast<T*>(p.squares) + task * K;
    labelled_task<T>(s.labelled, 0, s.labelled_scratch);
    p.finite[task] = has_finite_rows(s);
    judge_by_scale(judged, s.labelled, threads);
    std::copy_n(judged.squares, K, squares);
    FullMetric<T> full = {};
    if (p.full) full = judge_by_full(judged, s.labelled, threads);
    const T mixture = best_mixture(s, judged);
    if (p.full) {
        const T plain = 1 - mixture + full.plain * mixture * full.shrink;
        const T projected = full.unit * mixture * full.shrink;
        for (int64_t k = 0; k < K; ++k) {
            squares[k] = plain * squares[k] + projected * judged.second[k];
        }
        T* const shares = static_cast<T*>(p.shares) + task * 3;
        shares[0] = mixture, shares[1] = plain, shares[2] = projected;
    }
    for (int64_t i = 0; p.every && i < p.S; ++i) {
        mix(judged, i, mixture, static_cast<T*>(p.left_out) + (task * p.S + i) * K);
    }
    double mean = 0;
    for (int64_t k = 0; k < K; ++k) mean += double(s.drawn[k]);
    mean /= double(K);
    const double rows = double(*s.judging) / double(K);
    const T half = static_cast<T*>(p.sharpness)[task] / 2;
    T* const bias = static_cast<T*>(p.bias) + task * K;
    for (int64_t k = 0; k < K; ++k) {
        const T hub = T(hub_bias(double(s.drawn[k]), mean, rows));
        bias[k] = hub - half * (squares[k] - judged.excess[k]);
    }
}

template <typename T>
static int64_t likelihood_scratch_bytes(const LikelihoodParams& p) {
    Arena arena(nullptr);
    LikelihoodScratch<T>(arena, p, 0);
    JudgedScratch<T>{arena, p, 0};
    return arena.used();
}

static Work likelihood_work(const LikelihoodParams& p) {
    const double S = double(p.S), K = double(p.K), D = double(p.D), R = double(p.R);
    const double M = std::min(S, D), N = p.every || (p.full && S < D) ? S : R;
    double products = N * K * D, calibrations = 1, parts = 1;
    if (p.full) {
        products += N * K * M + K * std::min(K, N) * (D + M) + M * S * D / 2;
        products += M * M * (M / 3 + K + N) / 2;
        calibrations += kMixtureSteps;
        parts = 6;  // of similar size, each on all threads
    }
    // A calibration takes about 8 steps of 20 per distance.
    return {p.B, products + 6.0 * S * D + 160.0 * calibrations * R * K, products / parts};
}

constexpr TaskKernels<LikelihoodParams> kLikelihoodKernels = {
    "support",
    likelihood_work,
    {likelihood_scratch_bytes<float>, likelihood_scratch_bytes<double>},
    {likelihood_task<float>, likelihood_task<double>},
};
