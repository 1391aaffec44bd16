// The algebra of `adaptive`, shared by CPU and CUDA: coordinates and feature scale from labelled
// rows, the sharpness, likelihoods, and the step in which prototypes absorb the queries. The
// equations are in docs/adaptive.md.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/density.h"
#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

// What is believed of a task before any row is seen, see docs/adaptive.md.
constexpr double kSharpness = 40.0;               // the median of f
constexpr double kSharpnessSpread = 0.693147180559945309;  // of ln f: a factor of two
constexpr double kVarianceInside = 0.65;          // of the squared length of a row
constexpr double kPriorDegrees = 10.0;            // degrees of freedom that a priori variances weigh

constexpr double kNoScatter = 1e-10;  // squared distances below are rounding
constexpr double kTiny = 1e-30;       // keeps a denominator from being 0

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

// The calibration row of this rank, if R of S rows are left out, evenly spread; all if R is S.
PADDLE_EXT_HD int64_t calibration_row(int64_t rank, int64_t S, int64_t R) {
    return (2 * rank + 1) * S / (2 * R);
}

// --- feature weights and model --------------------------------------------------------------------

// Of one feature, over all labelled rows in the coordinates.
struct FeatureSums {
    double inside = 0;     // squared offsets of rows that have others in their class
    double stretched = 0;  // the same times n / (n - 1)
    double squares = 0;    // squared rows
    double between = 0;    // squared class means
    double fourths = 0;    // their fourth powers
};

// Of a task: sums of these over the features, and what they rest on.
struct FeatureTotals {
    double inside = 0, between = 0;
    double D;
    double degrees;  // of freedom inside classes: rows minus classes

    PADDLE_EXT_HD FeatureTotals(double D, double degrees) : D(D), degrees(degrees) {}
};

PADDLE_EXT_HD double relative(double value, double sum, double D) {
    const double mean = sum / D;
    return value / (mean > kTiny ? mean : kTiny);
}

// (2) The weight of a feature, before the weights are divided by their mean.
PADDLE_EXT_HD double feature_weight(const FeatureSums& feature, const FeatureTotals& of) {
    const double fourths = feature.fourths > kTiny ? feature.fourths : kTiny;
    const double resting = feature.between * feature.between / fourths;
    // Rows that differ by rounding alone show no variance.
    const double inside = relative(feature.inside, of.inside + of.degrees * kNoScatter, of.D);
    const double between = relative(feature.between, of.between, of.D);
    const double variance = (of.degrees * inside + resting * between + kPriorDegrees) /
                            (of.degrees + resting + kPriorDegrees);
    return 1 / (variance + 1);
}

// (4) The variance V inside classes, and how many rows at the centre a class starts with.
struct ClassModel {
    double variance, prior_rows;

    // From sums over the weighted features: of the stretched squares of `counted` rows that have others
    // in their class, and of the squares of all S rows.
    PADDLE_EXT_HD ClassModel(double stretched, double counted, double squares, double S,
                             double degrees) {
        const double square = squares / S > kTiny ? squares / S : kTiny;
        const double inside = counted > 0 ? stretched / counted : 0;
        variance = (degrees * inside + kPriorDegrees * kVarianceInside * square) /
                   (degrees + kPriorDegrees);
        const double share = fmin(fmax(variance / square, 0.02), 0.98);
        prior_rows = share / (1 - share);
    }
};

// --- calibration ---------------------------------------------------------------------------------
//
// Finds the sharpness f that maximises the likelihood of the labels of some rows, given their
// squared distances d to the classes.
//
//   (7)  F(f) = sum_i CE_i( softmax(-f/2 d_i.) ) + (ln f - ln centre)^2 / (2 spread^2)
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

// The distance to a class that does not compete for a row.
constexpr float kFarBehind = 1e30f;

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

// --- the full metric, and labelled rows left out --------------------------------------------------

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

// (6) A labelled row as if it were new: left out of the prototype of its class and, with a full metric,
// of A. With v the offset of the row from the mean of its class, the scatter inside classes loses
// n/(n-1) v v^T without it, so A gains  gain (A v)(A v)^T.
template <typename Real>
struct LeftOutRow {
    Real stretch;  // class mean / prototype
    Real apart;    // n / (n - 1), by which its offset from the other rows is longer; 0 without others
    Real to_own;   // of squared distances to its own class
    Real own_determinant;

    PADDLE_EXT_HD LeftOutRow(Real shots, Real prior_rows, Real variance) {
        const Real mass = shots + prior_rows, rest = mass - 1;
        stretch = mass / shots;
        apart = shots > 1 ? shots / (shots - 1) : Real(0);
        // The prototype without the row is (mass m - x) / rest.
        to_own = mass * mass / (rest * rest) * closeness(rest);
        own_determinant = determinant(variance, rest, rest);
    }

    PADDLE_EXT_HD bool has_others() const { return apart > 0; }

    // The gain, from v A v.
    PADDLE_EXT_HD Real gain(Real square, Real scatter) const {
        const Real cut = apart / scatter, kept = 1 - cut * square;
        return cut / (kept > Real(1e-3) ? kept : Real(1e-3));
    }

    // The squared length of the offset from the mean of the others, from that of v.
    PADDLE_EXT_HD Real squared_offset(Real square, Real gain) const {
        return apart * apart * square * (1 + gain * square);
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

// The statistics of labelled rows, before calibration; S rows of B tasks.
struct LabelledParams {
    DType dtype;  // of all arrays: float32 or float64
    int64_t B, S, K, D, R;
    const void* support;    // [B, S, D]
    const int64_t* labels;  // [B, S]
    void* first;            // out [B, S]    1 / norm of a row
    void* second;           // out [B, S]    1 / norm of the unit row minus the centre
    void* centre;           // out [B, D]
    void* means;            // out [B, K, D] class means in these coordinates
    void* shots;            // out [B, K]
    void* scale;            // out [B, D]    the feature weights
    void* variance;         // out [B]
    void* prior_rows;       // out [B]
    int64_t* own;           // out [B, R]    class of a calibration row
    bool* finite;           // out [B] every class has a row, each plainly finite
    void* workspace;        // on CUDA
};

template <typename Real>
LabelledParams labelled_of(const LikelihoodParams& p, int64_t task = 0) {
    LabelledParams part{};
    part.dtype = p.dtype, part.B = p.B, part.S = p.S, part.K = p.K, part.D = p.D, part.R = p.R;
    part.support = reals<Real>(p.support, task * p.S * p.D);
    part.labels = p.labels + task * p.S;
    part.centre = reals<Real>(p.centre, task * p.D);
    part.means = reals<Real>(p.prototypes, task * p.K * p.D);
    part.shots = reals<Real>(p.shots, task * p.K);
    part.scale = reals<Real>(p.scale, task * p.D);
    part.variance = reals<Real>(p.variance, task);
    part.prior_rows = reals<Real>(p.prior_rows, task);
    part.finite = p.finite + task;
    return part;
}

template <typename Real>
CalibrateParams calibrate_of(const LikelihoodParams& p, int64_t task = 0) {
    CalibrateParams part{};
    part.dtype = p.dtype, part.B = p.B, part.R = p.R, part.K = p.K;
    part.centre = kSharpness, part.spread = kSharpnessSpread;
    part.sharpness = reals<Real>(p.sharpness, task);
    return part;
}

}  // namespace paddle_ext
