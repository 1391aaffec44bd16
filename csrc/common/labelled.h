// The coordinates and the feature scale that labelled rows choose: what CPU and CUDA share. The
// equations are in docs/adaptive.md.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace paddle_ext {

constexpr double kPriorRows = 10.0;   // that the mean variance counts for in that of a feature
constexpr double kSame = 1e-6;        // a unit-norm row this near to the centre is the centre
constexpr double kNoScatter = 1e-10;  // squared distances below are rounding

// 1 / norm of a unit-norm row less the centre; 0 for a row that is the centre, up to rounding.
template <typename Real>
PADDLE_EXT_HD Real inverse_of_centred(Real squared) {
    return squared > Real(kSame * kSame) ? Real(1) / Real(sqrt(squared)) : Real(0);
}

// Whether a row of this 1 / norm surely has no NaN, no infinity and no number that is too large. Where
// it has not, a look at the row itself must tell.
template <typename Real>
PADDLE_EXT_HD bool plainly_sound(Real first) {
    return first > Real(1e-18) && first < Real(1e18);
}

// Of `total` rows that could calibrate `count` do, evenly spread: the place of the row of this rank,
// or -1 if it does not.
PADDLE_EXT_HD int64_t place_of(int64_t rank, int64_t total, int64_t count) {
    const int64_t near = rank * count / total;
    for (int64_t place = near; place <= near + 1 && place < count; ++place) {
        if ((2 * place + 1) * total / (2 * count) == rank) return place;
    }
    return -1;
}

// What a feature counts, up to a factor, from its variance inside the classes and the mean one, both
// times `degrees` of freedom.
PADDLE_EXT_HD double feature_scale(double scatter, double mean_scatter, double degrees, double D) {
    const double mean = degrees > 0 ? mean_scatter / degrees : 0.0;
    const double variance = (scatter + kPriorRows * mean) / (degrees + kPriorRows);
    return 1.0 / (variance + mean + kNoScatter / D);
}

}  // namespace paddle_ext
