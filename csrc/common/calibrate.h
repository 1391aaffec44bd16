// Finds the sharpness f that maximises the likelihood of the labels of some rows, given their
// squared distances d to the classes: the algebra shared by CPU and CUDA.
//
//   F(f) = sum_i CE_i( softmax(-f/2 d_i.) ) + (ln f - ln centre)^2 / (2 spread^2)
//
// is minimised over ln f by Newton steps inside a bracket; a step outside the bracket becomes a
// bisection. With m and v the mean and variance of d_i. under the softmax, and d_iy the distance to
// the row's class,
//   dF / d ln f   = f/2 sum_i (d_iy - m_i) + (ln f - ln centre) / spread^2
//   d2F / d ln f2 = the first term + f^2/4 sum_i v_i + 1 / spread^2.
#pragma once

#include <cmath>

#include "common/math.h"

namespace paddle_ext {

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

}  // namespace paddle_ext
