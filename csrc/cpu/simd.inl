// Vectors of one SIMD level, using the compiler's vector extensions. Included only by the per-level
// files, inside their own namespaces, after they define PADDLE_EXT_VECTOR_BYTES and
// PADDLE_EXT_ROW_TILE: code compiled for AVX-512 must never be merged with the baseline's.
//
// Everything is organised in panels: kPanel consecutive numbers, one cache line of 64 bytes.

template <typename T>
struct Lanes {
    static constexpr bool kSingle = sizeof(T) == sizeof(float);
    using Int = std::conditional_t<kSingle, int32_t, int64_t>;
    using Bits = std::make_unsigned_t<Int>;
    static constexpr T kLowest = kSingle ? -87 : -708;  // exp() is zero below this
    static constexpr T kHighest = kSingle ? 80 : 700;   // exp() is not computed above this
    static constexpr T kLog2e = kSingle ? T(1.44269504f) : T(1.4426950408889634);
    static constexpr T kLn2High = kSingle ? T(0.693359375f) : T(6.93145751953125e-1);
    static constexpr T kLn2Low = kSingle ? T(-2.12194440e-4f) : T(1.42860682030941723212e-6);
    // 1.5 * 2^mantissa: adding it rounds to an integer.
    static constexpr T kMagic = kSingle ? T(12582912) : T(6755399441055744);
    static constexpr int kMantissaBits = kSingle ? 23 : 52;
};

template <typename T>
struct Simd {
    typedef T Vec __attribute__((vector_size(PADDLE_EXT_VECTOR_BYTES)));
    typedef typename Lanes<T>::Int IntVec __attribute__((vector_size(PADDLE_EXT_VECTOR_BYTES)));
    typedef typename Lanes<T>::Bits BitVec __attribute__((vector_size(PADDLE_EXT_VECTOR_BYTES)));
    static constexpr int kLanes = PADDLE_EXT_VECTOR_BYTES / sizeof(T);
    static constexpr int kPanel = 64 / sizeof(T);
    static constexpr int kVecs = 64 / PADDLE_EXT_VECTOR_BYTES;  // vectors in a panel
};

template <typename T>
using Vec = typename Simd<T>::Vec;

// While it lives, results of this thread that would be subnormal are zero: x86 takes long for them,
// and among probabilities they are negligible.
struct NoSubnormals {
#if PADDLE_EXT_X86
    unsigned before = __builtin_ia32_stmxcsr();
    NoSubnormals() { __builtin_ia32_ldmxcsr(before | 0x8000); }
    ~NoSubnormals() { __builtin_ia32_ldmxcsr(before); }
#else
    NoSubnormals() {}
#endif
};

template <typename T>
static inline Vec<T> load(const T* from) {
    Vec<T> value;
    __builtin_memcpy(&value, from, sizeof(value));
    return value;
}

template <typename T>
static inline void store(T* to, Vec<T> value) {
    __builtin_memcpy(to, &value, sizeof(value));
}

template <typename T>
static inline Vec<T> splat(T value) {
    return value - Vec<T>{};
}

template <typename T>
static inline Vec<T> vmax(Vec<T> a, Vec<T> b) {
    return a > b ? a : b;
}

template <typename T>
static inline Vec<T> vmin(Vec<T> a, Vec<T> b) {
    return a < b ? a : b;
}

template <typename T>
static inline T horizontal_sum(Vec<T> value) {
    T sum = value[0];
    for (int lane = 1; lane < Simd<T>::kLanes; ++lane) sum += value[lane];
    return sum;
}

template <typename T>
static inline T horizontal_max(Vec<T> value) {
    T best = value[0];
    for (int lane = 1; lane < Simd<T>::kLanes; ++lane)
        best = value[lane] > best ? value[lane] : best;
    return best;
}

template <typename T>
static inline bool any(typename Simd<T>::IntVec lanes) {
    typename Lanes<T>::Int found = 0;
    for (int lane = 0; lane < Simd<T>::kLanes; ++lane) found |= lanes[lane];
    return found != 0;
}

// exp(r) - 1 for |r| <= ln(2)/2.
static inline Vec<float> expm1_polynomial(Vec<float> r) {
    Vec<float> p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r;
}

// A Taylor series of degree 13 has an error below the rounding of double.
static inline Vec<double> expm1_polynomial(Vec<double> r) {
    constexpr double kTerms[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                 1.0 / 40320,     1.0 / 5040,     1.0 / 720,     1.0 / 120,
                                 1.0 / 24,        1.0 / 6,        0.5,           1.0};
    Vec<double> p = splat(1.0 / 6227020800);
#pragma GCC unroll 12
    for (const double term : kTerms) p = p * r + term;
    return p * r;
}

// exp(x) for x <= kHighest; zero below kLowest.
template <typename T>
static inline Vec<T> vexp(Vec<T> x) {
    using L = Lanes<T>;
    using BitVec = typename Simd<T>::BitVec;
    const BitVec alive = reinterpret_cast<BitVec>(x >= splat(L::kLowest));
    x = vmax<T>(x, splat(L::kLowest));
    const Vec<T> shifted = x * L::kLog2e + L::kMagic;
    const Vec<T> n = shifted - L::kMagic;
    const Vec<T> r = (x - n * L::kLn2High) - n * L::kLn2Low;
    // The low bits of `shifted` hold n: moved into the exponent they multiply by 2^n.
    const BitVec exponent = reinterpret_cast<BitVec>(shifted) << L::kMantissaBits;
    const BitVec scaled = reinterpret_cast<BitVec>(expm1_polynomial(r) + T(1)) + exponent;
    return reinterpret_cast<Vec<T>>(scaled & alive);
}

// row = exp(row - most) of whole vectors; returns the sum, which is compensated: of a thousand
// classes a plain one is off by more than the 2e-6 that rows of probabilities may be.
template <typename T>
static T exponentials(T* row, T most, int64_t count) {
    Vec<T> sum = {}, excess = {};  // by rounding
    for (int64_t k = 0; k < count; k += Simd<T>::kLanes) {
        const Vec<T> x = vexp<T>(load(row + k) - most), next = sum + (x - excess);
        excess = (next - sum) - (x - excess);
        store<T>(row + k, x);
        sum = next;
    }
    return horizontal_sum<T>(sum);
}

// Terms of the log series that exceed rounding.
template <typename T>
constexpr int kLogTerms = sizeof(T) == 4 ? 6 : 12;

// ln(x) for normal x > 0: x = 2^n m with m within a factor sqrt(2) of one, and
// ln(m) = 2 (s + s^3/3 + s^5/5 + ..) with s = (m - 1) / (m + 1), |s| < 0.172.
template <typename T>
static inline Vec<T> vlog(Vec<T> x) {
    using L = Lanes<T>;
    using IntVec = typename Simd<T>::IntVec;
    using BitVec = typename Simd<T>::BitVec;
    const BitVec root_half = reinterpret_cast<BitVec>(splat(T(0.70710678118654752440)));
    const BitVec bits = reinterpret_cast<BitVec>(x);
    const IntVec n = reinterpret_cast<IntVec>(bits - root_half) >> L::kMantissaBits;
    const BitVec power = reinterpret_cast<BitVec>(n) << L::kMantissaBits;
    const Vec<T> m = reinterpret_cast<Vec<T>>(bits - power);
    const Vec<T> s = (m - T(1)) / (m + T(1)), squared = s * s;
    Vec<T> series = splat(T(1.0 / (2 * kLogTerms<T> - 1)));
#pragma GCC unroll 12
    for (int i = kLogTerms<T> - 2; i >= 0; --i) series = series * squared + T(1.0 / (2 * i + 1));
    const Vec<T> exponent = __builtin_convertvector(n, Vec<T>);
    return exponent * L::kLn2High + (exponent * L::kLn2Low + T(2) * s * series);
}

template <typename T>
static inline T dot(const T* a, const T* b, int64_t n) {
    Vec<T> sum[4] = {};
    constexpr int kLanes = Simd<T>::kLanes;
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        for (int v = 0; v < 4; ++v) sum[v] += load(a + i + v * kLanes) * load(b + i + v * kLanes);
    }
    for (; i + kLanes <= n; i += kLanes) sum[0] += load(a + i) * load(b + i);
    T total = horizontal_sum<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; ++i) total += a[i] * b[i];
    return total;
}

// out[r][j] (+)= sum_i a[r][first + i * stride] b[i][j] for `Rows` rows r and one panel of columns j.
template <int Rows, typename T>
static inline void product_tile(const T* const* a, int64_t first, int64_t stride, const T* b,
                                int64_t inner, T* const* out, int64_t at, bool accumulate) {
    constexpr int kVecs = Simd<T>::kVecs, kLanes = Simd<T>::kLanes, kPanel = Simd<T>::kPanel;
    Vec<T> sum[Rows][kVecs] = {};
    const T* row[Rows];
    for (int r = 0; r < Rows; ++r) row[r] = a[r] + first;
#pragma GCC unroll 4
    for (int64_t i = 0; i < inner; ++i, b += kPanel) {
        Vec<T> column[kVecs];
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) column[v] = load(b + v * kLanes);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
            const T factor = row[r][i * stride];
#pragma GCC unroll 4
            for (int v = 0; v < kVecs; ++v) sum[r][v] += factor * column[v];
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < kVecs; ++v) {
            T* to = out[r] + at + v * kLanes;
            store<T>(to, accumulate ? load(to) + sum[r][v] : sum[r][v]);
        }
    }
}

// Whether the call is cancelled, checked in every round of a lot of work and in some rounds of
// little work: `work` is counted in multiplications.
static inline bool given_up(int64_t round, double work) {
    return (work > 1e5 || round % 16 == 0) && interrupted();
}

// out[r] (+)= a[r] B for all rows and all panels of B, stored as [panel][inner][kPanel]. A slice of
// a panel stays in the L1 cache while all rows pass over it.
template <typename T>
static void product(const T* const* a, int64_t stride, int64_t rows, const T* b, int64_t inner,
                    int64_t panels, T* const* out, int64_t out_panel_stride, bool add = false) {
    constexpr int kPanel = Simd<T>::kPanel;
    constexpr int kRows = PADDLE_EXT_ROW_TILE;
    constexpr int64_t kSlice = 512;
    const double work = double(rows) * double(inner) * kPanel;
    for (int64_t panel = 0; panel < panels; ++panel) {
        if (work > 1e5 && interrupted()) return;
        const int64_t at = panel * out_panel_stride;
        for (int64_t start = 0; start < inner; start += kSlice) {
            const int64_t depth = std::min(inner - start, kSlice), first = start * stride;
            const T* slice = b + (panel * inner + start) * kPanel;
            const bool sum = add || start > 0;
            int64_t r = 0;
            for (; r + kRows <= rows; r += kRows) {
                product_tile<kRows>(a + r, first, stride, slice, depth, out + r, at, sum);
            }
            for (; r + 2 <= rows; r += 2) {
                product_tile<2>(a + r, first, stride, slice, depth, out + r, at, sum);
            }
            for (; r < rows; ++r) {
                product_tile<1>(a + r, first, stride, slice, depth, out + r, at, sum);
            }
        }
    }
}
