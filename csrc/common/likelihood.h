// Likelihoods of labelled rows, and what queries make of them: the algebra that CPU and CUDA share.
// The equations are in docs/adaptive.md.
#pragma once

#include "common/math.h"

namespace paddle_ext {

constexpr double kNoise =
    0.6;  // share of the noise of a class mean that is taken off its distances

// A row that calibrates is so much farther from the mean of the others of its class, in squares.
template <typename Real>
PADDLE_EXT_HD Real left_out_rate(Real shots) {
    const Real n = shots > 2 ? shots : Real(2);
    return (n + 1) / (n - 1);
}

// What a row that is `off` its class mean says of the scatter inside the classes.
template <typename Real>
PADDLE_EXT_HD Real scatter_of(Real off, Real shots) {
    const Real n = shots > 2 ? shots : Real(2);
    return off * n / (n - 1);
}

// A class that draws more of the rows of others than the mean one gets less; `rows` of them a class.
template <typename Real>
PADDLE_EXT_HD Real hub_bias(Real drawn, Real mean, Real rows) {
    return -log1p((drawn - mean) / (rows + 1));
}

// What the logits of the late step count where the concentration is a: less if few classes are there.
template <typename Real>
PADDLE_EXT_HD Real late_share(Real a) {
    return 1 - Real(0.7) / (1 + a / Real(0.02));
}

constexpr double kOneShotTemper = 0.7;  // of probabilities that nothing calibrated

// With one shot, the share of the logits of the nearest class mean.
template <typename Real>
PADDLE_EXT_HD Real plain_share(Real a, Real weight) {
    return Real(0.5) * (1 - weight) * a / (10 + a);
}

// Whether the products of all queries with one another are less work than sums of queries.
PADDLE_EXT_HD bool has_gram(double Q, double D, double K) { return Q * (D + K) <= 2 * D * K; }

}  // namespace paddle_ext
