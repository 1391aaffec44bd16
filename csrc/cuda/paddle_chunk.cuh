// A chunk of tasks solved together, its arrays in the workspace, and the stages of a solve:
//
//   scale_queries -> class_sums -> products -> blocks
//
// A chunk is a view of the call: its own first task, with all pointers of the call unchanged.
#pragma once

#include <cuda_runtime.h>

#include "common/arena.h"
#include "common/device.cuh"
#include "common/params.h"

namespace paddle_ext {

constexpr int kRowsPerWarp = 16;  // queries owned by one warp of the block solver
constexpr int kFewClasses = 32;   // kept in registers, one per lane

// Which solver to use; depends on the shape of a task only, so that its result does not depend on
// the batch.
struct CudaPlan {
    bool fits;         // a task fits a block
    bool shared_gram;  // G fits the block's shared memory
    int64_t Qp, Dp;    // padded sizes
    int shared_bytes;  // of the block solver
};

struct Chunk {
    PaddleParams call;
    CudaPlan plan;
    int64_t first, tasks;
    int multiprocessors;
    cudaStream_t stream;
    const volatile int* stop;  // 1 once the call is cancelled; null if it is not watched

    // for every solve; T tasks in the chunk, U = T, or 1 if the support is shared
    float* mean;         // [T, D]      query mean, in unit-norm coordinates for "auto"
    float* scale;        // [T, D]      factor on a centred row
    int* exponent;       // [T]         the task is scaled down by 2^exponent
    int* far;            // [T]         whether a prototype is beyond kFarAway
    float* norms;        // [T, Q]      inverse norms of the queries ("auto")
    float* z;            // [T, Q, Dp]  scaled, centred queries
    int* order;          // [U, S]      support rows grouped by class
    int* start;          // [U, K + 1]  where the rows of a class begin in it
    int* histogram;      // [U, warps, K], if shared memory is too small for it
    float* shift;        // [D]         of the shared support
    float* shared_sums;  // [K, Dp]     of its rows - shift
    float* count;        // [U, K]      shots
    float* sums;         // [T, K, Dp]  class sums in scaled coordinates
    // Gram form
    float* gram;     // [T, Q, Qp]
    uint4* halves;   // [T, Qp, Qp]  the same as two halves each, if shared memory is too small
    float* m;        // [T, K, Qp]  N_k z.w
    float* u;        // [T, K, Qp]  probabilities as applied to m
    float* norm;     // [T, K]      ||N_k w_k||^2 at the start
    int* next_task;  // [1]
    // prototypes
    float* raw_shift;  // [U, D]
    float* raw_sums;   // [U, K, Dp]
    float* raw_count;  // [U, K]
};

// How group_support_kernel counts; `shared`: in shared memory.
struct GroupPlan {
    int warps;
    bool shared;
};
GroupPlan group_plan(const PaddleSizes& size);

void launch_scale_queries(const Chunk& chunk);
void launch_class_sums(const Chunk& chunk);
void launch_products(const Chunk& chunk);
void launch_blocks(const Chunk& chunk);
void launch_few(const Chunk& chunk);
void launch_prototypes(const Chunk& chunk);

int block_shared_bytes(const PaddleSizes& size, bool shared_gram);

}  // namespace paddle_ext
