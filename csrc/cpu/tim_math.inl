// Vector functions that TIM needs in addition to exp.

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
