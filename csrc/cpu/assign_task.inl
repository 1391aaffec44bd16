// One row of a large task for one SIMD level: its logits, exponentials and largest classes.
// All read a row of K classes padded to whole vectors, Kp in all.

// As `comparable` of one logit.
template <typename T>
static inline Vec<T> all_comparable(Vec<T> logit) {
    return vmin<T>(vmax<T>(logit, splat(Range<T>::kMinusInfinity)), splat(Range<T>::kInfinity));
}

// row[k] = logits, padded to whole vectors; returns the largest.
template <typename T>
static T row_logits(const T* __restrict__ products, const T* __restrict__ bias, T factor, int64_t K,
                    T* __restrict__ row) {
    constexpr int kLanes = Simd<T>::kLanes;
    Vec<T> mosts = splat(Range<T>::kMinusInfinity);
    int64_t k = 0;
    for (; k + kLanes <= K; k += kLanes) {
        const Vec<T> logit = all_comparable<T>(load(products + k) * factor + load(bias + k));
        store<T>(row + k, logit);
        mosts = vmax<T>(mosts, logit);
    }
    T most = horizontal_max<T>(mosts);
    for (; k < K; ++k) {
        row[k] = comparable(products[k] * factor + bias[k]);
        most = std::max(most, row[k]);
    }
    for (; k % kLanes != 0; ++k) row[k] = -T(INFINITY);  // below every class
    return most;
}

// The largest classes of a row, times a factor; of equal ones, the smaller first.
template <typename T>
static void take_top(const T* row, int64_t K, T factor, int64_t top, T* probabilities,
                     int64_t* classes) {
    int64_t taken = 0;
    for (int64_t k = 0; k < K; ++k) {
        if (taken == top && !(row[k] > probabilities[top - 1])) continue;
        int64_t rank = taken < top ? taken++ : top - 1;
        for (; rank > 0 && row[k] > probabilities[rank - 1]; --rank) {
            probabilities[rank] = probabilities[rank - 1];
            classes[rank] = classes[rank - 1];
        }
        probabilities[rank] = row[k];
        classes[rank] = k;
    }
    for (int64_t rank = 0; rank < top; ++rank) probabilities[rank] *= factor;
}

// Adds a row of probabilities, row * scale, to `held`; out = row * written, if wanted.
template <typename T>
static void hold_row(const T* __restrict__ row, int64_t K, T scale, T written, T* __restrict__ held,
                     T* __restrict__ out) {
    constexpr int kLanes = Simd<T>::kLanes;
    int64_t k = 0;
    for (; k + kLanes <= K; k += kLanes) {
        const Vec<T> e = load(row + k);
        store<T>(held + k, e * scale + load(held + k));
        if (out != nullptr) store<T>(out + k, e * written);
    }
    for (; k < K; ++k) {
        held[k] += row[k] * scale;
        if (out != nullptr) out[k] = row[k] * written;
    }
}

// --- rows of a task: products to probabilities, and their sums by class --------------------------

template <typename T>
static void assign_rows(const AssignParams& p, int64_t task, int64_t first, int64_t end,
                        void* memory, AssignSums& sums) {
    const int64_t K = p.K, Kp = round_up(K, Simd<T>::kLanes);
    T* const row = reals<T>(memory);
    T* const held = row + Kp;  // of this part
    const T* const bias = reals<T>(p.bias, task * K);
    const T slope = reals<T>(p.slope)[task];
    for (int64_t k = 0; k < Kp; ++k) held[k] = 0;
    for (int64_t q = first; q < end; ++q) {
        const int64_t at = task * p.N + q;
        const T length = p.length == nullptr ? T(1) : reals<T>(p.length)[at];
        const T* const products = reals<T>(p.products, at * p.stride);
        const T most = row_logits(products, bias, slope * length, K, row);
        if (p.leads != nullptr) {
            const double lead = double(2 * (most - select_rank(row, K, K - 1 - K / 2)));
            sums.leads[0] += lead;
            sums.leads[1] += lead - 2 * double(most);
            continue;
        }
        const T sum = exponentials(row, most, Kp);
        sums.log_sums += double(most) + __builtin_log(double(sum));
        const T scale = p.normalise ? 1 / sum : T(kLikelihoodUnit);
        T* const out = p.probabilities == nullptr ? nullptr : reals<T>(p.probabilities, at * K);
        hold_row(row, K, scale, p.weigh ? scale * length : scale, held, out);
        if (p.top > 0) {
            take_top(row, K, scale, p.top, reals<T>(p.top_probabilities, at * p.top),
                     p.top_classes + at * p.top);
        }
    }
    for (int64_t k = 0; k < K; ++k) sums.held[k] = double(held[k]);
}

template <typename T>
static void count_rows(const CountParams& p, int64_t task, int64_t first, int64_t end,
                       AssignSums& sums) {
    const NoSubnormals fast;
    const int64_t K = p.K;
    const T* const __restrict__ g = reals<T>(p.weights, task * K);
    for (int64_t k = 0; k < K; ++k) sums.held[k] = 0;
    for (int64_t q = first; q < end; ++q) {
        const T* const __restrict__ a = reals<T>(p.likelihood, (task * p.N + q) * K);
        const T sum = dot(a, g, K);
        sums.log_sums += sum < T(kFaintRow);
        const T share = sum > 0 ? 1 / sum : T(0);
        for (int64_t k = 0; k < K; ++k) sums.held[k] += double(a[k] * g[k] * share);
    }
}

template <typename T>
static void add_rows(const SumsParams& p, int64_t k, const ClassEntry* entries, int64_t count) {
    constexpr int kTerms = 256;      // per partial sum, which starts at zero to keep small shares
    constexpr int64_t kWidth = 128;  // features at a time
    T* const sums = reals<T>(p.sums, k * p.D);
    const T* const rows = reals<T>(p.rows);
    for (int64_t first = 0; first < p.D; first += kWidth) {
        const int64_t width = std::min(kWidth, p.D - first);
        for (int64_t start = 0; start < count; start += kTerms) {
            T part[kWidth] = {};
            const int64_t end = std::min<int64_t>(count, start + kTerms);
            for (int64_t i = start; i < end; ++i) {
                const T value = T(entries[i].value);
                const T* __restrict__ x = rows + entries[i].row * p.D + first;
                for (int64_t d = 0; d < width; ++d) part[d] += value * x[d];
            }
            for (int64_t d = 0; d < width; ++d) sums[first + d] += part[d];
        }
    }
}

template <typename T>
static int64_t assign_row_bytes(int64_t K) {
    return 2 * round_up(K, Simd<T>::kLanes) * int64_t(sizeof(T));
}

constexpr AssignKernels kAssignKernels = {
    {assign_row_bytes<float>, assign_row_bytes<double>},
    {assign_rows<float>, assign_rows<double>},
    {count_rows<float>, count_rows<double>},
    {add_rows<float>, add_rows<double>},
};
