// The late step of `adaptive`: the algebra shared by CPU and CUDA.
//
// Query q of class k with probability u has weight W = (u (1 - a / t_k))^2, with t_k = N_k + a the
// count of the class in the batch plus its prior a. With n labelled rows in the class, s the
// weighted sum of all rows and m = n + sum_q W their mass, the logit of a query is
//   f (x.s / m - s.s / (2 m^2)) + constant_k + ln(t_k - w u),
// s and m without the query itself, w the weight of a query in the counts.
#pragma once

#include "common/math.h"

namespace paddle_ext {

// 1 - a / t_k: how much the queries of a class are trusted.
template <typename Real>
PADDLE_EXT_HD Real trust_of(Real total, Real prior) {
    return total > prior ? 1 - prior / total : Real(0);
}

template <typename Real>
PADDLE_EXT_HD Real query_weight(Real u, Real trust) {
    return (u * trust) * (u * trust);
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
