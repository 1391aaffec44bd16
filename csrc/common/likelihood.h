// Likelihoods from labelled rows and how they apply to queries: the algebra shared by CPU and CUDA.
// The equations are in docs/adaptive.md.
#pragma once

#include "common/labelled.h"
#include "common/math.h"

namespace paddle_ext {

// A row that is not among the n rows of a mean is farther from it than one of them, by this factor
// in squared distance on average. Calibration rows are treated as if they were not among them.
template <typename Real>
PADDLE_EXT_HD Real left_out_rate(Real shots) {
    const Real n = shots > 2 ? shots : Real(2);
    return (n + 1) / (n - 1);
}

// A mean of n rows misses the true mean of its class by variance / n in squared distance, on
// average, and queries of the class are that much farther from it. Returns how much more this is
// than for a class of mean_shots rows.
template <typename Real>
PADDLE_EXT_HD Real excess_distance(Real variance, Real shots, Real mean_shots) {
    return variance / (shots > 1 ? shots : Real(1)) -
           variance / (mean_shots > 1 ? mean_shots : Real(1));
}

// An estimate of the variance within a class from one of its rows, whose squared distance to the
// mean of all of them is `square`.
template <typename Real>
PADDLE_EXT_HD Real variance_by(Real square, Real shots) {
    const Real n = shots > 2 ? shots : Real(2);
    return square * n / (n - 1);
}

// The full metric is A = (V^T V / scatter + 1)^-1, with V the offsets [S, D] of labelled rows from
// the means of their classes, and `scatter` their mean squared length, see mean_scatter. It is found
// in the space of the rows if there are fewer of them than features, else in that of the features:
// with L L^T = 1 + V V^T / scatter, or 1 + V^T V / scatter, of M x M numbers,
//   by rows      x A y = x.y - (Z x).(Z y) / scatter,  Z = L^-1 V,
//   by features  x A y = (Z x).(Z y),                  Z = L^-1.
// Since A V^T = V^T (1 + V V^T / scatter)^-1, the product v A w of an offset v and any row w is
// z.(Z w), with z = L^-1 e for the unit vector e of the offset, or z = Z v by features, and v A v is
// scatter (1 - z.z), or z.z.
//
// L is padded to M' columns, whole blocks, by those of the unit matrix. Its diagonal blocks are
// stored as their inverses.
constexpr int64_t kFactorBlock = 64;

PADDLE_EXT_HD int64_t factor_columns(int64_t M) {
    return (M + kFactorBlock - 1) / kFactorBlock * kFactorBlock;
}

// Of S rows in K classes, from the sum of squares of V. From kMostRows rows on they count as many,
// so that the numbers of L stay in the range of halves.
constexpr double kMostRows = 1 << 17;

PADDLE_EXT_HD double mean_scatter(double squares, int64_t S, int64_t K) {
    const double rows = fmin(double(S > K ? S - K : 1), kMostRows);
    return squares / rows + rows * kNoScatter;  // the rounding of every row adds up in V^T V
}

// Weights of the full metric that calibration rows choose from are 0, 1/4, .. 1. The weight grows
// while the log-likelihood of their labels is less than this below the best: one standard error.
constexpr int kMixtureSteps = 4;
constexpr double kStandardError = 0.5;

// A labelled row and the full metric A without it: removing the row removes n/(n-1) v v^T from the
// scatter within the classes, where v is its offset from the mean of its class, so distances follow
// from those in A = (V^T V / scatter + 1)^-1.
template <typename Real>
struct LeftOutRow {
    Real own;    // squared distance to the mean of the other rows of its class
    Real along;  // v A x
    Real share;  // of a squared product with v in a squared distance

    // From the rows of the class, v A v and v A w, w the mean of its class.
    PADDLE_EXT_HD LeftOutRow(Real shots, Real square, Real along_mean, Real scatter) {
        const Real n = shots > 2 ? shots : Real(2), cut = n / ((n - 1) * scatter);
        const Real kept = 1 - cut * square, part = kept > Real(1e-3) ? kept : Real(1e-3);
        own = left_out_rate(shots) * square / part;
        along = square + along_mean;
        share = cut / part;
    }

    // Squared distance to another class mean w minus x A x, from w A w, x A w and v A w.
    PADDLE_EXT_HD Real distance(Real square, Real cross, Real along_other) const {
        const Real away = along - along_other;
        return square - 2 * cross + share * away * away;
    }
};

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
