// digamma, trigamma and the logarithm of the gamma function, for x > 0, in double.
//
// Below kAsymptotic the recurrence leads upwards: with P(x) = x (x + 1) ... (x + n - 1),
//   digamma(x)  = digamma(x + n) - P'/P
//   trigamma(x) = trigamma(x + n) + (P'/P)^2 - P''/P
//   lgamma(x)   = lgamma(x + n) - ln P
// so that one division serves all n steps. From there on the asymptotic series leave relative errors
// of 2e-12 at most.
#pragma once

#include <cmath>

#include "common/math.h"

namespace paddle_ext {

constexpr double kAsymptotic = 6.0;

struct Polygamma {
    double digamma, trigamma;
};

PADDLE_EXT_HD Polygamma polygamma(double x) {
    double sum = 0, squares = 0;  // of the 1 / (x + i) that the recurrence takes off
    if (x < kAsymptotic) {
        double p = 1, first = 0, second = 0;  // P and its derivatives
        for (; x < kAsymptotic; x += 1) {
            second = second * x + 2 * first;
            first = first * x + p;
            p *= x;
        }
        sum = first / p;
        squares = sum * sum - second / p;
    }
    const double r = 1 / x, s = r * r;
    const double digamma =
        log(x) - 0.5 * r -
        s * (1.0 / 12 -
             s * (1.0 / 120 -
                  s * (1.0 / 252 -
                       s * (1.0 / 240 - s * (1.0 / 132 - s * (691.0 / 32760 - s * (1.0 / 12)))))));
    const double trigamma =
        r *
        (1 + 0.5 * r +
         s * (1.0 / 6 -
              s * (1.0 / 30 -
                   s * (1.0 / 42 -
                        s * (1.0 / 30 - s * (5.0 / 66 - s * (691.0 / 2730 - s * (7.0 / 6))))))));
    return {digamma - sum, trigamma + squares};
}

PADDLE_EXT_HD double log_gamma(double x) {
    double p = 1;
    for (; x < kAsymptotic; x += 1) p *= x;
    const double r = 1 / x, s = r * r;
    const double series =
        r *
        (1.0 / 12 -
         s * (1.0 / 360 -
              s * (1.0 / 1260 -
                   s * (1.0 / 1680 - s * (1.0 / 1188 - s * (691.0 / 360360 - s * (1.0 / 156)))))));
    constexpr double kHalfLog2Pi = 0.9189385332046727;
    return (x - 0.5) * log(x) - x + kHalfLog2Pi + series - log(p);
}

}  // namespace paddle_ext
