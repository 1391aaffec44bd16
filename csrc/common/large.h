// Large tasks before, in and between iterations: shared by CPU and CUDA.
#pragma once

#include "common/math.h"
#include "common/params.h"

namespace paddle_ext {

// The largest likelihood of a row. Half precision goes down to 2^-24, so the smallest that is kept
// is 2^-39 of the largest; down to 2^-29 of it, precision is full.
constexpr double kLikelihoodUnit = 32768.0;

// A row whose classes sum to less than this has lost precision that matters.
constexpr double kFaintRow = 1e-2;

// A logit as a number that can be compared: NaN is the smallest. So every row has a largest class.
template <typename Real>
PADDLE_EXT_HD Real comparable(Real logit) {
    return fmin(fmax(logit, Range<Real>::kMinusInfinity), Range<Real>::kInfinity);
}

// The smaller or larger of two numbers; NaN if one is NaN.
template <typename Real>
PADDLE_EXT_HD Real lower(Real least, Real x) {
    return x < least || x != x ? x : least;
}

template <typename Real>
PADDLE_EXT_HD Real higher(Real most, Real x) {
    return x > most || x != x ? x : most;
}

// One feature of a task: width and centre of the queries, and their reach from the centre.
struct FeaturePlace {
    double width, centre, reach;
};

template <typename Real>
PADDLE_EXT_HD FeaturePlace place_feature(const PlaceParams& p, int64_t at) {
    const double least = double(reals<Real>(p.least)[at]);
    const double most = double(reals<Real>(p.most)[at]);
    const double spread = most - least;
    const bool wide = p.scaling == Scaling::kMinMax && spread > Range<Real>::kMinSpread;
    const double width = wide ? spread : 1.0;
    const double centre = p.sums[at] / p.total / width;
    return {width, centre, fmax(most / width - centre, centre - least / width)};
}

// The slope of task `at`, and the unit of its distances.
PADDLE_EXT_HD void find_slope(const SlopeParams& p, int64_t at) {
    double squared = p.unit[at] * p.unit[at];
    if (p.leads != nullptr) {
        const double each = squared / p.total;
        squared *= auto_factor_squared(p.leads[2 * at] * each,
                                       (p.leads[2 * at + 1] + p.spread[at]) * each);
    }
    p.distance_unit[at] = ::sqrt(squared);
    p.slope[at] = fmin(p.temperature * squared, p.steepest);
}

// The bias of the next logits of class `at`, counted over all tasks.
PADDLE_EXT_HD void set_bias(const DualParams& p, int64_t at) {
    const double bias = p.base[at] + p.dual_weight * p.dual[at];
    if (p.dtype == DType::kFloat64) {
        reals<double>(p.bias)[at] = bias;
    } else {
        reals<float>(p.bias)[at] = float(bias);
    }
}

PADDLE_EXT_HD bool is_stopped(const CountParams& p, int64_t task) {
    return p.running != nullptr && p.running[task] != 1;
}

// The next weight of class `at` relative to the anchor, divided by exp(most). Subnormal numbers are
// slow, and negligible here.
PADDLE_EXT_HD void set_weight(const DualParams& p, int64_t at, double most) {
    const double weight = exp(p.dual_weight * p.dual[at] - p.anchor[at] - most);
    if (p.dtype == DType::kFloat64) {
        reals<double>(p.weights)[at] = weight < 1e-300 ? 0.0 : weight;
    } else {
        reals<float>(p.weights)[at] = weight < 1e-37 ? 0.0f : float(weight);
    }
}

}  // namespace paddle_ext
