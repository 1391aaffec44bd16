// Rows of large tasks for one SIMD level: products to probabilities, and their sums by class.

#include "cpu/assign_row.inl"

template <typename T>
static void assign_rows(const AssignParams& p, int64_t task, int64_t first, int64_t end,
                        void* memory, AssignSums& sums) {
    const int64_t K = p.K, Kp = round_up(K, kBlock<T>);
    T* const row = static_cast<T*>(memory);
    T* const held = row + Kp;  // of this part
    T* const terms = held + Kp;
    const T* const bias = static_cast<const T*>(p.bias) + task * K;
    const T slope = static_cast<const T*>(p.slope)[task];
    MedianGuess<T> guess;
    for (int64_t k = 0; k < Kp; ++k) held[k] = 0;
    for (int64_t i = 0; i < kTermCount * kBlock<T>; ++i) terms[i] = T(kExpTerms[i / kBlock<T>]);
    for (int64_t q = first; q < end; ++q) {
        const int64_t at = task * p.N + q;
        const T length = p.length == nullptr ? T(1) : static_cast<const T*>(p.length)[at];
        const T* const products = static_cast<const T*>(p.products) + at * p.stride;
        const T most = row_logits(products, p.stride, bias, slope * length, K, row);
        if (p.leads != nullptr) {
            const double lead = double(2 * (most - median_logit(row, K, Kp, most, guess)));
            sums.leads[0] += lead;
            sums.leads[1] += lead - 2 * double(most);
            continue;
        }
        const T sum = row_exponentials(row, most, Kp, terms);
        sums.log_sums += double(most) + __builtin_log(double(sum));
        T scale = p.normalise ? 1 / sum : T(kLikelihoodUnit);
        if (p.squared) {
            for (int64_t k = 0; k < K; ++k) row[k] = (row[k] * scale) * (row[k] * scale);
            scale = 1;
        }
        T* const out =
            p.probabilities == nullptr ? nullptr : static_cast<T*>(p.probabilities) + at * K;
        hold_row(row, K, scale, p.weigh ? scale * length : scale, held, out);
        if (p.top > 0) {
            take_top(row, K, Kp, scale, p.top, static_cast<T*>(p.top_probabilities) + at * p.top,
                     p.top_classes + at * p.top);
        }
    }
    for (int64_t k = 0; k < K; ++k) sums.held[k] = double(held[k]);
}

template <typename T>
static void count_rows(const CountParams& p, int64_t task, int64_t first, int64_t end,
                       AssignSums& sums) {
    constexpr int kLanes = Simd<T>::kLanes;
    const int64_t K = p.K;
    const T* const __restrict__ g = static_cast<const T*>(p.weights) + task * K;
    for (int64_t k = 0; k < K; ++k) sums.held[k] = 0;
    for (int64_t q = first; q < end; ++q) {
        const T* const __restrict__ a = static_cast<const T*>(p.likelihood) + (task * p.N + q) * K;
        Vec<T> total = splat(T(0));
        int64_t k = 0;
        for (; k + kLanes <= K; k += kLanes) total += load(a + k) * load(g + k);
        T sum = horizontal_sum<T>(total);
        for (; k < K; ++k) sum += a[k] * g[k];
        sums.log_sums += sum < T(kFaintRow);
        const T share = sum > 0 ? 1 / sum : T(0);
        for (k = 0; k < K; ++k) sums.held[k] += double(a[k] * g[k] * share);
    }
}

// The late step; see LateParams.
template <typename T>
static void late_rows(const LateParams& p, int64_t first, int64_t end) {
    const int64_t K = p.K;
    const auto read = [](const void* x) { return static_cast<const T*>(x); };
    const T *const bias = read(p.bias), *const mass = read(p.mass), *const square = read(p.square);
    const T *const constant = read(p.constant), *const total = read(p.total),
                   *const prior = read(p.prior);
    const T slope = T(p.slope), sharper = T(p.sharper), temper = T(p.temper), trust = T(p.trust);
    for (int64_t q = first; q < end; ++q) {
        T* const cross = static_cast<T*>(p.products) + q * 2 * K;
        const T* const all = cross + K;
        const T* const added = p.added == nullptr ? nullptr : read(p.added) + q * K;
        const T own = read(p.own)[q];
        const auto more = [&](int64_t k) { return added == nullptr ? T(0) : added[k]; };
        T most = Range<T>::kMinusInfinity, sum = 0;
        for (int64_t k = 0; k < K; ++k) {
            cross[k] = slope * cross[k] + bias[k] + more(k);
            most = std::max(most, cross[k]);
        }
        for (int64_t k = 0; k < K; ++k) {
            cross[k] = std::exp(cross[k] - most);
            sum += cross[k];
        }
        for (int64_t k = 0; k < K; ++k) {
            const T u = cross[k] / sum, w = query_weight(u, trust);
            const T z = sharper * half_distance(w, T(0), all[k], own, square[k], mass[k]);
            const T left = std::max(total[k] - T(p.weight) * u, prior[k]);
            cross[k] = temper * (z + constant[k] + T(p.share) * more(k) + std::log(left));
        }
    }
}

template <typename T>
static void add_rows(const SumsParams& p, int64_t place, const ClassEntry* entries, int64_t count) {
    constexpr int kTerms = 256;      // per partial sum, which starts at zero to keep small shares
    constexpr int64_t kWidth = 128;  // features at a time
    T* const sums = static_cast<T*>(p.sums) + place * p.D;
    const T* const rows = static_cast<const T*>(p.rows);
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
    const int64_t rows = 2 * round_up(K, kBlock<T>), terms = kTermCount * kBlock<T>;
    return (rows + terms) * int64_t(sizeof(T));
}

constexpr AssignKernels kAssignKernels = {
    {assign_row_bytes<float>, assign_row_bytes<double>},
    {assign_rows<float>, assign_rows<double>},
    {count_rows<float>, count_rows<double>},
    {late_rows<float>, late_rows<double>},
    {add_rows<float>, add_rows<double>},
};
