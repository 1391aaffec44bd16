// The factor of the full metric on CUDA, and rows solved for with it; see common/adaptive.h.
//
// Blocks of columns from left to right: each tile of 64 x 64 numbers loses the products of the
// columns before, then is multiplied by the inverse of the factor's diagonal block. One block of
// threads factorises a task, or a team of blocks if there are few tasks.
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
    const int* units;  // [tasks, count] unit vectors, by the increasing numbers of their columns,
                       // -1 for zero; or null for all
    int64_t pitch;     // numbers
    __half* to;        // [tasks, count, M'] split; may be `from`
};

struct Factor {
    int64_t B, S, K, M;
    float* factor;   // [B, M', M'] V V^T or V^T V, the lower triangle; replaced by L, split
    float* scatter;  // [B]
    SolvedRows classes{}, judges{};
    TeamMemory* teams = nullptr;  // [B]
};

constexpr int kSide = int(kFactorBlock), kHalf = kSide / 2;
constexpr int kPitch = kSide + 4;              // of floats: eight rows begin in different banks
using SquareTile = Tile<1, 4, 4, 2>;           // 64 x 64
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
    const int* units;
    int64_t pitch;
    __half* to;
    float scale = 1.0f;  // on `from`
    int first_unit = 0;  // of all unit vectors, if `units` is null

    __device__ int unit(int r) const { return units == nullptr ? first_unit + r : units[r]; }

    // The first block of columns that is not zero: unit vectors begin with zeros.
    __device__ int first_block() const {
        if (from != nullptr) return 0;
        return unit(0) < 0 ? INT32_MAX : unit(0) / kSide;
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
template <bool transposed>
__device__ inline void multiply_half(float* to, const float* start, float factor, const float* left,
                                     const float* right) {
    constexpr int kLanes = SquareTile::kThreads / kHalf, kColumns = kHalf / kLanes;
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
__device__ inline void invert_diagonal(Diagonal& s) {
    constexpr int kBelow = kHalf * kPitch, kRight = kHalf, kLast = kBelow + kHalf;
    float *const spare = s.tile + kRight, *const last = s.tile + kLast;
    for (int at = threadIdx.x; at < kHalf * kHalf; at += SquareTile::kThreads) {
        s.inverse[kRight + at / kHalf * kPitch + at % kHalf] = 0.0f;
    }
#pragma unroll 1  // the code is long
    for (int half = 0; half < 2; ++half) {
        const int at = half * kLast;
        if (threadIdx.x < 32) invert_half(s.tile + at, s.inverse + at);
        __syncthreads();
        if (half == 1) break;
        multiply_half<true>(spare, nullptr, 1.0f, s.tile + kBelow, s.inverse);
        multiply_half<true>(last, last, -1.0f, spare, spare);
    }
    multiply_half<false>(s.tile + kBelow, nullptr, 1.0f, spare, s.inverse);
    multiply_half<false>(s.inverse + kBelow, nullptr, -1.0f, s.inverse + kLast, s.tile + kBelow);
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
        rows.load_negative(tile, column0);
        const auto row = [&](int r) { return rows.to + min(r, rows.count - 1) * row_pitch(); };
        const auto column = [&](int c) { return factor + (column0 + c) * row_pitch(); };
        tile.add_products(s.stages, row, column, first * kSide, column0);
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
        invert_diagonal(s.diagonal);
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
};

template <typename T>
__device__ TileRows tile_rows(const SolvedRows& rows, int64_t task, int64_t tile, int64_t M,
                              int pitch) {
    const int64_t row0 = tile * T::kRows, at = task * rows.count + row0;
    const int count = int(min(rows.count - row0, int64_t(T::kRows)));
    const float* const from = floats(rows.from);
    const int* const units = rows.units == nullptr ? nullptr : rows.units + at;
    return {count,      count,    int(M),     from == nullptr ? nullptr : from + at * rows.pitch,
            rows.split, units,    rows.pitch, rows.to + at * 2 * pitch,
            1.0f,       int(row0)};
}

// A team also finds the next products.
template <typename Products>
__global__ void __launch_bounds__(SquareTile::kThreads, 2)
    factor_kernel(Factor f, Products next, int blocks) {
    extern __shared__ __align__(128) char memory[];
    auto& s = *reinterpret_cast<FactorShared<SquareTile>*>(memory);
    const int64_t task = blockIdx.x / blocks;
    const int rank = int(blockIdx.x % blocks), pitch = int(factor_columns(f.M));
    Team team = blocks == 1 ? Team() : Team(f.teams + task, rank, blocks);
    float* const products = f.factor + task * pitch * int64_t(pitch);
    const FactorTask<SquareTile> t{s, reinterpret_cast<__half*>(products), pitch};

    double trace = 0;
    for (int64_t i = threadIdx.x; i < f.M; i += SquareTile::kThreads)
        trace += double(products[i * (pitch + 1)]);
    const float scatter = float(mean_scatter(block_sum(trace, s.sums), f.S, f.K));
    if (rank == 0 && threadIdx.x == 0) f.scatter[task] = scatter;

    const int square = pitch / kSide;
    const int with_classes = square + int(ceil_div(f.classes.count, kSide));
    const int all = with_classes + int(ceil_div(f.judges.count, kSide));
    const auto rows_of = [&](int tile) {
        if (tile >= with_classes) {
            return tile_rows<SquareTile>(f.judges, task, tile - with_classes, f.M, pitch);
        }
        if (tile >= square)
            return tile_rows<SquareTile>(f.classes, task, tile - square, f.M, pitch);
        const int64_t here = int64_t(tile) * kSide * pitch;
        const int valid = min(int(f.M) - tile * kSide, kSide);
        return TileRows{
            kSide,         valid,   int(f.M), products + here,
            false,         nullptr, pitch,    reinterpret_cast<__half*>(products + here),
            1.0f / scatter};
    };
    for (int column0 = 0; column0 < pitch; column0 += kSide) {
        const int tile = column0 / kSide;
        t.find_inverse(rows_of(tile), column0);  // by every block of a team
        for (int other = tile + 1 + rank; other < all; other += blocks) {
            t.solve_tile(rows_of(other), column0);
        }
        team.sync();
        auto* const halves = reinterpret_cast<__half*>(products);
        for (int at = threadIdx.x; rank == 0 && at < kSide * kSidePieces;
             at += SquareTile::kThreads) {
            *reinterpret_cast<uint4*>(halves + t.place(column0, at)) = *t.inverse(at);
        }
    }
    const int64_t tiles = tiles_of<SquareTile>(next);
    for (int64_t tile = rank; blocks > 1 && tile < tiles; tile += blocks) {
        find_tile<SquareTile>(next, task * tiles + tile);
    }
}

// The factor, then products of what it solved for.
template <typename Products>
void launch_factor(const Factor& f, const Products& next, cudaStream_t stream) {
    const int64_t tiles = factor_columns(f.M) / kSide + ceil_div(f.classes.count, kSide) +
                          ceil_div(f.judges.count, kSide);
    const int blocks =
        launch_teams("factor_kernel", factor_kernel<Products>, f.B, tiles, SquareTile::kThreads,
                     sizeof(FactorShared<SquareTile>), f.teams, stream, f, next);
    if (blocks == 1) launch_product(next, f.B, stream);
}

}  // namespace paddle_ext
