// Class proportions of a batch with a learned Dirichlet prior, from the log-likelihoods of its
// queries: the algebra that CPU and CUDA share.
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
#pragma once

#include <cmath>

#include "common/gamma.h"

namespace paddle_ext {

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

}  // namespace paddle_ext
