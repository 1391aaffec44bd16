// `labelled` and `coordinates` for one SIMD level. The algebra is in common/labelled.h.

// sum += factor x
template <typename T>
static void add_scaled(T* __restrict__ sum, const T* __restrict__ x, T factor, int64_t D) {
    for (int64_t d = 0; d < D; ++d) sum[d] += factor * x[d];
}

// 1 / norm of x first - centre.
template <typename T>
static T second_norm(const T* __restrict__ x, T first, const T* __restrict__ centre, int64_t D) {
    constexpr int kLanes = Simd<T>::kLanes;
    Vec<T> sum[4] = {};
    int64_t d = 0;
    for (; d + 4 * kLanes <= D; d += 4 * kLanes) {
        for (int v = 0; v < 4; ++v) {
            const Vec<T> away = load(x + d + v * kLanes) * first - load(centre + d + v * kLanes);
            sum[v] += away * away;
        }
    }
    T total = horizontal_sum<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; d < D; ++d) {
        const T away = x[d] * first - centre[d];
        total += away * away;
    }
    return inverse_of_centred(total);
}

// sum += (x first - centre) second
template <typename T>
static void add_centred(T* __restrict__ sum, const T* __restrict__ x, T first,
                        const T* __restrict__ centre, T second, int64_t D) {
    for (int64_t d = 0; d < D; ++d) sum[d] += (x[d] * first - centre[d]) * second;
}

template <typename T>
static void coordinates_rows(const CoordinatesParams& p, int64_t first_row, int64_t end) {
    const T* const rows = static_cast<const T*>(p.rows);
    const T* const centres = static_cast<const T*>(p.centre);
    T* const out = static_cast<T*>(p.x);
    for (int64_t row = first_row; row < end; ++row) {
        const T* const x = rows + row * p.D;
        const T* const centre = centres + (p.shared ? 0 : row / p.N * p.D);
        const T first = inverse_norm(x, p.D), second = second_norm(x, first, centre, p.D);
        T* __restrict__ to = out + row * p.D;
        for (int64_t d = 0; d < p.D; ++d) to[d] = (x[d] * first - centre[d]) * second;
        static_cast<T*>(p.lengths)[row] = second > 0 ? 1 / second : T(0);
    }
}

// One task; its arrays are those of LabelledParams.
template <typename T>
struct LabelledTask {
    int64_t S, K, D, R;
    const T* support;
    const int64_t* labels;
    T *first, *second, *centre, *means, *shots;
    int64_t* own;
    T *x, *off, *scale;
    T* row;           // [D]
    double* scatter;  // [D]

    LabelledTask(Arena& arena, const LabelledParams& p, int64_t task)
        : S(p.S), K(p.K), D(p.D), R(p.R), support(static_cast<const T*>(p.support) + task * S * D),
          labels(p.labels + task * S), first(static_cast<T*>(p.first) + task * S),
          second(static_cast<T*>(p.second) + task * S),
          centre(static_cast<T*>(p.centre) + task * D),
          means(static_cast<T*>(p.means) + task * K * D),
          shots(static_cast<T*>(p.shots) + task * K), own(p.own + task * R),
          x(static_cast<T*>(p.x) + task * R * D), off(static_cast<T*>(p.off) + task * R),
          scale(static_cast<T*>(p.scale) + task * D), row(arena.take<T>(D)),
          scatter(arena.take<double>(D)) {}

    // The class of a row; -1 for a label that is none, which only comes without validation.
    int64_t label(int64_t s) const { return labels[s] >= 0 && labels[s] < K ? labels[s] : -1; }
};

// The coordinates, and the class means in them.
template <typename T>
static void centre_rows(const LabelledTask<T>& t) {
    const int64_t D = t.D;
    for (int64_t k = 0; k < t.K; ++k) t.shots[k] = 0;
    for (int64_t s = 0; s < t.S; ++s) {
        if (t.label(s) >= 0) t.shots[t.label(s)] += 1;
    }
    for (int64_t d = 0; d < D; ++d) t.centre[d] = 0;
    for (int64_t s = 0; s < t.S; ++s) {
        const T* const x = t.support + s * D;
        const int64_t k = t.label(s);
        t.first[s] = inverse_norm(x, D);
        if (k < 0 || t.K == 1) continue;  // one class is not centred
        add_scaled(t.centre, x, t.first[s] / (T(t.K) * t.shots[k]), D);
    }
    __builtin_memset(t.means, 0, sizeof(T) * t.K * D);
    for (int64_t s = 0; s < t.S; ++s) {
        const int64_t k = t.label(s);
        const T* const x = t.support + s * D;
        t.second[s] = second_norm(x, t.first[s], t.centre, D);
        if (k >= 0) add_centred(t.means + k * D, x, t.first[s], t.centre, t.second[s], D);
    }
    for (int64_t k = 0; k < t.K; ++k) {
        const T share = 1 / std::max(t.shots[k], T(1));
        for (int64_t d = 0; d < D; ++d) t.means[k * D + d] *= share;
    }
}

// The rows that calibrate: of classes with two rows or more, evenly spread. Returns how many.
template <typename T>
static int64_t choose_rows(const LabelledTask<T>& t) {
    const auto eligible = [&](int64_t s) { return t.label(s) >= 0 && t.shots[t.label(s)] > 1; };
    int64_t total = 0;
    for (int64_t s = 0; s < t.S; ++s) total += eligible(s);
    const int64_t count = std::min(total, t.R);
    for (int64_t s = 0, rank = 0; s < t.S; ++s) {
        if (!eligible(s)) continue;
        const int64_t place = place_of(rank++, total, count);
        if (place < 0) continue;
        t.own[place] = t.label(s);
        const T* __restrict__ row = t.support + s * t.D;
        T* __restrict__ to = t.x + place * t.D;
        const T first = t.first[s], second = t.second[s];
        for (int64_t d = 0; d < t.D; ++d) to[d] = (row[d] * first - t.centre[d]) * second;
    }
    for (int64_t i = count; i < t.R; ++i) {
        t.own[i] = 0;
        __builtin_memset(t.x + i * t.D, 0, sizeof(T) * t.D);
    }
    return count;
}

template <typename T>
static void scale_features(const LabelledTask<T>& t, int64_t count) {
    const int64_t D = t.D;
    double degrees = 0, mean = 0, sum = 0;
    for (int64_t d = 0; d < D; ++d) t.scatter[d] = 0;
    constexpr int64_t kTerms = 64;  // float sums are of so many rows, or rounding would add up
    for (int64_t start = 0; start < count; start += kTerms) {
        for (int64_t d = 0; d < D; ++d) t.row[d] = 0;
        for (int64_t i = start; i < std::min(count, start + kTerms); ++i) {
            const T* __restrict__ x = t.x + i * D;
            const T* __restrict__ mean_row = t.means + t.own[i] * D;
            T* __restrict__ to = t.row;
            for (int64_t d = 0; d < D; ++d) {
                const T away = x[d] - mean_row[d];
                to[d] += away * away;
            }
            degrees += 1 - 1 / double(t.shots[t.own[i]]);
        }
        for (int64_t d = 0; d < D; ++d) t.scatter[d] += double(t.row[d]);
    }
    for (int64_t d = 0; d < D; ++d) mean += t.scatter[d];
    mean /= double(D);
    for (int64_t d = 0; d < D; ++d) {
        t.scatter[d] = feature_scale(t.scatter[d], mean, degrees, double(D));
        sum += t.scatter[d];
    }
    for (int64_t d = 0; d < D; ++d) t.scale[d] = T(t.scatter[d] * double(D) / sum);
    for (int64_t i = 0; i < t.R; ++i) {
        const T* const mean_row = t.means + t.own[i] * D;
        for (int64_t d = 0; d < D; ++d) t.row[d] = t.x[i * D + d] - mean_row[d];
        T* __restrict__ away = t.row;
        Vec<T> sums = splat(T(0));
        const int64_t whole = D / Simd<T>::kLanes * Simd<T>::kLanes;
        for (int64_t d = 0; d < whole; d += Simd<T>::kLanes) {
            sums += load(away + d) * load(away + d) * load(t.scale + d);
        }
        T total = horizontal_sum<T>(sums);
        for (int64_t d = whole; d < D; ++d) total += away[d] * away[d] * t.scale[d];
        t.off[i] = i < count ? total : T(0);
    }
}

template <typename T>
static void labelled_task(const LabelledParams& p, int64_t task, void* scratch) {
    Arena arena(scratch);
    const LabelledTask<T> t(arena, p, task);
    centre_rows(t);
    p.judging[task] = t.R > 0 ? choose_rows(t) : 0;
    scale_features(t, p.judging[task]);
}

template <typename T>
static int64_t labelled_scratch_bytes(const LabelledParams& p) {
    Arena arena(nullptr);
    arena.take<T>(p.D);
    arena.take<double>(p.D);
    return arena.used();
}

constexpr LabelledKernels kLabelledKernels = {
    {labelled_scratch_bytes<float>, labelled_scratch_bytes<double>},
    {labelled_task<float>, labelled_task<double>},
    {coordinates_rows<float>, coordinates_rows<double>},
};
