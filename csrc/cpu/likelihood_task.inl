// Labelled rows left out of their classes, in the feature weights and in the full metric, for one
// SIMD level. The algebra is in common/adaptive.h.

constexpr int64_t kOffsetRows = 128;  // of many at once

template <typename T>
struct JudgedScratch {
    Arena& arena;
    const LikelihoodParams& p;
    int64_t task;
    int64_t S = p.S, K = p.K, D = p.D, R = p.R, M = std::min(S, D);
    int64_t C = p.full ? factor_columns(M) : 0;   // columns of the factor
    bool by_rows = p.full && S < D;               // see common/adaptive.h
    int64_t N = by_rows || p.every ? S : R;       // rows left out: all, or to calibrate
    int64_t step = by_rows ? D : std::max(D, C);  // from one to the next
    int64_t Kp = round_up(K, Simd<T>::kPanel);
    bool each = K <= N;  // products of prototypes: for each class, or for the class of each row
    int64_t pair_count = !p.full ? 0 : each ? K : N;
    T* out = reals<T>(p.rows, task*(by_rows ? S + K : K) * D);

    int64_t* rows = arena.take<int64_t>(N);  // the numbers of the rows left out
    int64_t* own = arena.take<int64_t>(N);   // their classes
    T* root = arena.take<T>(D);
    T* v = by_rows ? out : arena.take<T>(N * step);  // their scaled offsets, or V by rows
    T* panels = arena.take<T>(Kp * std::max(D, C));  // prototypes
    T* squares = arena.take<T>(K);                   // m.m
    T* square = arena.take<T>(N);                    // o.o
    T* self = arena.take<T>(N);                      // x.x
    T* plain = arena.take<T>(N * Kp);                // distances in the feature weights
    T* terms = arena.take<T>(K);                     // of the log-determinant in distances
    T* factor = reals<T>(p.factor, task * C * C);    // all others are for the full metric
    T* solved = reals<T>(p.solved, task * K * C);
    T* second = arena.take<T>(C > 0 ? K : 0);  // (Z m).(Z m)
    T* whole = arena.take<T>(C > 0 ? K : 0);   // m A m
    T* offset = arena.take<T>(C > 0 ? N : 0);  // squared offsets from the others of the class
    T* z = by_rows ? arena.take<T>(N * C) : v;
    T* along = arena.take<T>(C > 0 ? N * Kp : 0);                 // o A m, then distances
    T* pairs = arena.take<T>(pair_count * Kp);                    // products of prototypes
    T* projected = arena.take<T>(by_rows ? pair_count * Kp : 0);  // (Z m).(Z m) for them
    T* blocks = arena.take<T>(kFactorBlock * C);                  // of the factor, in panels
    T* offsets = arena.take<T>(C > 0 && !by_rows ? kOffsetRows * D : 0);
    T* packed = arena.take<T>(by_rows ? round_up(S, Simd<T>::kPanel) * D
                              : C > 0 ? kOffsetRows * round_up(D, Simd<T>::kPanel)
                                      : 0);

    // What undoes the root of the weight of a row in V.
    T over(const LabelledTask<T>& t, int64_t i) const {
        return by_rows ? 1 / std::sqrt(t.weight(rows[i])) : T(1);
    }

    // Where a calibration row is among the rows left out.
    int64_t place(int64_t rank) const { return N == S ? calibration_row(rank, S, R) : rank; }

    T* prototypes() const { return out + (by_rows ? S * D : 0); }  // scaled
    const T* pair_row(int64_t i) const { return pairs + (each ? own[i] : i) * Kp; }

    // Products of prototypes of `inner` numbers; they are in `panels` too.
    void multiply_pairs(const T* given, int64_t inner, T* to, int threads) const {
        constexpr int64_t kPanel = Simd<T>::kPanel;
        const MatrixRows<T> all = {given, inner, 1, each ? nullptr : own};
        multiply<T>(all, pair_count, panels, inner, K, {to, Kp, kPanel}, threads);
    }
};

// A row left out as if it were new.
template <typename T>
static LeftOutRow<T> left_out(const JudgedScratch<T>& s, const LabelledTask<T>& t, int64_t i) {
    return {t.members[s.own[i]], double(t.weight(s.rows[i])), *t.prior_rows, *t.variance};
}

// Which rows: as they are, minus the means of their classes, or these times the roots of their weights.
enum class Scaled { kRows, kOffsets, kWeighted };

// Scaled rows: those in `index`, or from `first` on if null.
template <typename T>
static void scale_rows(const LabelledTask<T>& t, const T* root, Scaled kind, const int64_t* index,
                       int64_t first, int64_t count, T* out, int64_t step) {
    const int64_t D = t.D;
    const T* const centre = t.centre;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t s = index == nullptr ? first + i : index[i], k = t.label(s);
        const T* const x = t.support + s * D;
        const T norm = t.first[s], second = t.second[s];
        T* __restrict__ to = out + i * step;
        for (int64_t d = 0; d < D; ++d) to[d] = (x[d] * norm - centre[d]) * second;
        if (kind != Scaled::kRows && k >= 0) {
            const T* __restrict__ mean = t.means + k * D;
            for (int64_t d = 0; d < D; ++d) to[d] -= mean[d];
        }
        const T factor = kind == Scaled::kWeighted ? std::sqrt(t.weight(s)) : T(1);
        for (int64_t d = 0; d < D; ++d) to[d] *= root[d] * factor;
    }
}

// Squared distances of a row left out to the prototypes, as those in (5) without the determinant.
template <typename T>
static void weigh_by_class(const LabelledTask<T>& t, int64_t own, T to_own, T* to) {
    for (int64_t k = 0; k < t.K; ++k) to[k] *= closeness(t.shots[k] + *t.prior_rows);
    to[own] = to_own;
}

// The rows left out, and their distances in the feature weights, except the terms of classes.
template <typename T>
static void judge_by_scale(const JudgedScratch<T>& s, const LabelledTask<T>& t, int threads) {
    const int64_t K = s.K, D = s.D;
    for (int64_t i = 0; i < s.N; ++i) {
        s.rows[i] = s.N == s.S ? i : calibration_row(i, s.S, s.R);
        s.own[i] = std::min(std::max(t.labels[s.rows[i]], int64_t(0)), K - 1);
    }
    for (int64_t d = 0; d < D; ++d) s.root[d] = std::sqrt(t.scale[d]);
    for (int64_t k = 0; k < K; ++k) {
        const T mass = t.shots[k] + *t.prior_rows, known = t.shots[k] / mass;
        const T* const mean = t.means + k * D;
        T* __restrict__ to = s.prototypes() + k * D;
        for (int64_t d = 0; d < D; ++d) to[d] = known * mean[d] * s.root[d];
        s.squares[k] = dot(to, to, D);
        s.terms[k] = determinant(*t.variance, mass, mass);
    }

    // x.m, from v.m if that is needed too.
    pack_rows(s.prototypes(), D, K, D, T(1), s.panels, D);
    const Scaled kind = s.by_rows ? Scaled::kWeighted : Scaled::kRows;
    scale_rows<T>(t, s.root, kind, s.rows, 0, s.N, s.v, s.step);
    multiply<T>({s.v, s.step, 1}, s.N, s.panels, D, K, {s.plain, s.Kp, Simd<T>::kPanel}, threads);
    if (s.by_rows) {
        s.multiply_pairs(s.prototypes(), D, s.pairs, threads);
    } else {
        for (int64_t i = 0; i < s.N; ++i) {
            s.self[i] = dot(s.v + i * s.step, s.v + i * s.step, D);
        }
        scale_rows<T>(t, s.root, Scaled::kOffsets, s.rows, 0, s.N, s.v, s.step);
    }

    for (int64_t i = 0; i < s.N; ++i) {
        const int64_t own = s.own[i];
        const LeftOutRow<T> row = left_out(s, t, i);
        const T over = s.over(t, i);
        T* const to = s.plain + i * s.Kp;
        s.square[i] = dot(s.v + i * s.step, s.v + i * s.step, D) * over * over;
        T of_offset = 0;  // o.m
        if (s.by_rows) {
            const T* const pair = s.pair_row(i);
            of_offset = to[own] * over;
            s.self[i] = s.square[i] + row.stretch * (2 * of_offset + row.stretch * s.squares[own]);
            for (int64_t k = 0; k < K; ++k) s.solved[k * s.C + i] = to[k];
            for (int64_t k = 0; k < K; ++k) to[k] = over * to[k] + row.stretch * pair[k];
        } else {
            of_offset = dot(s.v + i * s.step, s.prototypes() + own * D, D);
        }
        for (int64_t k = 0; k < K; ++k) {
            to[k] = std::max(s.self[i] - 2 * to[k] + s.squares[k], T(0));
        }
        const T to_own = row.to_own(s.square[i], of_offset, s.squares[own], T(0));
        weigh_by_class(t, own, to_own, to);
    }
}

// Factors the full metric, and solves for the prototypes and the rows left out. Returns the scatter.
template <typename T>
static T solve_metric(const JudgedScratch<T>& s, const LabelledTask<T>& t, int threads) {
    const int64_t K = s.K, D = s.D, M = s.M, C = s.C;
    const MatrixOut<T> gram = {s.factor, C, Simd<T>::kPanel};
    if (s.by_rows) {
        pack_rows(s.v, D, M, D, T(1), s.packed, D);
        multiply_lower<T>({s.v, D, 1}, M, s.packed, D, gram, threads, false);
        std::fill_n(s.z, M * C, T(0));
        for (int64_t i = 0; i < M; ++i) s.z[i * C + i] = 1;
    } else {
        for (int64_t first = 0; first < s.S && !interrupted(); first += kOffsetRows) {
            const int64_t count = std::min(s.S - first, kOffsetRows);
            scale_rows<T>(t, s.root, Scaled::kWeighted, nullptr, first, count, s.offsets, D);
            pack_columns(s.offsets, count, D, s.packed);
            multiply_lower<T>({s.packed, 1, Simd<T>::kPanel, nullptr, count}, D, s.packed, count,
                              gram, threads, first > 0);
        }
        for (int64_t k = 0; k < K; ++k) std::copy_n(s.prototypes() + k * D, D, s.solved + k * C);
        for (int64_t i = 0; i < s.N; ++i) std::fill_n(s.z + i * C + D, C - D, T(0));
    }
    for (int64_t k = 0; k < K; ++k) std::fill_n(s.solved + k * C + M, C - M, T(0));
    double trace = 0;
    for (int64_t i = 0; i < M; ++i) trace += double(s.factor[i * C + i]);
    const T scatter = T(mean_scatter(trace, *t.degrees)), share = 1 / scatter;
    for (int64_t i = 0; i < C; ++i) {
        const int64_t known = i < M ? i + 1 : 0;
        T* const row = s.factor + i * C;
        for (int64_t j = 0; j < known; ++j) row[j] *= share;
        std::fill_n(row + known, C - known, T(0));
        row[i] += 1;
    }
    const Substitution<T> by = {s.factor, C, s.blocks, threads};
    factorise(s.factor, M, by);
    substitute(s.solved, C, K, by);
    substitute(s.z, C, s.N, by, s.by_rows);
    return scatter;
}

// x A y = plain x.y + unit (Z x).(Z y), and the distances times `shrink` are as long as those in the
// feature scale.
template <typename T>
struct FullMetric {
    T plain, unit, shrink;
};

// The full metric, and distances in it, except the terms of classes.
template <typename T>
static FullMetric<T> judge_by_full(const JudgedScratch<T>& s, const LabelledTask<T>& t,
                                   int threads) {
    const int64_t K = s.K, C = s.C;
    const T scatter = solve_metric(s, t, threads);
    reals<T>(s.p.scatter)[s.task] = scatter;
    FullMetric<T> found = {T(s.by_rows), s.by_rows ? -1 / scatter : T(1), 1};
    pack_rows(s.solved, C, K, C, T(1), s.panels, C);
    multiply<T>({s.z, C, 1}, s.N, s.panels, C, K, {s.along, s.Kp, Simd<T>::kPanel}, threads);
    s.multiply_pairs(s.solved, C, s.by_rows ? s.projected : s.pairs, threads);
    for (int64_t i = 0; s.by_rows && i < s.pair_count * s.Kp; ++i) {
        s.pairs[i] += found.unit * s.projected[i];
    }
    for (int64_t k = 0; k < K; ++k) {
        s.second[k] = dot(s.solved + k * C, s.solved + k * C, C);
        s.whole[k] = found.plain * s.squares[k] + found.unit * s.second[k];
    }

    for (int64_t i = 0; i < s.N; ++i) {
        const int64_t own = s.own[i];
        const LeftOutRow<T> row = left_out(s, t, i);
        const T* const pair = s.pair_row(i);
        const T over = s.over(t, i), length = dot(s.z + i * C, s.z + i * C, C);
        // o A o
        const T square = s.by_rows ? std::max(scatter * (1 - length), T(0)) * over * over : length;
        const T gain = row.gain(square, scatter);
        T* const along = s.along + i * s.Kp;
        for (int64_t k = 0; k < K; ++k) along[k] *= over;  // o A m
        const T self = square + row.stretch * (2 * along[own] + row.stretch * s.whole[own]);
        const T along_row = square + row.stretch * along[own];  // o A x
        const T to_own = row.to_own(square, along[own], s.whole[own], gain);
        for (int64_t k = 0; k < K; ++k) {
            const T cross = along[k] + row.stretch * pair[k], away = along_row - along[k];
            const T plain = std::max(self - 2 * cross + s.whole[k], T(0));
            along[k] = plain + gain * away * away;
        }
        weigh_by_class(t, own, to_own, along);
        s.offset[i] = row.squared_offset(square, gain);
    }

    double lengths[2] = {};
    for (int64_t rank = 0; rank < s.R; ++rank) {
        const int64_t i = s.place(rank);
        const LeftOutRow<T> row = left_out(s, t, i);
        lengths[0] += double(row.squared_offset(s.square[i], T(0)));
        lengths[1] += double(s.offset[i]);
    }
    const double none = kNoScatter * double(s.R);
    found.shrink = T((lengths[0] + none) / (lengths[1] + none));
    for (int64_t i = 0; i < s.N * s.Kp; ++i) s.along[i] *= found.shrink;
    return found;
}

// Distances (5) of one of the rows left out, in a mixture of the metrics.
template <typename T>
static void mix(const JudgedScratch<T>& s, const LabelledTask<T>& t, int64_t i, T share,
                T* __restrict__ to) {
    const T* const plain = s.plain + i * s.Kp;
    const T* const full = share == 0 ? plain : s.along + i * s.Kp;
    for (int64_t k = 0; k < s.K; ++k) {
        to[k] = plain[k] + share * (full[k] - plain[k]) + s.terms[k];
    }
    const int64_t own = s.own[i];
    to[own] += left_out(s, t, i).own_determinant - s.terms[own];
}

// --- likelihood: one task, its products on several threads --------------------------------------

template <typename T>
struct LikelihoodScratch {
    Arena& arena;
    const LikelihoodParams& p;
    int64_t task = 0;
    LabelledParams call = labelled_of<T>(p, task);  // for this task only
    LabelledTask<T> labelled{arena, call};
    CalibrateParams calibrate = calibrate_of<T>(p, task);  // likewise
    int64_t* own = arena.take<int64_t>(p.R);               // [R] classes of the calibration rows
    T* weights = arena.take<T>(p.R);          // [R] 0 for a row without others in its class
    T* distances = arena.take<T>(p.R * p.K);  // [R, K]
    T* drawn = arena.take<T>(2 * p.K);        // [2, K] of the best mixture so far, and of another
    T* trial = arena.take<T>(2);              // [2]    sharpness and objective of the other
    T* objective = arena.take<T>(1);
    void* calibrate_scratch = arena.take<char>(bytes_of<CalibrateScratch<T>>(calibrate));
    JudgedScratch<T> judged{arena, p, task};

    LikelihoodScratch(Arena& arena, const LikelihoodParams& p, int64_t task = 0)
        : arena(arena), p(p), task(task) {
        labelled.first = arena.take<T>(p.S);
        labelled.second = arena.take<T>(p.S);
        labelled.members = arena.take<ClassSums>(p.K);
        labelled.degrees = arena.take<double>(1);
        calibrate.distances = distances, calibrate.labels = own;
        calibrate.weights = weights;
        calibrate.objective = objective, calibrate.drawn = drawn;
    }
};

// Whether every row is plainly finite and has a class, and every class has a row.
template <typename T>
static bool has_finite_rows(const LabelledTask<T>& t) {
    bool finite = t.start[t.K] == t.S;
    for (int64_t k = 0; k < t.K; ++k) finite = finite && t.start[k + 1] > t.start[k];
    for (int64_t i = 0; i < t.S; ++i) finite = finite && plainly_finite(t.first[i]);
    return finite;
}

// Calibrates distances in mixtures of metrics, see kStandardError. Returns the share of the full one.
template <typename T>
static T best_mixture(const LikelihoodScratch<T>& s, int threads) {
    const JudgedScratch<T>& judged = s.judged;
    const int64_t K = judged.K, R = s.p.R;
    for (int64_t rank = 0; rank < R; ++rank) {
        s.own[rank] = judged.own[judged.place(rank)];
        s.weights[rank] = left_out(judged, s.labelled, judged.place(rank)).judged;
    }

    CalibrateParams trial = s.calibrate;
    T best = 0;
    for (int step = 0; step <= (judged.C > 0 ? kMixtureSteps : 0) && !interrupted(); ++step) {
        const T mixture = T(step) / T(kMixtureSteps);
        for (int64_t rank = 0; rank < R; ++rank) {
            T* const to = s.distances + rank * K;
            mix(judged, s.labelled, judged.place(rank), mixture, to);
            // A class that is left with no row does not compete for the one that is left out.
            if (K > 1 && s.weights[rank] == 0) to[s.own[rank]] = T(kFarBehind);
        }
        calibrate_task<T>(trial, 0, s.calibrate_scratch, threads);
        trial.sharpness = s.trial, trial.objective = s.trial + 1, trial.drawn = s.drawn + K;
        if (step == 0) continue;

        if (!(s.trial[1] < *s.objective + T(kStandardError))) break;
        best = mixture;
        *s.objective = std::min(*s.objective, s.trial[1]);
        *reals<T>(s.calibrate.sharpness) = s.trial[0];
        std::copy_n(s.drawn + K, K, s.drawn);
    }
    return best;
}

// Class means become prototypes, which no step needs before.
template <typename T>
static void shrink_means(const LabelledTask<T>& t) {
    for (int64_t k = 0; k < t.K; ++k) {
        const T known = t.shots[k] / (t.shots[k] + *t.prior_rows);
        for (int64_t d = 0; d < t.D; ++d) t.means[k * t.D + d] *= known;
    }
}

template <typename T>
static void likelihood_task(const LikelihoodParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    LikelihoodScratch<T> s(arena, p, task);
    const JudgedScratch<T>& judged = s.judged;
    const int64_t K = p.K;
    T* const squares = reals<T>(p.squares, task * K);
    find_statistics(s.labelled);
    p.finite[task] = has_finite_rows(s.labelled);
    judge_by_scale(judged, s.labelled, threads);
    std::copy_n(judged.squares, K, squares);
    FullMetric<T> full = {};
    if (p.full) full = judge_by_full(judged, s.labelled, threads);

    const T mixture = best_mixture(s, threads);
    if (p.full) {
        const T plain = 1 - mixture + full.plain * mixture * full.shrink;
        const T projected = full.unit * mixture * full.shrink;
        for (int64_t k = 0; k < K; ++k) {
            squares[k] = plain * squares[k] + projected * judged.second[k];
        }
        T* const shares = reals<T>(p.shares, task * 3);
        shares[0] = mixture, shares[1] = plain, shares[2] = projected;
    }
    for (int64_t i = 0; p.every && i < p.S; ++i) {
        mix(judged, s.labelled, i, mixture, reals<T>(p.left_out) + (task * p.S + i) * K);
    }

    double mean = 0;
    for (int64_t k = 0; k < K; ++k) mean += double(s.drawn[k]);
    mean /= double(K);
    T* const bias = reals<T>(p.bias, task * K);
    for (int64_t k = 0; k < K; ++k) {
        bias[k] = T(hub_bias(double(s.drawn[k]), mean, double(p.R) / double(K)));
    }
    shrink_means(s.labelled);
}

static Work likelihood_work(const LikelihoodParams& p) {
    const double S = double(p.S), K = double(p.K), D = double(p.D), R = double(p.R);
    const double M = std::min(S, D), N = p.every || (p.full && S < D) ? S : R;
    double products = N * K * D, calibrations = 1, parts = 1;
    if (p.full) {
        products += N * K * M + K * std::min(K, N) * (S < D ? D + M : M) + M * S * D / 2;
        products += M * M * (M / 3 + K + N) / 2;
        calibrations += kMixtureSteps;
        parts = 6;  // of similar size, each on all threads
    }
    // A calibration takes about 8 steps of 20 per distance.
    return {p.B, products + 6.0 * S * D + 160.0 * calibrations * R * K, products / parts};
}
