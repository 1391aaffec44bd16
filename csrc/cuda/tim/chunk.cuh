// TIM on CUDA: shared by its stages. Tasks are solved in chunks; an iteration of a chunk is three
// launches:
//
//   logits      x.w of all rows and classes                                  [N, K] = X W^T
//   weights     softmax, and from it the weight of every row in every class  [N, K]
//   prototypes  sums of the rows by these weights, then the step of w        [K, D] = A^T X
//
// The two products run on the tensor cores, with float precision (cuda/mma.cuh). Distances, and
// so gradients, do not change when all rows shift equally: a task is centred at the mean of its
// support, and measured in units of its support's largest coordinate.
#pragma once

#include <type_traits>

#include "common/params.h"
#include "common/tim.h"
#include "common/workspace.h"
#include "cuda/device.cuh"
#include "cuda/mma.cuh"

namespace paddle_ext {

enum class TimStage : int {
    kStart,    // prototypes are class means
    kMeasure,  // the largest weight of the support's rows, if it may exceed 1
    kStep,     // one iteration
    kFinish,   // probabilities and labels of the queries
};

// Scales of one task.
struct TimScale {
    float unit;                        // of the coordinates, a power of two
    float query;                       // factor on stored queries
    float prototype;                   // factor on stored prototypes
    float temperature, rate, epsilon;  // as in TimUnits
};

struct TimPlan {
    int64_t groups;      // of 32 features
    int64_t classes;     // K rounded up to groups of 32
    int64_t chunks;      // of kTimFeatures features
    int64_t row_blocks;  // of kTimRows support rows
    int class_tile;      // classes per block of a product
    bool fused;          // one block has all classes of its rows, and computes the softmax itself
    bool query_counts;   // the queries have weights
};

constexpr int kTimFeatures = 128;    // features per block of the prototype step
constexpr int kPrototypeBlocks = 2;  // of the prototype step, on a multiprocessor at once
constexpr int kTimRows = 64;         // rows per block of the logits, or of the weights

struct TimChunk {
    TimParams call;
    TimPlan plan;
    cudaStream_t stream;
    int64_t first, tasks;
    float support_weight, query_weight;  // of the weights of the rows
    float slope_weight[2];               // of marginal and conditional entropy
    float query_range;                   // the queries' weights are below this

    // U is 1 for a shared support, else the number of tasks T.
    float* support_factor;      // [U, S]: 1 / norm
    float* query_factor;        // [T, Q]
    float* centre;              // [U, D]
    unsigned* largest_support;  // [U], the bits of a float
    unsigned* largest_query;    // [T]
    unsigned* largest_weight;   // [T]: of the support's rows
    TimScale* scale;            // [T]
    __half* support;            // [U, S, groups, 64]
    __half* query;              // [T, Q, groups, 64]
    __half* w_halves;           // [T, K, groups, 64]
    float* w;                   // [T, K, groups, 32]
    float* moment1;             // [T, K, groups, 32]
    float* moment2;             // [T, K, groups, 32]
    float* norm_parts;          // [T, chunks, K]: of ||w||^2
    float* count;               // [T, K]: shots
    float* mass;                // [T, K]: of the alternating solver
    float* column;              // [T, K]: common to the weights of a class
    float* products;            // [T, S + Q, classes], or [T, Q, classes] when fused
    __half* weights;            // [T, S + Q, classes / 32, 64]
    float* weight_parts;        // [T, 1 + row blocks, K]: sums of the weights, the queries' first
    float* loss_parts;          // [T, 1 + row blocks]
};

struct TimIteration {
    TimStage stage;
    int number;           // from 0
    bool measured;        // the stage kMeasure came first
    double bias1, bias2;  // of Adam's moments
};

void launch_tim_logits(const TimChunk& c, const TimIteration& it);
void launch_tim_weights(const TimChunk& c, const TimIteration& it);
void launch_tim_prototypes(const TimChunk& c, const TimIteration& it);

// The index of a task's support.
template <typename T>
__device__ inline T* of_support(T* base, const TaskSizes& n, int64_t task, int64_t each) {
    return base + (n.support_shared ? 0 : task * each);
}

// The products of a task with its row `number`; the queries come last.
__device__ inline float* products_of(const TimChunk& c, int64_t task, int64_t number) {
    const TaskSizes& n = c.call.size;
    const int64_t row = c.plan.fused ? task * n.Q + number - n.S : task * (n.S + n.Q) + number;
    return c.products + row * c.plan.classes;
}

// The weights of the same row.
__device__ inline __half* weights_of(const TimChunk& c, int64_t task, int64_t number) {
    const int64_t row = task * (c.call.size.S + c.call.size.Q) + number;
    return c.weights + row * c.plan.classes / kGroup * kGroupHalves;
}

// exp(-infinity) is zero, so an unbounded temperature is a hard choice.
__device__ inline float tim_exp(float exponent) { return exp2f(exponent * kLog2e<float>); }

// The support's weights are stored as fractions of this.
__device__ inline float support_range(const TimChunk& c, int64_t task) {
    const float largest = __uint_as_float(c.largest_weight[task]);
    return largest > 0.0f ? largest : 1.0f;
}

// --- tiles of the two products, as wide as the classes allow -------------------------------------

// Calls body with the tile as a constant.
template <typename Body>
void with_class_tile(int tile, const Body& body) {
    switch (tile) {
        case 32: return body(std::integral_constant<int, 32>());
        case 64: return body(std::integral_constant<int, 64>());
        case 96: return body(std::integral_constant<int, 96>());
        case 128: return body(std::integral_constant<int, 128>());
        default: return body(std::integral_constant<int, 160>());
    }
}

// Few padding columns, but not with narrow tiles, which read the rows repeatedly: that costs about
// as much as 32 more columns.
inline int choose_class_tile(int64_t K) {
    const auto cost = [&](int tile) { return ceil_div(K, int64_t(tile)) * (tile + 32); };
    int best = 32;
    for (const int tile : {64, 96, 128, 160}) {
        if (cost(tile) <= cost(best)) best = tile;
    }
    return best;
}

// `bytes` must be the same in every launch of a kernel, see allow_all_shared.
template <typename Kernel>
void allow_shared(Kernel* kernel, int bytes) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "cudaFuncSetAttribute");
}

}  // namespace paddle_ext
