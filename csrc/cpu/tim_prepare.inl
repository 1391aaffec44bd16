// From the features of a task to its rows, centred and scaled, in the layouts of the two products.

template <typename T>
static Rows<T> tim_query_rows(const TimParams& p, int64_t task) {
    const auto& n = p.size;
    return {static_cast<const T*>(p.query) + task * n.Q * n.D, nullptr, n.D, 0};
}

template <typename T>
static Rows<T> tim_support_rows(const TimParams& p, int64_t task) {
    const auto& n = p.size;
    const int64_t own = n.support_shared ? 0 : task;
    return {static_cast<const T*>(p.support) + own * n.S * n.D, nullptr, n.D, 0};
}

static inline const int64_t* tim_labels(const TimParams& p, int64_t task) {
    return p.support_labels + (p.size.support_shared ? 0 : task * p.size.S);
}

// The rows of a task, support first, then queries: N = S + Q in all, padded with zeros to Np.
template <typename T>
struct TimRows {
    Arena& arena;
    const TimSizes& n;
    int64_t Np, Dp;
    // Of the queries, in the coordinates of the (normalised) features.
    T* mean = arena.take<T>(n.D);
    T* norms = arena.take<T>(n.S + n.Q);  // inverse norms, or ones
    T* by_row = arena.take<T>(Np * n.D);  // [Np/P, D, P]  panels of rows
    T* by_dim = arena.take<T>(Np * Dp);   // [Dp/P, Np, P] panels of features
    double unit = 1.0;  // a power of two: a coordinate of one, in the coordinates of the features
};

template <typename T>
static T largest_centred(const Rows<T>& row, int64_t count, int64_t D, const T* norms,
                         const T* mean) {
    T largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const T* __restrict__ x = row(i);
        for (int64_t d = 0; d < D; ++d) {
            largest = __builtin_fmax(largest, __builtin_fabs(x[d] * norms[i] - mean[d]));
        }
    }
    return largest;
}

template <typename T>
static void tim_rows(const TimParams& p, int64_t task, int64_t Np, int64_t Dp, TimRows<T>& out) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const auto& n = p.size;
    const auto support = tim_support_rows<T>(p, task), query = tim_query_rows<T>(p, task);
    for (int64_t i = 0; i < n.S + n.Q; ++i) {
        const T* x = i < n.S ? support(i) : query(i - n.S);
        out.norms[i] = p.normalize ? inverse_norm(x, n.D) : T(1);
    }
    mean_row(query, n.Q, n.D, out.norms + n.S, out.mean);

    T largest = largest_centred(query, n.Q, n.D, out.norms + n.S, out.mean);
    if (largest == 0) largest = largest_centred(support, n.S, n.D, out.norms, out.mean);
    const bool by_gradient = p.solver == TimSolver::kGradient;
    out.unit = tim_unit<T>(double(largest), by_gradient ? p.learning_rate : 0.0);

    const T down = T(1.0 / out.unit), far = T(Range<T>::kFarAway);
    __builtin_memset(out.by_row, 0, sizeof(T) * Np * n.D);
    __builtin_memset(out.by_dim, 0, sizeof(T) * Np * Dp);
    for (int64_t i = 0; i < n.S + n.Q; ++i) {
        const T* x = i < n.S ? support(i) : query(i - n.S);
        T* const to_row = out.by_row + i / kPanel * n.D * kPanel + i % kPanel;
        for (int64_t d = 0; d < n.D; ++d) {
            const T scaled = (x[d] * out.norms[i] - out.mean[d]) * down;
            const T value = scaled > far ? far : (scaled < -far ? -far : scaled);
            to_row[d * kPanel] = value;
            out.by_dim[(d / kPanel * Np + i) * kPanel + d % kPanel] = value;
        }
    }
}
