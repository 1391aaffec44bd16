// Coordinates and feature scale estimated from labelled rows: shared by CPU and CUDA. The equations
// are in docs/adaptive.md.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace paddle_ext {

constexpr double kPriorRows = 10.0;   // weight of the mean variance in that of a feature, in rows
constexpr double kSame = 1e-6;        // a unit-norm row this near to the centre is the centre
constexpr double kNoScatter = 1e-10;  // squared distances below are rounding

// 1 / norm of a unit-norm row minus the centre; 0 if the row equals the centre up to rounding.
template <typename Real>
PADDLE_EXT_HD Real inverse_of_centred(Real squared) {
    return squared > Real(kSame * kSame) ? Real(1) / Real(sqrt(squared)) : Real(0);
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

}  // namespace paddle_ext
