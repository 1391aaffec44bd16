// The iteration in Gram form: one task on one thread, nothing allocated, cost independent of D.
//
// Every prototype is a combination of the task's own features, N_k w_k = s_k + sum_q u_qk z_q, so
//   M_kq = N_k z_q.w_k = C_kq + (U G)_kq     and     P_k = ||N_k w_k||^2
// are all that the iteration needs. Both are updated with the changes du of the probabilities:
//   M += du G,   P += sum_q du_q (M_before + M_after)_q.
// All matrices are class-major, [K, Qp]: the softmax over classes runs across the lanes, and a
// class is one contiguous row. Two shortcuts make most iterations cheap, both exact at the given
// precision (bounds in math.h): a class whose probabilities did not move keeps its M and P
// ("quiet"), and a class that holds nothing leaves the softmax ("asleep") until it could matter
// again.

template <typename T>
struct GramState {
    Arena& arena;
    int64_t Q, K, Qp;
    T* gram = arena.take<T>(Qp * Q);  // [Qp/P, Q, P]
    T* m = arena.take<T>(K * Qp);
    T* u = arena.take<T>(K * Qp);  // probabilities as applied to m
    T* du = arena.take<T>(K * Qp);
    T* dm = arena.take<T>(K * Qp);
    T* inside = arena.take<T>(Qp);   // 1 for a query, 0 for padding
    T* row_max = arena.take<T>(Qp);  // of the logits
    T* inverse = arena.take<T>(Qp);  // 1 / sum of the row's softmax, 0 for padding
    T* asleep = arena.take<T>(Qp);   // sum of exp(logit - reference) over sleeping classes
    T* reference = arena.take<T>(Qp);
    T* asleep_top = arena.take<T>(Qp);  // largest logit of the sleeping classes
    T* slope = arena.take<T>(K);        // logit = slope * m + bias
    T* bias = arena.take<T>(K);
    double* mass = arena.take<double>(K);    // N_k
    double* norm = arena.take<double>(K);    // P_k
    double* held = arena.take<double>(K);    // sum of the applied probabilities
    T* largest = arena.take<T>(K);           // of the latest probabilities
    int64_t* live = arena.take<int64_t>(K);  // classes in the softmax
    int64_t live_count = 0;
    int64_t* moved = arena.take<int64_t>(K);
    const T** from = arena.take<const T*>(K);  // row pointers of a product
    T** to = arena.take<T*>(K);
};

// G, C = M at the start, and P: the only work that depends on D.
template <typename T>
static void gram_products(const Prepared<T>& task, const TaskSizes& n, GramState<T>& s) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    const int64_t panels = s.Qp / kPanel;
    multiply_rows<T>({task.z, 0, kPanel, nullptr, n.D}, 0, s.Q, task.z, n.D, panels,
                     {s.gram, kPanel, s.Q * kPanel}, false);
    multiply_rows<T>({task.sums, n.D, 1}, 0, s.K, task.z, n.D, panels, {s.m, s.Qp, kPanel}, false);
    for (int64_t k = 0; k < s.K; ++k) {
        s.norm[k] = dot(task.sums + k * n.D, task.sums + k * n.D, n.D);
        s.mass[k] = safe_mass(task.count[k]);
        s.held[k] = 0;
    }
    __builtin_memset(s.u, 0, sizeof(T) * s.K * s.Qp);
    for (int64_t q = 0; q < s.Qp; ++q) {
        s.inside[q] = q < s.Q ? T(1) : T(0);
        s.reference[q] = 0;
    }
}

// Squared factor of scaling="auto", from mean distances to the nearest and the median class: see
// math.h.
template <typename T>
static double auto_factor(const GramState<T>& s) {
    constexpr int64_t kPanel = Simd<T>::kPanel;
    T* distance = s.dm;
    double gap = 0, median = 0;
    for (int64_t q = 0; q < s.Q; ++q) {
        const double own = s.gram[q / kPanel * s.Q * kPanel + q * kPanel + q % kPanel];
        for (int64_t k = 0; k < s.K; ++k) {
            const double at = 1.0 / s.mass[k];
            distance[k] = T(own + at * (at * s.norm[k] - 2.0 * s.m[k * s.Qp + q]));
        }
        const double nearest = *std::min_element(distance, distance + s.K);
        const double middle = select_rank(distance, s.K, s.K / 2);
        median += middle;
        gap += middle - nearest;
    }
    return auto_factor_squared(gap / double(s.Q), median / double(s.Q));
}

template <typename T>
static void wake_all(GramState<T>& s) {
    for (int64_t k = 0; k < s.K; ++k) s.live[k] = k;
    s.live_count = s.K;
    for (int64_t q = 0; q < s.Qp; ++q) {
        s.asleep[q] = 0;
        s.asleep_top[q] = Range<T>::kMinusInfinity;
    }
}

// The u-step for the live classes: du = softmax - u. Returns false if a sleeping class might
// matter.
template <typename T>
static bool assign(GramState<T>& s, T wake, T log_wake) {
    constexpr int kVecs = Simd<T>::kVecs, kLanes = Simd<T>::kLanes;
    const bool sleepers = s.live_count < s.K;
    for (int64_t at = 0; at < s.Qp; at += kVecs * kLanes) {
        if (at % (64 * kVecs * kLanes) == 0 && at > 0 && interrupted()) return true;
        Vec<T> best[kVecs], sum[kVecs];
        for (int v = 0; v < kVecs; ++v) best[v] = splat(Range<T>::kMinusInfinity);
        for (int64_t i = 0; i < s.live_count; ++i) {
            const int64_t k = s.live[i];
            const T* m = s.m + k * s.Qp + at;
            T* logit = s.du + k * s.Qp + at;
            for (int v = 0; v < kVecs; ++v) {
                const Vec<T> value = load(m + v * kLanes) * s.slope[k] + s.bias[k];
                store<T>(logit + v * kLanes, value);
                best[v] = vmax<T>(best[v], value);
            }
        }
        for (int v = 0; v < kVecs; ++v) {
            store<T>(s.row_max + at + v * kLanes, best[v]);
            sum[v] = Vec<T>{};
            if (!sleepers) continue;
            const Vec<T> drift = load(s.reference + at + v * kLanes) - best[v];
            sum[v] = load(s.asleep + at + v * kLanes) *
                     vexp<T>(vmin<T>(drift, splat(Lanes<T>::kHighest)));
            // By their sum and by the largest: where logits are far apart, the sum is all or
            // nothing.
            const Vec<T> above = load(s.asleep_top + at + v * kLanes) - best[v];
            const Vec<T> inside = load(s.inside + at + v * kLanes);
            if (any<T>((inside > splat(T(0))) &
                       ((sum[v] > splat(wake)) | (above > splat(log_wake))))) {
                return false;
            }
        }
        for (int64_t i = 0; i < s.live_count; ++i) {
            T* logit = s.du + s.live[i] * s.Qp + at;
            for (int v = 0; v < kVecs; ++v) {
                const Vec<T> e = vexp<T>(load(logit + v * kLanes) - best[v]);
                store<T>(logit + v * kLanes, e);
                sum[v] += e;
            }
        }
        Vec<T> inverse[kVecs];
        for (int v = 0; v < kVecs; ++v) {
            inverse[v] = load(s.inside + at + v * kLanes) / sum[v];
            store<T>(s.inverse + at + v * kLanes, inverse[v]);
        }
        for (int64_t i = 0; i < s.live_count; ++i) {
            const int64_t row = s.live[i] * s.Qp + at;
            for (int v = 0; v < kVecs; ++v) {
                const int64_t cell = row + v * kLanes;
                store<T>(s.du + cell, load(s.du + cell) * inverse[v] - load(s.u + cell));
            }
        }
    }
    return true;
}

// Applies du of one class, whose product with G is in dm. Returns the shift of its prototype.
template <typename T>
static double apply_change(GramState<T>& s, int64_t k, double shots) {
    constexpr int kLanes = Simd<T>::kLanes;
    Vec<T> sum_du{}, sum_gdu{}, sum_m{}, sum_u{};
    const int64_t row = k * s.Qp;
    for (int64_t cell = row; cell < row + s.Qp; cell += kLanes) {
        const Vec<T> du = load(s.du + cell), dm = load(s.dm + cell), m = load(s.m + cell);
        const Vec<T> u = load(s.u + cell) + du;
        store<T>(s.u + cell, u);
        store<T>(s.m + cell, m + dm);
        sum_u += u;
        sum_du += du;
        sum_gdu += du * dm;
        sum_m += du * m;
    }
    const double change = horizontal_sum<T>(sum_du), gdu = horizontal_sum<T>(sum_gdu);
    const double along = horizontal_sum<T>(sum_m);
    const double mass = s.mass[k], norm = s.norm[k];
    s.held[k] = horizontal_sum<T>(sum_u);
    s.mass[k] = safe_mass(shots + s.held[k]);
    s.norm[k] = norm + 2.0 * along + gdu;
    return prototype_shift(change, gdu, along, mass, norm, s.mass[k]);
}

template <typename T>
static void set_logit(GramState<T>& s, int64_t k, double temperature, double bias) {
    const double inverse = 1.0 / s.mass[k];
    s.slope[k] = T(temperature * inverse);
    s.bias[k] = T(bias - 0.5 * temperature * s.norm[k] * inverse * inverse);
}

// Whether a class moved, and the largest of its probabilities.
template <typename T>
static bool has_moved(const GramState<T>& s, int64_t k, const Thresholds& limit, T& largest) {
    constexpr int kLanes = Simd<T>::kLanes;
    const T quiet = T(limit.quiet), share = T(limit.quiet_share);
    Vec<T> excess = splat(T(-1)), most{};
    const int64_t row = k * s.Qp;
    for (int64_t cell = row; cell < row + s.Qp; cell += kLanes) {
        const Vec<T> du = load(s.du + cell), u = load(s.u + cell);
        excess = vmax<T>(excess, vmax<T>(du, -du) - u * share);
        most = vmax<T>(most, u + du);
    }
    largest = horizontal_max<T>(most);
    return horizontal_max<T>(excess) > quiet;
}

template <typename T>
static void fall_asleep(GramState<T>& s, int64_t k) {
    constexpr int kLanes = Simd<T>::kLanes;
    const T* m = s.m + k * s.Qp;
    for (int64_t at = 0; at < s.Qp; at += kLanes) {
        const Vec<T> logit = load(m + at) * s.slope[k] + s.bias[k];
        const Vec<T> share =
            vexp<T>(vmin<T>(logit - load(s.reference + at), splat(Lanes<T>::kHighest)));
        store<T>(s.asleep + at, load(s.asleep + at) + share);
        store<T>(s.asleep_top + at, vmax<T>(load(s.asleep_top + at), logit));
    }
}

// At the end: the shares of the sleeping classes, by the last softmax.
template <typename T>
static void settle_sleepers(GramState<T>& s) {
    constexpr int kLanes = Simd<T>::kLanes;
    int64_t next = 0;
    for (int64_t k = 0; k < s.K; ++k) {
        if (next < s.live_count && s.live[next] == k) {
            ++next;
            continue;
        }
        for (int64_t at = 0; at < s.Qp; at += kLanes) {
            const Vec<T> logit = load(s.m + k * s.Qp + at) * s.slope[k] + s.bias[k];
            const Vec<T> above = vmin<T>(logit - load(s.row_max + at), splat(Lanes<T>::kHighest));
            store<T>(s.u + k * s.Qp + at, vexp<T>(above) * load(s.inverse + at));
        }
    }
}

// Rows end slightly off the simplex because of deferred changes, sleeping classes, and many tiny
// probabilities that a single-precision sum loses: renormalises them.
template <typename T>
static void normalise_rows(GramState<T>& s) {
    constexpr int kLanes = Simd<T>::kLanes;
    for (int64_t at = 0; at < s.Qp; at += kLanes) {
        double sum[kLanes] = {};
        for (int64_t k = 0; k < s.K; ++k) {
            T* const u = s.u + k * s.Qp + at;
            store<T>(u, vmax<T>(load(u), Vec<T>{}));
            for (int lane = 0; lane < kLanes; ++lane) sum[lane] += double(u[lane]);
        }
        Vec<T> share;
        for (int lane = 0; lane < kLanes; ++lane) {
            share[lane] = sum[lane] > 0 ? T(double(s.inside[at + lane]) / sum[lane]) : T(1);
        }
        for (int64_t k = 0; k < s.K; ++k) {
            T* const u = s.u + k * s.Qp + at;
            store<T>(u, load(u) * share);
        }
    }
}

struct Outcome {
    int iterations;
    double criterion;  // before the task's scaling factor
};

// Applies the changes; returns the mean shift of the prototypes.
template <typename T>
static double move_prototypes(GramState<T>& s, int64_t moved, const double* shots) {
    product(s.from, int64_t(1), moved, s.gram, s.Q, s.Qp / Simd<T>::kPanel, s.to,
            int64_t(Simd<T>::kPanel));
    double sum = 0;
    for (int64_t i = 0; i < moved; ++i) sum += apply_change(s, s.moved[i], shots[s.moved[i]]);
    return sum / double(s.K);
}

template <typename T>
static Outcome iterate_gram(const PaddleParams& p, const double* shots, double temperature,
                            double tol, GramState<T>& s) {
    const double weight = dual_weight<T>(p.lam, double(s.Q));
    const Thresholds limit = thresholds(sizeof(T) == 4, p.epsilon, weight, double(s.K));
    const double log_wake = __builtin_log(limit.wake);
    for (int64_t k = 0; k < s.K; ++k) set_logit(s, k, temperature, 0.0);
    wake_all(s);
    Outcome outcome{p.max_iter, 0.0};
    const double work = double(s.Q) * double(s.K);
    for (int64_t iteration = 1; iteration <= p.max_iter; ++iteration) {
        if (given_up(iteration, work)) break;
        // 1) u-step
        if (!assign(s, T(limit.wake), T(log_wake))) {
            wake_all(s);
            assign(s, T(limit.wake), T(log_wake));
        }
        // 2) find what moved
        int64_t moved = 0;
        for (int64_t i = 0; i < s.live_count; ++i) {
            const int64_t k = s.live[i];
            if (!has_moved(s, k, limit, s.largest[k])) continue;
            s.moved[moved] = k;
            s.from[moved] = s.du + k * s.Qp;
            s.to[moved] = s.dm + k * s.Qp;
            ++moved;
        }
        // 3) w-step and v-step
        outcome.criterion = move_prototypes(s, moved, shots);
        for (int64_t i = 0; i < s.live_count; ++i) {
            const int64_t k = s.live[i];
            const double dual = 1.0 + __builtin_log(s.held[k] / double(s.Q) + p.epsilon);
            set_logit(s, k, temperature, weight * dual);
        }
        if (tol > 0 && !(outcome.criterion > tol)) {  // NaN features stop here too
            outcome.iterations = int(iteration);
            break;
        }
        // 4) classes that hold nothing leave, unless this was the last softmax: it computed their
        //    shares by logits that are out of date
        if (iteration == p.max_iter) break;
        const bool all_live = s.live_count == s.K;
        int64_t kept = 0;
        for (int64_t i = 0; i < s.live_count; ++i) {
            const int64_t k = s.live[i];
            if (s.largest[k] < T(limit.sleep)) {
                if (all_live && kept == i) {
                    __builtin_memcpy(s.reference, s.row_max, sizeof(T) * s.Qp);
                }
                fall_asleep(s, k);
            } else {
                s.live[kept++] = k;
            }
        }
        // Nothing moved and no class left: every further iteration would repeat this one exactly.
        if (moved == 0 && kept == s.live_count && iteration > 1) break;
        s.live_count = kept;
    }
    settle_sleepers(s);
    normalise_rows(s);
    return outcome;
}
