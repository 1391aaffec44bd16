// Arithmetic shared by CPU and CUDA: every rule and threshold is defined once.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define PADDLE_EXT_HD __host__ __device__ inline
#else
#define PADDLE_EXT_HD inline
#endif

namespace paddle_ext {

// The numbers of an array of a call, from `at` on.
template <typename Real, typename Base>
PADDLE_EXT_HD auto* reals(Base* base, int64_t at = 0) {
    return static_cast<std::conditional_t<std::is_const_v<Base>, const Real, Real>*>(base) + at;
}

template <typename Real>
constexpr Real kLog2e = Real(1.4426950408889634);

// Rows for the tensor cores are split into halves, in groups of so many numbers: cuda/mma.cuh. In
// `adaptive` numbers are at most 1.5 in rows (a feature weighs at most 2) and the root of
// kCovarianceRows in factors; times kSplitFactor, their low halves keep their bits.
constexpr int kGroup = 32;
constexpr float kSplitFactor = 64.0f;

// scaling="auto": the lead of the nearest class over the median class in squared distance
// (measured: docs/solver.md), ...
constexpr double kAutoGap = 13.0;
// ... unless there is no lead: zero, or within rounding of the distance.
constexpr double kAutoMinGap = 1e-12;
constexpr double kAutoMinShare = 1e-5;

// Squared factor that "auto" applies to a task, from two means over its queries: the squared
// distance to the median class, and the lead of the nearest class.
PADDLE_EXT_HD double auto_factor_squared(double gap, double median) {
    return gap > fmax(kAutoMinGap, kAutoMinShare * median) ? kAutoGap / gap : 1.0;
}

// A task is computed in coordinates where its queries have size one, and its scale is folded into
// the temperature. Beyond the cap the softmax is a hard choice for every difference that the
// precision resolves; a prototype beyond kFarAway (per shot) is far from every query. Together they
// keep all products finite, whatever the scale of the inputs.
template <typename Real>
struct Range {
    static constexpr bool kSingle = sizeof(Real) == sizeof(float);
    static constexpr double kMaxTemperature = kSingle ? 1e15 : 1e60;
    static constexpr double kMaxWeight = kSingle ? 1e30 : 1e60;
    static constexpr double kFarAway = kSingle ? 1e9 : 1e60;
    // Of a common offset, relative to it.
    static constexpr double kOffsetResolution = kSingle ? 1e-6 : 1e-14;
    // 2^-this, which scales a task up, does not overflow.
    static constexpr int kMinExponent = kSingle ? -120 : -1000;
    static constexpr double kMinSpread =
        kSingle ? 1e-37 : 1e-300;  // a smaller range counts as zero
    // Outside, squares lose bits or overflow.
    static constexpr double kMinSquaredNorm = kSingle ? 1e-30 : 1e-250;
    static constexpr double kMaxSquaredNorm = kSingle ? 1e30 : 1e250;
    // Beyond every computed value but still finite: the difference of two is zero, not NaN.
    static constexpr Real kInfinity = kSingle ? Real(3e38f) : Real(1.7e308);
    static constexpr Real kMinusInfinity = -kInfinity;
};

// The unit of a task whose largest coordinate is `reach`: the next power of two above it, but none
// whose inverse overflows; 1 if `reach` is 0.
template <typename Real>
PADDLE_EXT_HD double unit_for(double reach) {
    int exponent;
    ::frexp(reach, &exponent);
    return ::ldexp(1.0,
                   exponent < Range<Real>::kMinExponent ? Range<Real>::kMinExponent : exponent);
}

template <typename Real>
PADDLE_EXT_HD double folded_temperature(double temperature, double factor_squared) {
    return fmin(temperature * factor_squared, Range<Real>::kMaxTemperature);
}

// Prototypes beyond kFarAway are clamped to it. This changes nothing if every query there is out of
// their reach and other prototypes are nearer by this factor. Otherwise the unit is too small for
// the task and grows by a power of two: until the farthest prototype is within kFarAway if the
// temperature is so low that it may matter, else until the nearest is well within.
constexpr double kNearFar = 1024.0;

template <typename Real>
PADDLE_EXT_HD bool is_decisive(double temperature, double unit) {
    return temperature * unit * unit * Range<Real>::kFarAway >= 1.0;
}

// The power of two by which a unit must grow for a length to fit in kFarAway.
template <typename Real>
PADDLE_EXT_HD int exponent_beyond(double length) {
    int exponent, limit;
    ::frexp(length, &exponent);
    ::frexp(Range<Real>::kFarAway, &limit);
    return exponent < limit ? 0 : exponent - limit + 1;
}

// Added to the proportions inside the logarithm, on CUDA: a smaller or larger one would have none.
PADDLE_EXT_HD float bounded_epsilon(double epsilon) {
    return float(fmin(fmax(epsilon, 1e-37), 1e37));
}

// lam / |Q|, the weight of the dual in the logits.
template <typename Real>
PADDLE_EXT_HD double dual_weight(double lam, double Q) {
    return fmin(lam / Q, Range<Real>::kMaxWeight);
}

// Probabilities too small to matter: those hidden by the rounding of the logits, and smaller than
// epsilon, which defines an empty class.
struct Thresholds {
    // A change below quiet + quiet_share * u is deferred; it counts once it has grown.
    double quiet, quiet_share;
    // A class whose probabilities are all below this leaves the softmax. Its dual is frozen while
    // it is away, and is accurate to a tenth when it leaves. Its share of a row stays in the row's
    // sum.
    double sleep;
    // All classes return as soon as the absent ones would hold more than this share of a row.
    double wake;
};

// The logits contain `weight` times the dual, so a larger weight needs a more accurate dual. In
// single precision, rounding of the logits hides 5e-7 of a probability. 2e-5 of a row, which may
// have a stale dual, is well below the guaranteed 1e-4; in double precision both are below the
// guaranteed 1e-10.
PADDLE_EXT_HD Thresholds thresholds(bool single_precision, double epsilon, double weight,
                                    double K) {
    epsilon /= fmax(weight, 1.0);
    if (single_precision) {
        const double wake = fmin(2e-5, 20.0 * epsilon);
        return {fmin(1e-9, 1e-3 * epsilon), 5e-7, fmin(0.1 * epsilon, 0.5 * wake / K), wake};
    }
    const double wake = fmin(1e-13, 1e-7 * epsilon);
    return {1e-3 * wake, 1e-15, fmin(1e-2, 0.5 / K) * wake, wake};
}

// ||dw_k|| of one class from the change of the u-step: with N w = s + sum_q u_q z_q,
//   N' (w' - w) = sum_q du_q (z_q - w),
// so the square needs sum du, sum du (G du) and sum du (N z.w), all as small as the change: there
// is no difference of large squared norms, which single precision could not resolve.
template <typename Real>
PADDLE_EXT_HD Real prototype_shift(Real sum_du, Real sum_du_gdu, Real sum_du_m, Real mass_before,
                                   Real norm_before, Real mass_after) {
    const Real ratio = sum_du / mass_before;
    const Real squared = sum_du_gdu - 2 * ratio * sum_du_m + ratio * ratio * norm_before;
    return squared > 0 ? sqrt(squared) / mass_after : Real(0);
}

// Validation rejects a class without support; without validation it must not divide by zero. One
// support row weighs 1, so no mass in use is near the bound.
template <typename Real>
PADDLE_EXT_HD Real safe_mass(Real mass) {
    return mass > Real(1e-12) ? mass : Real(1e-12);
}

}  // namespace paddle_ext
