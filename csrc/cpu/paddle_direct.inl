// The iteration with explicit prototypes, for tasks with more queries than the Gram form pays for.
// Nothing larger than the probabilities is kept; both products run over the threads of the call, each
// thread owning whole queries or whole classes, so the result does not depend on their number.

constexpr int64_t kRowBlock = 64;   // rows of a product that stay in the second-level cache
constexpr int64_t kPanelGroup = 8;  // panels that they serve

template <typename T>
struct DirectState {
    int64_t Q, K, D, Qp, Dp;
    T* zd;            // [Dp/P, Q, P]  the queries again, in panels of features
    T* w;             // [K, Dp]
    T* next;          // [K, Dp]
    T* u;             // [K, Qp]
    T* inside;        // [Qp]
    T* slope;         // [K]
    T* bias;          // [K]
    double* held;     // [K]
    double* shift;    // [K]
    double* norm;     // [K]           ||w_k||^2
    const T** w_row;  // [K]
    const T** u_row;  // [K]
    T** u_out;        // [K]
    T** next_row;     // [K]

    DirectState(Arena& arena, const PaddleSizes& n, int64_t padded)
        : Q(n.Q), K(n.K), D(n.D), Qp(padded), Dp(round_up(n.D, Simd<T>::kPanel)),
          zd(arena.take<T>(Dp * Q)), w(arena.take<T>(K * Dp)), next(arena.take<T>(K * Dp)),
          u(arena.take<T>(K * Qp)), inside(arena.take<T>(Qp)), slope(arena.take<T>(K)),
          bias(arena.take<T>(K)), held(arena.take<double>(K)), shift(arena.take<double>(K)),
          norm(arena.take<double>(K)), w_row(arena.take<const T*>(K)),
          u_row(arena.take<const T*>(K)), u_out(arena.take<T*>(K)), next_row(arena.take<T*>(K)) {}
};

template <typename T>
struct DirectPass {
    const PaddleParams* params;
    const Prepared<T>* task;
    DirectState<T>* state;
    double temperature, weight;
    bool dirichlet;  // the dual depends on all classes

    void set_bias(int64_t k, double dual) const {
        state->bias[k] = T(weight * dual - 0.5 * temperature * state->norm[k]);
    }
};

template <typename T>
static void start_direct(const Prepared<T>& task, DirectState<T>& s) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    __builtin_memset(s.zd, 0, sizeof(T) * s.Dp * s.Q);
    for (int64_t q = 0; q < s.Q; ++q) {
        const T* from = task.z + q / kPanel * s.D * kPanel + q % kPanel;
        for (int64_t d = 0; d < s.D; ++d) {
            s.zd[(d / kPanel * s.Q + q) * kPanel + d % kPanel] = from[d * kPanel];
        }
    }
    __builtin_memset(s.w, 0, sizeof(T) * s.K * s.Dp);
    for (int64_t k = 0; k < s.K; ++k) {
        const double inverse = 1.0 / safe_mass(task.count[k]);
        for (int64_t d = 0; d < s.D; ++d) s.w[k * s.Dp + d] = T(task.sums[k * s.D + d] * inverse);
        s.w_row[k] = s.w + k * s.Dp;
        s.u_row[k] = s.u_out[k] = s.u + k * s.Qp;
        s.next_row[k] = s.next + k * s.Dp;
    }
    for (int64_t q = 0; q < s.Qp; ++q) s.inside[q] = q < s.Q ? T(1) : T(0);
}

// Squared factor of scaling="auto": see math.h.
template <typename T>
static double auto_factor(const Prepared<T>& task, DirectState<T>& s) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    product(s.w_row, int64_t(1), s.K, task.z, s.D, s.Qp / kPanel, s.u_out, kPanel);
    for (int64_t k = 0; k < s.K; ++k) s.shift[k] = dot(s.w_row[k], s.w_row[k], s.D);
    Leads<T> leads;
    T* distance = s.slope;
    for (int64_t q = 0; q < s.Q; ++q) {
        double own = 0;
        for (int64_t d = 0; d < s.D; ++d) {
            const double z = s.zd[(d / kPanel * s.Q + q) * kPanel + d % kPanel];
            own += z * z;
        }
        for (int64_t k = 0; k < s.K; ++k) {
            distance[k] = T(own + s.shift[k] - 2.0 * s.u[k * s.Qp + q]);
        }
        leads.add(distance, s.K);
    }
    return leads.factor_squared(s.Q);
}

// Softmax over the classes of one panel of queries, in place; a class's line is read as a whole.
template <typename T>
static void softmax_panel(const DirectState<T>& s, int64_t panel) {
    constexpr int kVecs = Simd<T>::kVecs, kLanes = Simd<T>::kLanes;
    T* const at = s.u + panel * Simd<T>::kPanel;
    Vec<T> best[kVecs], sum[kVecs] = {};
    for (int v = 0; v < kVecs; ++v) best[v] = splat(Range<T>::kMinusInfinity);
    for (int64_t k = 0; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            T* const cell = at + k * s.Qp + v * kLanes;
            const Vec<T> logit = load(cell) * s.slope[k] + s.bias[k];
            store<T>(cell, logit);
            best[v] = vmax<T>(best[v], logit);
        }
    }
    for (int64_t k = 0; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            T* const cell = at + k * s.Qp + v * kLanes;
            const Vec<T> e = vexp<T>(load(cell) - best[v]);
            store<T>(cell, e);
            sum[v] += e;
        }
    }
    const T* const inside = s.inside + panel * Simd<T>::kPanel;
    for (int v = 0; v < kVecs; ++v) sum[v] = load(inside + v * kLanes) / sum[v];
    for (int64_t k = 0; k < s.K; ++k) {
        for (int v = 0; v < kVecs; ++v) {
            T* const cell = at + k * s.Qp + v * kLanes;
            store<T>(cell, load(cell) * sum[v]);
        }
    }
}

// One group of panels of queries: its products with all prototypes, then the u-step. A block of
// prototypes, read once from far, serves the whole group.
template <typename T>
static void assign_group(void* context, int64_t group, int) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const auto& pass = *static_cast<DirectPass<T>*>(context);
    DirectState<T>& s = *pass.state;
    const int64_t first = group * kPanelGroup, panels = s.Qp / kPanel;
    const int64_t count = panels - first < kPanelGroup ? panels - first : kPanelGroup;
    for (int64_t k = 0; k < s.K; k += kRowBlock) {
        T* rows[kRowBlock];
        const int64_t block = s.K - k < kRowBlock ? s.K - k : kRowBlock;
        for (int64_t i = 0; i < block; ++i) rows[i] = s.u + (k + i) * s.Qp + first * kPanel;
        product(s.w_row + k, int64_t(1), block, pass.task->z + first * s.D * kPanel, s.D, count,
                rows, kPanel);
    }
    for (int64_t panel = first; panel < first + count; ++panel) softmax_panel(s, panel);
}

// v-step and w-step for one block of classes.
template <typename T>
static void update_classes(void* context, int64_t block, int) {
    const auto& pass = *static_cast<DirectPass<T>*>(context);
    DirectState<T>& s = *pass.state;
    const int64_t first = block * kRowBlock;
    const int64_t count = s.K - first < kRowBlock ? s.K - first : kRowBlock;
    product(s.u_row + first, int64_t(1), count, s.zd, s.Q, s.Dp / Simd<T>::kPanel,
            s.next_row + first, int64_t(Simd<T>::kPanel));
    for (int64_t k = first; k < first + count; ++k) {
        double held = 0;
        for (int64_t q = 0; q < s.Q; ++q) held += s.u[k * s.Qp + q];
        const double inverse = 1.0 / safe_mass(pass.task->count[k] + held);
        double moved = 0, norm = 0;
        for (int64_t d = 0; d < s.D; ++d) {
            const T fresh = T((pass.task->sums[k * s.D + d] + s.next[k * s.Dp + d]) * inverse);
            const double change = double(fresh) - double(s.w[k * s.Dp + d]);
            moved += change * change;
            norm += double(fresh) * double(fresh);
            s.w[k * s.Dp + d] = fresh;
        }
        s.held[k] = held;
        s.shift[k] = __builtin_sqrt(moved);
        s.norm[k] = norm;
        s.slope[k] = T(pass.temperature);
        if (pass.dirichlet) continue;
        pass.set_bias(k, 1.0 + __builtin_log(held / double(s.Q) + pass.params->epsilon));
    }
}

template <typename T>
static Outcome iterate_direct(const PaddleParams& p, int threads, const Prepared<T>& task,
                              double temperature, double tol, Proportions& proportions,
                              DirectState<T>& s) {
    const double weight = dual_weight<T>(p.lam, double(s.Q));
    DirectPass<T> pass{&p, &task, &s, temperature, weight, proportions.dirichlet};
    for (int64_t k = 0; k < s.K; ++k) {
        s.slope[k] = T(temperature);
        s.bias[k] = T(-0.5 * temperature * double(dot(s.w_row[k], s.w_row[k], s.D)));
    }
    const int64_t blocks = (s.K + kRowBlock - 1) / kRowBlock;
    const int64_t panels = s.Qp / Simd<T>::kPanel;
    const int64_t groups = (panels + kPanelGroup - 1) / kPanelGroup;
    double criterion = 0;
    for (int64_t iteration = 1; iteration <= p.max_iter; ++iteration) {
        if (interrupted()) break;
        parallel_run(groups, threads, assign_group<T>, &pass);
        parallel_run(blocks, threads, update_classes<T>, &pass);
        if (proportions.dirichlet) {
            learn_prior(proportions, s.held);
            for (int64_t k = 0; k < s.K; ++k)
                pass.set_bias(k, proportions.dirichlet_dual(s.held[k]));
        }
        criterion = 0;
        for (int64_t k = 0; k < s.K; ++k) criterion += s.shift[k];
        criterion /= double(s.K);
        if (tol > 0 && !(criterion > tol)) return {int(iteration), criterion};
    }
    return {p.max_iter, criterion};
}
