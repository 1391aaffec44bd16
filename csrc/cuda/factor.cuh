// The factor of the full metric on CUDA, and rows solved for with it; see common/likelihood.h.
#pragma once

#include "common/device.cuh"
#include "common/likelihood.h"
#include "cuda/split_rows.cuh"
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
    int64_t B, S, K, D, M;
    float* factor;   // [B, M', M'] V V^T or V^T V, the lower triangle; replaced by L, split
    float* scatter;  // [B]
    SolvedRows classes, judges;
    TeamMemory* teams;  // [B]
};

void launch_factor(const Factor& f, int device, cudaStream_t stream);

// Solves for rows of B tasks, given the factors and the shares of L = B tasks, or L = 1; not for
// those where the full metric has no share.
void launch_solve(const SolvedRows& rows, const void* factor, const float* shares, int64_t M,
                  int64_t B, int64_t L, cudaStream_t stream);

}  // namespace paddle_ext
