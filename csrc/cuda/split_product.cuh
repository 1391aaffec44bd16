// Products of many rows with many columns, task by task, on the tensor cores with float precision;
// see common/mma.cuh. A block computes kProductTile x kProductTile results, a warp 16 rows of them.
// Rows and columns are read as floats and split on their way to shared memory, so that a Problem
// may compute them from anything. It has the sizes `rows`, `columns` and `depth` of a task, whether
// rows are kAligned, the function store(task, r, c, value), and a struct Reader that each thread
// creates for its tile, from (problem, task, row0, column0), with
//   kLoads, source(i)                 rows of numbers of which it needs four at a time
//   row(slot, d, in), column(..)      four numbers from d on, computed from those at in(i); slot i
//                                     of a thread is always the same row, shared with the seven
//                                     neighbouring threads
//   finish()                          called once all numbers have been computed
// Data is read two groups ahead, into memory that only the thread itself uses.
#pragma once

#include "common/device.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

namespace paddle_ext {

constexpr int kProductTile = 80;  // 75 queries, common in the field, fit in one tile
constexpr int kProductWarps = kProductTile / 16, kProductThreads = 32 * kProductWarps;
constexpr int kProductSlots = kProductTile * kGroup / 4 / kProductThreads;  // rows per thread
constexpr int kRowsOfSlot = kProductThreads / 8;
constexpr int kProductStage = 2 * kProductTile * 128;  // bytes

// Numbers are near one; scaled up, their low halves keep their bits.
constexpr float kRowFactor = 256.0f, kColumnFactor = 8.0f;
constexpr float kProductFactor = 1.0f / (kRowFactor * kColumnFactor);

using ProductSums = float[1][kProductTile / 8][4];

// Stores four numbers in the group of a row.
__device__ inline void store_split4(char* stage, int row, int quad, float4 v, float factor) {
    const auto scaled = [&](float x) {
        return fminf(fmaxf(x * factor, -4.0f * kHalfRange), 4.0f * kHalfRange);
    };
    const float numbers[4] = {scaled(v.x), scaled(v.y), scaled(v.z), scaled(v.w)};
    __half2 high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        high[i] = __floats2half2_rn(numbers[2 * i], numbers[2 * i + 1]);
        const float2 back = __half22float2(high[i]);
        low[i] = __floats2half2_rn(numbers[2 * i] - back.x, numbers[2 * i + 1] - back.y);
    }
    char* const at = stage + row * 128 + quad % 2 * 8;
    *reinterpret_cast<uint2*>(at + piece_offset(row, quad / 2)) =
        *reinterpret_cast<const uint2*>(high);
    *reinterpret_cast<uint2*>(at + piece_offset(row, 4 + quad / 2)) =
        *reinterpret_cast<const uint2*>(low);
}

// One group of features; `a_at` and `b_at` are the addresses of a lane's row of the first 8 x 8
// matrix.
__device__ inline void multiply_split(ProductSums& sum, unsigned a_at, unsigned b_at) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        unsigned a[2][4];  // high, low
#pragma unroll
        for (int part = 0; part < 2; ++part) load_matrices(a[part], a_at ^ (part * 64 + step * 32));
        // Two pairs of 8 columns at a time, so that four sums are in flight.
        constexpr int kPairs = kProductTile / 16;
#pragma unroll
        for (int first = 0; first < kPairs; first += 2) {
            unsigned b[2][2][4];
#pragma unroll
            for (int i = 0; i < 2 && first + i < kPairs; ++i) {
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    load_matrices(b[i][part],
                                  (b_at ^ (part * 64 + step * 32)) + (first + i) * 16 * 128);
                }
            }
#pragma unroll
            for (int product = 0; product < 3; ++product) {  // low high, high low, high high
                const int of_a = product == 0, of_b = product == 1;
#pragma unroll
                for (int i = 0; i < 4 && first + i / 2 < kPairs; ++i) {
                    multiply_add(sum[0][2 * first + i], a[of_a], b[i / 2][of_b][i % 2 * 2],
                                 b[i / 2][of_b][i % 2 * 2 + 1]);
                }
            }
        }
    }
}

// The data a thread has read of two groups, in shared memory.
template <int kLoads, bool kAligned>
struct ProductRing {
    float4 (*slots)[kLoads][kProductThreads];  // [2]

    template <typename Reader>
    __device__ void fetch(const Reader& reader, int64_t group, int64_t groups,
                          int64_t depth) const {
        const int64_t d = group * kGroup + 4 * (threadIdx.x % 8);
#pragma unroll
        for (int i = 0; i < kLoads && group < groups; ++i) {
            float4* const to = &slots[group % 2][i][threadIdx.x];
            const float* const from = reader.source(i);
            if (kAligned) {
                copy_async16(shared_address(to), from + (d < depth ? d : 0), d < depth);
            } else {
                *to = load_row4(from, d, depth, false);
            }
        }
        commit_copies();  // even if empty, so that the number in flight is known
    }
};

template <typename Problem>
constexpr int kProductShared =
    2 * kProductStage + 2 * Problem::Reader::kLoads * kProductThreads * int(sizeof(float4));

template <typename Problem>
__global__ void __launch_bounds__(kProductThreads, 2) split_product_kernel(Problem problem) {
    using Reader = typename Problem::Reader;
    extern __shared__ __align__(128) char stages[];  // [2, kProductStage], then the ring
    const int64_t row_tiles = ceil_div(problem.rows, int64_t(kProductTile));
    const int64_t column_tiles = ceil_div(problem.columns, int64_t(kProductTile));
    const int64_t task = blockIdx.x / (row_tiles * column_tiles);
    const int64_t tile = blockIdx.x % (row_tiles * column_tiles);
    const int64_t row0 = tile / column_tiles * kProductTile;
    const int64_t column0 = tile % column_tiles * kProductTile;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block8 = lane / 8, within8 = lane % 8;
    const int staged_row = threadIdx.x / 8, quad = threadIdx.x % 8;
    const int64_t groups = ceil_div(problem.depth, int64_t(kGroup));
    Reader reader(problem, task, row0, column0);
    const ProductRing<Reader::kLoads, Problem::kAligned> ring{
        reinterpret_cast<float4(*)[Reader::kLoads][kProductThreads]>(stages + 2 * kProductStage)};

    // Moves a group that has been read into its stage, then requests the group after the next.
    const auto place = [&](int64_t group) {
        wait_copies<1>();
        char* const stage = stages + group % 2 * kProductStage;
        const int64_t d = group * kGroup + 4 * quad;
        const auto in = [&](int i) { return ring.slots[group % 2][i][threadIdx.x]; };
#pragma unroll
        for (int i = 0; i < kProductSlots; ++i) {
            const int row = staged_row + i * kRowsOfSlot;
            store_split4(stage, row, quad, reader.row(i, d, in), kRowFactor);
            store_split4(stage, kProductTile + row, quad, reader.column(i, d, in), kColumnFactor);
        }
        ring.fetch(reader, group + 2, groups, problem.depth);
    };
    const unsigned a_at =
        (warp * 16 + block8 % 2 * 8 + within8) * 128 + piece_offset(within8, block8 / 2);
    const unsigned b_at =
        (kProductTile + block8 / 2 * 8 + within8) * 128 + piece_offset(within8, block8 % 2);
    ProductSums sum = {}, total = {};
    ring.fetch(reader, 0, groups, problem.depth);
    ring.fetch(reader, 1, groups, problem.depth);
    place(0);
    __syncthreads();
    for (int64_t group = 0; group < groups; ++group) {
        const bool more = group + 1 < groups;
        const unsigned stage = shared_address(stages + group % 2 * kProductStage);
        multiply_split(sum, stage + a_at, stage + b_at);
        if (group % kFlush == kFlush - 1 || !more) flush_sums(total, sum);
        if (more) place(group + 1);
        __syncthreads();  // the other stage is full, this one free
    }
    reader.finish();
#pragma unroll
    for (int i = 0; i < kProductTile / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int64_t r = row0 + warp * 16 + j / 2 * 8 + lane / 4;
            const int64_t c = column0 + i * 8 + lane % 4 * 2 + j % 2;
            if (r < problem.rows && c < problem.columns) {
                problem.store(task, r, c, total[0][i][j] * kProductFactor);
            }
        }
    }
}

template <typename Problem>
void launch_split_product(const Problem& problem, int64_t tasks, const char* name,
                          cudaStream_t stream) {
    const int64_t tiles = ceil_div(problem.rows, int64_t(kProductTile)) *
                          ceil_div(problem.columns, int64_t(kProductTile));
    const auto kernel = split_product_kernel<Problem>;
    allow_all_shared(kernel);
    kernel<<<grid_size(tasks * tiles), kProductThreads, kProductShared<Problem>, stream>>>(problem);
    check_launch(name);
}

}  // namespace paddle_ext
