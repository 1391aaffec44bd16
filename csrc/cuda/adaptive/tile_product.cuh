// Products of split rows with one another on the tensor cores, with float precision.
#pragma once

#include "cuda/mma.cuh"

namespace paddle_ext {

// Where a piece of a row is in shared memory, in halves; rows of kWidth numbers.
template <int kWidth>
__device__ inline int piece_place(int row, int piece) {
    const int group = piece / kGroupPieces;
    return row * 2 * kWidth + group * kGroupHalves +
           int(piece_offset(row, piece % kGroupPieces)) / int(sizeof(__half));
}

// A tile of kRows x kColumns results from the view of a thread. A warp has 16 kM x 8 kN of them.
// Rows are read a group of numbers at a time, and all stages but one ahead.
template <int kM, int kN, int kRowWarps, int kColumnWarps, int kStages = 3>
struct Tile {
    static constexpr int kRows = 16 * kM * kRowWarps, kColumns = 8 * kN * kColumnWarps;
    static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;
    // Blocks of threads on a multiprocessor: as many as there are registers for.
    static constexpr int kBlocks = (kM * kN <= 8 ? 512 : 384) / kThreads;

    struct alignas(128) Stages {
        __half rows[kStages][kRows * kGroupHalves], columns[kStages][kColumns * kGroupHalves];
    };

    float sum[kM][kN][4] = {};  // in the layout of the tensor cores

    __device__ static int row0() { return 16 * kM * (int(threadIdx.x) / 32 / kColumnWarps); }
    __device__ static int column0() { return 8 * kN * (int(threadIdx.x) / 32 % kColumnWarps); }

    // Calls body(r, c, sum, next) for the results of this thread, where `next` is that of c + 1.
    template <typename Body>
    __device__ void for_each(const Body& body) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < kM; ++m) {
#pragma unroll
            for (int n = 0; n < kN; ++n) {
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    body(row0() + 16 * m + lane / 4 + i * 4, column0() + 8 * n + lane % 4 * 2,
                         sum[m][n][i], sum[m][n][i + 1]);
                }
            }
        }
    }

    // Adds left right^T, rows of kWidth numbers, aligned to groups.
    template <int kWidth>
    __device__ void multiply(const __half* left, const __half* right) {
        constexpr unsigned kRowBytes = 4 * kWidth, kGroupBytes = 4 * kGroup;
        const int lane = threadIdx.x % 32;
        // What this lane reads for four matrices of 8 x 8: the upper and lower rows, twice; and twice
        // a piece and the next one.
        const unsigned rows =
            shared_address(left) + (row0() + lane % 16) * kRowBytes + piece_offset(lane, lane / 16);
        const unsigned columns = shared_address(right) +
                                 (column0() + lane % 8 + lane / 16 * 8) * kRowBytes +
                                 piece_offset(lane, lane / 8 % 2);
        float part[kM][kN][4] = {};  // see flush_sums
#pragma unroll
        for (int group = 0; group < kWidth / kGroup; ++group) {
            multiply_group<1, kWidth / kGroup>(part, rows + group * kGroupBytes,
                                               columns + group * kGroupBytes);
        }
        each_sum(sum, [&](float& value, int m, int n, int i) {
            value = fmaf(part[m][n][i], kProductFactor, value);
        });
    }

    // The pieces that this thread copies of each stage of kCount rows, row(r).
    template <int kCount>
    struct Copies {
        static constexpr int kPieces = kCount * kGroupPieces / kThreads;
        static_assert(kPieces * kThreads == kCount * kGroupPieces && kThreads % 64 == 0);
        const __half* from[kPieces];

        template <typename Row>
        __device__ explicit Copies(const Row& row) {
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                const int at = int(threadIdx.x) + i * kThreads;
                from[i] =
                    row(at / kGroupPieces) + at % kGroupPieces * (kGroupHalves / kGroupPieces);
            }
        }

        __device__ void copy(__half* to, int group) const {
            const int row = int(threadIdx.x) / kGroupPieces,
                      piece = int(threadIdx.x) % kGroupPieces;
            const unsigned here = shared_address(to + piece_place<kGroup>(row, piece));
#pragma unroll
            for (int i = 0; i < kPieces; ++i) {
                copy_async16(here + i * kThreads * 16, from[i] + group * kGroupHalves, true);
            }
        }
    };

    // Adds the products of rows and columns over their numbers from `begin` to `end`, whole groups.
    // Calls meanwhile() while the first of them arrive. Ends with a barrier, after which the stages
    // are free.
    template <typename Row, typename Column, typename Body>
    __device__ void add_products(Stages& s, const Row& row, const Column& column, int begin,
                                 int end, const Body& meanwhile) {
        const Copies<kRows> rows(row);
        const Copies<kColumns> columns(column);
        const auto fetch = [&](int group) {
            if (group < end / kGroup) {
                rows.copy(s.rows[group % kStages], group);
                columns.copy(s.columns[group % kStages], group);
            }
            commit_copies();  // even if empty, so that the number in flight is known
        };
        const int first = begin / kGroup;
#pragma unroll
        for (int ahead = 0; ahead < kStages - 1; ++ahead) fetch(first + ahead);
        meanwhile();
        for (int group = first; group < end / kGroup; ++group) {
            wait_copies<kStages - 2>();
            __syncthreads();  // this stage is full, the previous one free
            fetch(group + kStages - 1);
            multiply<kGroup>(s.rows[group % kStages], s.columns[group % kStages]);
        }
        wait_copies<0>();
        __syncthreads();
    }
};

// --- whole products ------------------------------------------------------------------------------

using SquareTile = Tile<2, 4, 2, 2>;  // 64 x 64
using QueryTile = Tile<5, 2, 1, 4>;   // 80 x 64: 75 queries, common in the field, fit in one tile

// A Problem is these rows and columns of a task, and store(task, r, c, value).
struct RowProducts {
    int64_t rows, columns, depth;  // numbers in a row, padded
    const __half *left, *right;    // [tasks, rows, 2 depth], [tasks, columns, 2 depth]
    bool lower = false;            // only results with c <= r are needed

    __device__ const __half* row(int64_t task, int64_t r) const {
        return left + (task * rows + r) * 2 * depth;
    }
    __device__ const __half* column(int64_t task, int64_t c) const {
        return right + (task * columns + c) * 2 * depth;
    }
};

struct StoredProducts : RowProducts {
    float* out;  // [tasks, rows, columns]

    __device__ void store(int64_t task, int64_t r, int64_t c, float value) const {
        out[(task * rows + r) * columns + c] = value;
    }
};

template <typename T, typename Problem>
__device__ void find_tile(const Problem& p, int64_t block) {
    extern __shared__ __align__(128) char memory[];
    const int64_t row_tiles = ceil_div(p.rows, int64_t(T::kRows));
    const int64_t column_tiles = ceil_div(p.columns, int64_t(T::kColumns));
    const int64_t task = block / (row_tiles * column_tiles);
    const int64_t row0 = block / column_tiles % row_tiles * T::kRows;
    const int64_t column0 = block % column_tiles * T::kColumns;
    if (p.lower && column0 >= row0 + T::kRows) return;
    const auto row = [&](int r) { return p.row(task, min(row0 + r, p.rows - 1)); };
    const auto column = [&](int c) { return p.column(task, min(column0 + c, p.columns - 1)); };
    T tile;
    auto& stages = *reinterpret_cast<typename T::Stages*>(memory);
    tile.add_products(stages, row, column, 0, int(p.depth), [] {});
    tile.for_each([&](int r, int c, float value, float next) {
        const int64_t i = row0 + r, j = column0 + c;
        const int64_t end = i >= p.rows ? 0 : p.lower ? min(i + 1, p.columns) : p.columns;
        if (j < end) p.store(task, i, j, value);
        if (j + 1 < end) p.store(task, i, j + 1, next);
    });
}

template <typename T, typename Problem>
__global__ void __launch_bounds__(T::kThreads, T::kBlocks) product_kernel(Problem p) {
    find_tile<T>(p, blockIdx.x);
}

template <typename T>
__host__ __device__ int64_t tiles_of(const RowProducts& p) {
    return ceil_div(p.rows, int64_t(T::kRows)) * ceil_div(p.columns, int64_t(T::kColumns));
}

template <typename T, typename Problem>
void launch_tiles(const Problem& p, int64_t tasks, cudaStream_t stream) {
    const auto kernel = product_kernel<T, Problem>;
    allow_all_shared(kernel);
    constexpr int64_t kBytes = sizeof(typename T::Stages);
    launch("product_kernel", kernel, tasks * tiles_of<T>(p), T::kThreads, kBytes, stream, p);
}

// In tiles with less padding.
template <typename Problem>
void launch_product(const Problem& p, int64_t tasks, cudaStream_t stream) {
    const auto padded = [&](int rows) { return round_up(p.rows, int64_t(rows)); };
    const bool square = padded(SquareTile::kRows) <= padded(QueryTile::kRows);
    square ? launch_tiles<SquareTile>(p, tasks, stream) : launch_tiles<QueryTile>(p, tasks, stream);
}

}  // namespace paddle_ext
