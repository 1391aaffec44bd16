// Blocks of columns from left to right: each tile of 64 x 64 numbers loses the products of the
// columns before, then is multiplied by the inverse of the factor's diagonal block. One block of
// threads factorises a task, or a team of blocks if there are few tasks.

#include "cuda/factor.cuh"

#include "common/labelled.h"
#include "cuda/tile_product.cuh"

namespace paddle_ext {

namespace {

constexpr int kSide = int(kFactorBlock), kHalf = kSide / 2;
constexpr int kWidePitch = kSide + 8;  // rows begin in different banks
using SquareTile = Tile<1, 4, 4, 2>;   // 64 x 64

template <typename T>
struct FactorShared {
    union {
        typename T::Stages stages;
        float tile[T::kRows * kWidePitch];  // what remains after their products
    };
    float inverse[kSide * kWidePitch];
    __align__(16) float pivots[kHalf];
    double sums[T::kThreads / 32];
};

// Some rows of a task from the view of a tile.
struct TileRows {
    int count;           // rows from the tile's first on
    int valid, columns;  // rows and columns that are not padding
    const float* from;   // the tile's first row; or null for unit vectors
    const int* units;
    int64_t pitch;
    float* to;
    int64_t to_pitch;
    float scale = 1.0f;  // on `from`
    int first_unit = 0;  // of all unit vectors, if `units` is null

    __device__ int unit(int r) const { return units == nullptr ? first_unit + r : units[r]; }

    // The first block of columns that is not zero: unit vectors begin with zeros.
    __device__ int first_block() const {
        if (from != nullptr) return 0;
        return unit(0) < 0 ? INT32_MAX : unit(0) / kSide;
    }
};

// --- the diagonal --------------------------------------------------------------------------------

// The inverse of the Cholesky factor of 32 x 32 numbers by one warp: a lane holds a row. In step k,
// the numbers left of column k belong to the inverse, the others to what is left of the matrix.
// `shared` exchanges what a row is multiplied with.
__device__ inline void invert_half(const float* matrix, float* inverse, float* shared) {
    const int lane = threadIdx.x % 32;
    float value[kHalf];
#pragma unroll
    for (int c = 0; c < kHalf; ++c) value[c] = matrix[lane * kWidePitch + c];
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
        const float pivot = fmaxf(__shfl_sync(kAllLanes, value[k], k), 1e-30f),
                    near = rsqrtf(pivot);
        const float share = near * (1.5f - 0.5f * pivot * near * near);
        const float factor = value[k] * share;
        __syncwarp();
        if (lane > k) shared[lane] = factor;
        if (lane == k) {
#pragma unroll
            for (int c = 0; c <= k; ++c) shared[c] = value[c] = c < k ? value[c] * share : share;
        }
        __syncwarp();
        if (lane > k) {
            value[k] = 0;
#pragma unroll
            for (int c = 0; c < kHalf; ++c) value[c] -= factor * shared[c];
        }
    }
#pragma unroll
    for (int c = 0; c < kHalf; ++c) {
        inverse[lane * kWidePitch + c] = c <= lane ? value[c] : 0.0f;
    }
}

// to = start + factor (left right), or left right^T, of 32 x 32 numbers each, by 256 threads.
template <bool transposed>
__device__ inline void multiply_half(float* to, const float* start, float factor, const float* left,
                                     const float* right) {
    const int i = threadIdx.x / 8, first = threadIdx.x % 8 * 4;
    float sum[4] = {};
#pragma unroll 8
    for (int k = 0; k < kHalf; ++k) {
        const float a = left[i * kWidePitch + k];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const int j = first + u;
            sum[u] += a * right[transposed ? j * kWidePitch + k : k * kWidePitch + j];
        }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
        const int at = i * kWidePitch + first + u;
        to[at] = (start == nullptr ? 0.0f : start[at]) + factor * sum[u];
    }
    __syncthreads();
}

// The inverse of the factor of s.tile, by halves: [L 0; M N]^-1 is [L' 0; -N' M L' N'].
__device__ inline void invert_diagonal(FactorShared<SquareTile>& s) {
    constexpr int kBelow = kHalf * kWidePitch, kRight = kHalf, kLast = kBelow + kHalf;
    float *const spare = s.tile + kRight, *const last = s.tile + kLast;
    for (int at = threadIdx.x; at < kHalf * kHalf; at += SquareTile::kThreads) {
        s.inverse[kRight + at / kHalf * kWidePitch + at % kHalf] = 0.0f;
    }
#pragma unroll 1  // the code is long
    for (int half = 0; half < 2; ++half) {
        const int at = half * kLast;
        if (threadIdx.x < 32) invert_half(s.tile + at, s.inverse + at, s.pivots);
        __syncthreads();
        if (half == 1) break;
        multiply_half<true>(spare, nullptr, 1.0f, s.tile + kBelow, s.inverse);
        multiply_half<true>(last, last, -1.0f, spare, spare);
    }
    multiply_half<false>(s.tile + kBelow, nullptr, 1.0f, spare, s.inverse);
    multiply_half<false>(s.inverse + kBelow, nullptr, -1.0f, s.inverse + kLast, s.tile + kBelow);
}

// --- tiles ---------------------------------------------------------------------------------------

// A task from the view of a block of threads.
template <typename T>
struct FactorTask {
    FactorShared<T>& s;
    const float* factor;  // [pitch, pitch]
    int64_t pitch;

    // To s.tile: a tile of rows minus the products of the columns before, from block `first` on.
    __device__ void subtract_products(const TileRows& rows, int64_t column0, int first) const {
        T given, products;
        const int start = int(column0);
        given.for_each([&](int r, int c, float& value) {  // arrives during the products
            const int row = min(r, rows.valid - 1), column = min(start + c, rows.columns - 1);
            value = rows.from == nullptr ? __int_as_float(rows.unit(row))
                                         : rows.from[row * rows.pitch + column];
        });
        const auto row = [&](int r) { return rows.to + min(r, rows.count - 1) * rows.to_pitch; };
        const auto column = [&](int c) { return factor + (column0 + c) * pitch; };
        products.template add_products<true>(s.stages, row, column, first * kSide, column0);
        given.for_each([&](int r, int c, float& value) {
            const bool there = r < rows.valid && start + c < rows.columns;
            if (rows.from == nullptr) value = __float_as_int(value) == start + c ? 1.0f : 0.0f;
            s.tile[r * kWidePitch + c] = there ? value * rows.scale : 0.0f;
        });
        products.for_each([&](int r, int c, float x) { s.tile[r * kWidePitch + c] -= x; });
        __syncthreads();
    }

    __device__ void solve_tile(const TileRows& rows, int64_t column0) const {
        const int first = rows.first_block();
        T solved;
        if (first <= column0 / kSide) {
            subtract_products(rows, column0, first);
            solved.template multiply<kWidePitch, kSide>(s.tile, s.inverse);
        }
        solved.for_each([&](int r, int c, float x) {
            if (r < rows.count) rows.to[r * rows.to_pitch + column0 + c] = x;
        });
        __syncthreads();  // the tile is free
    }
};

template <typename T>
__device__ TileRows tile_rows(const SolvedRows& rows, int64_t task, int64_t tile, int64_t M,
                              int64_t pitch) {
    const int64_t row0 = tile * T::kRows, at = task * rows.count + row0;
    const int count = int(min(rows.count - row0, int64_t(T::kRows)));
    return {count,
            count,
            int(M),
            rows.from == nullptr ? nullptr : rows.from + at * rows.pitch,
            rows.units == nullptr ? nullptr : rows.units + at,
            rows.pitch,
            rows.to + at * pitch,
            pitch,
            1.0f,
            int(row0)};
}

__global__ void __launch_bounds__(SquareTile::kThreads, 2) factor_kernel(Factor f, int blocks) {
    extern __shared__ __align__(16) char memory[];
    auto& s = *reinterpret_cast<FactorShared<SquareTile>*>(memory);
    const int64_t task = blockIdx.x / blocks, pitch = factor_columns(f.M);
    const int rank = int(blockIdx.x % blocks);
    Team team = blocks == 1 ? Team() : Team(f.teams + task, rank, blocks);
    float* const factor = f.factor + task * pitch * pitch;
    const FactorTask<SquareTile> t{s, factor, pitch};

    double trace = 0;
    for (int64_t i = threadIdx.x; i < f.M; i += SquareTile::kThreads)
        trace += double(factor[i * (pitch + 1)]);
    trace = block_sum(trace, s.sums) + double(f.S - f.K) * kNoScatter;
    const float scatter = float(trace / double(f.D));
    if (rank == 0 && threadIdx.x == 0) f.scatter[task] = scatter;

    const int64_t square = pitch / kSide, with_classes = square + ceil_div(f.classes.count, kSide);
    const int64_t all = with_classes + ceil_div(f.judges.count, kSide);
    const auto rows_of = [&](int64_t tile) {
        if (tile >= with_classes) {
            return tile_rows<SquareTile>(f.judges, task, tile - with_classes, f.M, pitch);
        }
        if (tile >= square)
            return tile_rows<SquareTile>(f.classes, task, tile - square, f.M, pitch);
        float* const here = factor + tile * kSide * pitch;
        const int valid = int(min(f.M - tile * kSide, int64_t(kSide)));
        return TileRows{kSide, valid, int(f.M), here, nullptr, pitch, here, pitch, 1.0f / scatter};
    };
    for (int64_t column0 = 0; column0 < pitch; column0 += kSide) {
        const int64_t tile = column0 / kSide;
        t.subtract_products(rows_of(tile), column0, 0);  // by every block of a team
        for (int i = threadIdx.x; i < kSide; i += SquareTile::kThreads)
            s.tile[i * (kWidePitch + 1)] += 1.0f;
        __syncthreads();
        invert_diagonal(s);
        for (int64_t other = tile + 1 + rank; other < all; other += blocks) {
            t.solve_tile(rows_of(other), column0);
        }
        team.sync();
        for (int at = threadIdx.x; rank == 0 && at < kSide * kSide; at += SquareTile::kThreads) {
            const int r = at / kSide, c = at % kSide;
            factor[(column0 + r) * pitch + column0 + c] = s.inverse[r * kWidePitch + c];
        }
    }
}

// One block of threads per tile of rows.
__global__ void __launch_bounds__(QueryTile::kThreads, 2)
    solve_kernel(SolvedRows rows, const float* factor, const float* shares, int64_t M,
                 bool shared) {
    extern __shared__ __align__(16) char memory[];
    auto& s = *reinterpret_cast<FactorShared<QueryTile>*>(memory);
    const int64_t tiles = ceil_div(rows.count, QueryTile::kRows), pitch = factor_columns(M);
    const int64_t task = blockIdx.x / tiles;
    const int64_t likelihood = shared ? 0 : task;
    if (shares[3 * likelihood + 2] == 0) return;
    const FactorTask<QueryTile> t{s, factor + likelihood * pitch * pitch, pitch};
    const TileRows mine = tile_rows<QueryTile>(rows, task, blockIdx.x % tiles, M, pitch);
    for (int64_t column0 = 0; column0 < pitch; column0 += kSide) {
        for (int piece = threadIdx.x; piece < kSide * kSide / 4; piece += QueryTile::kThreads) {
            const int r = piece / (kSide / 4), c = piece % (kSide / 4) * 4;
            copy_async16(shared_address(s.inverse + r * kWidePitch + c),
                         t.factor + (column0 + r) * pitch + column0 + c, true);
        }
        t.solve_tile(mine, column0);  // waits for all copies
    }
}

}  // namespace

void launch_factor(const Factor& f, int device, cudaStream_t stream) {
    constexpr int64_t kMostBlocks = 16;  // every block of a team repeats the diagonal
    constexpr int kThreads = SquareTile::kThreads;
    constexpr int kBytes = int(sizeof(FactorShared<SquareTile>));
    const auto kernel = factor_kernel;
    allow_all_shared(kernel);
    int resident = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, kBytes),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    const int64_t room =
        int64_t(resident) * device_attribute(cudaDevAttrMultiProcessorCount, device);
    const int64_t tiles = factor_columns(f.M) / kSide + ceil_div(f.classes.count, kSide) +
                          ceil_div(f.judges.count, kSide);
    int blocks = int(max(min(min(room / f.B, tiles), kMostBlocks), int64_t(1)));
    if (blocks == 1) {
        kernel<<<grid_size(f.B), kThreads, kBytes, stream>>>(f, blocks);
    } else {
        check_cuda(cudaMemsetAsync(f.teams, 0, sizeof(TeamMemory) * f.B, stream), "cudaMemset");
        Factor copy = f;
        void* arguments[] = {&copy, &blocks};
        check_cuda(cudaLaunchCooperativeKernel(kernel, dim3(unsigned(f.B * blocks)), dim3(kThreads),
                                               arguments, kBytes, stream),
                   "cudaLaunchCooperativeKernel");
    }
    check_launch("factor_kernel");
}

void launch_solve(const SolvedRows& rows, const float* factor, const float* shares, int64_t M,
                  int64_t B, int64_t L, cudaStream_t stream) {
    const auto kernel = solve_kernel;
    allow_all_shared(kernel);
    const unsigned blocks = grid_size(B * ceil_div(rows.count, QueryTile::kRows));
    kernel<<<blocks, QueryTile::kThreads, sizeof(FactorShared<QueryTile>), stream>>>(
        rows, factor, shares, M, L == 1);
    check_launch("solve_kernel");
}

}  // namespace paddle_ext
