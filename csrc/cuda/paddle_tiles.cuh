// The tiled product of the direct form: a block makes kGridTile x kGridTile results.
#pragma once

#include "cuda/paddle_chunk.cuh"

namespace paddle_ext {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kDepth = 16;

// kGridTile x kGridTile results per block, 8 x 8 per thread: result += sum_i a[i][row] b[i][column].
// fetch(depth, slot) gives the slot-th group of four numbers of a stage, place() puts it.
struct Tile {
    float a[2][kDepth][kGridTile + 4];
    float b[2][kDepth][kGridTile + 4];
};

// One operand: rows of length `length` (depth runs along them) or, transposed, depth-major.
struct Operand {
    const float* from;
    int64_t stride;        // between rows
    int64_t first, count;  // rows of this tile begin here; there are that many in all
    int64_t depth;         // length of the contraction
    bool depth_major;      // element (i, r) is from[i * stride + r]

    // Group `slot` of 4 numbers out of kDepth x kGridTile, from depth `begin` on.
    __device__ float4 fetch(int64_t begin, int slot) const {
        if (!depth_major) {
            const int64_t r = first + slot / 4, i = begin + slot % 4 * 4;
            if (r >= count || i >= depth) return make_float4(0, 0, 0, 0);
            return *reinterpret_cast<const float4*>(from + r * stride + i);
        }
        const int64_t i = begin + slot / (kGridTile / 4), r = first + slot % (kGridTile / 4) * 4;
        float value[4] = {};
        if (i < depth) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (r + j < count) value[j] = from[i * stride + r + j];
            }
        }
        return make_float4(value[0], value[1], value[2], value[3]);
    }

    __device__ void place(float (*to)[kGridTile + 4], int slot, const float4& v) const {
        if (!depth_major) {
            const int r = slot / 4, i = slot % 4 * 4;
            to[i][r] = v.x;
            to[i + 1][r] = v.y;
            to[i + 2][r] = v.z;
            to[i + 3][r] = v.w;
        } else {
            const int i = slot / (kGridTile / 4), r = slot % (kGridTile / 4) * 4;
            *reinterpret_cast<float4*>(&to[i][r]) = v;
        }
    }
};

// Thread (tx, ty) gets rows 8 ty .. and columns 4 tx .. and 64 + 4 tx ..; `row_sums` the sums of
// its rows of a.
__device__ inline void tile_product(Tile& tile, const Operand& a, const Operand& b,
                                    float (&result)[8][8], float (&row_sums)[8]) {
    constexpr int kLoads = kDepth * kGridTile / 4 / kThreads;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    float4 next_a[kLoads], next_b[kLoads];
    const auto fetch = [&](int64_t depth) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            next_a[i] = a.fetch(depth, threadIdx.x + i * kThreads);
            next_b[i] = b.fetch(depth, threadIdx.x + i * kThreads);
        }
    };
    const auto place = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
            a.place(tile.a[buffer], threadIdx.x + i * kThreads, next_a[i]);
            b.place(tile.b[buffer], threadIdx.x + i * kThreads, next_b[i]);
        }
    };
    fetch(0);
    place(0);
    __syncthreads();
    int buffer = 0;
    for (int64_t depth = 0; depth < a.depth; depth += kDepth) {
        const bool more = depth + kDepth < a.depth;
        if (more) fetch(depth + kDepth);
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
            float x[8], y[8];
            const float* row = &tile.a[buffer][i][8 * ty];
            const float* column = &tile.b[buffer][i][4 * tx];
            *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(row);
            *reinterpret_cast<float4*>(x + 4) = *reinterpret_cast<const float4*>(row + 4);
            *reinterpret_cast<float4*>(y) = *reinterpret_cast<const float4*>(column);
            *reinterpret_cast<float4*>(y + 4) = *reinterpret_cast<const float4*>(column + 64);
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                row_sums[r] += x[r];
#pragma unroll
                for (int k = 0; k < 8; ++k) result[r][k] += x[r] * y[k];
            }
        }
        if (more) place(buffer ^ 1);
        __syncthreads();  // the other buffer is full, this one free
        buffer ^= 1;
    }
}

__device__ inline int64_t tile_column(int64_t first, int tx, int k) {
    return first + (k < 4 ? 4 * tx + k : 64 + 4 * tx + k - 4);
}

}  // namespace paddle_ext
