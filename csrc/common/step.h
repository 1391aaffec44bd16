// The late step of `adaptive`: the algebra shared by CPU and CUDA.
//
// Query q of class k with probability u has weight W = trust u^2, trust = Q / (Q + K). With n
// labelled rows in the class, s the weighted sum of all rows and m = n + sum_q W their mass, the
// logit of a query is
//   share (f (x.s / m - s.s / (2 m^2)) + hub_k) + ln(c_k (N_k - w u) + a m_k),
// s and m without the query itself, hub_k the bias without -f/2 times the square of the prototype,
// share = late_share(a), N_k the count of the class in the batch, c_k = kept_share, a m_k its prior
// and w the weight of a query in the counts. The last term is ln c_k + ln(N_k - w u + a m_k / c_k),
// of which ln c_k is a constant.
#pragma once

#include <cstdint>

#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

// The measure of a task's Dirichlet prior, [K]; null: 1 for all classes.
template <typename Real>
PADDLE_EXT_HD const Real* chosen_measure(const StepParams& p, int64_t task) {
    if (p.measures == nullptr) return nullptr;
    return static_cast<const Real*>(p.measures) + (task * p.priors + p.chosen[task]) * p.K;
}

// The sum of counts and priors over the classes.
template <typename Real>
PADDLE_EXT_HD Real total_count(double weight, int64_t Q, int64_t K, Real a) {
    return Real(weight) * Real(Q) + Real(K) * a;
}

// How far queries may move a prototype: less where there is hardly a query per class.
PADDLE_EXT_HD double trust_of(int64_t Q, int64_t K) { return double(Q) / double(Q + K); }

// The share of a class in the batch, from its labels and the sum of its probabilities: labels are
// better if few classes are present, so probabilities count by the share of classes with a label.
template <typename Real>
PADDLE_EXT_HD Real class_share(Real counted, Real held, Real labelled, int64_t Q) {
    return (counted + labelled * (held - counted)) / Real(Q);
}

// The chance that two queries are of different classes, by the Dirichlet prior.
template <typename Real>
PADDLE_EXT_HD Real chance_of_two_classes(Real a, int64_t K) {
    return Real(K - 1) * a / (1 + Real(K) * a);
}

// How much the count of a class counts: the same queries are in its prototype already.
template <typename Real>
PADDLE_EXT_HD Real kept_share(Real count, Real shots, Real two_classes) {
    return 1 - two_classes * count / (count + shots);
}

template <typename Real>
PADDLE_EXT_HD Real query_weight(Real u, Real trust) {
    return trust * u * u;
}

// The caller applies f. `cross` is x.n w_k, `inner` is the product with the weighted sum of the
// queries, `self` is x.x.
template <typename Real>
PADDLE_EXT_HD Real half_distance(Real weight, Real cross, Real inner, Real self, Real square,
                                 Real mass) {
    const Real all = cross + inner, alone = all - weight * self, share = 1 / (mass - weight);
    return alone * share - Real(0.5) * (square - weight * (all + alone)) * share * share;
}

}  // namespace paddle_ext
