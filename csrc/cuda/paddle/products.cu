// The two products of the Gram form: nothing after them depends on the number of features.
//
// G = Z Z^T and M = S Z^T of one task as one product on the tensor cores, with float precision
// (cuda/mma.cuh): the rows are the K class sums followed by the Q queries, the columns the
// queries. A block computes a tile of kTileRows x kTileColumns, one group of 32 features at a time.
// Queries have size one; class sums may have any size, so each row has its own power of two in each
// group, and the sums of a group are rescaled as they are added.

#include "cuda/mma.cuh"
#include "cuda/paddle/chunk.cuh"

namespace paddle_ext {

namespace {

constexpr int kTileRows = 64;
constexpr int kTileColumns = 80;  // 75 queries, common in the field, fit in one tile
constexpr int kThreads = 128;     // a warp has 16 rows and all columns
constexpr int kBlocks = kTileColumns / 8;
constexpr int kRowStep = kThreads / 8;  // eight threads load a row's group of features
constexpr int kRowLoads = kTileRows / kRowStep, kColumnLoads = kTileColumns / kRowStep;
constexpr int kRowBytes = kGroupHalves * int(sizeof(__half));
constexpr int kLeastExponent = -100;  // two to minus this, times kHalfRange, is a number

// The rows, columns and task of a block.
struct Place {
    const TaskSizes& n;
    int64_t row_tiles = ceil_div(n.K + n.Q, int64_t(kTileRows));
    int64_t column_tiles = ceil_div(n.Q, int64_t(kTileColumns)), tiles = row_tiles * column_tiles;
    int64_t at = blockIdx.x / tiles, row0 = blockIdx.x % tiles / column_tiles * kTileRows;
    int64_t column0 = blockIdx.x % tiles % column_tiles * kTileColumns;
};

// Halves of four numbers: the high parts; the low parts are one group further.
__device__ inline void place_four(unsigned char* row_start, int row, int slot, float4 v) {
    const uint2 first = split_pair(v.x, v.y), second = split_pair(v.z, v.w);
    unsigned char* const here = row_start + slot % 2 * 8;
    const auto piece = [&](int at) {
        return reinterpret_cast<uint2*>(here + piece_offset(row, at + slot / 2));
    };
    *piece(0) = make_uint2(first.x, second.x);
    *piece(4) = make_uint2(first.y, second.y);
}

struct Stage {
    unsigned char rows[kTileRows][kRowBytes];
    unsigned char columns[kTileColumns][kRowBytes];
    float unscale[kTileRows];  // of the sums of a row
};

// The data a thread has loaded of the next group: numbers from 4 slot on of some rows and columns.
struct Loads {
    float4 row[kRowLoads], column[kColumnLoads];

    __device__ void fetch(const Chunk& c, const Place& place, int64_t group) {
        const int64_t Q = c.call.size.Q, K = c.call.size.K, Dp = c.plan.Dp;
        const int64_t d = group * kGroup + threadIdx.x % 8 * 4;
        const float* const z = c.z + place.at * Q * Dp + d;
        const float* const sums = c.sums + place.at * K * Dp + d;
#pragma unroll
        for (int i = 0; i < kRowLoads; ++i) {
            const int64_t r = place.row0 + threadIdx.x / 8 + i * kRowStep;
            const bool valid = d < Dp && r < K + Q;
            const float* const from = r < K ? sums + r * Dp : z + (r - K) * Dp;
            row[i] = valid ? *reinterpret_cast<const float4*>(from) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < kColumnLoads; ++i) {
            const int64_t q = place.column0 + threadIdx.x / 8 + i * kRowStep;
            const bool valid = d < Dp && q < Q;
            column[i] =
                valid ? *reinterpret_cast<const float4*>(z + q * Dp) : make_float4(0, 0, 0, 0);
        }
    }

    // Also adds up the squares of the rows.
    __device__ void place(Stage& stage, float (&squares)[kRowLoads]) const {
        const int slot = threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < kRowLoads; ++i) {
            const int r = threadIdx.x / 8 + i * kRowStep;
            const float4 v = row[i];
            squares[i] += squared_norm(v);
            float most = largest_of(v);
#pragma unroll
            for (int step = 4; step > 0; step /= 2) {
                most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
            }
            // The exponent bits: most is in [2^exponent, 2^(exponent + 1)).
            const int exponent = max((__float_as_int(most) >> 23) - 127, kLeastExponent);
            const float scale = __int_as_float((127 - exponent) << 23) * kHalfRange;
            place_four(stage.rows[r], r, slot, v * scale);
            const float unscale = __int_as_float((127 + exponent) << 23);
            if (slot == 0) stage.unscale[r] = unscale / (kHalfRange * kHalfRange);
        }
#pragma unroll
        for (int i = 0; i < kColumnLoads; ++i) {
            const int q = threadIdx.x / 8 + i * kRowStep;
            place_four(stage.columns[q], q, slot, column[i] * kHalfRange);
        }
    }
};

// Adds the products of one group to `total`. In every 8 columns a lane holds columns 2 (lane % 4)
// and the next, of rows lane / 4 and lane / 4 + 8 of its warp.
__device__ inline void add_group(const Stage& stage, float (&total)[kBlocks][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int block8 = lane / 8, within8 = lane % 8;  // which 8 x 8 matrix a lane addresses
    const unsigned row_at = shared_address(stage.rows[16 * warp + block8 % 2 * 8 + within8]) +
                            piece_offset(within8, block8 / 2);
    const unsigned column_at =
        shared_address(stage.columns[block8 / 2 * 8 + within8]) + piece_offset(within8, block8 % 2);
    float sum[1][kBlocks][4] = {};
    multiply_group<1>(sum, row_at, column_at);
    const float first = stage.unscale[16 * warp + lane / 4];
    const float second = stage.unscale[16 * warp + lane / 4 + 8];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
        total[i][0] += sum[0][i][0] * first;
        total[i][1] += sum[0][i][1] * first;
        total[i][2] += sum[0][i][2] * second;
        total[i][3] += sum[0][i][3] * second;
    }
}

// Columns up to Qp are written, those beyond Q as zeros.
__device__ inline void write_products(const Chunk& c, const Place& place,
                                      const float (&total)[kBlocks][4]) {
    const int64_t Q = c.call.size.Q, K = c.call.size.K, Qp = c.plan.Qp;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int64_t r = place.row0 + 16 * warp + lane / 4 + 8 * side;
        if (r >= K + Q) continue;
        float* const to =
            r < K ? c.m + (place.at * K + r) * Qp : c.gram + (place.at * Q + r - K) * Qp;
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
            const int64_t q = place.column0 + 8 * i + lane % 4 * 2;
            if (q >= Qp) continue;
            *reinterpret_cast<float2*>(to + q) =
                make_float2(total[i][2 * side], total[i][2 * side + 1]);
        }
    }
}

__global__ void __launch_bounds__(kThreads, 3) products_kernel(Chunk c) {
    __shared__ __align__(128) Stage stage[2];
    const Place place{c.call.size};
    const int64_t groups = ceil_div(c.plan.Dp, int64_t(kGroup)), K = c.call.size.K;
    float squares[kRowLoads] = {}, total[kBlocks][4] = {};
    Loads next;
    next.fetch(c, place, 0);
    next.place(stage[0], squares);
    __syncthreads();
    for (int64_t group = 0; group < groups; ++group) {
        const bool more = group + 1 < groups;
        if (more) next.fetch(c, place, group + 1);
        add_group(stage[group % 2], total);
        if (more) next.place(stage[(group + 1) % 2], squares);
        __syncthreads();  // the other stage is full, this one free
    }
    // ||s_k||^2: eight neighbouring threads loaded one row.
    if (place.column0 == 0) {
#pragma unroll
        for (int i = 0; i < kRowLoads; ++i) {
            const float square = quad_sum(squares[i]);
            const float all = square + __shfl_xor_sync(kAllLanes, square, 4);
            const int64_t r = place.row0 + threadIdx.x / 8 + i * kRowStep;
            if (threadIdx.x % 8 == 0 && r < K) c.norm[place.at * K + r] = all;
        }
    }
    write_products(c, place, total);
}

}  // namespace

void launch_products(const Chunk& c) {
    const TaskSizes& n = c.call.size;
    const int64_t tiles = ceil_div(n.K + n.Q, kTileRows) * ceil_div(n.Q, kTileColumns);
    launch("products_kernel", products_kernel, c.tasks * tiles, kThreads, 0, c.stream, c);
}

}  // namespace paddle_ext
