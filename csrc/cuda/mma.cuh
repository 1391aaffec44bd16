// Matrix products on tensor cores with float precision: every number is split into two halves, high
// + low, and hi hi + hi lo + lo hi is summed in float. The omitted term is 2^-22 of the product.
//
// A row of numbers is stored in groups of 32: first the high parts, then the low parts, 128 bytes.
// In shared memory the eight 16-byte pieces of a group are permuted by row, so that eight rows can
// be read, plain or transposed, without bank conflicts.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

constexpr int kGroupHalves = 64;    // their halves
constexpr int kGroupPieces = 8;     // of 16 bytes
constexpr float kHalfRange = 8192;  // stored numbers are at most about this

struct HighLow {
    __half high, low;
};

__device__ inline HighLow split(float value) {
    value = fminf(fmaxf(value, -4.0f * kHalfRange), 4.0f * kHalfRange);
    const __half high = __float2half_rn(value);
    return {high, __float2half_rn(value - __half2float(high))};
}

// High parts of two numbers in range, and their low parts.
__device__ inline uint2 split_pair(float first, float second) {
    const __half2 high = __floats2half2_rn(first, second);
    const float2 rounded = __half22float2(high);
    const __half2 low = __floats2half2_rn(first - rounded.x, second - rounded.y);
    return make_uint2(*reinterpret_cast<const unsigned*>(&high),
                      *reinterpret_cast<const unsigned*>(&low));
}

// Two neighbours of a group: their high parts; the low parts are one group further.
__device__ inline void store_halves(__half* to, float first, float second) {
    const HighLow x = split(first), y = split(second);
    *reinterpret_cast<__half2*>(to) = __halves2half2(x.high, y.high);
    *reinterpret_cast<__half2*>(to + kGroup) = __halves2half2(x.low, y.low);
}

// Offset of element `column` in a row of groups, in halves; its low part is 32 further.
__host__ __device__ constexpr int64_t group_offset(int64_t column) {
    return column / kGroup * kGroupHalves + column % kGroup;
}

// Byte offset of a 16-byte piece (0 to 3 high, 4 to 7 low) of a group in shared memory.
__device__ inline unsigned piece_offset(int row, int piece) {
    return unsigned((piece ^ (row & 7)) * 16);
}

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes from global to shared memory asynchronously; zeros if not `valid`.
__device__ inline void copy_async16(unsigned to, const void* from, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

// The same of 4 or 16 bytes, always.
template <int Bytes>
__device__ inline void copy_async(void* to, const void* from) {
    if (Bytes == 16) return copy_async16(shared_address(to), from, true);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "n"(Bytes)
                 : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most `Pending` of the committed groups are in flight.
template <int Pending>
__device__ inline void wait_copies() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(Pending) : "memory");
}

__device__ inline void load_matrices(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

__device__ inline void load_matrices_transposed(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// sum[16, 8] += a[16, 16] b[16, 8]
__device__ inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The products of one group of numbers of 16 Tiles rows with 8 Columns others. `a_at` and `b_at` are
// the addresses in shared memory of a lane's row of the first 8 x 8 matrix; the other pieces of that
// row differ in three bits of the address. With two buffers, the others are loaded one pair of
// columns ahead. Rows have RowGroups groups.
template <int Buffers, int RowGroups = 1, int Tiles, int Columns>
__device__ inline void multiply_group(float (&sum)[Tiles][Columns][4], unsigned a_at,
                                      unsigned b_at) {
    constexpr int kStep = 16 * RowGroups * kGroupHalves * int(sizeof(__half));  // 16 rows
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        unsigned a[Tiles][2][4];  // high, low
#pragma unroll
        for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
            for (int part = 0; part < 2; ++part) {
                load_matrices(a[tile][part], (a_at ^ (part * 64 + step * 32)) + tile * kStep);
            }
        }
        unsigned buffer[Buffers][2][4];
        const auto load = [&](int pair) {
#pragma unroll
            for (int part = 0; part < 2 && pair < Columns / 2; ++part) {
                load_matrices(buffer[pair % Buffers][part],
                              (b_at ^ (part * 64 + step * 32)) + pair * kStep);
            }
        };
        if (Buffers > 1) load(0);
#pragma unroll
        for (int pair = 0; pair < Columns / 2; ++pair) {
            load(pair + Buffers - 1);
            const unsigned (&b)[2][4] = buffer[pair % Buffers];
#pragma unroll
            for (int product = 0; product < 3; ++product) {  // low high, high low, high high
                const int of_a = product == 0, of_b = product == 1;
#pragma unroll
                for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        multiply_add(sum[tile][2 * pair + side], a[tile][of_a], b[of_b][2 * side],
                                     b[of_b][2 * side + 1]);
                    }
                }
            }
        }
    }
}

// Tensor cores truncate the bits that a sum cannot hold, always towards zero. Sums over many rows
// are kept separately, rounded, and absorb the tensor-core sums every few groups.
constexpr int kFlush = 4;

// Calls body(sum, a, b, i) for the sums of a thread.
template <int A, int B, typename Body>
__device__ __forceinline__ void each_sum(float (&sum)[A][B][4], const Body& body) {
#pragma unroll
    for (int a = 0; a < A; ++a) {
#pragma unroll
        for (int b = 0; b < B; ++b) {
#pragma unroll
            for (int i = 0; i < 4; ++i) body(sum[a][b][i], a, b, i);
        }
    }
}

template <int A, int B>
__device__ inline void flush_sums(float (&total)[A][B][4], float (&sum)[A][B][4]) {
    each_sum(sum, [&](float& value, int a, int b, int i) {
        total[a][b][i] += value;
        value = 0.0f;
    });
}

// --- rows of numbers split into halves, padded with zeros ----------------------------------------

constexpr float kProductFactor = 1.0f / (kSplitFactor * kSplitFactor);

// Numbers and halves in a padded row of D numbers.
__host__ __device__ inline int64_t row_numbers(int64_t D) { return round_up(D, int64_t(kGroup)); }
__host__ __device__ inline int64_t row_halves(int64_t D) { return group_offset(row_numbers(D)); }

// Numbers d and d + 1 of a row, for an even d.
__device__ inline void store_row2(__half* row, int64_t d, float first, float second) {
    store_halves(row + group_offset(d), first * kSplitFactor, second * kSplitFactor);
}
__device__ inline float2 load_row2(const __half* row, int64_t d) {
    const auto at = reinterpret_cast<const __half2*>(row + group_offset(d));
    const float2 high = __half22float2(at[0]), low = __half22float2(at[kGroup / 2]);
    return make_float2((high.x + low.x) / kSplitFactor, (high.y + low.y) / kSplitFactor);
}

// Four numbers, for a d divisible by four.
__device__ inline void store_row4(__half* row, int64_t d, float4 x) {
    alignas(8) __half high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const HighLow parts = split((&x.x)[i] * kSplitFactor);
        high[i] = parts.high, low[i] = parts.low;
    }
    const auto to = reinterpret_cast<uint2*>(row + group_offset(d));
    to[0] = *reinterpret_cast<const uint2*>(high);
    to[kGroup / 4] = *reinterpret_cast<const uint2*>(low);
}
__device__ inline float4 load_row4(const __half* row, int64_t d) {
    const float4 high = load4(row + group_offset(d)), low = load4(row + group_offset(d) + kGroup);
    return (high + low) * (1.0f / kSplitFactor);
}

}  // namespace paddle_ext
