// Matrix products for one SIMD level. The right factor is stored in panels, [panel][inner][kPanel].

template <typename T>
static int64_t panels_of(int64_t columns) {
    return (columns + Simd<T>::kPanel - 1) / Simd<T>::kPanel;
}

// Packs rows [N, D] as columns, each feature times `scale` unless that is null.
template <typename T>
static void pack_rows(const T* rows, int64_t N, int64_t D, const T* __restrict__ scale,
                      T* __restrict__ panels) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    for (int64_t n = 0; n < round_up(N, kPanel); ++n) {
        T* __restrict__ to = panels + n / kPanel * D * kPanel + n % kPanel;
        const T* __restrict__ row = rows + n * D;
        if (n >= N) {
            for (int64_t d = 0; d < D; ++d) to[d * kPanel] = 0;
        } else if (scale == nullptr) {
            for (int64_t d = 0; d < D; ++d) to[d * kPanel] = row[d];
        } else {
            for (int64_t d = 0; d < D; ++d) to[d * kPanel] = row[d] * scale[d];
        }
    }
}

// Rows of a matrix: row n begins at base + n step, its entries are `stride` apart.
template <typename T>
struct MatrixRows {
    const T* base;
    int64_t step, stride;
};

// Where products are written: row n, panel p at base + n step + p panel.
template <typename T>
struct MatrixOut {
    T* base;
    int64_t step, panel;
};

// out = a B for N rows of a, on several threads.
template <typename T>
static void multiply(const MatrixRows<T>& a, int64_t N, const T* panels, int64_t inner,
                     int64_t columns, const MatrixOut<T>& out, int threads) {
    constexpr int64_t kRows = 60;  // at once: a multiple of every row tile
    const auto some = [&](int64_t part, int) {
        const T* from[kRows];
        T* to[kRows];
        const int64_t first = part * kRows, count = std::min(N - first, kRows);
        for (int64_t i = 0; i < count; ++i) {
            from[i] = a.base + (first + i) * a.step;
            to[i] = out.base + (first + i) * out.step;
        }
        product(from, a.stride, count, panels, inner, panels_of<T>(columns), to, out.panel);
    };
    parallel_for((N + kRows - 1) / kRows, threads, some);
}

// Removes the gaps between rows of `columns` numbers that are `step` apart.
template <typename T>
static void close_gaps(T* x, int64_t rows, int64_t columns, int64_t step) {
    if (step == columns) return;
    for (int64_t i = 1; i < rows; ++i) {
        __builtin_memmove(x + i * columns, x + i * step, sizeof(T) * columns);
    }
}

// out [N, columns] = a B, without gaps; `out` has room for whole panels.
template <typename T>
static void multiply_closed(const T* a, int64_t a_step, int64_t N, const T* panels, int64_t inner,
                            int64_t columns, T* out, int threads) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const int64_t step = round_up(columns, kPanel);
    multiply<T>({a, a_step, 1}, N, panels, inner, columns, {out, step, kPanel}, threads);
    close_gaps(out, N, columns, step);
}
