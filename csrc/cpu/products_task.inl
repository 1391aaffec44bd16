// `products` for one SIMD level: queries in the coordinates, and their products with the prototypes
// and with one another; one task, on several threads. The metric is in common/adaptive.h.

template <typename T>
struct ProductsScratch {
    Arena& arena;
    const ProductsParams& p;
    int64_t Q = p.size.Q, K = p.size.K, D = p.size.D;
    int64_t C = factor_columns(p.size.M);  // columns of the factor
    int64_t E = D + C;                     // numbers of a row: its features, then Z x
    int64_t Kp = round_up(K, Simd<T>::kPanel), Qp = round_up(Q, Simd<T>::kPanel);
    int64_t task, at;                 // and its likelihood
    bool by_rows = p.size.N > K;      // see common/adaptive.h
    T plain = 1, projected = 0;       // a product in the metric: plain x.y + projected (Z x).(Z y)
    CoordinatesParams coordinates{};  // for this task only
    T* x = arena.take<T>(Q * E);      // scaled queries, and Z x
    T* panels =
        arena.take<T>(std::max(std::max(Kp, Qp) * E, C* std::max(by_rows ? D : 0, kFactorBlock)));
    T* found = arena.take<T>(Q * std::max(Kp, Qp));  // products, in whole panels

    ProductsScratch(Arena& arena, const ProductsParams& p, int64_t task = 0)
        : arena(arena), p(p), task(task), at(p.size.L == 1 ? 0 : task) {
        coordinates.B = 1, coordinates.N = 1, coordinates.D = D, coordinates.shared = true;
        coordinates.rows = reals<T>(p.query, task * Q * D);
        coordinates.centre = reals<T>(p.centre, at * D);
        coordinates.scale = reals<T>(p.scale, at * D);
        coordinates.finite = p.finite + task;
    }
};

// The scaled queries, and Z times them.
template <typename T>
static void find_rows(const ProductsScratch<T>& s, int threads) {
    const int64_t Q = s.Q, D = s.D, E = s.E, M = s.p.size.M, C = s.C;
    CoordinatesParams row = s.coordinates;
    *row.finite = true;
    for (int64_t q = 0; q < Q; ++q) {
        row.rows = reals<T>(s.coordinates.rows, q * D);
        row.x = s.x + q * E;
        coordinates_rows<T>(row, 0, 1);
    }
    if (E == D) return;
    if (s.by_rows) {
        const T* const offsets = reals<T>(s.p.rows, s.at * s.p.size.N * D);
        pack_rows(offsets, D, M, D, T(1), s.panels, D);
        multiply<T>({s.x, E, 1}, Q, s.panels, D, M, {s.x + D, E, Simd<T>::kPanel}, threads);
    }
    for (int64_t q = 0; q < Q; ++q) {
        T* const x = s.x + q * E;
        if (!s.by_rows) std::copy_n(x, D, x + D);
        std::fill_n(x + D + M, C - M, T(0));
    }
    const T* const factor = reals<T>(s.p.factor, s.at * C * C);
    substitute<T>(s.x + D, E, Q, {factor, C, s.panels, threads});
}

// Products of the queries with these rows [N, D] and their Z [N, C], each of them packed in panels.
template <typename T>
static void find_products(const ProductsScratch<T>& s, const T* rows, const T* solved,
                          int64_t rows_step, int64_t solved_step, int64_t N, void* out,
                          int threads) {
    const int64_t Q = s.Q, D = s.D, E = s.E;
    pack_rows(rows, rows_step, N, D, s.plain, s.panels, E);
    if (E > D) {
        T* const after = s.panels + D * Simd<T>::kPanel;
        pack_rows(solved, solved_step, N, s.C, s.projected, after, E);
    }
    multiply_closed(s.x, E, Q, s.panels, E, N, s.found, threads);
    std::copy_n(s.found, Q * N, reals<T>(out, s.task * Q * N));
}

template <typename T>
static void products_task(const ProductsParams& p, int64_t task, void* scratch, int threads) {
    Arena arena(scratch);
    ProductsScratch<T> s(arena, p, task);
    const int64_t K = s.K, D = s.D, E = s.E, C = s.C;
    if (p.size.M > 0) {
        const T* const shares = reals<T>(p.shares, s.at * 3);
        s.plain = shares[1], s.projected = shares[2];
    }
    find_rows(s, threads);  // of which only the direction counts, however small they are
    const NoSubnormals fast;
    const T* const prototypes = reals<T>(p.rows, ((s.at + 1) * p.size.N - K) * D);
    const T* const solved = C > 0 ? reals<T>(p.solved, s.at * K * C) : nullptr;
    find_products(s, prototypes, solved, D, C, K, p.cross, threads);
    find_products<T>(s, s.x, s.x + D, E, E, s.Q, p.gram, threads);
}

static Work products_work(const ProductsParams& p) {
    const double Q = double(p.size.Q), K = double(p.size.K), D = double(p.size.D);
    const double M = double(p.size.M), E = D + M, offsets = p.size.N > p.size.K ? M * D : 0;
    const double products = Q * ((Q + K) * E + offsets + M * M / 2);
    return {p.size.B, products, products};
}
