// Class proportions of a batch with a learned Dirichlet prior, from the log-likelihoods of its
// queries: the algebra that CPU and CUDA share.
//
// Proportions pi ~ Dirichlet(a, ..., a), and a query q is of class k with probability pi_k. With l
// the log-likelihoods and w the weight of a query in the counts, a variational Bayes iteration is
//   u_qk = softmax_k( l_qk + e_k )
//   N_k  = w sum_q u_qk
//   a    : a Newton step in ln a towards the maximum of the bound
//   e_k  = digamma(N_k + a) - digamma(w Q + K a)          the mean of ln pi_k
// Each step increases the bound
//   w sum_q (ln sum_k exp(l_qk + e_k) - sum_k u_qk e_k)
//     + ln G(K a) - K ln G(a) - ln G(w Q + K a) + sum_k ln G(N_k + a).
#pragma once

#include "common/gamma.h"

namespace paddle_ext {

constexpr double kFirstConcentration = 1.0;
// Outside these bounds the proportions are one class, or uniform, to any precision.
constexpr double kMinConcentration = 1e-4;
constexpr double kMaxConcentration = 1e4;

// The slope of the bound in a and its curvature are sums of K + 3 terms, one for each class and for
// a, K a and total + K a, so that threads can share them.
struct PriorTerm {
    double slope, curvature;
};

PADDLE_EXT_HD PriorTerm class_term(double count, double a) {
    const Polygamma<double> own = polygamma(count + a);
    return {own.digamma, own.trigamma};
}

PADDLE_EXT_HD PriorTerm prior_term(int which, double a, double total, double K) {
    const Polygamma<double> found = polygamma(which == 0 ? a : which == 1 ? K * a : total + K * a);
    const double first = which == 1 ? K : -K, second = which == 0   ? -K
                                                       : which == 1 ? K * K
                                                                    : -K * K;
    return {first * found.digamma, second * found.trigamma};
}

// The next concentration. Each iteration changes it by at most a factor e: a prior that runs ahead
// of the counts ends in a worse maximum.
template <typename Real>
PADDLE_EXT_HD Real next_concentration(Real a, Real slope, Real curvature) {
    const Real first = a * slope, second = first + a * a * curvature;  // in ln a
    Real step = second < 0 ? -first / second : Real(first > 0 ? 1 : (first < 0 ? -1 : 0));
    step = step < -1 ? Real(-1) : (step > 1 ? Real(1) : step);
    const Real next = a * exp(step);
    return next < Real(kMinConcentration)   ? Real(kMinConcentration)
           : next > Real(kMaxConcentration) ? Real(kMaxConcentration)
                                            : next;
}

// The part of the bound that is independent of individual queries and classes.
PADDLE_EXT_HD double prior_bound(double a, double total, double K) {
    return log_gamma(K * a) - K * log_gamma(a) - log_gamma(total + K * a);
}

}  // namespace paddle_ext
