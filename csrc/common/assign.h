// Rules for the rows of large tasks, shared by CPU and CUDA.
#pragma once

#include "common/math.h"

namespace paddle_ext {

// The largest likelihood of a row. Half precision goes down to 2^-24: from here down to 2^-39 of
// the largest, with full precision to 2^-29.
constexpr double kLikelihoodUnit = 32768.0;

// A row whose classes sum to less than this has lost precision that matters.
constexpr double kFaintRow = 1e-2;

// A logit as a number that can be compared: NaN is the smallest. So every row has a largest class.
template <typename Real>
PADDLE_EXT_HD Real comparable(Real logit) {
    return fmin(fmax(logit, Range<Real>::kMinusInfinity), Range<Real>::kInfinity);
}

}  // namespace paddle_ext
