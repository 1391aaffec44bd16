// `pairs`, `groups` and `mixture` for one SIMD level. One group on one thread, its rows in the cache
// for all steps. The algebra is in common/groups.h.

// --- a row alone ---------------------------------------------------------------------------------

// The measure of a group, and its logarithm: minus infinity for impossible classes and for padding.
template <typename T>
static void copy_measure(const double* from, int64_t K, int64_t Kp, double* measure, T* log_m) {
    for (int64_t k = 0; k < Kp; ++k) {
        measure[k] = k >= K ? 0.0 : from == nullptr ? 1.0 : from[k];
        log_m[k] = measure[k] > 0 ? T(measure[k]) : T(1);
    }
    for (int64_t k = 0; k < Kp; k += Simd<T>::kLanes) store<T>(log_m + k, vlog<T>(load(log_m + k)));
    for (int64_t k = 0; k < Kp; ++k) log_m[k] = measure[k] > 0 ? log_m[k] : -T(INFINITY);
}

// The measure of this group, or null.
static const double* measure_of(const double* measures, int64_t group, int64_t K) {
    return measures == nullptr ? nullptr : measures + group * K;
}

template <typename T>
static T largest_of_panels(const T* row, int64_t Kp) {
    Vec<T> most = splat(-T(INFINITY));
    for (int64_t k = 0; k < Kp; k += Simd<T>::kLanes) most = vmax<T>(most, load(row + k));
    return horizontal_max<T>(most);
}

// ln t of a row, up to a constant; returns that constant: what was taken from the logits, so that
// what is added to them is not lost in rounding.
template <typename T>
static T log_alone(const T* logits, const T* log_m, int64_t K, int64_t Kp, T* row) {
    std::fill(row + K / Simd<T>::kLanes * Simd<T>::kLanes, row + Kp, -T(INFINITY));
    for (int64_t k = 0; k < K; ++k) row[k] = log_m[k] > -T(INFINITY) ? logits[k] : -T(INFINITY);
    const T most = largest_of_panels(row, Kp);
    for (int64_t k = 0; k < Kp; k += Simd<T>::kLanes) {
        store<T>(row + k, (load(row + k) - most) + load(log_m + k));
    }
    return most;
}

// Turns logarithms into probabilities; returns the logarithm of what they are divided by.
template <typename T>
static T normalise_logs(T* row, int64_t Kp) {
    const T most = largest_of_panels(row, Kp), sum = exponentials(row, most, Kp), unit = 1 / sum;
    for (int64_t k = 0; k < Kp; k += Simd<T>::kLanes) store<T>(row + k, load(row + k) * unit);
    return most + std::log(sum);
}

// --- pairs ---------------------------------------------------------------------------------------

template <typename T>
struct PairsTask {
    static constexpr int kTile = PADDLE_EXT_ROW_TILE;

    Arena& arena;
    const PairsParams& p;
    int64_t K = p.K, Kp = round_up(K, Simd<T>::kLanes);
    int64_t N = std::min(p.N, kMostPaired), Np = round_up(N, Simd<T>::kPanel);
    double* measure = arena.take<double>(Kp);
    T* log_m = arena.take<T>(Kp);
    T* row = arena.take<T>(Kp);
    T* inverse = arena.take<T>(Kp);           // K / m
    T* alone = arena.take<T>(N * K);          // t
    T* panels = arena.take<T>(Np * K);        // t K / m, in panels of rows
    T* ratios = arena.take<T>(kTile * Np);    // of a few rows with the others
    double* of_row = arena.take<double>(Np);  // those of one
    double* products = arena.take<double>(kChances * Simd<double>::kLanes);
    double* sums = arena.take<double>(kChances * Simd<double>::kLanes);
    const Chances chances = {};
};

template <typename T>
static void write_alone(PairsTask<T>& t, const T* logits, const int64_t* order, int64_t n) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    std::fill_n(t.panels, round_up(n, kPanel) * t.K, T(0));
    for (int64_t i = 0; i < n; ++i) {
        log_alone(logits + order[i] * t.K, t.log_m, t.K, t.Kp, t.row);
        normalise_logs(t.row, t.Kp);
        std::copy_n(t.row, t.K, t.alone + i * t.K);

        T* const panel = t.panels + i / kPanel * kPanel * t.K + i % kPanel;
        for (int64_t k = 0; k < t.K; ++k) panel[k * kPanel] = t.row[k] * t.inverse[k];
    }
}

// Multiplies the products of each chance by the factors of these pairs, whose number is a multiple of
// the lanes.
template <typename T>
static void add_pairs(PairsTask<T>& t, int64_t begin, int64_t end) {
    constexpr int64_t kLanes = Simd<double>::kLanes, kStep = kPairsAtOnce * kLanes;
    using BitVec = Simd<double>::IntVec;
    for (int c = 0; c < kChances; ++c) {
        const double chance = t.chances.of[c], rest = 1 - chance;
        double* const held = t.products + c * kLanes;
        Vec<double> product = load(held);
        for (int64_t first = begin; first < end; first += kStep) {
            for (int64_t j = first; j < std::min(first + kStep, end); j += kLanes) {
                const Vec<double> factor = chance * load(t.of_row + j) + rest;
                product *= vmax<double>(factor, splat(kLeastRatio));
            }
            const BitVec out = (product < splat(kLeastProduct)) | (product > splat(kMostProduct));
            if (!any<double>(out)) continue;
            store(t.sums + c * kLanes, load(t.sums + c * kLanes) + vlog<double>(product));
            product = splat(1.0);
        }
        store(held, product);
    }
}

template <typename T>
static void pairs_task(const PairsParams& p, int64_t group, void* scratch, int = 1) {
    constexpr int64_t kPanel = Simd<T>::kPanel, kLanes = Simd<double>::kLanes;
    constexpr int kTile = PairsTask<T>::kTile;
    const NoSubnormals fast;
    Arena arena(scratch);
    PairsTask<T> t{arena, p};
    const int64_t n = std::min(p.starts[group + 1] - p.starts[group], kMostPaired);
    const int64_t K = t.K, panels = round_up(n, kPanel) / kPanel;
    copy_measure(measure_of(p.measure, group, K), K, t.Kp, t.measure, t.log_m);
    for (int64_t k = 0; k < K; ++k) {
        t.inverse[k] = t.measure[k] > 0 ? T(double(K) / t.measure[k]) : T(0);
    }
    write_alone(t, reals<T>(p.logits), p.order + p.starts[group], n);
    std::fill_n(t.products, kChances * kLanes, 1.0);
    std::fill_n(t.sums, kChances * kLanes, 0.0);

    for (int64_t i = 0; i + 1 < n; i += kTile) {
        const int64_t rows = std::min<int64_t>(kTile, n - i), first = i / kPanel;
        const T* of_rows[kTile];
        T* ratios[kTile];
        for (int64_t r = 0; r < rows; ++r) of_rows[r] = t.alone + (i + r) * K;
        for (int64_t r = 0; r < rows; ++r) ratios[r] = t.ratios + r * t.Np + first * kPanel;
        product<T>(of_rows, 1, rows, t.panels + first * kPanel * K, K, panels - first, ratios,
                   kPanel);

        for (int64_t r = 0; r < rows; ++r) {
            // Each pair once; others, and what is beyond the last row, are as if independent.
            const int64_t own = i + r, begin = own / kPanel * kPanel, end = panels * kPanel;
            for (int64_t j = begin; j < end; ++j) {
                t.of_row[j] = j > own && j < n ? double(t.ratios[r * t.Np + j]) : 1.0;
            }
            add_pairs(t, begin, end);
        }
        if (given_up(i / kTile, double(rows) * double(n) * double(K + kChances))) return;
    }

    const double weight = pair_weight(p.sizes[group], n);
    for (int c = 0; c < kChances; ++c) {
        const Vec<double> logs =
            load(t.sums + c * kLanes) + vlog<double>(load(t.products + c * kLanes));
        p.evidence[group * kChances + c] = weight * horizontal_sum<double>(logs);
    }
}

static Work pairs_work(const PairsParams& p) {
    const double rows = double(p.N) / double(p.B < 1 ? 1 : p.B);
    const double others = std::min(rows, double(kMostPaired)) / 2;
    return {p.B, rows * (20 * double(p.K) + others * double(p.K + kChances)), 0};
}

// --- proportions ---------------------------------------------------------------------------------

template <typename T>
struct GroupTask {
    Arena& arena;
    const GroupsParams& p;
    int64_t K = p.K, Kp = round_up(K, Simd<T>::kLanes);
    double* measure = arena.take<double>(Kp);
    T* log_m = arena.take<T>(Kp);
    T* total = arena.take<T>(Kp);  // as in GroupClass, like the next two
    T* prior = arena.take<T>(Kp);
    T* factor = arena.take<T>(Kp);
    T* row = arena.take<T>(Kp);
    T* others = arena.take<T>(Kp);
    double* next = arena.take<double>(Kp);
};

// Calls visit(row) with the probabilities of each row, and adds them up in `sums`.
template <typename T, typename Visit>
static void each_row(GroupTask<T>& t, const int64_t* order, int64_t n, double* sums,
                     const Visit& visit) {
    std::fill_n(sums, t.K, 0.0);
    for (int64_t i = 0; i < n; ++i) {
        T* const u = reals<T>(t.p.probabilities, order[i] * t.K);
        visit(order[i], u);
        for (int64_t k = 0; k < t.K; ++k) sums[k] += double(u[k]);
        if (given_up(i, 40 * double(t.K))) return;
    }
}

template <typename T>
static void from_alone(GroupTask<T>& t, int64_t row, T* u) {
    log_alone(reals<T>(t.p.logits, row * t.K), t.log_m, t.K, t.Kp, t.row);
    normalise_logs(t.row, t.Kp);
    std::copy_n(t.row, t.K, u);
}

// One row of a step of (12).
template <typename T>
static void judge_by_others(GroupTask<T>& t, int64_t row, T weight, T known, T* u) {
    log_alone(reals<T>(t.p.logits, row * t.K), t.log_m, t.K, t.Kp, t.row);
    for (int64_t k = 0; k < t.K; ++k) {
        t.others[k] = from_others(t.total[k], t.prior[k], t.factor[k], weight * u[k]);
    }
    for (int64_t k = 0; k < t.Kp; k += Simd<T>::kLanes) {
        store<T>(t.row + k, load(t.row + k) + known * vlog<T>(load(t.others + k)));
    }
    normalise_logs(t.row, t.Kp);
    std::copy_n(t.row, t.K, u);
}

// The mean log proportions e of counts under a prior, as ln m is written; the part of the bound that
// is independent of the rows.
template <typename T>
static double dual_of_group(double concentration, const double* measure, const double* counts,
                            double share, double total, int64_t K, T* e) {
    const double whole = polygamma(total + double(K) * concentration).digamma;
    double bound = whole_bound(concentration, total, double(K));
    for (int64_t k = 0; k < K; ++k) {
        const double count = share * counts[k], prior = concentration * measure[k];
        const double dual = prior > 0 ? polygamma(count + prior).digamma - whole : -INFINITY;
        e[k] = T(dual);
        if (prior > 0) bound += class_bound(count, concentration, measure[k], dual);
    }
    return bound;
}

// ln sum exp( l + e ) of a row, relative to `most`, its largest possible logit.
template <typename T>
static double log_evidence(const T* logits, const T* e, int64_t K, int64_t Kp, T* row, T& most) {
    most = log_alone(logits, e, K, Kp, row);
    return double(normalise_logs(row, Kp));
}

template <typename T>
static double bound_of_group(GroupTask<T>& t, int64_t group, const int64_t* order, int64_t n) {
    const GroupsParams& p = t.p;
    const double weight = p.weight[group];
    std::fill_n(t.others, t.Kp, -T(INFINITY));
    const double bound = dual_of_group(p.concentration[group], t.measure, p.counts + group * t.K,
                                       1.0, weight * double(n), t.K, t.others);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        T most;
        const T* const logits = reals<T>(p.logits, order[i] * t.K);
        sum += log_evidence(logits, t.others, t.K, t.Kp, t.row, most) + double(most);
    }
    return bound + weight * sum;
}

template <typename T>
static void group_task(const GroupsParams& p, int64_t group, void* scratch, int = 1) {
    const NoSubnormals fast;
    Arena arena(scratch);
    GroupTask<T> t{arena, p};
    const int64_t K = t.K, n = p.starts[group + 1] - p.starts[group];
    const int64_t* const order = p.order + p.starts[group];
    const double weight = p.weight[group], a = p.concentration[group];
    const T known = T(p.likeness == nullptr ? 1.0 : 1 - *p.likeness);
    double *const counts = p.counts + group * K, moved = 0;
    copy_measure(measure_of(p.measure, group, K), K, t.Kp, t.measure, t.log_m);
    each_row(t, order, n, counts, [&](int64_t row, T* u) {
        if (p.alone) from_alone(t, row, u);
    });
    for (int64_t k = 0; k < K; ++k) counts[k] *= weight;

    for (int step = 0; step < p.steps && !interrupted(); ++step) {
        std::fill_n(t.others, t.Kp, T(1));
        for (int64_t k = 0; k < K; ++k) {
            const GroupClass own(counts[k], a, t.measure[k]);
            t.total[k] = T(own.total), t.prior[k] = T(own.prior), t.factor[k] = T(own.factor);
        }
        each_row(t, order, n, t.next,
                 [&](int64_t row, T* u) { judge_by_others(t, row, T(weight), known, u); });
        moved = 0;
        for (int64_t k = 0; k < K; ++k) {
            moved = std::max(moved, std::fabs(weight * t.next[k] - counts[k]));
            counts[k] = weight * t.next[k];
        }
    }
    p.criterion[group] = moved;
    if (p.bound != nullptr) p.bound[group] = bound_of_group(t, group, order, n);
}

static Work groups_work(const GroupsParams& p) {
    const double entries = double(p.Q) * double(p.K) / double(p.B < 1 ? 1 : p.B);
    return {p.B, entries * 40 * (p.steps + 1), 0};
}

// --- a mixture of cases --------------------------------------------------------------------------

template <typename>
struct MixtureTask {
    Arena& arena;
    const MixtureParams& p;
    double* shares = arena.take<double>(p.C);
    double* own = arena.take<double>(p.C);
    double* next = arena.take<double>(p.C);
};

static void mixture_task(const MixtureParams& p, int64_t, void* scratch, int = 1) {
    Arena arena(scratch);
    const MixtureTask<double> t{arena, p};
    const Chances chances;
    for (int64_t group = 0; group < p.N; ++group) {
        double* const likely = p.evidence + group * p.C;
        const double most = *std::max_element(likely, likely + p.C);
        for (int64_t c = 0; c < p.C; ++c) likely[c] = std::exp(likely[c] - most);
    }

    // The chance of each case of a group, times the number that is returned.
    const auto weigh = [&](int64_t group) {
        double sum = 0;
        for (int64_t c = 0; c < p.C; ++c) {
            sum += t.own[c] = p.evidence[group * p.C + c] * t.shares[c];
        }
        return sum;
    };
    std::fill_n(t.shares, p.C, 1 / double(p.C));
    for (int step = 0; step < kMixtureEmSteps; ++step) {
        std::fill_n(t.next, p.C, 0.0);
        for (int64_t group = 0; group < p.N; ++group) {
            const double share = 1 / weigh(group);
            for (int64_t c = 0; c < p.C; ++c) t.next[c] += t.own[c] * share;
        }
        for (int64_t c = 0; c < p.C; ++c) {
            t.shares[c] = std::max(kLeastShare, t.next[c] / double(p.N));
        }
        if (given_up(step, double(p.N) * double(p.C))) return;
    }

    for (int64_t group = 0; group < p.N; ++group) {
        const double sum = weigh(group);
        double mean = 0;
        for (int64_t c = 0; c < p.C; ++c) {
            const double chance = p.evidence[group * p.C + c] = t.own[c] / sum;
            if (p.concentration != nullptr) mean += chance * chances.of[c];
        }
        if (p.concentration != nullptr) {
            p.concentration[group] = concentration_of(mean, double(p.K));
        }
    }
}

static Work mixture_work(const MixtureParams& p) {
    return {1, double(p.N) * double(p.C) * kMixtureEmSteps, 0};
}
