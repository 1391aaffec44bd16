// TIM for one SIMD level: vector functions that it needs in addition to exp, and the steps of an
// iteration.

// exp(x) - 1 for x <= kHighest, without cancellation near zero; -1 where exp is zero.
template <typename T>
static inline Vec<T> vexpm1(Vec<T> x) {
    using L = Lanes<T>;
    using BitVec = typename Simd<T>::BitVec;
    x = vmax<T>(x, splat(L::kLowest));
    const Vec<T> shifted = x * L::kLog2e + L::kMagic;
    const Vec<T> n = shifted - L::kMagic;
    const Vec<T> r = (x - n * L::kLn2High) - n * L::kLn2Low;
    const BitVec exponent = reinterpret_cast<BitVec>(shifted) << L::kMantissaBits;
    const Vec<T> power = reinterpret_cast<Vec<T>>(reinterpret_cast<BitVec>(splat(T(1))) + exponent);
    return expm1_polynomial(r) * power + (power - T(1));
}

template <typename T>
struct TimVectorMath {
    static inline Vec<T> log(Vec<T> x) { return vlog<T>(x); }
    static inline Vec<T> expm1(Vec<T> x) { return vexpm1<T>(x); }
    static inline Vec<T> sqrt(Vec<T> x) {
        for (int lane = 0; lane < Simd<T>::kLanes; ++lane) x[lane] = T(__builtin_sqrt(x[lane]));
        return x;
    }
    static inline Vec<T> min(Vec<T> a, Vec<T> b) { return vmin<T>(a, b); }
    static inline Vec<T> max(Vec<T> a, Vec<T> b) { return vmax<T>(a, b); }
    static inline Vec<T> all(T value) { return splat(value); }
};

// --- the steps of an iteration -------------------------------------------------------------------
//
// All matrices of rows and classes are class-major, [K, stride]: the
// softmax over classes runs across the lanes, and a class is one contiguous row of a product.

template <typename T>
struct TimState {
    using Int = typename Lanes<T>::Int;

    Arena& arena;
    const TaskSizes& n;
    int64_t S = n.S, Q = n.Q, N = S + Q, K = n.K, D = n.D;
    int64_t Np = round_up(N, Simd<T>::kPanel), Dp = round_up(D, Simd<T>::kPanel);
    // Of p. An odd number of cache lines: rows of a panel of p must not share a cache set.
    int64_t stride = Np / Simd<T>::kPanel % 2 ? Np : Np + Simd<T>::kPanel;
    // The panel with the first query; it may begin with support rows.
    int64_t first_query = S / Simd<T>::kPanel;
    T* w = arena.take<T>(K * Dp);
    T* first = arena.take<T>(K * Dp);  // Adam's moments
    T* second = arena.take<T>(K * Dp);
    T* pull = arena.take<T>(K * Dp);   // sum_n A_nk x_n
    T* p = arena.take<T>(K * stride);  // scores, then probabilities, then A
    // For panels with queries: dL/dp, or ln P of TIM-ADM.
    T* slopes = arena.take<T>(K * query_rows());
    Int* own = arena.take<Int>(Np);   // label of a support row; -1 for others
    T* rest = arena.take<T>(Np);      // probability of all classes but the row's own
    T* factor = arena.take<T>(Np);    // of a support row in A; 0 for others
    T* share = arena.take<T>(Np);     // 1/Q for a query; 0 for others
    T* half_norm = arena.take<T>(K);  // ||w||^2 / 2
    T* marginal = arena.take<T>(K);   // marginal part of a query's slope; TIM-ADM: power * c_k
    T* mass = arena.take<T>(K);       // of TIM-ADM
    double* shots = arena.take<double>(K);

    int64_t panels() const { return Np / Simd<T>::kPanel; }
    int64_t query_rows() const { return Np - first_query * Simd<T>::kPanel; }
    T* panel_slopes(int64_t panel) const {
        return slopes + (panel - first_query) * Simd<T>::kPanel;
    }
};

// Labels of the support rows in a vector of rows; comparing them with a class selects its rows.
template <typename T>
static inline typename Simd<T>::IntVec tim_own(const TimState<T>& s, int64_t at) {
    typename Simd<T>::IntVec labels;
    __builtin_memcpy(&labels, s.own + at, sizeof(labels));
    return labels;
}

// For one panel: scores become exp(logit - largest logit). Their sums over the own class and over
// the others go to `mine` and `rest`: a difference of the two would lose small values. `logs`, if
// given, receives the logits.
template <typename T>
static void tim_exponentials(const TimState<T>& s, T temperature, int64_t panel, T* logs,
                             Vec<T>* mine, Vec<T>* rest) {
    constexpr int kVecs = Simd<T>::kVecs, kLanes = Simd<T>::kLanes;
    const int64_t start = panel * Simd<T>::kPanel, row = s.query_rows();
    Vec<T> best[kVecs];
    for (int v = 0; v < kVecs; ++v) best[v] = load(s.p + start + v * kLanes) - s.half_norm[0];
    for (int64_t k = 1; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            const Vec<T> score = load(s.p + k * s.stride + start + v * kLanes);
            best[v] = vmax<T>(best[v], score - s.half_norm[k]);
        }
    }
    typename Simd<T>::IntVec own[kVecs];
    for (int v = 0; v < kVecs; ++v) {
        mine[v] = rest[v] = Vec<T>{};
        own[v] = tim_own(s, start + v * kLanes);
    }
    for (int64_t k = 0; k < s.K; ++k) {
        const auto label = typename Lanes<T>::Int(k);
        for (int v = 0; v < kVecs; ++v) {
            T* const cell = s.p + k * s.stride + start + v * kLanes;
            // Subtracting before applying the temperature cannot overflow.
            const Vec<T> logit = (load(cell) - s.half_norm[k] - best[v]) * temperature;
            const Vec<T> e = vexp<T>(logit);
            store<T>(cell, e);
            mine[v] += own[v] == label ? e : Vec<T>{};
            rest[v] += own[v] == label ? Vec<T>{} : e;
            if (logs != nullptr) store<T>(logs + k * row + v * kLanes, logit);
        }
    }
}

// For one panel: scores become probabilities, or A if it has only support rows. Returns the sum of
// the cross-entropies of its support rows on request.
template <typename T>
static double tim_softmax(const TimState<T>& s, T temperature, int64_t panel, T* logs,
                          const TimOrder<T>& order, T weight, bool fixed_factor, bool want_loss) {
    using Math = TimVectorMath<T>;
    constexpr int kVecs = Simd<T>::kVecs, kLanes = Simd<T>::kLanes;
    const int64_t start = panel * Simd<T>::kPanel, row = s.query_rows();
    const bool support_alone = panel < s.first_query;
    Vec<T> mine[kVecs], rest[kVecs], scale[kVecs], log_sum[kVecs];
    typename Simd<T>::IntVec own[kVecs];
    tim_exponentials(s, temperature, panel, logs, mine, rest);
    double loss = 0;
    for (int v = 0; v < kVecs; ++v) {
        const int64_t at = start + v * kLanes;
        const Vec<T> sum = mine[v] + rest[v], inverse = T(1) / sum, p = mine[v] * inverse;
        log_sum[v] = logs != nullptr ? vlog<T>(sum) : sum;
        const Vec<T> chosen = fixed_factor ? splat(T(1)) : tim_support_factor<Math>(p, order);
        Vec<T> factor = chosen * weight;
        const Vec<T> terms = want_loss ? tim_cross_entropy<Math>(p, order) : p;
        for (int lane = 0; lane < kLanes; ++lane) {
            if (at + lane >= s.S) factor[lane] = 0;
            if (want_loss && at + lane < s.S) loss += terms[lane];
        }
        store<T>(s.factor + at, factor);
        store<T>(s.rest + at, rest[v] * inverse);
        scale[v] = support_alone ? inverse * factor : inverse;
        own[v] = tim_own(s, at);
    }
    for (int64_t k = 0; k < s.K; ++k) {
        const auto label = typename Lanes<T>::Int(k);
        for (int v = 0; v < kVecs; ++v) {
            T* const cell = s.p + k * s.stride + start + v * kLanes;
            Vec<T> value = load(cell);
            if (support_alone) value = own[v] == label ? -rest[v] : value;
            store<T>(cell, value * scale[v]);
            if (logs == nullptr) continue;
            T* const log = logs + k * row + v * kLanes;
            store<T>(log, load(log) - log_sum[v]);
        }
    }
    return loss;
}

// mean_q p_qk
template <typename T>
static double tim_mean_probability(const TimState<T>& s, int64_t k) {
    Vec<T> sum{};
    for (int64_t at = s.first_query * Simd<T>::kPanel; at < s.Np; at += Simd<T>::kLanes) {
        sum += load(s.p + k * s.stride + at) * load(s.share + at);
    }
    return horizontal_sum<T>(sum);
}

// A of the support rows of a panel that also has queries.
template <typename T>
static inline Vec<T> tim_support_part(const TimState<T>& s, int64_t at, int64_t k, Vec<T> p) {
    const auto mine = tim_own(s, at) == typename Lanes<T>::Int(k);
    return (mine ? -load(s.rest + at) : p) * load(s.factor + at);
}

// A panel with queries: probabilities become A. Returns its part of the mean entropy on request.
template <typename T>
static double tim_query_derivatives(const TimState<T>& s, int64_t panel, const TimOrder<T>& order,
                                    T weight, bool want_loss) {
    using Math = TimVectorMath<T>;
    constexpr int kVecs = Simd<T>::kVecs, kLanes = Simd<T>::kLanes;
    const int64_t start = panel * Simd<T>::kPanel, row = s.query_rows();
    T* const slopes = s.panel_slopes(panel);
    Vec<T> best[kVecs] = {}, top[kVecs] = {}, mean[kVecs] = {}, entropy[kVecs] = {};
    const bool logs = weight != 0 || want_loss;
    for (int64_t k = 0; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            const Vec<T> p = load(s.p + k * s.stride + start + v * kLanes);
            Vec<T> slope = splat(s.marginal[k]);
            if (logs) {
                const Vec<T> log = tim_log<Math>(p, order);
                slope += tim_entropy_slope(p, log, order) * weight;
                if (want_loss) entropy[v] += tim_entropy(p, log, order);
            }
            store<T>(slopes + k * row + v * kLanes, slope);
            top[v] = p > best[v] ? slope : top[v];
            best[v] = vmax<T>(best[v], p);
        }
    }
    for (int64_t k = 0; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            const Vec<T> slope = load(slopes + k * row + v * kLanes) - top[v];
            mean[v] += load(s.p + k * s.stride + start + v * kLanes) * slope;
        }
    }
    double total = 0;
    for (int v = 0; v < kVecs; ++v) {
        const int64_t at = start + v * kLanes;
        const Vec<T> share = load(s.share + at);
        for (int64_t k = 0; k < s.K; ++k) {
            T* const cell = s.p + k * s.stride + at;
            const Vec<T> p = load(cell), slope = load(slopes + k * row + v * kLanes) - top[v];
            const Vec<T> derivative = tim_query_derivative<Vec<T>>(p, slope, mean[v]) * share;
            store<T>(cell, derivative + tim_support_part(s, at, k, p));
        }
        if (want_loss) total += horizontal_sum<T>(entropy[v] * share);
    }
    return total;
}

// The step of one class: its gradient is pull - w sum, where sum is that of its A.
template <typename T>
static void tim_adam_row(const TimAdam<T> adam, const T* pull, T sum, int64_t Dp, T* first,
                         T* second, T* w) {
    for (int64_t at = 0; at < Dp; at += Simd<T>::kLanes) {
        Vec<T> m = load(first + at), v = load(second + at), moved = load(w + at);
        const Vec<T> gradient = load(pull + at) - moved * sum;
        adam.template step<TimVectorMath<T>>(gradient, m, v, moved);
        store<T>(first + at, m);
        store<T>(second + at, v);
        store<T>(w + at, moved);
    }
}

// --- TIM-ADM ------------------------------------------------------------------------------------

// A panel's part of the mean entropy of the queries.
template <typename T>
static double tim_panel_entropy(const TimState<T>& s, int64_t panel, const TimOrder<T>& order) {
    constexpr int kLanes = Simd<T>::kLanes;
    const int64_t start = panel * Simd<T>::kPanel;
    double total = 0;
    for (int64_t at = start; at < start + Simd<T>::kPanel; at += kLanes) {
        Vec<T> entropy{};
        for (int64_t k = 0; k < s.K; ++k) {
            const Vec<T> p = load(s.p + k * s.stride + at);
            entropy += tim_entropy(p, tim_log<TimVectorMath<T>>(p, order), order);
        }
        total += horizontal_sum<T>(entropy * load(s.share + at));
    }
    return total;
}

// c_k times the power: logsumexp over the queries of the sharpened logarithms, computed here.
template <typename T>
static void tim_class_use(const TimState<T>& s, const TimAlternating<T>& step, int64_t k) {
    constexpr int kLanes = Simd<T>::kLanes;
    const T least = T(-TimRange<T>::kMaxLog);
    T* const log = s.slopes + k * s.query_rows();
    const T* const share = s.share + s.first_query * Simd<T>::kPanel;
    Vec<T> best = splat(least), sum{};
    for (int64_t at = 0; at < s.query_rows(); at += kLanes) {
        const Vec<T> sharp = step.template sharpened<TimVectorMath<T>>(load(log + at));
        const Vec<T> value = load(share + at) > splat(T(0)) ? sharp : splat(least);
        store<T>(log + at, value);
        best = vmax<T>(best, value);
    }
    const T top = horizontal_max<T>(best);
    for (int64_t at = 0; at < s.query_rows(); at += kLanes) sum += vexp<T>(load(log + at) - top);
    s.marginal[k] = step.power * (top + T(__builtin_log(double(horizontal_sum<T>(sum)))));
}

// A panel with queries: probabilities become A, for a query weight (p - q); adds the mass of q.
template <typename T>
static void tim_auxiliary(const TimState<T>& s, int64_t panel, T weight_of_query) {
    constexpr int kVecs = Simd<T>::kVecs, kLanes = Simd<T>::kLanes;
    const int64_t start = panel * Simd<T>::kPanel, row = s.query_rows();
    T* const sharp = s.panel_slopes(panel);
    Vec<T> best[kVecs], sum[kVecs] = {}, inverse[kVecs], weight[kVecs];
    for (int v = 0; v < kVecs; ++v) best[v] = load(sharp + v * kLanes) - s.marginal[0];
    for (int64_t k = 1; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            best[v] = vmax<T>(best[v], load(sharp + k * row + v * kLanes) - s.marginal[k]);
        }
    }
    for (int64_t k = 0; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            T* const cell = sharp + k * row + v * kLanes;
            const Vec<T> e = vexp<T>(load(cell) - s.marginal[k] - best[v]);
            store<T>(cell, e);
            sum[v] += e;
        }
    }
    for (int v = 0; v < kVecs; ++v) {
        inverse[v] = T(1) / sum[v];
        weight[v] = load(s.share + start + v * kLanes) * (weight_of_query * T(s.Q));
    }
    for (int64_t k = 0; k < s.K; ++k) {
        Vec<T> held{};
        for (int v = 0; v < kVecs; ++v) {
            const int64_t at = start + v * kLanes;
            T* const cell = s.p + k * s.stride + at;
            const Vec<T> p = load(cell), q = load(sharp + k * row + v * kLanes) * inverse[v];
            store<T>(cell, (p - q) * weight[v] + tim_support_part(s, at, k, p));
            held += q * weight[v];
        }
        s.mass[k] += horizontal_sum<T>(held);
    }
}

template <typename T>
static void tim_alternating_row(const TimAlternating<T> step, const T* pull, T sum, T mass,
                                int64_t Dp, T* w) {
    for (int64_t at = 0; at < Dp; at += Simd<T>::kLanes) {
        const Vec<T> before = load(w + at);
        const Vec<T> towards = before * sum - load(pull + at);
        store<T>(w + at, step.template step<TimVectorMath<T>>(towards, mass, before));
    }
}
