// Class proportions of a batch, and the gamma functions they need: the algebra that CPU and CUDA
// share.
#pragma once

#include <cmath>

#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

// --- gamma functions -----------------------------------------------------------------------------
//
// digamma, trigamma and the logarithm of the gamma function, for x > 0, in double. The recurrence
// shifts x up by kShift = 6: with P(x) = x (x + 1) ... (x + 5),
//   digamma(x)  = digamma(x + 6) - P'/P
//   trigamma(x) = trigamma(x + 6) + (P'/P)^2 - P''/P
//   lgamma(x)   = lgamma(x + 6) - ln P
// and the asymptotic series at x + 6 has a relative error of at most 2e-12. There are no branches,
// so scalars and vectors run the same code.
constexpr double kShift = 6.0;

template <typename Real>
struct Polygamma {
    Real digamma, trigamma;
};

// P.
template <typename Real>
PADDLE_EXT_HD Real rising_product(Real x) {
    const Real t = x * (x + 5.0);
    return t * (t + 4.0) * (t + 6.0);
}

// `log_shifted` is ln(x + kShift): vectors have their own logarithm.
template <typename Real>
PADDLE_EXT_HD Polygamma<Real> polygamma(Real x, Real log_shifted) {
    // P is a polynomial of t = x (x + 5), and w = dt/dx.
    const Real t = x * (x + 5.0), w = 2.0 * x + 5.0;
    const Real inverse = 1.0 / rising_product(x);
    const Real slope = (3.0 * t + 20.0) * t + 24.0;
    const Real first = w * slope * inverse;                                  // P'/P
    const Real second = (2.0 * slope + w * w * (6.0 * t + 20.0)) * inverse;  // P''/P
    const Real r = 1.0 / (x + kShift), s = r * r;
    const Real digamma =
        log_shifted - 0.5 * r -
        s * (1.0 / 12 -
             s * (1.0 / 120 -
                  s * (1.0 / 252 -
                       s * (1.0 / 240 - s * (1.0 / 132 - s * (691.0 / 32760 - s * (1.0 / 12)))))));
    const Real trigamma =
        r *
        (1.0 + 0.5 * r +
         s * (1.0 / 6 -
              s * (1.0 / 30 -
                   s * (1.0 / 42 -
                        s * (1.0 / 30 - s * (5.0 / 66 - s * (691.0 / 2730 - s * (7.0 / 6))))))));
    return {digamma - first, trigamma + (first * first - second)};
}

PADDLE_EXT_HD Polygamma<double> polygamma(double x) { return polygamma(x, log(x + kShift)); }

// The logarithms are those of x + kShift and of P.
template <typename Real>
PADDLE_EXT_HD Real log_gamma(Real x, Real log_shifted, Real log_product) {
    const Real y = x + kShift, r = 1.0 / y, s = r * r;
    const Real series =
        r *
        (1.0 / 12 -
         s * (1.0 / 360 -
              s * (1.0 / 1260 -
                   s * (1.0 / 1680 - s * (1.0 / 1188 - s * (691.0 / 360360 - s * (1.0 / 156)))))));
    constexpr double kHalfLog2Pi = 0.9189385332046727;
    return (y - 0.5) * log_shifted - y + kHalfLog2Pi + series - log_product;
}

PADDLE_EXT_HD double log_gamma(double x) {
    return log_gamma(x, log(x + kShift), log(rising_product(x)));
}

// --- a learned Dirichlet prior -------------------------------------------------------------------
//
// Proportions pi ~ Dirichlet(a m_1, ..., a m_K), and a query q is of class k with probability pi_k.
// The measure m has the mean 1: it is 1 for all classes, or a prior that the caller gives, and 0 for
// an impossible class. With l the log-likelihoods and w the weight of a query in the counts, a
// variational Bayes iteration is
//   u_qk = softmax_k( l_qk + e_k )
//   N_k  = w sum_q u_qk
//   a    : a Newton step in ln a towards the maximum of the bound
//   e_k  = digamma(N_k + a m_k) - digamma(w Q + K a)      the mean of ln pi_k
// Each step increases the bound
//   w sum_q (ln sum_k exp(l_qk + e_k) - sum_k u_qk e_k)
//     + ln G(K a) - ln G(w Q + K a) + sum_k (ln G(N_k + a m_k) - ln G(a m_k)).
// Of several measures, the one with the largest bound is used. The first is even, from a = 1. Under
// the others a starts at its largest value, for which e = ln m, and may not get smaller than under
// the first, or they would win wherever few classes are present, whatever they say. They are given
// up early if they are out of reach of the best: see Race.

constexpr double kFirstConcentration = 1.0;
// Outside these bounds the proportions are one class, or uniform, to any precision.
constexpr double kMinConcentration = 1e-4;
constexpr double kMaxConcentration = 1e4;

// e of an impossible class, and ln 0: stands for minus infinity.
constexpr double kImpossible = -1e30;

// e at the start.
template <typename Real>
PADDLE_EXT_HD Real first_dual(Real m) {
    return m > 0 ? Real(log(m)) : Real(kImpossible);
}

// The slope of the bound in a and its curvature are sums of a term for each class and one more.
struct PriorTerm {
    double slope, curvature;
};

PADDLE_EXT_HD PriorTerm class_term(double count, double a, double m) {
    if (!(m > 0)) return {0, 0};
    const Polygamma<double> with = polygamma(count + a * m), without = polygamma(a * m);
    return {m * (with.digamma - without.digamma), m * m * (with.trigamma - without.trigamma)};
}

PADDLE_EXT_HD PriorTerm whole_term(double a, double total, double K) {
    const Polygamma<double> with = polygamma(total + K * a), without = polygamma(K * a);
    return {K * (without.digamma - with.digamma), K * K * (without.trigamma - with.trigamma)};
}

// The next concentration. Each iteration changes it by at most a factor e: a prior that runs ahead
// of the counts ends in a worse maximum.
template <typename Real>
PADDLE_EXT_HD Real next_concentration(Real a, Real slope, Real curvature, Real least) {
    const Real first = a * slope, second = first + a * a * curvature;  // in ln a
    Real step = second < 0 ? -first / second : Real(first > 0 ? 1 : (first < 0 ? -1 : 0));
    step = step < -1 ? Real(-1) : (step > 1 ? Real(1) : step);
    const Real next = a * exp(step);
    return next < least ? least : next > Real(kMaxConcentration) ? Real(kMaxConcentration) : next;
}

// The parts of the bound that are independent of individual queries: of a class, and of all.
PADDLE_EXT_HD double class_bound(double count, double a, double m, double e) {
    return m > 0 ? log_gamma(count + a * m) - log_gamma(a * m) - count * e : 0;
}

PADDLE_EXT_HD double whole_bound(double a, double total, double K) {
    return log_gamma(K * a) - log_gamma(total + K * a);
}

// Whether a measure can still win. After 1, 2, 4, .. iterations its bound is compared with the best:
// if as many iterations again added as much as those since the last comparison, on average, would it
// get there?
struct Race {
    double rival = -HUGE_VAL;  // the best bound so far; none: there is nothing left to decide
    double earlier = 0;        // the bound at the last comparison

    PADDLE_EXT_HD bool decided() const { return rival == -HUGE_VAL; }

    PADDLE_EXT_HD bool due(int done) const {
        return !decided() && done > 0 && (done & (done - 1)) == 0;
    }

    PADDLE_EXT_HD bool lost(double bound, int done) {
        const double growth = bound - earlier;  // in half of the iterations done
        earlier = bound;
        if (bound > rival) rival = -HUGE_VAL;  // it has won: no iteration lowers the bound
        return done > 1 && bound + 2 * growth < rival;
    }
};

// --- the dual of an iteration --------------------------------------------------------------------
//
// From the counts of a batch, N_k = sum_q u_qk:
//   kPaddle      v_k = 1 + ln( N_k / Q + epsilon )
//   kDirichlet   v_k = digamma(N_k + a m_k) - digamma(Q + K a), after one step of a

// The prior of a task, and the state of its learning.
struct Proportions {
    bool dirichlet;
    double Q, K, epsilon;
    double concentration;  // a
    double whole;          // digamma(Q + K a)

    PADDLE_EXT_HD Proportions(Prior prior, double Q, double K, double epsilon)
        : dirichlet(prior == Prior::kDirichlet), Q(Q), K(K), epsilon(epsilon),
          concentration(kFirstConcentration), whole(0) {}

    // A Newton step, from the sums over the classes of the slope and the curvature of the bound; or
    // none. One class holds all queries under any prior: the slope is a difference of two logarithms.
    PADDLE_EXT_HD void learn(double slope, double curvature, double least, bool learns) {
        const PriorTerm whole_part = whole_term(concentration, Q, K);
        slope += whole_part.slope;
        curvature += whole_part.curvature;
        if (learns && K > 1) {
            concentration = next_concentration(concentration, slope, curvature, least);
        }
        whole = polygamma(Q + K * concentration).digamma;
    }

    PADDLE_EXT_HD double dual(double held, double measure) const {
        if (!dirichlet) return 1.0 + log(held / Q + epsilon);
        return measure > 0 ? polygamma(held + concentration * measure).digamma - whole
                           : kImpossible;
    }
};

}  // namespace paddle_ext
