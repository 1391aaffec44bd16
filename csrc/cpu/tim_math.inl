// Functions of vectors that TIM needs beside exp.

// Terms of the series of log that are not hidden by rounding.
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

// exp(x) - 1 for x <= kHighest, without cancellation near zero; -1 where exp is zero.
template <typename T>
static inline Vec<T> vexpm1(Vec<T> x) {
    using L = Lanes<T>;
    using BitVec = typename Simd<T>::BitVec;
    x = vmax<T>(x, splat(L::kLowest));
    const Vec<T> shifted = x * L::kLog2e + L::kMagic;
    const Vec<T> n = shifted - L::kMagic;
    const Vec<T> r = (x - n * L::kLn2High) - n * L::kLn2Low;
    const BitVec exponent = reinterpret_cast<BitVec>(shifted) << L::kMantissaBits;
    const Vec<T> power = reinterpret_cast<Vec<T>>(reinterpret_cast<BitVec>(splat(T(1))) + exponent);
    return expm1_polynomial(r) * power + (power - T(1));
}

template <typename T>
static inline Vec<T> vsqrt(Vec<T> x) {
    for (int lane = 0; lane < Simd<T>::kLanes; ++lane) x[lane] = T(__builtin_sqrt(x[lane]));
    return x;
}

template <typename T>
struct TimVectorMath {
    static inline Vec<T> log(Vec<T> x) { return vlog<T>(x); }
    static inline Vec<T> expm1(Vec<T> x) { return vexpm1<T>(x); }
    static inline Vec<T> sqrt(Vec<T> x) { return vsqrt<T>(x); }
    static inline Vec<T> min(Vec<T> a, Vec<T> b) { return vmin<T>(a, b); }
    static inline Vec<T> max(Vec<T> a, Vec<T> b) { return vmax<T>(a, b); }
    static inline Vec<T> all(T value) { return splat(value); }
};
