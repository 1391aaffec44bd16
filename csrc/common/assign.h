// What CPU and CUDA share about the rows of large tasks.
#pragma once

#include "common/math.h"

namespace paddle_ext {

// The largest likelihood of a row. Half precision reaches down to 2^-24: from here, to 2^-39 of the
// largest, with all its digits to 2^-29.
constexpr double kLikelihoodUnit = 32768.0;

// A row whose classes hold less than this together has lost digits of those that matter.
constexpr double kFaintRow = 1e-2;

constexpr int kMostTop = 64;  // classes that are told of a row

}  // namespace paddle_ext
