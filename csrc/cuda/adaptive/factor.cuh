// The factor of the full metric on CUDA, and rows solved for with it; see common/adaptive.h.
//
// Blocks of columns from left to right: each tile of 64 x 64 numbers loses the products of the
// columns before, then is multiplied by the inverse of the factor's diagonal block. If tasks are few
// a team of thread blocks factorises each; else all go from column to column together.
#pragma once

#include "common/adaptive.h"
#include "cuda/adaptive/tile_product.cuh"
#include "cuda/team.cuh"

namespace paddle_ext {

// Rows b of a task, and L^-1 b.
struct SolvedRows {
    int64_t count;
    const void* from;  // [tasks, count, pitch] numbers; or null:
    bool split;        // which `from` is; else floats
    int64_t units;     // `count` of so many unit vectors, evenly spread, see calibration_row
    int64_t pitch;     // numbers
    __half* to;        // [tasks, count, M'] split; may be `from`
};

struct Factor {
    int64_t B, M;
    const double* degrees;  // [B] of freedom
    float* factor;          // [B, M', M'] V V^T or V^T V, the lower triangle; replaced by L, split
    float* scatter;         // [B]
    SolvedRows classes{}, judges{};
    TeamMemory* teams = nullptr;  // [B]

    __device__ __half* split(int64_t task) const {
        const int64_t pitch = factor_columns(M);
        return reinterpret_cast<__half*>(factor + task * pitch * pitch);
    }
};

constexpr int kSide = int(kFactorBlock), kHalf = kSide / 2;
constexpr int kPitch = kSide + 4;              // of floats: eight rows begin in different banks
using TeamTile = Tile<1, 4, 4, 2>;             // 64 x 64, by twice as many threads
constexpr int kSidePieces = 2 * kGroupPieces;  // in a row of as many numbers

// Floats: what remains of a diagonal block after the products of the columns before, and its
// inverse.
struct Diagonal {
    float tile[kSide * kPitch], inverse[kSide * kPitch];
};

template <typename T>
struct FactorShared {
    union {
        typename T::Stages stages;
        Diagonal diagonal;
        __half rest[T::kRows * 2 * kSide];  // what remains of other rows
    };
    alignas(128) __half inverse[kSide * 2 * kSide];
    double sums[T::kThreads / 32];
};

// Some rows of a task from the view of a tile.
struct TileRows {
    int count;           // rows from the tile's first on
    int valid, columns;  // rows and columns that are not padding
    const void* from;    // the tile's first row; or null for unit vectors
    bool split;          // which `from` is; else floats
    int64_t pitch;
    __half* to;
    float scale = 1.0f;  // on `from`
    // Unit vectors, from this one of `spread` out of `units`.
    int64_t first_unit = 0, spread = 1, units = 1;

    __device__ int unit(int r) const { return int(calibration_row(first_unit + r, units, spread)); }

    // The first block of columns that is not zero: unit vectors begin with zeros.
    __device__ int first_block() const {
        if (from != nullptr) return 0;
        return unit(0) / kSide;
    }

    // Minus the numbers of a tile. Loads do not wait for one another: what is padding is loaded too.
    template <typename T>
    __device__ void load_negative(T& tile, int column0) const {
        const auto each = [&](const auto& load) {
            tile.for_each([&](int r, int c, float& x, float& y) {
                const int row = min(r, valid - 1), column = min(column0 + c, (columns - 1) / 2 * 2);
                const float2 given = load(row, column);
                x = given.x, y = given.y;
            });
        };
        if (from == nullptr) {
            each([&](int r, int c) { return make_float2(unit(r) == c, unit(r) == c + 1); });
        } else if (split) {
            const __half* const halves = static_cast<const __half*>(from);
            each([&](int r, int c) { return load_row2(halves + r * 2 * pitch, c); });
        } else {
            const float2* const floats = static_cast<const float2*>(from);
            each([&](int r, int c) { return floats[(r * pitch + c) / 2]; });
        }
        tile.for_each([&](int r, int c, float& x, float& y) {
            x = r < valid && column0 + c < columns ? -scale * x : 0.0f;
            y = r < valid && column0 + c + 1 < columns ? -scale * y : 0.0f;
        });
    }
};

// --- the diagonal --------------------------------------------------------------------------------

// The inverse of the Cholesky factor of 32 x 32 numbers by one warp: a lane holds a row. In step k,
// the numbers left of column k belong to the inverse, the others to what is left of the matrix.
__device__ inline void invert_half(const float* matrix, float* inverse) {
    const int lane = threadIdx.x % 32;
    float value[kHalf], own = 0;
#pragma unroll
    for (int c = 0; c < kHalf; ++c) value[c] = matrix[lane * kPitch + c];
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
        const float pivot = fmaxf(__shfl_sync(kAllLanes, value[k], k), 1e-30f),
                    near = rsqrtf(pivot);
        const float share = near * (1.5f - 0.5f * pivot * near * near);
        const float factor = lane > k ? value[k] * share : 0.0f, left = factor * share;
        if (lane == k) own = share;  // row k of the inverse lacks this factor until the end
#pragma unroll
        for (int c = 0; c < k; ++c) value[c] -= left * __shfl_sync(kAllLanes, value[c], k);
        if (lane > k) value[k] = -left;
#pragma unroll
        for (int c = k + 1; c < kHalf; ++c) value[c] -= factor * __shfl_sync(kAllLanes, factor, c);
    }
#pragma unroll
    for (int c = 0; c < kHalf; ++c) {
        inverse[lane * kPitch + c] = c < lane ? value[c] * own : c == lane ? own : 0.0f;
    }
}

// to = start + factor (left right), or left right^T, of 32 x 32 numbers each, by a block.
template <bool transposed, int kThreads>
__device__ inline void multiply_half(float* to, const float* start, float factor, const float* left,
                                     const float* right) {
    constexpr int kLanes = kThreads / kHalf, kColumns = kHalf / kLanes;
    const int i = threadIdx.x / kLanes, first = threadIdx.x % kLanes;
    float sum[kColumns] = {};
#pragma unroll 8
    for (int k = 0; k < kHalf; ++k) {
        const float a = left[i * kPitch + k];
#pragma unroll
        for (int u = 0; u < kColumns; ++u) {
            const int j = first + kLanes * u;
            sum[u] += a * right[transposed ? j * kPitch + k : k * kPitch + j];
        }
    }
#pragma unroll
    for (int u = 0; u < kColumns; ++u) {
        const int at = i * kPitch + first + kLanes * u;
        to[at] = (start == nullptr ? 0.0f : start[at]) + factor * sum[u];
    }
    __syncthreads();
}

// The inverse of the factor of the tile, by halves: [L 0; M N]^-1 is [L' 0; -N' M L' N'].
template <int kThreads>
__device__ inline void invert_diagonal(Diagonal& s) {
    constexpr int kBelow = kHalf * kPitch, kRight = kHalf, kLast = kBelow + kHalf;
    float *const spare = s.tile + kRight, *const last = s.tile + kLast;
    for (int at = threadIdx.x; at < kHalf * kHalf; at += kThreads) {
        s.inverse[kRight + at / kHalf * kPitch + at % kHalf] = 0.0f;
    }
#pragma unroll 1  // the code is long
    for (int half = 0; half < 2; ++half) {
        const int at = half * kLast;
        if (threadIdx.x < 32) invert_half(s.tile + at, s.inverse + at);
        __syncthreads();
        if (half == 1) break;
        multiply_half<true, kThreads>(spare, nullptr, 1.0f, s.tile + kBelow, s.inverse);
        multiply_half<true, kThreads>(last, last, -1.0f, spare, spare);
    }
    multiply_half<false, kThreads>(s.tile + kBelow, nullptr, 1.0f, spare, s.inverse);
    multiply_half<false, kThreads>(s.inverse + kBelow, nullptr, -1.0f, s.inverse + kLast,
                                   s.tile + kBelow);
}

// Numbers c and c + 1 of a row of kSide numbers in shared memory.
__device__ inline void store_shared(__half* rows, int r, int c, float first, float second) {
    constexpr int kLow = kGroupPieces / 2;
    const HighLow x = split(first * kSplitFactor), y = split(second * kSplitFactor);
    const int piece = c / kGroup * kGroupPieces + c % kGroup / 8;
    const auto to = [&](int at) {
        return reinterpret_cast<__half2*>(rows + piece_place<kSide>(r, at) + c % 8);
    };
    *to(piece) = __halves2half2(x.high, y.high);
    *to(piece + kLow) = __halves2half2(x.low, y.low);
}

// --- tiles ---------------------------------------------------------------------------------------

// A task from the view of a block of threads.
template <typename T>
struct FactorTask {
    FactorShared<T>& s;
    const __half* factor;  // [pitch, 2 pitch]
    int pitch;

    __device__ int64_t row_pitch() const { return 2 * pitch; }  // halves

    // Products of the columns before, from block `first` on, minus a tile of rows.
    __device__ T negative_rest(const TileRows& rows, int column0, int first) const {
        T tile;
        const auto row = [&](int r) { return rows.to + min(r, rows.count - 1) * row_pitch(); };
        const auto column = [&](int c) { return factor + (column0 + c) * row_pitch(); };
        tile.add_products(s.stages, row, column, first * kSide, column0,
                          [&] { rows.load_negative(tile, column0); });
        return tile;
    }

    __device__ void solve_tile(const TileRows& rows, int column0) const {
        const int first = rows.first_block();
        T tile;
        if (first <= column0 / kSide) {
            tile = negative_rest(rows, column0, first);
            tile.for_each(
                [&](int r, int c, float x, float y) { store_shared(s.rest, r, c, -x, -y); });
            __syncthreads();
            tile = T();
            tile.template multiply<kSide>(s.rest, s.inverse);
        }
        tile.for_each([&](int r, int c, float x, float y) {
            if (r < rows.count) store_row2(rows.to + r * row_pitch(), column0 + c, x, y);
        });
        __syncthreads();  // the rest is free
    }

    // The inverse of the factor's diagonal block, to shared memory.
    __device__ void find_inverse(const TileRows& rows, int column0) const {
        negative_rest(rows, column0, 0).for_each([&](int r, int c, float x, float y) {
            s.diagonal.tile[r * kPitch + c] = (r == c ? 1.0f : 0.0f) - x;
            s.diagonal.tile[r * kPitch + c + 1] = (r == c + 1 ? 1.0f : 0.0f) - y;
        });
        __syncthreads();
        invert_diagonal<T::kThreads>(s.diagonal);
        for (int at = 2 * threadIdx.x; at < kSide * kSide; at += 2 * T::kThreads) {
            const float* const x = s.diagonal.inverse + at / kSide * kPitch + at % kSide;
            store_shared(s.inverse, at / kSide, at % kSide, x[0], x[1]);
        }
        __syncthreads();
    }

    // Piece `at` of a diagonal block: its place in the factor, in halves, and that of its inverse.
    __device__ int64_t place(int column0, int at) const {
        return (column0 + at / kSidePieces) * row_pitch() + 2 * column0 + at % kSidePieces * 8;
    }
    __device__ uint4* inverse(int at) const {
        return reinterpret_cast<uint4*>(s.inverse +
                                        piece_place<kSide>(at / kSidePieces, at % kSidePieces));
    }

    __device__ void store_inverse(__half* to, int column0) const {
        for (int at = threadIdx.x; at < kSide * kSidePieces; at += T::kThreads) {
            *reinterpret_cast<uint4*>(to + place(column0, at)) = *inverse(at);
        }
    }
    // Asynchronously: solve_tile() waits, unless its rows are still zero and need no inverse.
    __device__ void load_inverse(int column0) const {
        for (int at = threadIdx.x; at < kSide * kSidePieces; at += T::kThreads) {
            copy_async16(shared_address(inverse(at)), factor + place(column0, at), true);
        }
    }
};

// Rows of the factor itself from row0 on.
template <typename T>
__device__ TileRows square_rows(const Factor& f, int64_t task, int row0, float scatter) {
    const int pitch = int(factor_columns(f.M)), count = min(pitch - row0, T::kRows);
    const float* const from = f.factor + (task * pitch + row0) * int64_t(pitch);
    __half* const to = f.split(task) + row0 * 2 * int64_t(pitch);
    const int valid = min(int(f.M) - row0, count);
    return {count, valid, int(f.M), from, false, pitch, to, 1.0f / scatter};
}

template <typename T>
__device__ TileRows tile_rows(const SolvedRows& rows, int64_t task, int64_t tile, int64_t M,
                              int pitch) {
    const int64_t row0 = tile * T::kRows, at = task * rows.count + row0;
    const int count = int(min(rows.count - row0, int64_t(T::kRows)));
    const float* const from = floats(rows.from);
    return {count,
            count,
            int(M),
            from == nullptr ? nullptr : from + at * rows.pitch,
            rows.split,
            rows.pitch,
            rows.to + at * 2 * pitch,
            1.0f,
            row0,
            rows.count,
            rows.units};
}

// Rows of a block of columns that are solved for once its inverse is known.
template <typename T>
struct ColumnTiles {
    const Factor& f;
    int pitch, row0;  // rows of the factor from row0 on, then classes, then judges
    int below = ceil_div(pitch - row0, T::kRows);
    int with_classes = below + int(ceil_div(f.classes.count, T::kRows));
    int all = with_classes + int(ceil_div(f.judges.count, T::kRows));

    __device__ TileRows rows(int64_t task, int tile, float scatter) const {
        if (tile < below) return square_rows<T>(f, task, row0 + tile * T::kRows, scatter);
        if (tile >= with_classes) {
            return tile_rows<T>(f.judges, task, tile - with_classes, f.M, pitch);
        }
        return tile_rows<T>(f.classes, task, tile - below, f.M, pitch);
    }
};

// By one block.
template <int kThreads>
__device__ float find_scatter(const Factor& f, int64_t task, double* scratch) {
    const int64_t pitch = factor_columns(f.M);
    double trace = 0;
    for (int64_t i = threadIdx.x; i < f.M; i += kThreads)
        trace += double(f.factor[task * pitch * pitch + i * (pitch + 1)]);
    return float(mean_scatter(block_sum(trace, scratch), f.degrees[task]));
}

// A task by a team, which also finds the next products.
template <typename Products>
__global__ void __launch_bounds__(TeamTile::kThreads, 2)
    factor_kernel(Factor f, Products next, int blocks) {
    extern __shared__ __align__(128) char memory[];
    auto& s = *reinterpret_cast<FactorShared<TeamTile>*>(memory);
    const int64_t task = blockIdx.x / blocks;
    const int rank = int(blockIdx.x % blocks), pitch = int(factor_columns(f.M));
    Team team(f.teams + task, rank, blocks);
    const FactorTask<TeamTile> t{s, f.split(task), pitch};
    const float scatter = find_scatter<TeamTile::kThreads>(f, task, s.sums);
    if (rank == 0 && threadIdx.x == 0) f.scatter[task] = scatter;
    for (int column0 = 0; column0 < pitch; column0 += kSide) {
        t.find_inverse(square_rows<TeamTile>(f, task, column0, scatter),
                       column0);  // by each block
        const ColumnTiles<TeamTile> tiles{f, pitch, column0 + kSide};
        for (int tile = rank; tile < tiles.all; tile += blocks) {
            t.solve_tile(tiles.rows(task, tile, scatter), column0);
        }
        team.sync();
        if (rank == 0) t.store_inverse(f.split(task), column0);
    }
    const int64_t tiles = tiles_of<TeamTile>(next);
    for (int64_t tile = rank; tile < tiles; tile += blocks) {
        find_tile<TeamTile>(next, task * tiles + tile);
    }
}

// Many tasks, a block of columns at a time: first its inverse, ..
template <int kThreads>
__global__ void __launch_bounds__(kThreads) inverse_kernel(Factor f, int column0) {
    __shared__ Diagonal s;
    __shared__ double sums[kThreads / 32];
    const int64_t task = blockIdx.x;
    const int pitch = int(factor_columns(f.M)), valid = int(f.M) - column0;
    __half* const to = f.split(task) + column0 * 2 * int64_t(pitch);
    const float* const from = reinterpret_cast<const float*>(to) + column0;
    float scale = 1.0f;
    if (column0 == 0) {
        const float scatter = find_scatter<kThreads>(f, task, sums);
        if (threadIdx.x == 0) f.scatter[task] = scatter;
        scale = 1.0f / scatter;
    }
#pragma unroll 8
    for (int at = threadIdx.x; at < kSide * kSide; at += kThreads) {
        const int r = at / kSide, c = at % kSide;
        const float given = r < valid && c < valid ? scale * from[r * int64_t(pitch) + c] : 0.0f;
        s.tile[r * kPitch + c] = (r == c ? 1.0f : 0.0f) + given;
    }
    __syncthreads();
    invert_diagonal<kThreads>(s);
    for (int at = 2 * threadIdx.x; at < kSide * kSide; at += 2 * kThreads) {
        const int r = at / kSide, c = at % kSide;
        const float* const x = s.inverse + r * kPitch + c;
        store_row2(to + r * 2 * int64_t(pitch), column0 + c, x[0], x[1]);
    }
}

// .. then the rows, one block of threads per tile. That of the first rows below also leaves what
// remains of the next diagonal block in its place.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, 3) column_kernel(Factor f, int column0) {
    extern __shared__ __align__(128) char memory[];
    auto& s = *reinterpret_cast<FactorShared<T>*>(memory);
    const int pitch = int(factor_columns(f.M)), next = column0 + kSide;
    const ColumnTiles<T> tiles{f, pitch, next};
    const unsigned blocks = unsigned(tiles.all);
    const int64_t task = blockIdx.x / blocks;
    const int tile = int(blockIdx.x % blocks);
    const FactorTask<T> t{s, f.split(task), pitch};
    const TileRows rows = tiles.rows(task, tile, f.scatter[task]);
    t.load_inverse(column0);
    t.solve_tile(rows, column0);
    if (tile > 0 || next >= pitch) return;
    float* const rest = reinterpret_cast<float*>(rows.to) + next;
    t.negative_rest(rows, next, 0).for_each([&](int r, int c, float x, float y) {
        *reinterpret_cast<float2*>(rest + r * int64_t(pitch) + c) = make_float2(-x, -y);
    });
}

// The factor, then products of what it solved for.
template <typename Products>
void launch_factor(const Factor& f, const Products& next, cudaStream_t stream) {
    using T = SquareTile;
    constexpr int64_t kTeamBytes = sizeof(FactorShared<TeamTile>);
    const int pitch = int(factor_columns(f.M));
    const int64_t useful = ColumnTiles<TeamTile>{f, pitch, 0}.all;
    const auto of_team = factor_kernel<Products>;
    if (team_blocks(of_team, f.B, useful, TeamTile::kThreads, kTeamBytes) > 1) {
        launch_teams("factor_kernel", of_team, f.B, useful, TeamTile::kThreads, kTeamBytes, f.teams,
                     stream, f, next);
        return;
    }
    allow_all_shared(column_kernel<T>);
    for (int column0 = 0; column0 < pitch; column0 += kSide) {
        launch("inverse_kernel", inverse_kernel<T::kThreads>, f.B, T::kThreads, 0, stream, f,
               column0);
        launch("column_kernel", column_kernel<T>,
               f.B * ColumnTiles<T>{f, pitch, column0 + kSide}.all, T::kThreads,
               sizeof(FactorShared<T>), stream, f, column0);
    }
    launch_product(next, f.B, stream);
}

}  // namespace paddle_ext
