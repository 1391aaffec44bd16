// Whether numbers of any feature type are within a limit, eight bytes at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/math.h"
#include "common/params.h"
#include "common/workspace.h"

namespace paddle_ext {

// Magnitudes are ordered like their bits, with infinity and NaN above all others. So a magnitude
// plus the distance of the limit from the sign bit reaches the sign bit if the number is beyond the
// limit, and never the next number in the word.
struct Within {
    uint64_t sign, distance;  // for every number in a word

    Within(DType dtype, double most) {
        require(most >= 65504, "most must be at least 65504, got ", most);
        const int bits = 8 * bytes_of(dtype);
        const uint64_t each = bits == 16   ? 0x0001000100010001u
                              : bits == 32 ? 0x0000000100000001u
                                           : 1u;
        sign = each << (bits - 1);
        distance = each * ((uint64_t(1) << (bits - 1)) - 1 - limit(dtype, most));
    }

    // Has a sign bit where a number is beyond the limit.
    PADDLE_EXT_HD uint64_t beyond(uint64_t word) const { return (word & ~sign) + distance; }

    static int bytes_of(DType dtype) {
        return dtype == DType::kFloat64 ? 8 : dtype == DType::kFloat32 ? 4 : 2;
    }

  private:
    // The bits of the largest number of the type that is at most `most`.
    static uint64_t limit(DType dtype, double most) {
        if (dtype == DType::kFloat16) return 0x7bff;  // 65504
        uint64_t wide;
        std::memcpy(&wide, &most, sizeof wide);
        if (dtype == DType::kFloat64) return wide;
        const float rounded = float(most);
        uint32_t narrow;
        std::memcpy(&narrow, &rounded, sizeof narrow);
        if (double(rounded) > most) --narrow;
        return dtype == DType::kFloat32 ? narrow : narrow >> 16;
    }
};

}  // namespace paddle_ext
