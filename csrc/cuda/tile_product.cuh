// Products of rows with rows on the tensor cores, with float precision; see common/mma.cuh.
//
// Numbers are split as they are read from shared memory. They are at most 1.5 in rows (a feature
// weighs at most 2) and the root of D + 1 in factors; scaled up, their low halves keep their bits.
#pragma once

#include "common/device.cuh"
#include "common/mma.cuh"
#include "common/reduce.cuh"

namespace paddle_ext {

constexpr int kDepth = 32, kStages = 3;  // rows are read kDepth numbers at a time, two stages ahead
constexpr int kStagePitch = kDepth + 8;  // rows begin in different banks
constexpr float kSplitFactor = 64.0f, kProductFactor = 1.0f / (kSplitFactor * kSplitFactor);

// Two neighbours as halves.
struct HighLowPair {
    unsigned high, low;

    __device__ explicit HighLowPair(const float* at) {
        const float2 x = *reinterpret_cast<const float2*>(at);
        const float first = x.x * kSplitFactor, second = x.y * kSplitFactor;
        const __half2 top = __floats2half2_rn(first, second);
        const float2 back = __half22float2(top);
        const __half2 rest = __floats2half2_rn(first - back.x, second - back.y);
        high = *reinterpret_cast<const unsigned*>(&top);
        low = *reinterpret_cast<const unsigned*>(&rest);
    }
};

// A tile of kRows x kColumns results from the view of a thread. A warp has 16 kM x 8 kN of them.
template <int kM, int kN, int kRowWarps, int kColumnWarps>
struct Tile {
    static constexpr int kRows = 16 * kM * kRowWarps, kColumns = 8 * kN * kColumnWarps;
    static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;

    struct Stages {
        float rows[kStages][kRows * kStagePitch], columns[kStages][kColumns * kStagePitch];
    };

    float sum[kM][kN][4] = {};  // in the layout of the tensor cores

    __device__ static int row0() { return 16 * kM * (int(threadIdx.x) / 32 / kColumnWarps); }
    __device__ static int column0() { return 8 * kN * (int(threadIdx.x) / 32 % kColumnWarps); }

    // Calls body(r, c, sum) for the results of this thread.
    template <typename Body>
    __device__ void for_each(const Body& body) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
            for (int n = 0; n < kN; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    body(row0() + 16 * m + lane / 4 + i / 2 * 8,
                         column0() + 8 * n + lane % 4 * 2 + i % 2, sum[m][n][i]);
                }
            }
        }
    }

    // Adds left right^T over some columns, both with this pitch in shared memory.
    template <int kPitch, int kWidth>
    __device__ void multiply(const float* left, const float* right) {
        const int lane = threadIdx.x % 32;
        const float* const a_at = left + (row0() + lane / 4) * kPitch + lane % 4 * 2;
        const float* const b_at = right + (column0() + lane / 4) * kPitch + lane % 4 * 2;
        float part[kM][kN][4] = {};  // see flush_sums
#pragma unroll 2
        for (int k = 0; k < kWidth; k += 16) {
            unsigned b[kN][2][2];  // high, low
#pragma unroll
            for (int n = 0; n < kN; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const HighLowPair x(b_at + k + n * 8 * kPitch + 8 * i);
                    b[n][0][i] = x.high, b[n][1][i] = x.low;
                }
            }
#pragma unroll
            for (int m = 0; m < kM; ++m) {
                unsigned a[2][4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const HighLowPair x(a_at + k + (16 * m + i % 2 * 8) * kPitch + i / 2 * 8);
                    a[0][i] = x.high, a[1][i] = x.low;
                }
#pragma unroll
                for (int product = 0; product < 3; ++product) {  // kN sums are in flight
#pragma unroll
                    for (int n = 0; n < kN; ++n) {
                        const unsigned (&of_b)[2] = b[n][product == 1];
                        multiply_add(part[m][n], a[product == 0], of_b[0], of_b[1]);
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
            for (int n = 0; n < kN; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    sum[m][n][i] = fmaf(part[m][n][i], kProductFactor, sum[m][n][i]);
                }
            }
        }
    }

    // The pieces of four numbers that this thread copies of each stage of kCount rows, row(r).
    template <int kCount, bool kAligned>
    struct Copies {
        static constexpr int kPieces = kCount * (kDepth / 4) / kThreads;
        static_assert(kPieces * kThreads * 4 == kCount * kDepth && kThreads % (kDepth / 4) == 0);
        const float* from[kPieces];

        __device__ static int row(int i) {
            return (int(threadIdx.x) + i * kThreads) / (kDepth / 4);
        }
        __device__ static int column() { return int(threadIdx.x) % (kDepth / 4) * 4; }

        template <typename Row>
        __device__ explicit Copies(const Row& row_at) {
#pragma unroll
            for (int i = 0; i < kPieces; ++i) from[i] = row_at(row(i));
        }

        // The stage at column d; zeros beyond `depth`.
        __device__ void copy(float* to, int64_t d, int64_t depth) const {
            const int64_t at = d + column();
            float* const here = to + row(0) * kStagePitch + column();
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                float* const piece = here + i * (kThreads / (kDepth / 4)) * kStagePitch;
                if (kAligned) {
                    copy_async16(shared_address(piece), from[i] + (at < depth ? at : 0),
                                 at < depth);
                } else {
                    for (int j = 0; j < 4; ++j) piece[j] = at + j < depth ? from[i][at + j] : 0.0f;
                }
            }
        }
    };

    // Adds the products of rows and columns over their numbers from `begin` to `depth`. Ends with a
    // barrier, after which the stages are free.
    template <bool kAligned, typename Row, typename Column>
    __device__ void add_products(Stages& s, const Row& row, const Column& column, int64_t begin,
                                 int64_t depth) {
        const int first = int(begin / kDepth), end = int(ceil_div(depth, int64_t(kDepth)));
        const Copies<kRows, kAligned> rows(row);
        const Copies<kColumns, kAligned> columns(column);
        const auto fetch = [&](int at) {
            if (at < end) {
                rows.copy(s.rows[at % kStages], int64_t(at) * kDepth, depth);
                columns.copy(s.columns[at % kStages], int64_t(at) * kDepth, depth);
            }
            commit_copies();  // even if empty, so that the number in flight is known
        };
        fetch(first);
        fetch(first + 1);
        for (int at = first; at < end; ++at) {
            wait_copies<1>();
            __syncthreads();  // this stage is full, the previous one free
            fetch(at + 2);
            multiply<kStagePitch, kDepth>(s.rows[at % kStages], s.columns[at % kStages]);
        }
        wait_copies<0>();
        __syncthreads();
    }
};

// --- whole products ------------------------------------------------------------------------------

using WideTile = Tile<2, 4, 4, 2>;   // 128 x 64
using QueryTile = Tile<5, 2, 1, 4>;  // 80 x 64: 75 queries, common in the field, fit in one tile

// A Problem is these sizes of a task, row(task, r), column(task, c) and store(task, r, c, value).
struct ProductSizes {
    int64_t rows, columns, depth;
    bool lower = false;  // only results with c <= r are needed

    // Whether results of a tile are needed, from its last row, first and last column on.
    __device__ bool needs(int64_t, int64_t last_row, int64_t column0, int64_t) const {
        return !lower || column0 <= last_row;
    }
};

template <typename T, bool kAligned, typename Problem>
__global__ void __launch_bounds__(T::kThreads, 2) product_kernel(Problem p) {
    extern __shared__ __align__(16) char memory[];
    const int64_t row_tiles = ceil_div(p.rows, int64_t(T::kRows));
    const int64_t column_tiles = ceil_div(p.columns, int64_t(T::kColumns));
    const int64_t task = blockIdx.x / (row_tiles * column_tiles);
    const int64_t row0 = blockIdx.x / column_tiles % row_tiles * T::kRows;
    const int64_t column0 = blockIdx.x % column_tiles * T::kColumns;
    if (!p.needs(task, row0 + T::kRows - 1, column0, column0 + T::kColumns - 1)) return;
    const auto row = [&](int r) { return p.row(task, min(row0 + r, p.rows - 1)); };
    const auto column = [&](int c) { return p.column(task, min(column0 + c, p.columns - 1)); };
    T tile;
    auto& stages = *reinterpret_cast<typename T::Stages*>(memory);
    tile.template add_products<kAligned>(stages, row, column, 0, p.depth);
    tile.for_each([&](int r, int c, float value) {
        const int64_t i = row0 + r, j = column0 + c;
        if (i < p.rows && j < p.columns && !(p.lower && j > i)) p.store(task, i, j, value);
    });
}

template <typename T, typename Problem>
void launch_tiles(const Problem& p, bool aligned, int64_t tasks, cudaStream_t stream) {
    const auto kernel =
        aligned ? product_kernel<T, true, Problem> : product_kernel<T, false, Problem>;
    allow_all_shared(kernel);
    const int64_t tiles =
        ceil_div(p.rows, int64_t(T::kRows)) * ceil_div(p.columns, int64_t(T::kColumns));
    const unsigned blocks = grid_size(tasks * tiles);
    kernel<<<blocks, T::kThreads, sizeof(typename T::Stages), stream>>>(p);
    check_launch("product_kernel");
}

// In tiles with less padding.
template <typename Problem>
void launch_product(const Problem& p, bool aligned, int64_t tasks, cudaStream_t stream) {
    const auto padded = [&](int rows) { return round_up(p.rows, int64_t(rows)); };
    const bool wide = padded(WideTile::kRows) <= padded(QueryTile::kRows);
    wide ? launch_tiles<WideTile>(p, aligned, tasks, stream)
         : launch_tiles<QueryTile>(p, aligned, tasks, stream);
}

}  // namespace paddle_ext
