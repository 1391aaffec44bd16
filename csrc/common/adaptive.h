// The algebra of `adaptive`, shared by CPU and CUDA: coordinates and feature scale from labelled
// rows, the sharpness, likelihoods, and the step in which prototypes absorb the queries. The
// equations are in docs/adaptive.md.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

constexpr double kPriorRows = 10.0;   // weight of the mean variance in that of a feature, in rows
constexpr double kNoScatter = 1e-10;  // squared distances below are rounding

// A unit-norm row this near to the centre is the centre, up to rounding.
template <typename Real>
constexpr Real kSame = sizeof(Real) == sizeof(double) ? Real(1e-12) : Real(1e-6);

// 1 / norm of a unit-norm row minus the centre; 0 if the row equals the centre up to rounding.
template <typename Real>
PADDLE_EXT_HD Real inverse_of_centred(Real squared) {
    return squared > kSame<Real> * kSame<Real> ? Real(1) / Real(sqrt(squared)) : Real(0);
}

// Whether 1 / norm alone proves that a row has no NaN, infinity or overflow. If not, the row itself
// must be checked.
template <typename Real>
PADDLE_EXT_HD bool plainly_finite(Real first) {
    return first > Real(1e-18) && first < Real(1e18);
}

// Of `total` rows that could calibrate, `count` evenly spread ones do: the position of the row of
// this rank, or -1 if it is not used.
PADDLE_EXT_HD int64_t place_of(int64_t rank, int64_t total, int64_t count) {
    const int64_t near = rank * count / total;
    for (int64_t place = near; place <= near + 1 && place < count; ++place) {
        if ((2 * place + 1) * total / (2 * count) == rank) return place;
    }
    return -1;
}

// The weight of a feature, up to a factor, from its within-class variance and the mean of these
// variances, both times `degrees` of freedom.
PADDLE_EXT_HD double feature_scale(double scatter, double mean_scatter, double degrees, double D) {
    const double mean = degrees > 0 ? mean_scatter / degrees : 0.0;
    const double variance = (scatter + kPriorRows * mean) / (degrees + kPriorRows);
    return 1.0 / (variance + mean + kNoScatter / D);
}

// One row per class: the number of rows that the scatter of a feature over the classes rests on, from
// the sums of squares and of fourth powers.
PADDLE_EXT_HD double effective_rows(double squares, double fourths) {
    const double rows = fourths > 1e-30 ? squares * squares / fourths : 1.0;
    return rows > 1.0 ? rows : 1.0;
}

// The factor by which scales are multiplied so that rows are as long as without them, on average,
// given the sums over the features of the squares, of the scales, and of both multiplied.
PADDLE_EXT_HD double length_factor(double squares, double scales, double scaled, double D) {
    const double unit = D / scales;
    return unit * (squares + kNoScatter) / (scaled * unit + kNoScatter);
}

// --- calibration ---------------------------------------------------------------------------------
//
// Finds the sharpness f that maximises the likelihood of the labels of some rows, given their
// squared distances d to the classes.
//
//   F(f) = sum_i CE_i( softmax(-f/2 d_i.) ) + (ln f - ln centre)^2 / (2 spread^2)
//
// is minimised over ln f by Newton steps inside a bracket; a step outside the bracket becomes a
// bisection. With m and v the mean and variance of d_i. under the softmax, and d_iy the distance to
// the row's class,
//   dF / d ln f   = f/2 sum_i (d_iy - m_i) + (ln f - ln centre) / spread^2
//   d2F / d ln f2 = the first term + f^2/4 sum_i v_i + 1 / spread^2.

constexpr double kMinSharpness = 0.1, kMaxSharpness = 1e4;
constexpr int kMaxCalibrationSteps = 40;
// Stop after a step in ln f smaller than this: the error left by Newton is about its square.
constexpr double kCalibrated = 1e-3;
constexpr double kLongestStep = 1.5;  // in ln f; longer ones overshoot

struct Bracket {
    double low, high, at;  // ln f
    double centre, precision;

    PADDLE_EXT_HD Bracket(double centre, double spread)
        : low(log(kMinSharpness)), high(log(kMaxSharpness)), at(fmin(fmax(log(centre), low), high)),
          centre(log(centre)), precision(1 / (spread * spread)) {}

    PADDLE_EXT_HD double sharpness() const { return exp(at); }

    // One step, from sum_i (d_iy - m_i) and sum_i v_i at `at`. Returns false once converged.
    PADDLE_EXT_HD bool step(double lag, double variance) {
        const double f = sharpness();
        const double first = 0.5 * f * lag;
        const double slope = first + (at - centre) * precision;
        const double curvature = first + 0.25 * f * f * variance + precision;
        (slope < 0 ? low : high) = at;
        double next = at - fmin(fmax(slope / curvature, -kLongestStep), kLongestStep);
        if (!(curvature > 0 && next >= low && next <= high)) next = 0.5 * (low + high);
        const bool moved = fabs(next - at) > kCalibrated;
        at = next;
        return moved;
    }

    PADDLE_EXT_HD double prior() const {
        const double off = at - centre;
        return 0.5 * off * off * precision;
    }
};

// --- likelihoods ---------------------------------------------------------------------------------

// A row that is not among the n rows of a mean is farther from it than one of them, by this factor
// in squared distance on average. Calibration rows are treated as if they were not among them.
template <typename Real>
PADDLE_EXT_HD Real left_out_rate(Real shots) {
    const Real n = shots > 2 ? shots : Real(2);
    return (n + 1) / (n - 1);
}

// A mean of n rows misses the true mean of its class by variance / n in squared distance, and queries
// are that much farther from it. Its rows are in the centre of K means, so nearer to it than queries,
// by 2 / K of this, and their mean, of square 1 - variance + variance / n, longer once scaled.
template <typename Real>
PADDLE_EXT_HD Real excess_distance(Real variance, Real shots, Real mean_shots, int64_t K) {
    const auto farther = [&](Real n) {
        const Real miss = variance / (n > 1 ? n : Real(1)), known = 1 - variance;
        return miss * (1 + Real(2) / Real(K) * ((known > 0 ? known : Real(0)) + miss));
    };
    return farther(shots) - farther(mean_shots);
}

// The variance within a class, estimated by the squared distance of one of its rows to their mean.
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

// Of S rows in K classes, from the sum of squares of V. From kCovarianceRows rows on they count as many,
// so that the numbers of L stay in the range of halves.
constexpr double kCovarianceRows = 1 << 17;

PADDLE_EXT_HD double mean_scatter(double squares, int64_t S, int64_t K) {
    const double rows = fmin(double(S > K ? S - K : 1), kCovarianceRows);
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

// Classes that attract more rows of others than average get a lower bias; `rows` per class.
template <typename Real>
PADDLE_EXT_HD Real hub_bias(Real drawn, Real mean, Real rows) {
    return -log1p((drawn - mean) / (rows + 1));
}

// --- parts of calls ------------------------------------------------------------------------------
//
// What `labelled` and `calibrate` share with the likelihood they are a part of, from a task on; the
// caller adds arrays of its own.

template <typename Real>
LabelledParams labelled_of(const LikelihoodParams& p, int64_t task = 0) {
    LabelledParams part{};
    part.dtype = p.dtype, part.B = p.B, part.S = p.S, part.K = p.K, part.D = p.D, part.R = p.R;
    part.support = reals<Real>(p.support, task * p.S * p.D);
    part.labels = p.labels + task * p.S;
    part.centre = reals<Real>(p.centre, task * p.D);
    part.means = reals<Real>(p.means, task * p.K * p.D);
    part.shots = reals<Real>(p.shots, task * p.K);
    part.scale = reals<Real>(p.scale, task * p.D);
    return part;
}

template <typename Real>
CalibrateParams calibrate_of(const LikelihoodParams& p, int64_t task = 0) {
    CalibrateParams part{};
    part.dtype = p.dtype, part.B = p.B, part.R = p.R, part.K = p.K;
    part.centre = p.prior_sharpness, part.spread = p.spread;
    part.sharpness = reals<Real>(p.sharpness, task);
    return part;
}

}  // namespace paddle_ext
