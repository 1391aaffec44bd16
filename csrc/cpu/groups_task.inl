// `groups` for one SIMD level: one group on one thread, its rows in the cache for all steps.

template <typename T>
struct GroupTask {
    Arena& arena;
    const GroupsParams& p;
    int64_t K = p.K, Kp = round_up(K, Simd<T>::kLanes);
    T* total = arena.take<T>(Kp);   // counts and prior
    T* least = arena.take<T>(Kp);   // the prior alone
    T* factor = arena.take<T>(Kp);  // from the probability of a row alone to its likelihood
    T* row = arena.take<T>(Kp);
    double* next = arena.take<double>(Kp);
    double* product = arena.take<double>(p.C);
};

// The likelihood of each chance that two rows are one draw. All pairs have the same weight, so that
// one logarithm does for the product of many.
template <typename T>
static void compare_pairs(GroupTask<T>& t, int64_t group, const int64_t* order, int64_t n,
                          const T* inverse) {
    const GroupsParams& p = t.p;
    const T* const rows = reals<T>(p.rows);
    const int64_t partners = std::min(p.partners, n - 1);
    double* const sums = p.likely + group * p.C;
    std::fill_n(sums, p.C, 0.0);
    std::fill_n(t.product, p.C, 1.0);
    for (int64_t i = 0; i < n && partners > 0; ++i) {
        const T* const own = rows + order[i] * t.K;
        for (int64_t k = 0; k < t.K; ++k) t.row[k] = own[k] * inverse[k];
        for (int64_t j = 0; j < partners; ++j) {
            const int64_t other = order[(i + partner_shift(j, n, p.partners)) % n];
            const double more = std::max(double(dot(t.row, rows + other * t.K, t.K)), 1e-30) - 1;
            for (int64_t c = 0; c < p.C; ++c) {
                t.product[c] *= 1 + p.chances[c] * more;
                if (t.product[c] > 1e-200 && t.product[c] < 1e200) continue;
                sums[c] += std::log(t.product[c]);
                t.product[c] = 1;
            }
        }
        if (given_up(i, double(partners) * double(t.K))) return;
    }
    const double weight = 0.5 / double(std::max<int64_t>(partners, 1));
    for (int64_t c = 0; c < p.C; ++c) sums[c] = (sums[c] + std::log(t.product[c])) * weight;
    const double best = *std::max_element(sums, sums + p.C);
    for (int64_t c = 0; c < p.C; ++c) sums[c] = std::exp(sums[c] - best);
}

template <typename T>
static void group_task(const GroupsParams& p, int64_t group, void* scratch, int = 1) {
    const NoSubnormals fast;
    Arena arena(scratch);
    GroupTask<T> t{arena, p};
    const int64_t K = t.K, n = p.starts[group + 1] - p.starts[group];
    const int64_t* const order = p.order + p.starts[group];
    const T* const inverse = reals<T>(p.inverse, group * K);
    if (p.C > 0) return compare_pairs(t, group, order, n, inverse);
    double *const counts = p.counts + group * K, weight = p.weight[group], moved = 0;
    const double* const prior = p.prior + group * K;
    std::fill_n(counts, K, 0.0);
    std::fill_n(t.row, t.Kp, T(0));
    for (int64_t i = 0; i < n; ++i) {
        const T* const from = reals<T>(p.rows, order[i] * K);
        std::copy_n(from, K, reals<T>(p.probabilities) + order[i] * K);
        for (int64_t k = 0; k < K; ++k) counts[k] += weight * double(from[k]);
    }
    int steps = 0;
    // After n - 1 steps a row knows of all others; in more, what it says comes back to it.
    for (const int most = int(std::min<int64_t>(p.max_iter, n - 1)); steps < most; ++steps) {
        for (int64_t k = 0; k < K; ++k) {
            t.total[k] = T(counts[k] + prior[k]);
            t.least[k] = T(prior[k]);
            t.factor[k] = T(certainty(counts[k] + prior[k])) * inverse[k];
            t.next[k] = 0;
        }
        for (int64_t i = 0; i < n; ++i) {
            const T* __restrict__ from = reals<T>(p.rows, order[i] * K);
            T* __restrict__ u = reals<T>(p.probabilities, order[i] * K);
            for (int64_t k = 0; k < K; ++k) {
                const T others = std::max(t.total[k] - T(weight) * u[k], t.least[k]);
                t.row[k] = from[k] * t.factor[k] * others;
            }
            Vec<T> sums = splat(T(0));
            for (int64_t k = 0; k < t.Kp; k += Simd<T>::kLanes) sums += load(t.row + k);
            const T share = 1 / horizontal_sum<T>(sums);
            for (int64_t k = 0; k < K; ++k) {
                u[k] = t.row[k] * share;
                t.next[k] += weight * double(u[k]);
            }
        }
        moved = 0;
        for (int64_t k = 0; k < K; ++k) {
            moved = std::max(moved, std::fabs(t.next[k] - counts[k]));
            counts[k] = t.next[k];
        }
        if (given_up(steps, double(n) * double(K))) return;
        if (p.tol > 0 && !(moved > p.tol)) {
            ++steps;
            break;
        }
    }
    p.criterion[group] = moved;
    p.iterations[group] = steps;
}

static Work groups_work(const GroupsParams& p) {
    const double entries = double(p.Q) * double(p.K) / double(p.B < 1 ? 1 : p.B);
    return {p.B, entries * double(p.C > 0 ? p.partners : 30), 0};
}

template <typename>
struct MixtureTask {
    Arena& arena;
    const MixtureParams& p;
    double* own = arena.take<double>(p.C);
    double* next = arena.take<double>(p.C);
};

static void mixture_task(const MixtureParams& p, int64_t, void* scratch, int = 1) {
    Arena arena(scratch);
    const MixtureTask<double> t{arena, p};
    // How much of a group each chance has; returns 1 / the sum.
    const auto weigh = [&](int64_t group) {
        double sum = 0;
        for (int64_t c = 0; c < p.C; ++c) {
            sum += t.own[c] = p.likely[group * p.C + c] * p.shares[c];
        }
        return 1 / sum;
    };
    for (int step = 0; step < p.steps; ++step) {
        std::fill_n(t.next, p.C, 0.0);
        for (int64_t group = 0; group < p.N; ++group) {
            const double share = weigh(group);
            for (int64_t c = 0; c < p.C; ++c) t.next[c] += t.own[c] * share;
        }
        for (int64_t c = 0; c < p.C; ++c) p.shares[c] = t.next[c] / double(p.N);
        if (given_up(step, double(p.N) * double(p.C))) return;
    }
    for (int64_t group = 0; group < p.N; ++group) {
        const double share = weigh(group);
        p.means[group] = 0;
        for (int64_t c = 0; c < p.C; ++c) p.means[group] += t.own[c] * share * p.chances[c];
    }
}

static Work mixture_work(const MixtureParams& p) {
    return {1, double(p.N) * double(p.C) * double(p.steps), 0};
}

template <typename T>
struct JudgeTask {
    Arena& arena;
    const JudgeParams& p;
    int64_t K = p.K, Kp = round_up(K, Simd<T>::kLanes);
    T* total = arena.take<T>(Kp);
    T* row = arena.take<T>(Kp);
    double* sums = arena.take<double>(Kp);
};

template <typename T>
static void judge_task(const JudgeParams& p, int64_t group, void* scratch, int = 1) {
    const NoSubnormals fast;
    constexpr int kLanes = Simd<T>::kLanes;
    Arena arena(scratch);
    const JudgeTask<T> t{arena, p};
    const int64_t K = t.K, n = p.starts[group + 1] - p.starts[group];
    const int64_t* const order = p.order + p.starts[group];
    const T *const even = reals<T>(p.even, group * K), *const kept = reals<T>(p.kept, group * K);
    const T share = reals<T>(p.share)[group];
    for (int pass = 0; pass < 2; ++pass) {
        const T known = pass == 0 ? reals<T>(p.known)[group] : T(1);
        const T temper = pass == 0 ? T(1) : T(p.temper);
        std::fill_n(t.sums, K, 0.0);
        for (int64_t i = 0; i < n; ++i) {
            const T* const u = reals<T>(p.probabilities, order[i] * K);
            for (int64_t k = 0; k < K; ++k) t.sums[k] += double(u[k]);
        }
        for (int64_t k = 0; k < K; ++k) t.total[k] = T(1 + double(kept[k]) * t.sums[k]);
        for (int64_t i = 0; i < n; ++i) {
            T* const __restrict__ u = reals<T>(p.probabilities, order[i] * K);
            const T* const __restrict__ logits = reals<T>(p.logits, order[i] * K);
            for (int64_t k = 0; k < K; ++k) t.row[k] = std::max(T(1), t.total[k] - kept[k] * u[k]);
            for (int64_t k = K; k < t.Kp; ++k) t.row[k] = 1;
            for (int64_t k = 0; k < t.Kp; k += kLanes)
                store<T>(t.row + k, vlog<T>(load(t.row + k)));
            T most = Range<T>::kMinusInfinity;
            for (int64_t k = 0; k < K; ++k) {
                t.row[k] = temper * (even[k] + known * t.row[k] + share * logits[k]);
                most = std::max(most, t.row[k]);
            }
            for (int64_t k = K; k < t.Kp; ++k) t.row[k] = -T(INFINITY);
            const T unit = 1 / exponentials(t.row, most, t.Kp);
            for (int64_t k = 0; k < K; ++k) u[k] = t.row[k] * unit;
            if (given_up(i, double(K) * 8)) return;
        }
    }
}

static Work judge_work(const JudgeParams& p) {
    return {p.B, 30 * double(p.Q) * double(p.K) / double(p.B < 1 ? 1 : p.B), 0};
}
