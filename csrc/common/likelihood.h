// Likelihoods from labelled rows and how they apply to queries: the algebra shared by CPU and CUDA.
// The equations are in docs/adaptive.md.
#pragma once

#include "common/math.h"

namespace paddle_ext {

// A calibration row is farther, by this factor in squared distance, from the mean of the rest of
// its class.
template <typename Real>
PADDLE_EXT_HD Real left_out_rate(Real shots) {
    const Real n = shots > 2 ? shots : Real(2);
    return (n + 1) / (n - 1);
}

// A class that attracts more rows of other classes than average gets a lower bias; `rows` per
// class.
template <typename Real>
PADDLE_EXT_HD Real hub_bias(Real drawn, Real mean, Real rows) {
    return -log1p((drawn - mean) / (rows + 1));
}

// Weight of the logits of the late step at concentration a: lower if few classes are present.
template <typename Real>
PADDLE_EXT_HD Real late_share(Real a) {
    return 1 - Real(0.7) / (1 + a / Real(0.02));
}

// Whether the Gram matrix of the queries is less work than sums of queries.
PADDLE_EXT_HD bool has_gram(double Q, double D, double K) { return Q * (D + K) <= 2 * D * K; }

}  // namespace paddle_ext
