// `calibrate` for one SIMD level: one task on one thread. The algebra is in common/calibrate.h.
//
// Distances are packed, a row in each lane, so that no sum over classes runs across lanes.

template <typename T>
struct CalibrateScratch {
    Arena& arena;
    const CalibrateParams& p;
    int64_t count = 0;
    int64_t K = p.K, Rp = round_up(p.R, Simd<T>::kPanel);
    T* panels = arena.take<T>(Rp * K);
    T* own = arena.take<T>(Rp);  // distances to the own class
    T* low = arena.take<T>(Rp);  // the smallest distances, subtracted to avoid overflow
    T* shares = arena.take<T>(K * Simd<T>::kLanes);  // of a vector of rows in the classes
    double* drawn = arena.take<double>(K);

    // The nearest class: without validation a label may be out of range.
    int64_t label(int64_t given) const { return std::min(std::max(given, int64_t(0)), K - 1); }

    // Distances of the vector of rows from `row` on; those to the next class are kPanel later.
    const T* from(int64_t row) const {
        return panels + row / Simd<T>::kPanel * K * Simd<T>::kPanel + row % Simd<T>::kPanel;
    }
};

// What rows contribute to a step.
struct Moments {
    double lag, variance;
};

// From the softmax of -f/2 d over the classes.
template <typename T>
static Moments moments_at(const CalibrateScratch<T>& s, T f) {
    constexpr int64_t kLanes = Simd<T>::kLanes, kPanel = Simd<T>::kPanel;
    constexpr int64_t kTerms = 64;  // limit on the classes of a sum: rounding accumulates
    const T half = T(-0.5) * f;
    Moments all{};
    for (int64_t i = 0; i < s.count; i += kLanes) {
        if (given_up(i / kLanes, 20.0 * double(s.K * kLanes))) break;
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
            const double share = 1 / double(sums[lane]), mean = double(firsts[lane]) * share;
            const double second = double(seconds[lane]) * share;
            all.lag += double(s.own[i + lane]) - double(s.low[i + lane]) - mean;
            all.variance += std::max(second - mean * mean, 0.0);
        }
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
            entropy += std::log(double(sums[lane])) - double(half) * behind;
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
static void calibrate_task(const CalibrateParams& p, int64_t task, void* scratch, int = 1) {
    constexpr int64_t kLanes = Simd<T>::kLanes, kPanel = Simd<T>::kPanel;
    const T* const d = static_cast<const T*>(p.distances) + task * p.R * p.K;
    const int64_t* const labels = p.labels + task * p.R;
    Arena arena(scratch);
    const int64_t count = std::min(std::max(p.count[task], int64_t(0)), p.R);
    const CalibrateScratch<T> s{arena, p, count};
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
        const Moments all = moments_at(s, T(bracket.sharpness()));
        if (!bracket.step(all.lag, all.variance) || interrupted()) break;
    }
    for (int64_t k = 0; k < p.K; ++k) s.drawn[k] = 0;
    const double entropy = add_drawn(s, labels, T(bracket.sharpness()));
    for (int64_t k = 0; k < p.K; ++k) static_cast<T*>(p.drawn)[task * p.K + k] = T(s.drawn[k]);
    static_cast<T*>(p.sharpness)[task] = T(bracket.sharpness());
    static_cast<T*>(p.objective)[task] = T(entropy + bracket.prior());
}

static Work calibrate_work(const CalibrateParams& p) {
    constexpr double kSteps = 8;  // typical; each costs about 20 per distance
    return {p.B, 20.0 * kSteps * double(p.R) * double(p.K), 0};
}

constexpr TaskKernels<CalibrateParams> kCalibrateKernels = {
    "distances",
    calibrate_work,
    {bytes_of<CalibrateScratch<float>>, bytes_of<CalibrateScratch<double>>},
    {calibrate_task<float>, calibrate_task<double>},
};
