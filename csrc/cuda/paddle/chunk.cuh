// A chunk of tasks solved together, its arrays in the workspace, and the stages of a solve:
//
//   scale_queries -> class_sums -> products -> blocks
//
// A chunk is a view of the call: its own first task, with all pointers of the call unchanged.
#pragma once

#include "common/rows.h"
#include "cuda/device.cuh"
#include "cuda/reduce.cuh"

namespace paddle_ext {

constexpr int kRowsPerWarp = 16;  // queries owned by one warp of the block solver
constexpr int kFewClasses = 32;   // kept in registers, one per lane
constexpr int kOrderWarps = 8;    // that order a support by class

// Which solver to use; depends on the shape of a task only, so that its result does not depend on
// the batch.
struct CudaPlan {
    bool fits;         // a task fits a block
    bool shared_gram;  // G fits the block's shared memory
    int64_t Qp, Dp;    // padded sizes
    int shared_bytes;  // of the block solver
};

// What the chunks of a call share.
struct ChunkSetup {
    PaddleParams call;
    CudaPlan plan;
    int multiprocessors;
    cudaStream_t stream;
};

struct Chunk : ChunkSetup {
    Arena* arena;
    int64_t T;  // room for so many tasks
    bool one_support = call.size.support_shared;
    int64_t U = one_support ? 1 : T;  // support sets
    int64_t Q = call.size.Q, S = call.size.S, K = call.size.K, D = call.size.D;
    int64_t Qp = plan.Qp, Dp = plan.Dp;
    int64_t first = 0, tasks = T;
    // A shared support outlives a chunk, so it comes first: its place is the same in every chunk.
    float* shift = arena->take<float>(one_support ? D : 0);
    float* shared_sums = arena->take<float>(one_support ? K * Dp : 0);  // of its rows - shift
    float* count = arena->take<float>(U * K);                           // shots
    int* order = arena->take<int>(U * S);          // support rows grouped by class
    int* start = arena->take<int>(U * (K + 1));    // where the rows of a class begin in it
    float* sums = arena->take<float>(T * K * Dp);  // class sums in scaled coordinates
    float* mean = arena->take<float>(T * D);       // of the queries, unit-norm ones for "auto"
    float* scale = arena->take<float>(T * D);      // factor on a centred row
    int* exponent = arena->take<int>(T);           // the task is scaled down by 2^exponent
    int* far = arena->take<int>(T);                // whether a prototype is beyond kFarAway
    float* norms = arena->take<float>(T * Q);      // inverse norms of the queries ("auto")
    float* z = arena->take<float>(T * Q * Dp);     // scaled, centred queries
    // Gram form
    float* gram = arena->take<float>(T * Q * Qp);
    // The same as two halves each, if shared memory is too small.
    uint4* halves = arena->take<uint4>(plan.shared_gram ? 0 : T * Qp * Qp / 4);
    float* m = arena->take<float>(T * K * Qp);  // N_k z.w
    float* u = arena->take<float>(T * K * Qp);  // probabilities as applied to m
    int* tallies = reinterpret_cast<int*>(u);   // of order_by_class, before: [U, kOrderWarps, K]
    float* norm = arena->take<float>(T * K);    // ||N_k w_k||^2 at the start
    int* next_task = arena->take<int>(1);
};

void launch_scale_queries(const Chunk& chunk);
void launch_class_sums(const Chunk& chunk);
void launch_products(const Chunk& chunk);
void launch_blocks(const Chunk& chunk);
void launch_prototypes(const Chunk& chunk);

int block_shared_bytes(const TaskSizes& size, bool shared_gram);

// One number, or two neighbours at an address aligned to both.
template <int Width, typename Feature>
__device__ inline void load_features(const Feature* from, float (&to)[Width]) {
    if constexpr (Width == 1) {
        to[0] = to_float(*from);
    } else if constexpr (std::is_same_v<Feature, float>) {
        const float2 two = *reinterpret_cast<const float2*>(from);
        to[0] = two.x, to[1] = two.y;
    } else {
        const unsigned two = *reinterpret_cast<const unsigned*>(from);
        to[0] = to_float(reinterpret_cast<const Feature*>(&two)[0]);
        to[1] = to_float(reinterpret_cast<const Feature*>(&two)[1]);
    }
}

inline bool rows_aligned(const Chunk& c) {
    return rows_aligned(c.call.dtype, c.call.size.D, {c.call.support, c.call.query});
}

}  // namespace paddle_ext
