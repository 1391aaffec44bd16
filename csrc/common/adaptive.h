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
constexpr double kSharpness = 40.0;                        // the median of f
constexpr double kSharpnessSpread = 0.693147180559945309;  // of ln f: a factor of two
constexpr double kVarianceInside = 0.65;                   // of the squared length of a row
constexpr double kPriorDegrees = 10.0;  // degrees of freedom that a priori variances weigh

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

// --- classes ---------------------------------------------------------------------------------------

constexpr double kLeastOthers = 1e-4;  // share of a class that is left without a row
constexpr double kLeastWeight = 1e-3;  // of all rows that a scatter is of

// The labelled rows of a class, of which each has a weight r; 1 unless labels may be wrong.
struct ClassSums {
    double rows, weight, squares;  // how many, sum r, sum r^2

    // As many equal rows tell as much.
    PADDLE_EXT_HD double shots() const { return squares > 0 ? weight * weight / squares : 0; }

    PADDLE_EXT_HD bool has_others() const { return rows > 1; }

    // What is left of the sum of weights without a row, and its share.
    PADDLE_EXT_HD double others(double r) const {
        return fmax(weight - r, fmax(kLeastOthers * weight, kTiny));
    }
    template <typename Real>
    PADDLE_EXT_HD Real apart(double r) const {
        return Real(others(r)) / Real(weight > kTiny ? weight : 1);
    }

    // How much of them varies inside the class: n - 1 of n rows of weight 1.
    PADDLE_EXT_HD double degrees() const { return has_others() ? weight - squares / weight : 0; }
};

// --- feature weights and model --------------------------------------------------------------------

// Of one feature, over all labelled rows in the coordinates.
struct FeatureSums {
    double inside = 0;  // squared offsets of rows that have others in their class, times r
    double stretched =
        0;               // the same divided by the share of the class that is left without the row
    double squares = 0;  // squared rows
    double between = 0;  // squared class means
    double fourths = 0;  // their fourth powers
};

// Of a task: sums of these over the features, and what they rest on.
struct FeatureTotals {
    double inside = 0, between = 0;
    double D;
    double degrees;  // of freedom inside classes: of rows of weight 1 rows minus classes

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

    // From sums over the weighted features: of the stretched squares of rows that have others in their
    // class, whose weights sum to `counted`, and of the squares of all S rows.
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

// The full metric is A = (V^T V / scatter + 1)^-1, with V the offsets [S, D] of labelled rows from the
// means of their classes, times the roots of their weights. Their mean squared length is `scatter`, see
// mean_scatter. It is found
// in the space of the rows if there are fewer of them than features, else in that of the features:
// with L L^T = 1 + V V^T / scatter, or 1 + V^T V / scatter, of M x M numbers,
//   by rows      x A y = x.y - (Z x).(Z y) / scatter,  Z = L^-1 V,
//   by features  x A y = (Z x).(Z y),                  Z = L^-1.
// Since A V^T = V^T (1 + V V^T / scatter)^-1, the product v A w of a row v of V and any row w is
// z.(Z w), with z = L^-1 e for the unit vector e of v, or z = Z v by features, and v A v is
// scatter (1 - z.z), or z.z.
//
// L is padded to M' columns, whole blocks, by those of the unit matrix. Its diagonal blocks are
// stored as their inverses.
constexpr int64_t kFactorBlock = 64;

PADDLE_EXT_HD int64_t factor_columns(int64_t M) {
    return (M + kFactorBlock - 1) / kFactorBlock * kFactorBlock;
}

// From the sum of squares of V and the degrees of freedom. From kCovarianceRows of these on they count
// as many, so that the numbers of L stay in the range of halves.
constexpr double kCovarianceRows = 1 << 17;

PADDLE_EXT_HD double mean_scatter(double squares, double degrees) {
    const double rows = fmin(fmax(degrees, kLeastWeight), kCovarianceRows);
    return squares / rows +
           fmax(rows, 1.0) * kNoScatter;  // the rounding of every row adds up in V^T V
}

// Weights of the full metric that calibration rows choose from are 0, 1/4, .. 1. The weight grows
// while the log-likelihood of their labels is less than this below the best: one standard error.
constexpr int kMixtureSteps = 4;
constexpr double kStandardError = 0.5;

// (6) A labelled row of weight r as if it were new: left out of the prototype of its class and, with a
// full metric, of A. With o its offset from the mean w of its class, the others have the mean w + shift o,
// and the scatter inside classes loses r / apart o o^T, so A gains  gain (A o)(A o)^T.
template <typename Real>
struct LeftOutRow {
    Real stretch;  // class mean / prototype m
    Real judged;   // r; 0 without others
    Real apart;    // share of its class that is left without it
    Real shift;
    Real offset, mean;  // the row minus the prototype without it is  offset o + mean m
    Real own_closeness, own_determinant;

    PADDLE_EXT_HD LeftOutRow(const ClassSums& of, double r, Real prior_rows, Real variance) {
        const Real n = Real(fmax(of.shots(), 1.0)), others = Real(of.others(r));
        const Real squares = Real(fmax(of.squares - r * r, kTiny));
        const Real shots = of.has_others() ? others * others / squares : Real(0);
        const Real mass = shots + prior_rows, known = shots / mass;
        stretch = (n + prior_rows) / n;
        judged = of.has_others() ? Real(r) : Real(0);
        apart = of.apart<Real>(r);
        shift = of.has_others() ? Real(-r) / others : Real(0);
        offset = 1 - known * shift;
        mean = prior_rows / mass * stretch;
        own_closeness = closeness(mass);
        own_determinant = determinant(variance, mass, mass);
    }

    // The gain, from o A o.
    PADDLE_EXT_HD Real gain(Real square, Real scatter) const {
        const Real cut = judged / (apart * scatter), kept = 1 - cut * square;
        return cut / (kept > Real(1e-3) ? kept : Real(1e-3));
    }

    // Its squared offset from the mean of the others, times its weight; from o A o.
    PADDLE_EXT_HD Real squared_offset(Real square, Real gain) const {
        return judged * (1 - shift) * (1 - shift) * square * (1 + gain * square);
    }

    // Its squared distance to its own class without it, from o A o, o A m and m A m; as in (5), except
    // the determinant.
    PADDLE_EXT_HD Real to_own(Real square, Real along, Real of_class, Real gain) const {
        const Real away = offset * square + mean * along;
        const Real plain = offset * (away + mean * along) + mean * mean * of_class;
        return own_closeness * ((plain > 0 ? plain : Real(0)) + gain * away * away);
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
    bool centred, scaled;   // the centre and the scale are given
    const void* weights;    // [B, S] or null
    void* first;            // out [B, S]    1 / norm of a row
    void* second;           // out [B, S]    1 / norm of the unit row minus the centre
    void* centre;           // out [B, D]
    void* means;            // out [B, K, D] class means in these coordinates
    ClassSums* members;     // out [B, K]
    double* degrees;        // out [B]
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
    part.centred = p.centred, part.scaled = p.scaled;
    if (p.weights != nullptr) part.weights = reals<Real>(p.weights, task * p.S);
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
