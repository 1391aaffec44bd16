// Sums that the compiler turns into vectors: a plain loop would keep the order of the terms.
#pragma once

#include <cstdint>

namespace paddle_ext {

// term(0) + .. + term(count - 1)
template <typename Term>
double sum_of(int64_t count, const Term& term) {
    double part[8] = {};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        for (int lane = 0; lane < 8; ++lane) part[lane] += term(i + lane);
    }
    for (; i < count; ++i) part[0] += term(i);
    double sum = 0;
    for (const double one : part) sum += one;
    return sum;
}

}  // namespace paddle_ext
