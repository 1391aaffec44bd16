// Random numbers that depend only on (seed, task, stream): Philox 4x32-10 (Salmon, Moraes, Dror and
// Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// Identical on every machine: only integers, and floating-point operations that IEEE 754 defines to
// the last bit. A file that includes this is compiled with -ffp-contract=off.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "common/math.h"

namespace paddle_ext {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
    uint32_t low = uint32_t(key), high = uint32_t(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * counter[0];
        const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
        counter = {uint32_t(b >> 32) ^ counter[1] ^ low, uint32_t(b),
                   uint32_t(a >> 32) ^ counter[3] ^ high, uint32_t(a)};
        low += 0x9E3779B9;
        high += 0xBB67AE85;
    }
    return counter;
}

// Natural logarithm of a normal number > 0, to a few units in the last place.
inline double exact_steps_log(double x) {
    int exponent;
    double m = std::frexp(x, &exponent);  // [1/2, 1)
    if (m < 0.70710678118654752) {
        m *= 2;
        --exponent;
    }
    const double s = (m - 1) / (m + 1), square = s * s;  // ln m = 2 artanh s
    double sum = 0;
    for (int k = 23; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
    return 2 * s * sum + exponent * 0.69314718055994531;
}

// e^x for x <= 0, to a relative error of 1e-13; 0 where it is below 1e-304.
inline double exact_steps_exp(double x) {
    if (!(x > -700)) return 0;
    const int exponent = int(x * 1.4426950408889634 - 0.5);
    const double rest = x - exponent * 0.69314718055994531;
    double sum = 1;
    for (int k = 16; k >= 1; --k) sum = 1 + sum * rest / k;
    return std::ldexp(sum, exponent);
}

class RandomStream {
  public:
    RandomStream(uint64_t seed, uint64_t task, uint32_t stream)
        : key_(seed), counter_{0, stream, uint32_t(task), uint32_t(task >> 32)} {}

    uint32_t word() {
        if (next_ == 4) {
            block_ = philox(counter_, key_);
            ++counter_[0];
            next_ = 0;
        }
        return block_[next_++];
    }

    // Uniform in [0, bound), bound >= 1, unbiased (Lemire, "Fast random integer generation in an
    // interval", 2019). A word is rejected with probability at most bound / 2^32.
    uint32_t below(uint32_t bound) {
        uint64_t product = uint64_t{word()} * bound;
        if (uint32_t(product) < bound) {
            const uint32_t least = (0u - bound) % bound;
            while (uint32_t(product) < least) product = uint64_t{word()} * bound;
        }
        return uint32_t(product >> 32);
    }

    // Uniform in (0, 1): the midpoints of 2^52 equal intervals.
    double unit() {
        const uint64_t high = word(), low = word();
        return (double((high << 20) | (low >> 12)) + 0.5) * 0x1p-52;
    }

    // Marsaglia's polar method. It rejects 21 % of the points; the bound rules out an endless loop.
    double normal() {
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            const double x = 2 * unit() - 1, y = 2 * unit() - 1;
            const double square = x * x + y * y;
            if (square > 0 && square < 1) {
                return x * std::sqrt(-2 * exact_steps_log(square) / square);
            }
        }
        return 0;
    }

    // Logarithm of a gamma variate with this shape > 0: that of shape + 1 (Marsaglia and Tsang,
    // 2000; under 5 % rejected) times u^(1 / shape), which may underflow a double.
    double log_gamma_variate(double shape) {
        const double d = shape + 2.0 / 3, c = 1 / std::sqrt(9 * d);
        double log_variate = exact_steps_log(d);
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            const double x = normal(), root = 1 + c * x;
            if (root <= 0) continue;
            const double log_cube = 3 * exact_steps_log(root), cube = root * root * root;
            if (exact_steps_log(unit()) < x * x / 2 + d * (1 - cube + log_cube)) {
                log_variate += log_cube;
                break;
            }
        }
        const double log_power = exact_steps_log(unit()) / shape;
        return log_variate + std::fmax(log_power, Range<double>::kMinusInfinity);
    }

  private:
    static constexpr int kAttempts = 200;
    uint64_t key_;
    PhiloxBlock counter_, block_{};
    int next_ = 4;
};

}  // namespace paddle_ext
