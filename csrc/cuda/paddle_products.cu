// The two products of the Gram form: after them nothing depends on the number of features.

#include "common/reduce.cuh"
#include "cuda/paddle_chunk.cuh"

namespace paddle_ext {

namespace {

// G = Z Z^T and M = S Z^T of one task in one product: rows are the K class sums and then the Q
// queries, columns the queries. A block makes kTileRows x kTileColumns of it.
constexpr int kTileRows = 64;
constexpr int kTileColumns = 80;  // 75 queries, the habit of the field, fit one tile
constexpr int kDepth = 16;
constexpr int kProductThreads = 128;  // 8 x 16, each 8 x 5 results

__global__ void __launch_bounds__(kProductThreads) products_kernel(Chunk c) {
    __shared__ __align__(16) float rows[2][kDepth][kTileRows + 4];
    __shared__ float columns[2][kDepth][kTileColumns + 4];
    constexpr int kRowLoads = kTileRows * kDepth / 4 / kProductThreads;
    constexpr int kColumnLoads = ceil_div(kTileColumns * kDepth / 4, kProductThreads);
    const PaddleSizes& n = c.call.size;
    const int64_t Q = n.Q, K = n.K, Dp = c.plan.Dp, Qp = c.plan.Qp;
    const int64_t row_tiles = ceil_div(K + Q, int64_t(kTileRows));
    const int64_t column_tiles = ceil_div(Q, int64_t(kTileColumns));
    const int64_t at = blockIdx.x / (row_tiles * column_tiles);
    const int64_t tile = blockIdx.x % (row_tiles * column_tiles);
    const int64_t row0 = tile / column_tiles * kTileRows;
    const int64_t column0 = tile % column_tiles * kTileColumns;
    const float* const z = c.z + at * Q * Dp;
    const float* const sums = c.sums + at * K * Dp;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;

    float4 next_row[kRowLoads], next_column[kColumnLoads];
    float squares[kRowLoads] = {};
    const auto fetch = [&](int64_t depth) {
#pragma unroll
        for (int i = 0; i < kRowLoads; ++i) {
            const int slot = threadIdx.x + i * kProductThreads;
            const int64_t r = row0 + slot / 4, d = depth + slot % 4 * 4;
            next_row[i] = make_float4(0, 0, 0, 0);
            if (d < Dp && r < K) {
                next_row[i] = *reinterpret_cast<const float4*>(sums + r * Dp + d);
            } else if (d < Dp && r < K + Q) {
                next_row[i] = *reinterpret_cast<const float4*>(z + (r - K) * Dp + d);
            }
            const float4 v = next_row[i];
            squares[i] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
#pragma unroll
        for (int i = 0; i < kColumnLoads; ++i) {
            const int slot = threadIdx.x + i * kProductThreads;
            const int64_t q = column0 + slot / 4, d = depth + slot % 4 * 4;
            next_column[i] = make_float4(0, 0, 0, 0);
            if (slot < kTileColumns * 4 && q < Q && d < Dp) {
                next_column[i] = *reinterpret_cast<const float4*>(z + q * Dp + d);
            }
        }
    };
    const auto place = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < kRowLoads; ++i) {
            const int slot = threadIdx.x + i * kProductThreads, r = slot / 4, d = slot % 4 * 4;
            rows[buffer][d][r] = next_row[i].x;
            rows[buffer][d + 1][r] = next_row[i].y;
            rows[buffer][d + 2][r] = next_row[i].z;
            rows[buffer][d + 3][r] = next_row[i].w;
        }
#pragma unroll
        for (int i = 0; i < kColumnLoads; ++i) {
            const int slot = threadIdx.x + i * kProductThreads, q = slot / 4, d = slot % 4 * 4;
            if (slot >= kTileColumns * 4) continue;
            columns[buffer][d][q] = next_column[i].x;
            columns[buffer][d + 1][q] = next_column[i].y;
            columns[buffer][d + 2][q] = next_column[i].z;
            columns[buffer][d + 3][q] = next_column[i].w;
        }
    };

    float result[8][5] = {};
    fetch(0);
    place(0);
    __syncthreads();
    int buffer = 0;
    for (int64_t depth = 0; depth < Dp; depth += kDepth) {
        const bool more = depth + kDepth < Dp;
        if (more) fetch(depth + kDepth);
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
            float a[8], b[5];
            *reinterpret_cast<float4*>(a) = *reinterpret_cast<float4*>(&rows[buffer][d][8 * ty]);
            *reinterpret_cast<float4*>(a + 4) =
                *reinterpret_cast<float4*>(&rows[buffer][d][8 * ty + 4]);
#pragma unroll
            for (int j = 0; j < 5; ++j) b[j] = columns[buffer][d][tx + 16 * j];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
                for (int j = 0; j < 5; ++j) result[i][j] += a[i] * b[j];
            }
        }
        if (more) place(buffer ^ 1);
        __syncthreads();  // the other buffer is full, this one free
        buffer ^= 1;
    }

    // ||s_k||^2: four neighbouring threads loaded one row.
    if (column0 == 0) {
#pragma unroll
        for (int i = 0; i < kRowLoads; ++i) {
            const float square = quad_sum(squares[i]);
            const int slot = threadIdx.x + i * kProductThreads;
            const int64_t r = row0 + slot / 4;
            if (slot % 4 == 0 && r < K) c.norm[at * K + r] = square;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int64_t r = row0 + 8 * ty + i;
        if (r >= K + Q) break;
        float* const to = r < K ? c.m + (at * K + r) * Qp : c.gram + (at * Q + r - K) * Qp;
#pragma unroll
        for (int j = 0; j < 5; ++j) {
            const int64_t q = column0 + tx + 16 * j;
            if (q < Qp) to[q] = result[i][j];
        }
    }
}

}  // namespace

void launch_products(const Chunk& c) {
    const PaddleSizes& n = c.call.size;
    const int64_t tiles =
        ceil_div(n.K + n.Q, int64_t(kTileRows)) * ceil_div(n.Q, int64_t(kTileColumns));
    products_kernel<<<grid_size(c.tasks * tiles), kProductThreads, 0, c.stream>>>(c);
    check_launch("products_kernel");
}

}  // namespace paddle_ext
