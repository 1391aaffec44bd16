// Labelled rows, `coordinates` and `calibrate` for one SIMD level. The algebra is in common/adaptive.h.

constexpr int64_t kSumRows = 64;  // limit on the rows of a float sum: rounding accumulates

// sum += part; part = 0
template <typename T>
static void add_part(T* __restrict__ sum, T* __restrict__ part, int64_t D) {
    for (int64_t d = 0; d < D; ++d) sum[d] += part[d], part[d] = 0;
}

// 1 / norm of x first - centre.
template <typename T>
static T second_norm(const T* __restrict__ x, T first, const T* __restrict__ centre, int64_t D) {
    constexpr int kLanes = Simd<T>::kLanes;
    Vec<T> sum[4] = {};
    int64_t d = 0;
    for (; d + 4 * kLanes <= D; d += 4 * kLanes) {
        for (int v = 0; v < 4; ++v) {
            const Vec<T> away = load(x + d + v * kLanes) * first - load(centre + d + v * kLanes);
            sum[v] += away * away;
        }
    }
    T total = horizontal_sum<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; d < D; ++d) {
        const T away = x[d] * first - centre[d];
        total += away * away;
    }
    return inverse_of_centred(total);
}

template <typename T>
static void coordinates_rows(const CoordinatesParams& p, int64_t first_row, int64_t end) {
    const T* const rows = reals<T>(p.rows);
    const T* const centres = reals<T>(p.centre);
    T* const out = reals<T>(p.x);
    for (int64_t row = first_row; row < end; ++row) {
        const T* const x = rows + row * p.D;
        const int64_t task = p.shared ? 0 : row / p.N;
        const T* const centre = centres + task * p.D;
        const T first = inverse_norm(x, p.D), second = second_norm(x, first, centre, p.D);
        T* __restrict__ to = out + row * p.D;
        for (int64_t d = 0; d < p.D; ++d) to[d] = (x[d] * first - centre[d]) * second;
        if (p.scale != nullptr) {
            const T* const scale = reals<T>(p.scale, task * p.D);
            for (int64_t d = 0; d < p.D; ++d) to[d] *= std::sqrt(scale[d]);
        }
        if (p.finite != nullptr && !plainly_finite(first)) p.finite[row / p.N] = false;
    }
}

// One task; its arrays are those of LabelledParams.
template <typename T>
struct LabelledTask {
    Arena& arena;
    const LabelledParams& p;
    int64_t task = 0;
    int64_t S = p.S, K = p.K, D = p.D, R = p.R;
    const T* support = reals<T>(p.support, task * S * D);
    const int64_t* labels = p.labels + task * S;
    const T* given = p.weights == nullptr ? nullptr : reals<T>(p.weights, task* S);
    T* first = reals<T>(p.first, task* S);
    T* second = reals<T>(p.second, task* S);
    T* centre = reals<T>(p.centre, task* D);
    T* means = reals<T>(p.means, task * K * D);
    T* shots = reals<T>(p.shots, task* K);
    ClassSums* members = p.members + task * K;
    double* degrees = p.degrees + task;
    T* scale = reals<T>(p.scale, task* D);
    T* variance = reals<T>(p.variance, task);
    T* prior_rows = reals<T>(p.prior_rows, task);
    T* row = arena.take<T>(3 * D);
    FeatureSums* features = arena.take<FeatureSums>(D);
    double* weights = arena.take<double>(D);
    int64_t* order = arena.take<int64_t>(S);      // rows by class
    int64_t* start = arena.take<int64_t>(K + 1);  // where each class begins in `order`

    // The class of a row; -1 for an invalid label, which occurs only without validation.
    int64_t label(int64_t s) const { return labels[s] >= 0 && labels[s] < K ? labels[s] : -1; }

    T weight(int64_t s) const { return given == nullptr ? T(1) : given[s]; }
};

// Groups the rows by class, and adds up their weights.
template <typename T>
static void order_rows(const LabelledTask<T>& t) {
    for (int64_t k = 0; k <= t.K; ++k) t.start[k] = 0;
    std::fill_n(t.members, t.K, ClassSums{});
    for (int64_t s = 0; s < t.S; ++s) {
        const int64_t k = t.label(s);
        if (k < 0) continue;
        ++t.start[k];
        const double r = double(t.weight(s));
        ClassSums& of = t.members[k];
        ++of.rows, of.weight += r, of.squares += r * r;
    }
    for (int64_t k = 0, before = 0; k <= t.K; ++k) {
        const int64_t count = t.start[k];
        if (k < t.K) t.shots[k] = T(t.members[k].shots());
        t.start[k] = before;
        before += count;
    }
    for (int64_t s = 0; s < t.S; ++s) {
        if (t.label(s) >= 0) t.order[t.start[t.label(s)]++] = s;
    }
    for (int64_t k = t.K; k > 0; --k) t.start[k] = t.start[k - 1];  // each was moved to its end
    t.start[0] = 0;
}

// The norms of the rows, and the mean of the class means unless it is given.
template <typename T>
static void find_centre(const LabelledTask<T>& t) {
    const int64_t D = t.D;
    for (int64_t s = 0; s < t.S; ++s) t.first[s] = inverse_norm(t.support + s * D, D);
    if (t.p.centred) return;
    for (int64_t d = 0; d < D; ++d) t.centre[d] = 0, t.row[d] = 0;
    for (int64_t s = 0; s < t.S; ++s) {
        const int64_t k = t.label(s);
        const T* __restrict__ x = t.support + s * D;
        if (k < 0 || t.K == 1) continue;  // a single class is not centred
        T* __restrict__ part = t.row;
        const T factor = t.first[s] / (T(t.K) * t.shots[k]);
        for (int64_t d = 0; d < D; ++d) part[d] += factor * x[d];
        if (s % kSumRows == kSumRows - 1) add_part(t.centre, t.row, D);
    }
    add_part(t.centre, t.row, D);
}

// The norms of the rows minus the centre, and the class means of the results.
template <typename T>
static void find_means(const LabelledTask<T>& t) {
    const int64_t D = t.D;
    std::fill_n(t.row, D, T(0));
    for (int64_t s = 0; s < t.S; ++s) t.second[s] = 0;  // also for a row without a class
    for (int64_t k = 0; k < t.K; ++k) {
        T* __restrict__ mean = t.means + k * D;
        for (int64_t d = 0; d < D; ++d) mean[d] = 0;
        for (int64_t at = t.start[k]; at < t.start[k + 1]; ++at) {
            const int64_t s = t.order[at];
            const T* __restrict__ x = t.support + s * D;
            const T* __restrict__ centre = t.centre;
            const T first = t.first[s], second = second_norm(x, first, centre, D);
            t.second[s] = second;
            T* __restrict__ part = t.row;
            const T factor = second * t.weight(s);
            for (int64_t d = 0; d < D; ++d) part[d] += (x[d] * first - centre[d]) * factor;
            if ((at - t.start[k]) % kSumRows == kSumRows - 1) add_part(mean, t.row, D);
        }
        add_part(mean, t.row, D);
        const T share = T(1 / std::max(t.members[k].weight, kTiny));
        for (int64_t d = 0; d < D; ++d) mean[d] *= share;
    }
}

// Adds the rows of a class to the sums of the features.
template <typename T>
static void add_class(const LabelledTask<T>& t, int64_t k) {
    const int64_t D = t.D;
    const T* __restrict__ mean = t.means + k * D;
    const T* __restrict__ centre = t.centre;
    // Of some rows, see FeatureSums.
    T* __restrict__ inside = t.row, * __restrict__ stretched = inside + D;
    T* __restrict__ squares = stretched + D;
    const ClassSums& of = t.members[k];
    const auto collect = [&] {
        for (int64_t d = 0; d < D; ++d) {
            t.features[d].inside += double(inside[d]);
            t.features[d].stretched += double(stretched[d]);
            t.features[d].squares += double(squares[d]);
            inside[d] = 0, stretched[d] = 0, squares[d] = 0;
        }
    };

    for (int64_t d = 0; d < D; ++d) {
        const double square = double(mean[d]) * double(mean[d]);
        t.features[d].between += square;
        t.features[d].fourths += square * square;
        inside[d] = 0, stretched[d] = 0, squares[d] = 0;
    }
    for (int64_t at = t.start[k]; at < t.start[k + 1]; ++at) {
        const int64_t s = t.order[at];
        const T* __restrict__ x = t.support + s * D;
        const T first = t.first[s], second = t.second[s], r = t.weight(s);
        const T judged = of.has_others() ? r : T(0), stretch = judged / of.apart<T>(double(r));
        for (int64_t d = 0; d < D; ++d) {
            const T own = (x[d] * first - centre[d]) * second, away = own - mean[d];
            const T square = away * away;
            inside[d] += judged * square;
            stretched[d] += stretch * square;
            squares[d] += own * own;
        }
        if ((at - t.start[k]) % kSumRows == kSumRows - 1) collect();
    }
    collect();
}

// (2) and (4): the feature weights, V and n0.
template <typename T>
static void find_model(const LabelledTask<T>& t) {
    const int64_t K = t.K, D = t.D;
    std::fill_n(t.features, D, FeatureSums{});
    double rows = 0, degrees = 0, counted = 0;
    for (int64_t k = 0; k < K; ++k) {
        add_class(t, k);
        const ClassSums& of = t.members[k];
        rows += of.rows;
        degrees += of.degrees();
        counted += of.has_others() ? of.weight : 0;
    }
    *t.degrees = degrees;

    FeatureTotals of(double(D), degrees);
    for (int64_t d = 0; d < D; ++d) {
        of.inside += t.features[d].inside;
        of.between += t.features[d].between;
    }
    double total = 0;
    for (int64_t d = 0; d < D; ++d) total += t.weights[d] = feature_weight(t.features[d], of);

    double stretched = 0, squares = 0;
    for (int64_t d = 0; d < D; ++d) {
        if (!t.p.scaled) t.scale[d] = T(t.weights[d] * double(D) / total);
        const double weight = t.p.scaled ? double(t.scale[d]) : t.weights[d] * double(D) / total;
        stretched += weight * t.features[d].stretched;
        squares += weight * t.features[d].squares;
    }
    const ClassModel model(stretched, counted, squares, std::max(rows, 1.0), degrees);
    *t.variance = T(model.variance);
    *t.prior_rows = T(model.prior_rows);
}

template <typename T>
static void find_statistics(const LabelledTask<T>& t) {
    order_rows(t);
    find_centre(t);
    find_means(t);
    find_model(t);
}

// --- calibrate -----------------------------------------------------------------------------------
//
// Distances are packed, a row in each lane, so that no sum over classes runs across lanes.

// What rows contribute to a step.
struct Moments {
    double lag, variance;
};

template <typename T>
struct CalibrateScratch {
    Arena& arena;
    const CalibrateParams& p;
    int64_t count = p.R, K = p.K, Rp = round_up(p.R, Simd<T>::kPanel);
    const T* weights = nullptr;  // of the task, as CalibrateParams::weights
    T* panels = arena.take<T>(Rp * K);
    T* own = arena.take<T>(Rp);  // distances to the own class
    T* low = arena.take<T>(Rp);  // the smallest distances, subtracted to avoid overflow
    T* shares = arena.take<T>(K * Simd<T>::kLanes);  // of a vector of rows in the classes
    double* drawn = arena.take<double>(K);
    Moments* moments = arena.take<Moments>(Rp / Simd<T>::kLanes);  // of the rows of a vector

    double weight(int64_t row) const { return weights == nullptr ? 1.0 : double(weights[row]); }

    // The nearest class: without validation a label may be out of range.
    int64_t label(int64_t given) const { return std::min(std::max(given, int64_t(0)), K - 1); }

    // Distances of the vector of rows from `row` on; those to the next class are kPanel later.
    const T* from(int64_t row) const {
        return panels + row / Simd<T>::kPanel * K * Simd<T>::kPanel + row % Simd<T>::kPanel;
    }
};

// From the softmax of -f/2 d over the classes.
template <typename T>
static Moments moments_at(const CalibrateScratch<T>& s, T f, int threads) {
    constexpr int64_t kLanes = Simd<T>::kLanes, kPanel = Simd<T>::kPanel;
    constexpr int64_t kTerms = 64;  // limit on the classes of a sum: rounding accumulates
    const int64_t vectors = (s.count + kLanes - 1) / kLanes;
    const T half = T(-0.5) * f;
    std::fill_n(s.moments, vectors, Moments{});
    const auto some = [&](int64_t v, int) {
        if (given_up(v, 20.0 * double(s.K * kLanes))) return;
        const int64_t i = v * kLanes;
        const T* d = s.from(i);
        const Vec<T> low = load(s.low + i);
        Vec<T> sums = splat(T(0)), firsts = sums, seconds = sums;
        for (int64_t start = 0; start < s.K; start += kTerms) {
            Vec<T> sum = splat(T(0)), first = sum, second = sum;
            for (int64_t k = start; k < std::min(s.K, start + kTerms); ++k, d += kPanel) {
                const Vec<T> behind = load(d) - low, e = vexp<T>(half * behind), mean = e * behind;
                sum += e;
                first += mean;
                second += mean * behind;
            }
            sums += sum;
            firsts += first;
            seconds += second;
        }
        for (int64_t lane = 0; lane < std::min(s.count - i, kLanes); ++lane) {
            const double weight = s.weight(i + lane);
            if (weight == 0) continue;
            const double share = 1 / double(sums[lane]), mean = double(firsts[lane]) * share;
            const double second = double(seconds[lane]) * share;
            const double lag = double(s.own[i + lane]) - double(s.low[i + lane]) - mean;
            s.moments[v].lag += weight * lag;
            s.moments[v].variance += weight * std::max(second - mean * mean, 0.0);
        }
    };
    parallel_for(vectors, workers_of(vectors, 20.0 * double(s.count * s.K), threads), some);
    Moments all{};
    for (int64_t v = 0; v < vectors; ++v) {
        all.lag += s.moments[v].lag;
        all.variance += s.moments[v].variance;
    }
    return all;
}

// Adds to `drawn` the shares of rows that other classes attract. Returns the cross-entropy.
template <typename T>
static double add_drawn(const CalibrateScratch<T>& s, const int64_t* labels, T f) {
    constexpr int64_t kLanes = Simd<T>::kLanes, kPanel = Simd<T>::kPanel;
    const T half = T(-0.5) * f;
    double entropy = 0;
    for (int64_t i = 0; i < s.count; i += kLanes) {
        const T* const d = s.from(i);
        const Vec<T> low = load(s.low + i);
        Vec<T> sums = splat(T(0)), share = sums;
        for (int64_t k = 0; k < s.K; ++k) {
            const Vec<T> e = vexp<T>(half * (load(d + k * kPanel) - low));
            store(s.shares + k * kLanes, e);
            sums += e;
        }
        for (int64_t lane = 0; lane < std::min(s.count - i, kLanes); ++lane) {
            const double behind = double(s.own[i + lane]) - double(s.low[i + lane]);
            const double lost = std::log(double(sums[lane])) - double(half) * behind;
            const double weight = s.weight(i + lane);
            entropy += weight > 0 ? weight * lost : 0.0;
            share[lane] = 1 / sums[lane];
            s.shares[s.label(labels[i + lane]) * kLanes + lane] = 0;
        }
        for (int64_t k = 0; k < s.K; ++k) {
            s.drawn[k] += double(horizontal_sum<T>(load(s.shares + k * kLanes) * share));
        }
    }
    return entropy;
}

template <typename T>
static void calibrate_task(const CalibrateParams& p, int64_t task, void* scratch, int threads = 1) {
    constexpr int64_t kLanes = Simd<T>::kLanes, kPanel = Simd<T>::kPanel;
    const T* const d = reals<T>(p.distances, task * p.R * p.K);
    const int64_t* const labels = p.labels + task * p.R;
    Arena arena(scratch);
    const int64_t count = p.R;
    CalibrateScratch<T> s{arena, p};
    s.weights = p.weights == nullptr ? nullptr : reals<T>(p.weights, task * p.R);
    pack_rows(d, p.K, count, p.K, T(1), s.panels, p.K);
    for (int64_t i = 0; i < count; i += kLanes) {
        const T* const from = s.from(i);
        Vec<T> low = load(from);
        for (int64_t k = 1; k < p.K; ++k) low = vmin<T>(low, load(from + k * kPanel));
        store(s.low + i, low);
    }
    for (int64_t i = 0; i < count; ++i) s.own[i] = d[i * p.K + s.label(labels[i])];
    Bracket bracket(p.centre, p.spread);
    for (int step = 0; step < kMaxCalibrationSteps; ++step) {
        const Moments all = moments_at(s, T(bracket.sharpness()), threads);
        if (!bracket.step(all.lag, all.variance) || interrupted()) break;
    }
    for (int64_t k = 0; k < p.K; ++k) s.drawn[k] = 0;
    const double entropy = add_drawn(s, labels, T(bracket.sharpness()));
    for (int64_t k = 0; k < p.K; ++k) reals<T>(p.drawn)[task * p.K + k] = T(s.drawn[k]);
    reals<T>(p.sharpness)[task] = T(bracket.sharpness());
    reals<T>(p.objective)[task] = T(entropy + bracket.prior());
}

static Work calibrate_work(const CalibrateParams& p) {
    constexpr double kSteps = 8;  // typical; each costs about 20 per distance
    return {p.B, 20.0 * kSteps * double(p.R) * double(p.K), 0};
}
