// TIM's arithmetic, shared by CPU and CUDA: the loss, its derivatives, the steps.
//
// With p the softmax of the logits and e = kTimEpsilon, the entropies of order a are
//     H_a(p) = -sum_k (p_k + e) ln_a(p_k + e),     ln_a(x) = (x^(a-1) - 1) / (a-1),
// and Shannon's at a = 1, where ln_1 = ln and the factor is p_k alone. A derivative g = dL/dp by
// the probabilities gives p_k (g_k - sum_j p_j g_j) by the logits: constants in g cancel, so slopes
// of all orders come from ln_a, which is stable near a = 1.
//
// V is a scalar or a vector; Math provides log, expm1, sqrt, min, max and all (equal) for it.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace paddle_ext {

constexpr double kTimEpsilon = 1e-12;
// The cross-entropy of order a > 1 is a power with a negative exponent. Beyond 1e15, whose
// logarithm this is, it continues as its tangent in ln p: no precision could square the slope of
// the power itself.
constexpr double kTimLogMaxPower = 34.538776394910684;
constexpr double kAdamBeta1 = 0.9, kAdamBeta2 = 0.999, kAdamEpsilon = 1e-8;

// The range in which Adam can square a number.
template <typename Real>
struct TimRange {
    static constexpr bool kSingle = sizeof(Real) == sizeof(float);
    static constexpr double kMaxGradient = kSingle ? 1e18 : 1e150;
    static constexpr double kMinAdamEpsilon = kSingle ? 1e-18 : 1e-150;
    static constexpr double kMaxAdamEpsilon = kSingle ? 1e36 : 1e300;
    static constexpr double kMaxRate = kSingle ? 1e30 : 1e200;
    static constexpr double kMaxLog = kMaxRate;
};

// Scalar version.
struct TimMath {
    PADDLE_EXT_HD static float log(float x) { return ::logf(x); }
    PADDLE_EXT_HD static double log(double x) { return ::log(x); }
    PADDLE_EXT_HD static float expm1(float x) { return ::expm1f(x); }
    PADDLE_EXT_HD static double expm1(double x) { return ::expm1(x); }
    PADDLE_EXT_HD static float sqrt(float x) { return ::sqrtf(x); }
    PADDLE_EXT_HD static double sqrt(double x) { return ::sqrt(x); }
    template <typename Real>
    PADDLE_EXT_HD static Real all(Real value) {
        return value;
    }
    template <typename Real>
    PADDLE_EXT_HD static Real min(Real a, Real b) {
        return a < b ? a : b;
    }
    template <typename Real>
    PADDLE_EXT_HD static Real max(Real a, Real b) {
        return a > b ? a : b;
    }
};

// An entropy's order; `inverse` is unused for Shannon's.
template <typename Real>
struct TimOrder {
    bool shannon;
    Real alpha, less_one, inverse;  // a, a - 1, 1 / (a - 1)

    PADDLE_EXT_HD explicit TimOrder(double a)
        : shannon(a == 1.0), alpha(Real(fmin(a, TimRange<Real>::kMaxLog))),
          less_one(Real(fmin(a - 1.0, TimRange<Real>::kMaxLog))),
          inverse(shannon ? Real(0) : Real(1.0 / (a - 1.0))) {}
};

// ln_a(p + e)
template <typename Math = TimMath, typename V, typename Real>
PADDLE_EXT_HD V tim_log(V p, const TimOrder<Real>& order) {
    const V log = Math::log(p + Real(kTimEpsilon));
    if (order.shannon) return log;
    return Math::expm1(Math::min(log, Math::all(Real(0))) * order.less_one) * order.inverse;
}

// The term of one class in an entropy, from p (or the mean of p) and its tim_log.
template <typename V, typename Real>
PADDLE_EXT_HD V tim_entropy(V p, V log, const TimOrder<Real>& order) {
    return order.shannon ? -(p * log) : -((p + Real(kTimEpsilon)) * log);
}

// dH/dp, up to a constant.
template <typename V, typename Real>
PADDLE_EXT_HD V tim_entropy_slope(V p, V log, const TimOrder<Real>& order) {
    return order.shannon ? -(log + p / (p + Real(kTimEpsilon))) : -(log * order.alpha);
}

// dL/dlogit of a query and a class, from g_k and sum_j p_j g_j. Adam turns even tiny gradients into
// full steps, so their rounding matters: first subtract the g of the query's most probable class
// from all its g, so that 1 - p is never computed by subtraction.
template <typename V>
PADDLE_EXT_HD V tim_query_derivative(V p, V slope, V mean_slope) {
    return p * (slope - mean_slope);
}

// Cross-entropy of order a of a support row whose own class has probability p.
template <typename Math = TimMath, typename V, typename Real>
PADDLE_EXT_HD V tim_cross_entropy(V p, const TimOrder<Real>& order) {
    const V surprise = -Math::log(p + Real(kTimEpsilon));
    if (order.shannon) return surprise;
    const V exponent = surprise * order.less_one;
    const V bounded = Math::min(exponent, Math::all(Real(kTimLogMaxPower)));
    const V power = Math::expm1(bounded);  // less one
    return (power + (power + Real(1)) * (exponent - bounded)) * order.inverse;
}

// The factor r of a support row's derivatives, dCE/dlogit_k = r (p_k - y_k), where p is the
// probability of its class. For that class use -r times the sum of the other p: see above.
template <typename Math = TimMath, typename V, typename Real>
PADDLE_EXT_HD V tim_support_factor(V p, const TimOrder<Real>& order) {
    const V certain = p + Real(kTimEpsilon);
    const V ratio = p / certain;
    if (order.shannon) return ratio;
    const V exponent = -Math::log(certain) * order.less_one;
    const V bounded = Math::min(exponent, Math::all(Real(kTimLogMaxPower)));
    return ratio * (Math::expm1(bounded) + Real(1));
}

// A power of two above everything that forms a task's coordinates: its largest centred coordinate
// and, for Adam, its steps. Dividing by it is exact; its inverse is finite too.
template <typename Real>
PADDLE_EXT_HD double tim_unit(double largest, double step) {
    const double reach = fmax(largest, step);
    return reach > 0 && reach < 1e300 ? unit_for<Real>(reach) : 1.0;
}

// A task in units of its largest centred coordinate. Adam's steps do not change if all gradients
// and its epsilon are divided by the same number: the derivatives omit the temperature and the unit
// and are divided by the largest weight, so that none of them can overflow or vanish.
//     gradient = sum_n A_nk x_n - w_k sum_n A_nk,     A = dL/dlogit / (largest weight).
template <typename Real>
struct TimUnits {
    double temperature;  // logit = temperature (x.w - w.w/2 - x.x/2)
    double rate;         // of Adam
    double epsilon;      // of Adam
    double weight[3];    // divided by the largest

    PADDLE_EXT_HD TimUnits(double unit, double temperature_in, double rate_in,
                           const double* weight_in) {
        const double largest = fmax(fmax(weight_in[0], weight_in[1]), weight_in[2]);
        temperature = folded_temperature<Real>(temperature_in * unit, unit);
        rate = fmin(rate_in / unit, TimRange<Real>::kMaxRate);
        epsilon = kAdamEpsilon / unit / temperature_in;
        if (largest > 0) epsilon /= largest;
        epsilon =
            fmin(fmax(epsilon, TimRange<Real>::kMinAdamEpsilon), TimRange<Real>::kMaxAdamEpsilon);
        for (int i = 0; i < 3; ++i) weight[i] = largest > 0 ? weight_in[i] / largest : 0.0;
    }
};

PADDLE_EXT_HD double tim_bias(double beta, int64_t iteration) {
    return 1.0 - ::pow(beta, double(iteration));
}

// One step of Adam, with the biases of its moments: tim_bias, iterations counted from 1.
template <typename Real>
struct TimAdam {
    Real rate;  // divided by the bias of the first moment
    Real root;  // 1 / sqrt(bias of the second moment)
    Real epsilon;

    PADDLE_EXT_HD TimAdam(double rate_in, double epsilon_in, double bias1, double bias2)
        : rate(Real(fmin(rate_in / bias1, TimRange<Real>::kMaxRate))),
          root(Real(1.0 / ::sqrt(bias2))), epsilon(Real(epsilon_in)) {}

    // Updates w; a prototype never leaves the range in which products of features are finite.
    template <typename Math = TimMath, typename V>
    PADDLE_EXT_HD void step(V gradient, V& first, V& second, V& w) const {
        const V most = Math::all(Real(TimRange<Real>::kMaxGradient));
        const V far = Math::all(Real(Range<Real>::kFarAway));
        const V g = Math::max(Math::min(gradient, most), -most);
        first = first * Real(kAdamBeta1) + g * Real(1.0 - kAdamBeta1);
        second = second * Real(kAdamBeta2) + (g * g) * Real(1.0 - kAdamBeta2);
        const V moved = w - (first * rate) / (Math::sqrt(second) * root + epsilon);
        w = Math::max(Math::min(moved, far), -far);
    }
};

// --- TIM-ADM ------------------------------------------------------------------------------------
//
// Everything in logarithms, l = ln P = logit - logsumexp(logits):
//     b_nk = exponent * l_nk,     c_k = logsumexp_n b_nk,     q_n = softmax_k(b_nk - power * c_k).

template <typename Real>
struct TimAlternating {
    Real exponent;        // 1 + l2
    Real power;           // l1 / (1 + l1)
    Real support, query;  // c_s, c_q: weights of Y - P_s and q - P_q
    Real rate;            // step fraction

    PADDLE_EXT_HD TimAlternating(const double* weight, double rate_in, double S, double Q)
        : exponent(Real(fmin(1.0 + weight[2], TimRange<Real>::kMaxLog))),
          power(Real(weight[1] / (1.0 + weight[1]))), support(Real(weight[0] / (1.0 + weight[2]))),
          query(Real(S / Q)), rate(Real(fmin(rate_in, TimRange<Real>::kMaxRate))) {}

    // b of a log-probability, clamped to be finite.
    template <typename Math = TimMath, typename V>
    PADDLE_EXT_HD V sharpened(V log) const {
        return Math::max(log * exponent, Math::all(Real(-TimRange<Real>::kMaxLog)));
    }

    // pull = sum_n A_nk x_n - w_k sum_n A_nk with A_s = support (Y - P_s), A_q = query (q - P_q);
    // mass = support n_k + query sum_n q_nk.
    template <typename Math = TimMath, typename V>
    PADDLE_EXT_HD V step(V pull, Real mass, V w) const {
        const V far = Math::all(Real(Range<Real>::kFarAway));
        const V moved = w + pull * (rate / safe_mass(mass));
        return Math::max(Math::min(moved, far), -far);
    }
};

}  // namespace paddle_ext
