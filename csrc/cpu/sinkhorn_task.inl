// Sinkhorn's iteration for one SIMD level: one task on one thread, nothing allocated. The algebra
// is in common/sinkhorn.h; names are the same.
//
// M is row-major and padded with zeros to whole vectors and whole blocks of kRows rows. One pass
// over it does an iteration: for each block of rows, the products with b, the new factors and,
// while the block is in the L1 cache, its share of the products of the columns with a.

template <typename T>
struct SinkhornTask {
    static constexpr int64_t kRows = Simd<T>::kLanes > 8 ? Simd<T>::kLanes : 8;
    // Long sums are split into sums of about this many numbers, so that rounding does not
    // accumulate.
    static constexpr int64_t kTerms = 256;

    Arena& arena;
    const SinkhornParams& p;
    int64_t Q = p.Q, K = p.K, Qp = round_up(Q, kRows), Kp = round_up(K, Simd<T>::kLanes);
    T* m = arena.take<T>(Qp * Kp);
    T* row_mass = arena.take<T>(Qp);  // normalised to a total of 1, like all masses here
    T* col_mass = arena.take<T>(Kp);
    T* a = arena.take<T>(Qp);
    T* a_next = arena.take<T>(Qp);
    T* b = arena.take<T>(Kp);
    T* col_sum = arena.take<T>(Kp);           // (M^T a_next)
    T* col_part = arena.take<T>(Kp);          // the same over some of the rows
    double* row_low = arena.take<double>(Q);  // minimum of the cost
    // The minimum, over the rows with mass, of the cost minus row_low.
    double* col_low = arena.take<double>(K);
    double* f = arena.take<double>(Q);
    double* g = arena.take<double>(K);
};

// Divides masses by their total, which it returns; zero beyond their end.
template <typename T>
static double normalise_mass(const T* mass, int64_t count, int64_t padded, T* out) {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += double(mass[i]);
    for (int64_t i = 0; i < padded; ++i) {
        out[i] = i < count && total > 0 ? T(double(mass[i]) / total) : T(0);
    }
    return total;
}

// M from the potentials, zero beyond the end of a row; resets the factors.
template <typename T>
static void fill(SinkhornTask<T>& s, const T* cost, double sharpness) {
    constexpr double kHighest = SinkhornBounds<T>::kHighest, kLowest = Lanes<T>::kLowest - 1;
    for (int64_t q = 0; q < s.Q; ++q) {
        const T* __restrict__ from = cost + q * s.K;
        const double* __restrict__ col_low = s.col_low;
        const double* __restrict__ g = s.g;
        T* __restrict__ row = s.m + q * s.Kp;
        const double low = s.row_low[q], f = s.f[q];
        for (int64_t k = 0; k < s.K; ++k) {
            const double reduced = double(from[k]) - low - col_low[k];
            const double log = f + g[k] - sharpness * reduced;
            row[k] = T(log < kHighest ? (log > kLowest ? log : kLowest) : kHighest);
        }
        for (int64_t k = s.K; k < s.Kp; ++k) row[k] = T(kLowest);
        for (int64_t k = 0; k < s.Kp; k += Simd<T>::kLanes)
            store<T>(row + k, vexp<T>(load(row + k)));
    }
    for (int64_t q = 0; q < s.Qp; ++q) s.a[q] = T(__builtin_sqrt(s.row_mass[q]));
    for (int64_t k = 0; k < s.Kp; ++k) s.b[k] = T(__builtin_sqrt(s.col_mass[k]));
}

// M at the start, and the first row step, with all b equal to one.
template <typename T>
static void start(SinkhornTask<T>& s, const T* cost, double sharpness) {
    // Clamped to the range of T: beyond it, a difference is all or nothing.
    using Bounds = SinkhornBounds<T>;
    const T steep =
        T(std::min(std::max(sharpness, double(Bounds::kTiny)), double(Bounds::kFinite)));
    for (int64_t i = 0; i < s.Qp * s.Kp; ++i) s.m[i] = 0;
    for (int64_t q = 0; q < s.Qp; ++q) s.a[q] = 0;
    for (int64_t k = 0; k < s.Kp; ++k) s.col_part[k] = 0;
    for (int64_t k = 0; k < s.K; ++k) s.col_low[k] = 0;
    for (int64_t q = 0; q < s.Q; ++q) {
        T low = cost[q * s.K];
        for (int64_t k = 1; k < s.K; ++k) low = std::min(low, cost[q * s.K + k]);
        s.row_low[q] = double(low);
        if (!(s.row_mass[q] > 0)) continue;
        const T* __restrict__ from = cost + q * s.K;
        T* __restrict__ row = s.m + q * s.Kp;
        for (int64_t k = 0; k < s.K; ++k) row[k] = (low - from[k]) * steep;
        for (int64_t k = s.K; k < s.Kp; ++k) row[k] = Lanes<T>::kLowest - 1;
        s.a[q] = s.row_mass[q] / exponentials(row, T(0), s.Kp);
    }
    for (int64_t q = 0; q < s.Q; ++q) s.f[q] = s.row_mass[q] > 0 ? 0.0 : kSinkhornGone;
    for (int64_t k = 0; k < s.K; ++k) s.g[k] = s.col_mass[k] > 0 ? 0.0 : kSinkhornGone;
}

// Adds col_part to col_sum; `first` if it is the first part.
template <typename T>
static void add_part(SinkhornTask<T>& s, bool first) {
    for (int64_t k = 0; k < s.Kp; k += Simd<T>::kLanes) {
        const Vec<T> part = load(s.col_part + k);
        store<T>(s.col_sum + k, first ? part : load(s.col_sum + k) + part);
        store<T>(s.col_part + k, Vec<T>{});
    }
}

// Adds the rows of a block, times their factors, to col_part.
template <typename T>
static inline void add_rows(SinkhornTask<T>& s, int64_t q, const T* factors) {
    constexpr int kRows = SinkhornTask<T>::kRows, kLanes = Simd<T>::kLanes;
    const T* const m = s.m + q * s.Kp;
    T factor[kRows];
    for (int r = 0; r < kRows; ++r) factor[r] = factors[q + r];
    for (int64_t k = 0; k < s.Kp; k += kLanes) {
        Vec<T> column = load(s.col_part + k);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) column += factor[r] * load(m + r * s.Kp + k);
        store<T>(s.col_part + k, column);
    }
    const int64_t end = q + kRows;
    if (end % SinkhornTask<T>::kTerms == 0 || end == s.Qp) {
        add_part(s, q < SinkhornTask<T>::kTerms);
    }
}

// col_sum = M^T a
template <typename T>
static void sum_columns(SinkhornTask<T>& s) {
    for (int64_t q = 0; q < s.Qp; q += SinkhornTask<T>::kRows) add_rows(s, q, s.a);
}

// The minima of the columns, over the rows with mass.
template <typename T>
static void reduce_columns(SinkhornTask<T>& s, const T* cost) {
    for (int64_t k = 0; k < s.K; ++k) s.col_low[k] = SinkhornBounds<double>::kFinite;
    for (int64_t q = 0; q < s.Q; ++q) {
        if (!(s.row_mass[q] > 0)) continue;
        const T* __restrict__ row = cost + q * s.K;
        double* __restrict__ col_low = s.col_low;
        const double low = s.row_low[q];
        for (int64_t k = 0; k < s.K; ++k) {
            const double above = double(row[k]) - low;
            col_low[k] = above < col_low[k] ? above : col_low[k];
        }
    }
}

// The state of the factors of one side.
template <typename T>
struct Drift {
    typename Simd<T>::IntVec far = {};   // one is too far from the root of its mass
    typename Simd<T>::IntVec lost = {};  // one has mass but no elements in M
};

// New factors mass / sum.
template <typename T>
static inline Vec<T> new_factor(Vec<T> sum, Vec<T> mass, Drift<T>& drift) {
    using Bounds = SinkhornBounds<T>;
    constexpr T kFar = T(kSinkhornFar);
    const Vec<T> square = sum * sum;
    drift.far |= (square > mass * kFar) | (square * kFar < mass);
    drift.lost |= (sum < splat(Bounds::kLeast)) & (mass > splat(T(0)));
    return mass / vmin<T>(vmax<T>(sum, splat(Bounds::kLeast)), splat(Bounds::kMost));
}

struct PassResult {
    double residual;  // of the previous factors
    bool drifted, lost;
};

// a_next and col_sum, one block of rows at a time.
template <typename T>
static PassResult pass(SinkhornTask<T>& s) {
    constexpr int kRows = SinkhornTask<T>::kRows, kLanes = Simd<T>::kLanes;
    constexpr int64_t kTerms = 4 * SinkhornTask<T>::kTerms;  // over four lanes or more
    const int64_t Kp = s.Kp;
    Vec<T> worst = {};
    Drift<T> drift;
    for (int64_t q = 0; q < s.Qp; q += kRows) {
        const T* const m = s.m + q * Kp;
        Vec<T> sum[kRows] = {};
        for (int64_t start = 0; start < Kp; start += kTerms) {
            const int64_t end = start + kTerms < Kp ? start + kTerms : Kp;
            Vec<T> part[kRows] = {};
            for (int64_t k = start; k < end; k += kLanes) {
                const Vec<T> b = load(s.b + k);
#pragma GCC unroll 16
                for (int r = 0; r < kRows; ++r) part[r] += load(m + r * Kp + k) * b;
            }
#pragma GCC unroll 16
            for (int r = 0; r < kRows; ++r) sum[r] += part[r];
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r += kLanes) {
            Vec<T> total = {};
#pragma GCC unroll 16
            for (int lane = 0; lane < kLanes; ++lane) {
                total[lane] = horizontal_sum<T>(sum[r + lane]);
            }
            const Vec<T> mass = load(s.row_mass + q + r);
            const Vec<T> off = load(s.a + q + r) * total - mass;
            worst = vmax<T>(worst, vmax<T>(off, -off));
            store<T>(s.a_next + q + r, new_factor<T>(total, mass, drift));
        }
        add_rows(s, q, s.a_next);
    }
    return {double(horizontal_max<T>(worst)), any<T>(drift.far), any<T>(drift.lost)};
}

// b from col_sum; reports whether a factor has drifted and whether one is lost.
template <typename T>
static bool column_step(SinkhornTask<T>& s, bool& lost) {
    Drift<T> drift;
    for (int64_t k = 0; k < s.Kp; k += Simd<T>::kLanes) {
        store<T>(s.b + k, new_factor<T>(load(s.col_sum + k), load(s.col_mass + k), drift));
    }
    lost = any<T>(drift.lost);
    return any<T>(drift.far);
}

template <typename T>
static void absorb(const T* factor, const T* mass, int64_t count, double* potential) {
    for (int64_t i = 0; i < count; ++i) {
        const double ratio = double(factor[i]) / __builtin_sqrt(double(mass[i]));
        if (ratio > 0) potential[i] += __builtin_log(ratio);  // false without mass
    }
}

// Potentials of the rows (or the columns) that make the largest element of each 1; those of the
// other side are given.
template <bool kRows, typename T>
static void centre(SinkhornTask<T>& s, const T* cost, double sharpness) {
    const int64_t count = kRows ? s.Q : s.K, others = kRows ? s.K : s.Q;
    double* const potential = kRows ? s.f : s.g;
    for (int64_t i = 0; i < count; ++i) {
        if (!((kRows ? s.row_mass : s.col_mass)[i] > 0)) continue;
        if (kRows) s.f[i] = 0;  // its old value would only be subtracted again
        double most = kSinkhornGone;
        for (int64_t j = 0; j < others; ++j) {
            const int64_t q = kRows ? i : j, k = kRows ? j : i;
            const double reduced = double(cost[q * s.K + k]) - s.row_low[q] - s.col_low[k];
            most = std::max(most, s.f[q] + (s.g[k] - sharpness * reduced));
        }
        potential[i] -= most;
    }
}

template <typename T>
static void write_plan(const SinkhornTask<T>& s, double total, T* plan) {
    constexpr T kFinite = SinkhornBounds<T>::kFinite;
    for (int64_t q = 0; q < s.Q; ++q) {
        const T* __restrict__ m = s.m + q * s.Kp;
        const T* __restrict__ b = s.b;
        const T a = s.a[q], scale = T(total);
        T* __restrict__ row = plan + q * s.K;
        for (int64_t k = 0; k < s.K; ++k) {
            const T part = a * m[k];
            row[k] = scale * ((part < kFinite ? part : kFinite) * b[k]);
        }
    }
}

template <typename T>
static void sinkhorn_task(const SinkhornParams& p, int64_t task, void* scratch, int = 1) {
    Arena arena(scratch);
    SinkhornTask<T> s{arena, p};
    const T* cost = reals<T>(p.cost, task * p.Q * p.K);
    const T* row_mass = reals<T>(p.row_mass, p.row_mass_shared ? 0 : task * p.Q);
    const T* col_mass = reals<T>(p.col_mass, p.col_mass_shared ? 0 : task * p.K);
    const double total = normalise_mass(row_mass, s.Q, s.Qp, s.row_mass);
    normalise_mass(col_mass, s.K, s.Kp, s.col_mass);
    start(s, cost, p.sharpness);
    sum_columns(s);
    bool lost;
    if (column_step(s, lost)) {
        reduce_columns(s, cost);
        absorb(s.a, s.row_mass, s.Q, s.f);
        fill(s, cost, p.sharpness);
        sum_columns(s);
        column_step(s, lost);
    }

    const double work = double(s.Qp) * double(s.Kp);
    int iterations = 1;
    T residual = 0;
    for (;; ++iterations) {
        PassResult found = pass(s);
        residual = T(total * found.residual);
        if (iterations >= p.max_iter || (p.tol > 0 && !(double(residual) > p.tol))) break;
        if (given_up(iterations, work)) return;
        if (found.lost) {
            absorb(s.b, s.col_mass, s.K, s.g);
            centre<true>(s, cost, p.sharpness);
            fill(s, cost, p.sharpness);
            found = pass(s);
        }
        T* const before = s.a;
        s.a = s.a_next;
        s.a_next = before;
        bool drifted = column_step(s, lost) || found.drifted;
        if (lost) {
            absorb(s.a, s.row_mass, s.Q, s.f);
            centre<false>(s, cost, p.sharpness);
            fill(s, cost, p.sharpness);
            sum_columns(s);
            drifted = column_step(s, lost);
        }
        if (drifted) {
            absorb(s.a, s.row_mass, s.Q, s.f);
            absorb(s.b, s.col_mass, s.K, s.g);
            fill(s, cost, p.sharpness);
        }
    }
    write_plan(s, total, reals<T>(p.plan) + task * p.Q * p.K);
    p.iterations[task] = iterations;
    reals<T>(p.residual)[task] = residual;
}

static Work sinkhorn_work(const SinkhornParams& p) {
    const double iterations = p.max_iter < 20 ? p.max_iter : 20;  // typical minimum for a task
    return {p.B, double(p.Q) * double(p.K) * (20.0 + 2.0 * iterations), 0};
}
