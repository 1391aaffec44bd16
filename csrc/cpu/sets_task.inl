// `sets` for one SIMD level: one group on one thread.

template <typename T>
struct SetsTask {
    Arena& arena;
    const SetsParams& p;
    int64_t K = p.K, Kp = round_up(K, Simd<T>::kLanes);
    int M = int(std::min<int64_t>(K, kSetClasses));
    T* row = arena.take<T>(Kp);
    T* sums = arena.take<T>(kSets);  // of the ratios of a row, by set
    double* product = arena.take<double>(kSets);
    double* evidence = arena.take<double>(kSets);
    T* chance = arena.take<T>(kSets);
};

// The classes with the largest counts; of equal ones the smaller first.
template <typename T>
static void choose_classes(const SetsTask<T>& t, const double* counts, int64_t* classes) {
    int taken = 0;
    for (int64_t k = 0; k < t.K; ++k) {
        if (taken == t.M && !(counts[k] > counts[classes[taken - 1]])) continue;
        int rank = taken < t.M ? taken++ : t.M - 1;
        for (; rank > 0 && counts[k] > counts[classes[rank - 1]]; --rank) {
            classes[rank] = classes[rank - 1];
        }
        classes[rank] = k;
    }
}

// How much likelier a row is if it is of each of the classes than if it is any row; returns the log
// of the latter.
template <typename T>
static double compare_classes(SetsTask<T>& t, const T* logits, const T* log_mean,
                              const int64_t* classes, T* ratios) {
    T most = Range<T>::kMinusInfinity;
    for (int64_t k = 0; k < t.K; ++k) most = std::max(most, t.row[k] = logits[k] + log_mean[k]);
    for (int64_t k = t.K; k < t.Kp; ++k) t.row[k] = -T(INFINITY);
    const double usual = double(most) + std::log(double(exponentials(t.row, most, t.Kp)));
    for (int i = 0; i < t.M; ++i) {
        const bool possible = log_mean[classes[i]] > T(kImpossible);
        ratios[i] = possible ? T(std::exp(double(logits[classes[i]]) - usual)) : T(0);
    }
    return usual;
}

template <typename T>
static void sum_sets(const SetsTask<T>& t, const T* ratios) {
    t.sums[0] = 0;
    for (int i = 0; i < t.M; ++i) {
        const int half = 1 << i;
        for (int set = 0; set < half; ++set) t.sums[half + set] = t.sums[set] + ratios[i];
    }
}

// The log evidence of every set of the group.
template <typename T>
static void weigh_sets(const SetsTask<T>& t, const T* ratios, int64_t n, double weight,
                       const T* log_mean, const int64_t* classes) {
    constexpr int64_t kRows = 6;  // that are multiplied before a logarithm is taken
    const int sets = 1 << t.M;
    std::fill_n(t.evidence, sets, 0.0);
    std::fill_n(t.product, sets, 1.0);
    for (int64_t i = 0; i < n; ++i) {
        sum_sets(t, ratios + i * kSetClasses);
        for (int set = 1; set < sets; ++set) {
            t.product[set] *= std::max(kLeastRatio, double(t.sums[set]));
        }
        if (i % kRows != kRows - 1 && i != n - 1) continue;
        for (int set = 1; set < sets; ++set) {
            t.evidence[set] += std::log(t.product[set]);
            t.product[set] = 1;
        }
        if (given_up(i / kRows, double(kSets * kRows))) return;
    }
    double log_m[kSetClasses], log_size[kSetClasses + 1];
    for (int j = 0; j < t.M; ++j) log_m[j] = double(log_mean[classes[j]]) + std::log(double(t.K));
    for (int size = 1; size <= t.M; ++size) log_size[size] = std::log(double(size));
    for (int set = 1; set < sets; ++set) {
        double found = t.evidence[set] - double(n) * log_size[__builtin_popcount(unsigned(set))];
        found *= weight;
        for (int j = 0; j < t.M; ++j) found += set >> j & 1 ? log_m[j] : 0.0;
        t.evidence[set] = std::max(kImpossible, found);
    }
}

// Logs of the sums over all sets of 1, 2, .. classes of the products of their measures m = K mean.
template <typename T>
static void log_symmetric(const SetsTask<T>& t, const T* log_mean, double* logs) {
    double sums[kSetClasses + 1] = {1};
    for (int64_t k = 0; k < t.K; ++k) {
        const double m = std::exp(double(log_mean[k])) * double(t.K);
        for (int size = kSetClasses; size > 0; --size) sums[size] += sums[size - 1] * m;
    }
    for (int size = 1; size <= kSetClasses; ++size) logs[size - 1] = std::log(sums[size]);
}

template <typename T>
static void sets_task(const SetsParams& p, int64_t group, void* scratch, int = 1) {
    const NoSubnormals fast;
    Arena arena(scratch);
    SetsTask<T> t{arena, p};
    const int64_t K = t.K, n = p.starts[group + 1] - p.starts[group];
    const int64_t* const order = p.order + p.starts[group];
    const T* const log_mean = reals<T>(p.log_mean, group * K);
    const double weight = p.weight[group];
    int64_t classes[kSetClasses];
    choose_classes(t, p.counts + group * K, classes);
    T* const all = reals<T>(p.ratios, p.starts[group] * kSetClasses);
    double usual = 0;
    for (int64_t i = 0; i < n; ++i) {
        usual += compare_classes(t, reals<T>(p.logits, order[i] * K), log_mean, classes,
                                 all + i * kSetClasses);
    }
    weigh_sets(t, all, n, weight, log_mean, classes);
    const int sets = 1 << t.M;
    const double* const chances = p.chances + group * (kSetClasses + 1);
    double* const evidence = p.evidence + group * (kSetClasses + 1);
    if (p.evidence != nullptr) {
        log_symmetric(t, log_mean, evidence);
        evidence[kSetClasses] = weight * usual;
    }
    for (int size = 1; size <= kSetClasses; ++size) {
        double most = kImpossible, sum = 0;
        const auto each = [&](const auto& visit) {
            for (int set = 1; set < sets; ++set) {
                if (__builtin_popcount(unsigned(set)) == size) visit(set);
            }
        };
        each([&](int set) { most = std::max(most, t.evidence[set]); });
        each([&](int set) { sum += std::exp(t.evidence[set] - most); });
        if (p.evidence == nullptr) {
            const double share = chances[size - 1] / sum;
            each([&](int set) { t.chance[set] = T(std::exp(t.evidence[set] - most) * share); });
            continue;
        }
        // Sets of more classes than are possible have no evidence.
        const bool possible = most > kImpossible / 2;
        evidence[size - 1] = possible ? most + std::log(sum) - evidence[size - 1] : kImpossible;
    }
    for (int64_t i = 0; p.evidence == nullptr && i < n; ++i) {
        const T* const ratios = all + i * kSetClasses;
        T* const u = reals<T>(p.probabilities, order[i] * K);
        T total = 0;
        sum_sets(t, ratios);
        for (int set = 1; set < sets; ++set) {
            t.sums[set] = t.chance[set] / std::max(T(kLeastRatio), t.sums[set]);
        }
        for (int64_t k = 0; k < K; ++k) u[k] *= T(chances[kSetClasses]);
        for (int j = t.M - 1; j >= 0; --j) {  // those with class j, which is then taken out of them
            T* const __restrict__ with = t.sums + (1 << j);
            T inside = 0;
            for (int set = 0; set < 1 << j; ++set) {
                inside += with[set];
                t.sums[set] += with[set];
            }
            u[classes[j]] += inside * ratios[j];
        }
        for (int64_t k = 0; k < K; ++k) total += u[k];
        for (int64_t k = 0; k < K; ++k) u[k] /= total;
    }
}

static Work sets_work(const SetsParams& p) {
    return {p.B, double(p.Q) / double(p.B < 1 ? 1 : p.B) * double(p.K + 8 * kSets), 0};
}
