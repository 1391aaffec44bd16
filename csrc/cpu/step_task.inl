// The late step of `adaptive` for one SIMD level: one task on one thread. The algebra is in
// common/step.h.

template <typename T>
static void step_task(const StepParams& p, int64_t task, void* scratch) {
    const int64_t Q = p.Q, K = p.K, at = task * Q * K, shared = p.shared ? 0 : task;
    const T* const given = static_cast<const T*>(p.given) + at;
    const T* const cross = static_cast<const T*>(p.cross) + at;
    const T* const inner = static_cast<const T*>(p.inner) + at;
    const T* const added = p.added == nullptr ? nullptr : static_cast<const T*>(p.added) + at;
    const T* __restrict__ shots = static_cast<const T*>(p.shots) + shared * K;
    const T* const squares = static_cast<const T*>(p.squares) + shared * K;
    const T variance = static_cast<const T*>(p.variance)[shared], mean_shots = T(p.mean_shots);
    const T* const bias = static_cast<const T*>(p.bias) + task * K;
    T* const proportions = static_cast<T*>(p.proportions) + task * K;
    const T* const measure = chosen_measure<T>(p, task);
    const T a = static_cast<const T*>(p.concentration)[task], share = late_share(a);
    const T f = static_cast<const T*>(p.sharpness)[task], sharpness = f * share;
    const T temper = T(p.temper), reduced = temper * share;
    const T weight = T(p.weight), trust = T(trust_of(Q, K)), count = total_count(p.weight, Q, K, a);
    const T two_classes = chance_of_two_classes(a, K);
    T* const out = static_cast<T*>(p.probabilities) + at;
    Arena arena(scratch);
    const int64_t Kp = round_up(K, Simd<T>::kLanes);
    T* __restrict__ square = arena.take<T>(Kp);
    T* __restrict__ mass = arena.take<T>(Kp);
    T* __restrict__ row = arena.take<T>(Kp);
    T* __restrict__ left = arena.take<T>(Kp);
    T* __restrict__ constant = arena.take<T>(Kp);
    T* __restrict__ total = arena.take<T>(Kp);
    T* __restrict__ prior = arena.take<T>(Kp);
    double* __restrict__ held = arena.take<double>(Kp);     // sums of the probabilities, ...
    double* __restrict__ counted = arena.take<double>(Kp);  // ... and numbers of labels

    for (int64_t k = 0; k < Kp; ++k) left[k] = 1;
    for (int64_t k = 0; k < K; ++k) {
        square[k] = shots[k] * shots[k] * squares[k];
        mass[k] = shots[k];
        held[k] = counted[k] = 0;
    }
    for (int64_t q = 0; q < Q; ++q) {
        const T* __restrict__ u = given + q * K;
        const T* __restrict__ x = cross + q * K;
        const T* __restrict__ y = inner + q * K;
        for (int64_t k = 0; k < K; ++k) {
            const T w = query_weight(u[k], trust);
            square[k] += w * (2 * shots[k] * x[k] + y[k]);
            mass[k] += w;
        }
    }
    for (int64_t k = 0; k < K; ++k) {
        const T early = excess_distance(variance, shots[k], mean_shots);
        const T late = excess_distance(variance, mass[k], mass[k] + (mean_shots - shots[k]));
        constant[k] = (bias[k] + f / 2 * (squares[k] - early + late)) * share;
        prior[k] = measure == nullptr ? a : a * measure[k];
        const T before = std::max(proportions[k] * count - prior[k], T(0));
        const T kept = kept_share(before, shots[k], two_classes);
        constant[k] += std::log(kept);
        prior[k] /= kept;
        total[k] = before + prior[k];
        if (prior[k] > 0) continue;
        constant[k] = T(kImpossible);
        prior[k] = 1;  // any number with a logarithm
    }
    for (int64_t q = 0; q < Q; ++q) {
        const T* __restrict__ u = given + q * K;
        const T* __restrict__ x = cross + q * K;
        const T* __restrict__ y = inner + q * K;
        const T self = static_cast<const T*>(p.own)[task * Q + q];
        for (int64_t k = 0; k < K; ++k) {
            const T w = query_weight(u[k], trust);
            const T half = half_distance(w, shots[k] * x[k], y[k], self, square[k], mass[k]);
            row[k] = temper * (sharpness * half + constant[k]);
            if (added != nullptr) row[k] += reduced * added[q * K + k];
        }
        for (int64_t k = 0; k < K; ++k) left[k] = std::max(total[k] - weight * u[k], prior[k]);
        for (int64_t k = K; k < Kp; ++k) row[k] = Range<T>::kMinusInfinity;
        Vec<T> mosts = splat(Range<T>::kMinusInfinity), sums = splat(T(0));
        for (int64_t k = 0; k < Kp; k += Simd<T>::kLanes) {
            store(row + k, load(row + k) + temper * vlog<T>(load(left + k)));
            mosts = vmax<T>(mosts, load(row + k));
        }
        const T most = horizontal_max<T>(mosts);
        for (int64_t k = 0; k < Kp; k += Simd<T>::kLanes) {
            store(row + k, vexp<T>(load(row + k) - most));
            sums += load(row + k);
        }
        const T unit = 1 / horizontal_sum<T>(sums);
        for (int64_t k = 0; k < K; ++k) {
            out[q * K + k] = row[k] * unit;
            held[k] += double(out[q * K + k]);
        }
        const int64_t label = p.labels[task * Q + q] = largest(out + q * K, K);
        counted[label] += 1;
    }
    const double some = double(K - std::count(counted, counted + K, 0.0)) / double(K);
    for (int64_t k = 0; k < K; ++k) proportions[k] = T(class_share(counted[k], held[k], some, Q));
}

template <typename T>
static int64_t step_scratch_bytes(const StepParams& p) {
    Arena arena(nullptr);
    for (int i = 0; i < 7; ++i) arena.take<T>(round_up(p.K, Simd<T>::kLanes));
    for (int i = 0; i < 2; ++i) arena.take<double>(round_up(p.K, Simd<T>::kLanes));
    return arena.used();
}
