// `sets` for one SIMD level: one group on one thread.

// All sets in the order of their sizes; those of so many classes are from first[size] to the next.
struct SetsBySize {
    int set[kSets] = {}, first[kSetClasses + 2] = {};

    constexpr SetsBySize() {
        int place = 0;
        for (int size = 0; size <= kSetClasses; ++size) {
            first[size] = place;
            for (int one = 0; one < kSets; ++one) {
                if (__builtin_popcount(unsigned(one)) == size) set[place++] = one;
            }
        }
        first[kSetClasses + 1] = place;
    }
};

constexpr SetsBySize kBySize;

template <typename T>
struct SetsTask {
    Arena& arena;
    const SetsParams& p;
    int64_t K = p.K, Kp = round_up(K, Simd<T>::kLanes);
    int M = int(std::min<int64_t>(K, kSetClasses));
    double* measure = arena.take<double>(Kp);
    T* log_m = arena.take<T>(Kp);
    T* e = arena.take<T>(Kp);  // the mean log proportions
    T* row = arena.take<T>(Kp);
    T* sums = arena.take<T>(kSets);  // of the ratios of a row, by set
    double* product = arena.take<double>(kSets);
    double* logs = arena.take<double>(kSets);
    double* of_measure = arena.take<double>(kSets);
    double* evidence = arena.take<double>(kSets);  // in the order of kBySize
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
// of the latter, relative to its largest logit.
template <typename T>
static double compare_classes(SetsTask<T>& t, const T* logits, const int64_t* classes, T* ratios) {
    T most;
    const double usual =
        log_evidence(logits, t.log_m, t.K, t.Kp, t.row, most) - std::log(double(t.K));
    for (int i = 0; i < t.M; ++i) {
        const bool possible = t.measure[classes[i]] > 0;
        ratios[i] = possible ? T(std::exp(double(logits[classes[i]] - most) - usual)) : T(0);
    }
    return usual;
}

// The sums of what M classes have, for every set of them.
template <typename T>
static void sum_sets(const T* of_class, int M, T* sums) {
    sums[0] = 0;
    for (int i = 0; i < M; ++i) {
        const int half = 1 << i;
        for (int set = 0; set < half; ++set) sums[half + set] = sums[set] + of_class[i];
    }
}

// The log evidence of every set of the group; kImpossible for those of classes beyond the last.
template <typename T>
static void weigh_sets(const SetsTask<T>& t, const T* ratios, int64_t n, double weight,
                       const int64_t* classes) {
    constexpr int64_t kRows = 6;  // that are multiplied before a logarithm is taken
    constexpr int kLanes = Simd<double>::kLanes;
    const int sets = 1 << t.M;
    std::fill_n(t.logs, kSets, 0.0);
    std::fill_n(t.product, kSets, 1.0);
    for (int64_t i = 0; i < n; ++i) {
        sum_sets(ratios + i * kSetClasses, t.M, t.sums);
        for (int set = 1; set < sets; ++set) {
            t.product[set] *= std::max(kLeastRatio, double(t.sums[set]));
        }
        if (i % kRows != kRows - 1 && i != n - 1) continue;
        for (int set = 0; set < sets; set += kLanes) {
            store(t.logs + set, load(t.logs + set) + vlog<double>(load(t.product + set)));
            store(t.product + set, splat(1.0));
        }
        if (given_up(i / kRows, double(kSets * kRows))) return;
    }
    double log_m[kSetClasses];
    for (int j = 0; j < t.M; ++j) {
        log_m[j] = std::max(kImpossible, std::log(t.measure[classes[j]]));
    }
    sum_sets(log_m, t.M, t.of_measure);
    for (int size = 1; size <= kSetClasses; ++size) {
        const double log_sizes = double(n) * std::log(double(size));
        for (int i = kBySize.first[size]; i < kBySize.first[size + 1]; ++i) {
            const int set = kBySize.set[i];
            t.evidence[i] = kImpossible;
            if (set >= sets) continue;
            const double found = weight * (t.logs[set] - log_sizes) + t.of_measure[set];
            t.evidence[i] = std::max(kImpossible, found);
        }
    }
}

// Logs of the sums over all sets of 1, 2, .. classes of the products of their measures.
template <typename T>
static void log_symmetric(const SetsTask<T>& t, double* logs) {
    double sums[kSetClasses + 1] = {1};
    for (int64_t k = 0; k < t.K; ++k) {
        for (int size = kSetClasses; size > 0; --size) {
            sums[size] += sums[size - 1] * t.measure[k];
        }
    }
    for (int size = 1; size <= kSetClasses; ++size) logs[size - 1] = std::log(sums[size]);
}

// Replaces the log evidence of the sets by their shares among those of as many classes; writes the
// logs of the sums over these, kImpossible if there are none.
template <typename T>
static void share_in_sizes(const SetsTask<T>& t, double* log_sums) {
    const auto each = [&](int size, const auto& visit) {
        for (int i = kBySize.first[size]; i < kBySize.first[size + 1]; ++i) visit(t.evidence[i]);
    };
    double most[kSetClasses + 1];
    t.evidence[0] = 0;  // no class
    for (int size = 1; size <= kSetClasses; ++size) {
        double largest = kImpossible;
        each(size, [&](double x) { largest = std::max(largest, x); });
        each(size, [&](double& x) { x -= largest; });
        most[size] = largest;
    }
    for (int i = 0; i < kSets; i += Simd<double>::kLanes) {
        store(t.evidence + i, vexp<double>(load(t.evidence + i)));
    }
    for (int size = 1; size <= kSetClasses; ++size) {
        const bool some = most[size] > kImpossible / 2;
        double sum = 0;
        each(size, [&](double x) { sum += x; });
        each(size, [&](double& x) { x = some ? x / sum : 0; });
        log_sums[size - 1] = some ? most[size] + std::log(sum) : kImpossible;
    }
}

// The log evidence of any proportions, relative to rows that are drawn from the measure; `usual` is
// that of these, summed over the rows.
template <typename T>
static double weigh_proportions(SetsTask<T>& t, int64_t group, double worth, double usual) {
    const SetsParams& p = t.p;
    const int64_t start = p.starts[group], n = p.starts[group + 1] - start;
    const double weight = worth * p.weight[group];
    std::fill_n(t.e, t.Kp, -T(INFINITY));
    const double bound = dual_of_group(p.concentration[group], t.measure, p.counts + group * t.K,
                                       worth, weight * double(n), t.K, t.e);
    double sum = -usual;
    for (int64_t i = 0; i < n; ++i) {
        T most;  // that of `usual`, too
        const T* const logits = reals<T>(p.logits, p.order[start + i] * t.K);
        sum += log_evidence(logits, t.e, t.K, t.Kp, t.row, most);
        if (given_up(i, 20 * double(t.K))) return 0;
    }
    return std::max(0.0, bound + weight * sum);
}

// Adds the upper half of the sums to the lower one; returns the sum of the upper half.
template <typename T>
static T fold(T* sums, int half) {
    constexpr int kLanes = Simd<T>::kLanes;
    T* const upper = sums + half;
    T all = 0;
    if (half < kLanes) {
        for (int i = 0; i < half; ++i) all += upper[i], sums[i] += upper[i];
        return all;
    }
    Vec<T> in_lanes = {};
    for (int i = 0; i < half; i += kLanes) {
        in_lanes += load(upper + i);
        store<T>(sums + i, load(sums + i) + load(upper + i));
    }
    return horizontal_sum<T>(in_lanes);
}

// A row's probabilities, replaced by those in any proportions, with this chance, and in sets.
template <typename T>
static void mix_sets(SetsTask<T>& t, const T* ratios, const int64_t* classes, T any, T* u) {
    sum_sets(ratios, t.M, t.sums);
    for (int set = 1; set < 1 << t.M; ++set) {
        t.sums[set] = t.chance[set] / std::max(T(kLeastRatio), t.sums[set]);
    }
    for (int64_t k = 0; k < t.K; ++k) u[k] *= any;
    for (int j = t.M - 1; j >= 0; --j) {  // those with class j, which is then taken out of them
        u[classes[j]] += fold(t.sums, 1 << j) * ratios[j];
    }
    T total = 0;
    for (int64_t k = 0; k < t.K; ++k) total += u[k];
    for (int64_t k = 0; k < t.K; ++k) u[k] /= std::max(T(kLeastRatio), total);
}

// softmax( r ln t + (1 - r) ln u ): what the group says counts 1 - r.
template <typename T>
static void temper_by_likeness(SetsTask<T>& t, const T* logits, T r, T* u) {
    log_alone(logits, t.log_m, t.K, t.Kp, t.row);
    std::fill_n(t.e, t.Kp, T(1));
    for (int64_t k = 0; k < t.K; ++k) t.e[k] = std::max(T(kLeastRatio), u[k]);
    for (int64_t k = 0; k < t.Kp; k += Simd<T>::kLanes) {
        // An impossible class has minus infinity, even times r = 0.
        const Vec<T> alone = load(t.row + k),
                     known = vmax<T>(alone, splat(Range<T>::kMinusInfinity));
        const Vec<T> mixed = r * known + (1 - r) * vlog<T>(load(t.e + k));
        store<T>(t.row + k, alone < known ? alone : mixed);
    }
    normalise_logs(t.row, t.Kp);
    std::copy_n(t.row, t.K, u);
}

template <typename T>
static void sets_task(const SetsParams& p, int64_t group, void* scratch, int = 1) {
    const NoSubnormals fast;
    Arena arena(scratch);
    SetsTask<T> t{arena, p};
    const int64_t K = t.K, start = p.starts[group], n = p.starts[group + 1] - start;
    const int64_t* const order = p.order + start;
    const double r = p.likeness == nullptr ? 0.0 : *p.likeness, worth = worth_of_row(double(n), r);
    copy_measure(measure_of(p.measure, group, K), K, t.Kp, t.measure, t.log_m);
    int64_t classes[kSetClasses];
    choose_classes(t, p.counts + group * K, classes);

    T* const all = reals<T>(p.ratios, start * kSetClasses);
    double usual = 0;
    for (int64_t i = 0; i < n; ++i) {
        const T* const logits = reals<T>(p.logits, order[i] * K);
        usual += compare_classes(t, logits, classes, all + i * kSetClasses);
    }
    weigh_sets(t, all, n, worth * p.weight[group], classes);

    double log_sums[kSetClasses];
    share_in_sizes(t, log_sums);

    if (p.evidence != nullptr) {
        double* const evidence = p.evidence + group * kCases;
        log_symmetric(t, evidence);
        for (int i = 0; i < kSetClasses; ++i) {
            // Sets of more classes than are possible have no evidence.
            evidence[i] = log_sums[i] > kImpossible ? log_sums[i] - evidence[i] : kImpossible;
        }
        evidence[kSetClasses] = weigh_proportions(t, group, worth, usual);
        return;
    }

    const double* const chances = p.chances + group * kCases;
    for (int size = 1; size <= t.M; ++size) {
        for (int i = kBySize.first[size]; i < kBySize.first[size + 1]; ++i) {
            t.chance[kBySize.set[i]] = T(t.evidence[i] * chances[size - 1]);
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        T* const u = reals<T>(p.probabilities, order[i] * K);
        mix_sets(t, all + i * kSetClasses, classes, T(chances[kSetClasses]), u);
        if (r > 0) temper_by_likeness(t, reals<T>(p.logits, order[i] * K), T(r), u);
        if (given_up(i, double(kSets + 40 * K))) return;
    }
}

static Work sets_work(const SetsParams& p) {
    return {p.B, double(p.Q) / double(p.B < 1 ? 1 : p.B) * double(40 * p.K + 8 * kSets), 0};
}
