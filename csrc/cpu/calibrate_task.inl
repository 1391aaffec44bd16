// `calibrate` for one SIMD level: one task on one thread. The algebra is in common/calibrate.h.

// What a row adds to the step, and to the cross-entropy.
struct RowMoments {
    double lag, variance, entropy;
};

// The softmax of -f/2 d over the classes of a row: d less its minimum, so that nothing overflows.
template <typename T>
static RowMoments row_moments(const T* __restrict__ d, int64_t K, T own, T f) {
    constexpr int64_t kLanes = Simd<T>::kLanes;
    const int64_t whole = K / kLanes * kLanes;
    const T half = T(-0.5) * f;
    Vec<T> lowest = splat(d[0]);
    T low = d[0];
    for (int64_t k = 0; k < whole; k += kLanes) lowest = vmin<T>(lowest, load(d + k));
    for (int lane = 0; lane < kLanes; ++lane) low = std::min(low, lowest[lane]);
    for (int64_t k = whole; k < K; ++k) low = std::min(low, d[k]);

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
    return {behind - mean, std::max(second - mean * mean, 0.0),
            std::log(sum) + 0.5 * double(f) * behind};
}

template <typename T>
static void calibrate_task(const CalibrateParams& p, int64_t task) {
    const T* const d = static_cast<const T*>(p.distances) + task * p.R * p.K;
    const int64_t* const labels = p.labels + task * p.R;
    const int64_t count = std::min(std::max(p.count[task], int64_t(0)), p.R);
    Bracket bracket(p.centre, p.spread);
    double entropy = 0;
    const auto moments = [&] {
        RowMoments all{};
        for (int64_t i = 0; i < count; ++i) {
            const int64_t own = std::min(std::max(labels[i], int64_t(0)), p.K - 1);
            const T f = T(bracket.sharpness());
            const RowMoments row = row_moments(d + i * p.K, p.K, d[i * p.K + own], f);
            all.lag += row.lag;
            all.variance += row.variance;
            all.entropy += row.entropy;
        }
        return all;
    };
    for (int step = 0; step < kMaxCalibrationSteps; ++step) {
        const RowMoments all = moments();
        if (!bracket.step(all.lag, all.variance)) break;
    }
    entropy = moments().entropy;
    static_cast<T*>(p.sharpness)[task] = T(bracket.sharpness());
    static_cast<T*>(p.objective)[task] = T(entropy + bracket.prior());
}

constexpr CalibrateKernels kCalibrateKernels = {{calibrate_task<float>, calibrate_task<double>}};
