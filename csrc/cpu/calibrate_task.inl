// `calibrate` for one SIMD level: one task on one thread. The algebra is in common/calibrate.h.

// The contribution of a row to the step.
struct RowMoments {
    double lag, variance;
};

// The softmax of -f/2 d over the classes of a row; the minimum of d is subtracted to avoid
// overflow.
template <typename T>
static RowMoments row_moments(const T* __restrict__ d, int64_t K, T own, T low, T f) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const int64_t whole = K / kLanes * kLanes;
    const T half = T(-0.5) * f;
    Vec<T> sums = splat(T(0)), firsts = sums, seconds = sums;
    const auto add = [&](Vec<T> behind, Vec<T> there) {
        const Vec<T> e = vexp<T>(half * behind) * there;
        sums += e;
        firsts += e * behind;
        seconds += e * behind * behind;
    };
    for (int64_t k = 0; k < whole; k += kLanes) add(load(d + k) - low, splat(T(1)));
    if (whole < K) {
        T rest[kLanes] = {}, there[kLanes] = {};
        for (int64_t k = whole; k < K; ++k) {
            rest[k - whole] = d[k] - low;
            there[k - whole] = 1;
        }
        add(load(rest), load(there));
    }
    const double sum = horizontal_sum<T>(sums), mean = horizontal_sum<T>(firsts) / sum;
    const double second = horizontal_sum<T>(seconds) / sum, behind = double(own) - double(low);
    return {behind - mean, std::max(second - mean * mean, 0.0)};
}

// Adds to `drawn` the share of a row that other classes attract. Returns the row's cross-entropy.
template <typename T>
static double add_drawn(const T* __restrict__ d, int64_t K, int64_t own, T low, T f,
                        T* __restrict__ row, double* __restrict__ drawn) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const T half = T(-0.5) * f;
    for (int64_t k = 0; k < K; ++k) row[k] = half * (d[k] - low);
    for (int64_t k = K; k < round_up(K, kLanes); ++k) row[k] = Range<T>::kMinusInfinity;
    Vec<T> sums = splat(T(0));
    for (int64_t k = 0; k < round_up(K, kLanes); k += kLanes) {
        const Vec<T> e = vexp<T>(load(row + k));
        store(row + k, e);
        sums += e;
    }
    const T sum = horizontal_sum<T>(sums), share = 1 / sum;
    row[own] = 0;
    for (int64_t k = 0; k < K; ++k) drawn[k] += double(row[k] * share);
    return std::log(double(sum)) - double(half) * (double(d[own]) - double(low));
}

template <typename T>
static void calibrate_task(const CalibrateParams& p, int64_t task, void* scratch, int = 1) {
    const T* const d = static_cast<const T*>(p.distances) + task * p.R * p.K;
    const int64_t* const labels = p.labels + task * p.R;
    const int64_t count = std::min(std::max(p.count[task], int64_t(0)), p.R);
    Bracket bracket(p.centre, p.spread);
    double entropy = 0;
    Arena arena(scratch);
    T* const row = arena.take<T>(round_up(p.K, Simd<T>::kLanes));
    double* const drawn = arena.take<double>(p.K);
    T* const low = arena.take<T>(p.R);
    for (int64_t i = 0; i < count; ++i) low[i] = row_minimum(d + i * p.K, p.K);
    const auto moments = [&] {
        RowMoments all{};
        for (int64_t i = 0; i < count; ++i) {
            const int64_t own = std::min(std::max(labels[i], int64_t(0)), p.K - 1);
            const T f = T(bracket.sharpness());
            const RowMoments row = row_moments(d + i * p.K, p.K, d[i * p.K + own], low[i], f);
            all.lag += row.lag;
            all.variance += row.variance;
        }
        return all;
    };
    for (int step = 0; step < kMaxCalibrationSteps; ++step) {
        const RowMoments all = moments();
        if (!bracket.step(all.lag, all.variance) || interrupted()) break;
    }
    for (int64_t k = 0; k < p.K; ++k) drawn[k] = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t own = std::min(std::max(labels[i], int64_t(0)), p.K - 1);
        entropy += add_drawn(d + i * p.K, p.K, own, low[i], T(bracket.sharpness()), row, drawn);
    }
    for (int64_t k = 0; k < p.K; ++k) static_cast<T*>(p.drawn)[task * p.K + k] = T(drawn[k]);
    static_cast<T*>(p.sharpness)[task] = T(bracket.sharpness());
    static_cast<T*>(p.objective)[task] = T(entropy + bracket.prior());
}

template <typename T>
static int64_t calibrate_scratch_bytes(const CalibrateParams& p) {
    Arena arena(nullptr);
    arena.take<T>(round_up(p.K, Simd<T>::kLanes));
    arena.take<double>(p.K);
    arena.take<T>(p.R);
    return arena.used();
}

static Work calibrate_work(const CalibrateParams& p) {
    constexpr double kSteps = 8;  // typical; each costs about 20 per distance
    return {p.B, 20.0 * kSteps * double(p.R) * double(p.K), 0};
}

constexpr TaskKernels<CalibrateParams> kCalibrateKernels = {
    "distances",
    calibrate_work,
    {calibrate_scratch_bytes<float>, calibrate_scratch_bytes<double>},
    {calibrate_task<float>, calibrate_task<double>},
};
