// The layout of rows of large tasks on CUDA: a warp takes a row at a time, a block some rows and up
// to kTile classes, whose sums stay in registers. Sums are taken in a fixed order, without atomics.
#pragma once

#include "common/workspace.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = 1024;            // classes per block
constexpr float kNothing = -INFINITY;  // logit of padding

// Rows per block: enough to hide what a block does only once, if there are blocks for all
// multiprocessors.
inline int64_t rows_of_block(int64_t B, int64_t N) {
    return B * N < (1 << 15) ? 32 : B * N < (1 << 18) ? 64 : 256;
}

// Neighbouring numbers, read and written at once.
template <int kWidth, typename T = float>
struct alignas(kWidth * sizeof(T)) Some {
    T x[kWidth];
};

template <int kWidth, typename T>
__device__ Some<kWidth, T> load(const T* from) {
    return *reinterpret_cast<const Some<kWidth, T>*>(from);
}

// The position of a block: task, first row and first class. Blocks of a task and tile are
// neighbours.
struct Place {
    int64_t N, K, rows;
    int64_t blocks = ceil_div(N, rows), tiles = ceil_div(K, int64_t(kTile));
    int64_t block = blockIdx.x % blocks, first_row = block * rows;
    int64_t first_class = blockIdx.x / blocks % tiles * kTile, task = blockIdx.x / blocks / tiles;
};

// A lane has kVectors times kWidth classes of a tile: those from width * (lane + 32 i) on.
template <int kWidth>
__device__ int class_of(int i) {
    return kWidth * (int(threadIdx.x % 32) + 32 * i);
}

// Calls body(i, j) for the classes of a lane.
template <int kVectors, int kWidth, typename Body>
__device__ __forceinline__ void each_class(const Body& body) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) body(i, j);
    }
}

// Writes the class sums held by the lanes of all warps to a line of `parts`; `sums` is shared memory
// with a line for each warp.
template <int kVectors, int kWidth>
__device__ void write_sums(const float (&held)[kVectors][kWidth], float* sums, float* part,
                           int64_t count) {
    constexpr int kLine = 32 * kVectors * kWidth;
    float* const own = sums + threadIdx.x / 32 * kLine;
    each_class<kVectors, kWidth>([&](int i, int j) { own[class_of<kWidth>(i) + j] = held[i][j]; });
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += kThreads) {
        float sum = 0;
        for (int other = 0; other < kWarps; ++other) sum += sums[other * kLine + k];
        part[k] = sum;
    }
}

// The largest logit of a row, and 1 / the sum of exponentials relative to it.
struct RowStats {
    float most, share;
};

// The workspace of `assign` and `count`.
struct RowsWorkspace {
    Arena arena;
    int64_t B, N, K;
    int64_t rows = rows_of_block(B, N), blocks = ceil_div(N, rows);  // per block, per task
    float* parts = arena.take<float>(B * blocks * K);                // [B, blocks, K]
    double* log_parts = arena.take<double>(B * N * 2);  // [B, blocks], or [B, 2, N] for leads
    // [B, N], for more classes than a block handles
    void* stats = arena.take<RowStats>(K > kTile ? B * N : 0);

    int64_t grid() const { return B * ceil_div(K, int64_t(kTile)) * blocks; }
};

inline int64_t row_blocks(int64_t rows) { return ceil_div(rows, int64_t(kWarps)); }

template <int kVectors_, int kWidth_>
struct Shape {
    static constexpr int kVectors = kVectors_, kWidth = kWidth_;
};

// Calls launch(shape) with the fewest registers that hold the classes of a lane; four are read at
// once if they are aligned.
template <typename Launch>
void with_shape(int64_t K, const Launch& launch) {
    if (K % 4 != 0) {
        if (K <= 128) return launch(Shape<4, 1>());
        if (K <= 512) return launch(Shape<16, 1>());
        return launch(Shape<32, 1>());
    }
    if (K <= 128) return launch(Shape<1, 4>());
    if (K <= 256) return launch(Shape<2, 4>());
    if (K <= 512) return launch(Shape<4, 4>());
    launch(Shape<8, 4>());
}

// Adds the parts of all blocks to `held` [B, K].
void add_parts(const RowsWorkspace& all, double* held, cudaStream_t stream);

// Adds lines of numbers to `sums`, one for each.
void add_logs(const double* parts, int64_t lines, int64_t length, double* sums,
              cudaStream_t stream);

}  // namespace paddle_ext
