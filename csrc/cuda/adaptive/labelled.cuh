// Labelled rows by class, and passes over them: norms and centre; norms after centring and class means;
// sums of the features.
#pragma once

#include "common/adaptive.h"
#include "cuda/reduce.cuh"
#include "cuda/team.cuh"

namespace paddle_ext {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kPartRows = 128;  // rows per block of the first pass

// Classes are summed in so many parts, whatever the number of blocks.
__host__ __device__ inline int64_t class_parts(int64_t K) {
    return max(min(K, int64_t(32)), K / 32);
}

// Sums of the features over the classes of a part, each [D].
struct PartSums {
    static constexpr int kArrays = 5;
    float *inside, *stretched, *squares, *between, *fourths;

    __device__ PartSums(float* memory, int64_t D)
        : inside(memory), stretched(memory + D), squares(memory + 2 * D), between(memory + 3 * D),
          fourths(memory + 4 * D) {}
};

// A call, and the arrays of all tasks in its workspace.
struct LabelledPlan : LabelledParams {
    SharedArena arena{workspace};
    int64_t parts = ceil_div(S, int64_t(kPartRows)), classes = class_parts(K);
    int* order = arena.take<int>(B * S);             // [B, S]      rows, by class
    int* start = arena.take<int>(B * (K + 1));       // [B, K + 1]  where a class begins in them
    int* tallies = arena.take<int>(B * kWarps * K);  // [B, kWarps, K] of order_by_class
    float* sums = arena.take<float>(B * parts * D);  // [B, parts, D] partial sums of the rows
    // [B, classes, 5, D] see PartSums
    float* features = arena.take<float>(B * classes * PartSums::kArrays * D);
    TeamMemory* teams = arena.take<TeamMemory>(B);  // [B]
    // Rows can be read four numbers at a time.
    bool aligned = rows_aligned(dtype, D, {support, centre, means});

    __device__ float weight(int64_t task, int64_t s) const {
        return weights != nullptr ? floats(weights)[task * S + s] : 1.0f;
    }

    __device__ PartSums part_sums(int64_t task, int64_t part) const {
        return {features + (task * classes + part) * PartSums::kArrays * D, D};
    }
};

__device__ inline float4 centred(float4 x, float first, float4 c) { return x * first - c; }

__device__ inline void store_row4(float* row, int64_t d, int64_t D, bool aligned, float4 value) {
    if (aligned) {
        *reinterpret_cast<float4*>(row + d) = value;
        return;
    }
    row[d] = value.x;
    if (d + 1 < D) row[d + 1] = value.y;
    if (d + 2 < D) row[d + 2] = value.z;
    if (d + 3 < D) row[d + 3] = value.w;
}

// Registers per lane, of four numbers each, that hold a row; 0 if it is too long.
inline int rows_held(int64_t D) { return D <= 128 ? 1 : D <= 512 ? 4 : D <= 1024 ? 8 : 0; }

// --- which rows ----------------------------------------------------------------------------------

// By one block.
__device__ inline void order_rows(const LabelledPlan& p, int64_t task) {
    const int64_t S = p.S, K = p.K;
    const int64_t* const labels = p.labels + task * S;
    float* const shots = floats(p.shots, task * K);
    int* const start = p.start + task * (K + 1);
    order_by_class(labels, S, K, p.tallies + task * kWarps * K, p.order + task * S, start);
    __syncthreads();  // the order is complete
    const int done = start[K];
    bool empty = false;  // whether a class of this thread is empty
    for (int64_t k = threadIdx.x / 32; k < K; k += kWarps) {  // one warp each
        const double rows = double(start[k + 1] - start[k]);
        ClassSums of{rows, rows, rows};
        if (p.weights != nullptr) {
            of.weight = 0, of.squares = 0;
            for (int i = start[k] + int(threadIdx.x % 32); i < start[k + 1]; i += 32) {
                const double r = double(p.weight(task, p.order[task * S + i]));
                of.weight += r, of.squares += r * r;
            }
            of.weight = warp_sum(of.weight), of.squares = warp_sum(of.squares);
        }
        empty |= rows == 0;
        if (threadIdx.x % 32 != 0) continue;
        p.members[task * K + k] = of;
        shots[k] = float(of.shots());
    }
    if (done < S) {  // no other kernel writes the factors of a row without a class
        for (int64_t s = threadIdx.x; s < S; s += kThreads) {
            if (load_label(labels, s, K) >= 0) continue;
            floats(p.first)[task * S + s] = 0.0f;
            floats(p.second)[task * S + s] = 0.0f;
        }
    }
    if (p.finite != nullptr) {
        const bool complete = __syncthreads_or(empty) == 0 && done == S;
        if (threadIdx.x == 0) p.finite[task] = complete;
    }
    for (int64_t rank = threadIdx.x; rank < p.R; rank += kThreads) {
        const int label = load_label(labels, calibration_row(rank, S, p.R), K);
        p.own[task * p.R + rank] = max(label, 0);
    }
}

// --- first pass, for rows that fit in registers --------------------------------------------------

// Norms of a part of the rows of a task, and the part's share of the mean of the class means, by
// one block; a warp takes two rows at a time.
template <int kHeld>
__device__ void sum_rows(const LabelledPlan& p, int64_t task, int64_t part) {
    extern __shared__ float warp_sums[];  // [kWarps, 128 kHeld]
    const int64_t D = p.D;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* const support = floats(p.support, task * p.S * D);
    const float* const shots = floats(p.shots, task * p.K);
    float* const firsts = floats(p.first, task * p.S);
    const int64_t end = min((part + 1) * kPartRows, p.S);
    float4 sum[kHeld] = {};
    for (int64_t s = part * kPartRows + 2 * warp; s < end; s += 2 * kWarps) {
        float4 x[2][kHeld];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float* const row = support + min(s + i, end - 1) * D;
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                x[i][h] = load_row4(row, 4 * lane + 128 * h, D, p.aligned);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (s + i >= end) break;
            float squared = 0;
#pragma unroll
            for (int h = 0; h < kHeld; ++h) squared += squared_norm(x[i][h]);
            const float first =
                inverse_norm(support + (s + i) * D, D, p.aligned, warp_sum(squared));
            const int k = load_label(p.labels + task * p.S, s + i, p.K);
            if (lane == 0) {
                firsts[s + i] = first;
                if (p.finite != nullptr && !plainly_finite(first)) p.finite[task] = false;
            }
            const float factor = k < 0 ? 0.0f : first / (float(p.K) * shots[k]);
#pragma unroll
            for (int h = 0; h < kHeld; ++h) sum[h] = sum[h] + x[i][h] * factor;
        }
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        *reinterpret_cast<float4*>(warp_sums + (warp * kHeld + h) * 128 + 4 * lane) = sum[h];
    }
    __syncthreads();
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        float total = 0;
        for (int other = 0; other < kWarps; ++other) total += warp_sums[other * kHeld * 128 + d];
        p.sums[(task * p.parts + part) * D + d] = total;
    }
    __syncthreads();  // the sums of the warps have been read
}

inline int64_t row_sums_bytes(int64_t D) {
    return int64_t(sizeof(float)) * kWarps * rows_held(D) * 128;
}

// --- rows of a class -----------------------------------------------------------------------------

// One class from the view of its warp: its rows are order[begin .. end).
struct ClassRows {
    const float *support, *centre, *weights;
    float *firsts, *seconds, *mean;
    const int* order;
    int begin, end;
    const ClassSums* of;
    int64_t D;
    bool aligned;
    bool* finite;

    __device__ ClassRows(const LabelledPlan& p, int64_t task, int64_t k)
        : support(floats(p.support, task * p.S * p.D)), centre(floats(p.centre, task * p.D)),
          weights(p.weights == nullptr ? nullptr : floats(p.weights, task * p.S)),
          firsts(floats(p.first, task * p.S)), seconds(floats(p.second, task * p.S)),
          mean(floats(p.means, (task * p.K + k) * p.D)), order(p.order + task * p.S),
          begin(p.start[task * (p.K + 1) + k]), end(p.start[task * (p.K + 1) + k + 1]),
          of(p.members + task * p.K + k), D(p.D), aligned(p.aligned),
          finite(p.finite == nullptr ? nullptr : p.finite + task) {}

    __device__ float weight(int64_t s) const { return weights == nullptr ? 1.0f : weights[s]; }

    // Four numbers of a row, scaled and, in the second pass, centred.
    template <bool kCentred>
    __device__ float4 load(int64_t s, float first, int64_t d) const {
        const float4 x = load_row4(support + s * D, d, D, aligned);
        return kCentred ? centred(x, first, load_row4(centre, d, D, aligned)) : x;
    }

    __device__ void write(int64_t d, float4 v) const {
        if (d >= D) return;
        const float share = 1.0f / (end > begin ? float(of->weight) : 1.0f);
        store_row4(mean, d, D, aligned, v * share);
    }
};

// By one warp, which reads the rows twice, for their norms and their mean. The first pass has no
// centre.
template <bool kCentred>
__device__ void find_long_mean(const ClassRows& c) {
    const int lane = threadIdx.x % 32;
    float* const factors = kCentred ? c.seconds : c.firsts;
    for (int i = c.begin; i < c.end; ++i) {
        const int64_t s = c.order[i];
        const float first = kCentred ? c.firsts[s] : 1.0f;
        float squared = 0;
        for (int64_t d = 4 * lane; d < c.D; d += 128) {
            squared += squared_norm(c.load<kCentred>(s, first, d));
        }
        squared = warp_sum(squared);
        const float factor = kCentred ? inverse_of_centred(squared)
                                      : inverse_norm(c.support + s * c.D, c.D, c.aligned, squared);
        if (lane == 0) factors[s] = factor;
        if (!kCentred && lane == 0 && c.finite != nullptr && !plainly_finite(factor)) {
            *c.finite = false;
        }
    }
    __syncwarp();
    for (int64_t d = 4 * lane; d < c.D; d += 128) {
        float4 total = make_float4(0, 0, 0, 0);
        for (int i = c.begin; i < c.end; ++i) {
            const int64_t s = c.order[i];
            const float first = kCentred ? c.firsts[s] : 1.0f;
            total = total + c.load<kCentred>(s, first, d) * (factors[s] * c.weight(s));
        }
        c.write(d, total);
    }
}

// The second pass by one warp, with two rows in registers at a time.
template <int kHeld>
__device__ void find_mean(const ClassRows& c) {
    const int lane = threadIdx.x % 32;
    float4 sum[kHeld] = {}, centre[kHeld];
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
        centre[h] = load_row4(c.centre, 4 * lane + 128 * h, c.D, c.aligned);
    }
    for (int i = c.begin; i < c.end; i += 2) {
        float4 x[2][kHeld];
        float first[2], squared[2] = {};
        int64_t rows[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            rows[j] = c.order[min(i + j, c.end - 1)];
            first[j] = c.firsts[rows[j]];
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                x[j][h] = load_row4(c.support + rows[j] * c.D, 4 * lane + 128 * h, c.D, c.aligned);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
            for (int h = 0; h < kHeld; ++h) {
                x[j][h] = centred(x[j][h], first[j], centre[h]);
                squared[j] += squared_norm(x[j][h]);
            }
            const float second = inverse_of_centred(warp_sum(squared[j]));
            if (i + j >= c.end) continue;
            if (lane == 0) c.seconds[rows[j]] = second;
            const float weight = c.weight(rows[j]);
#pragma unroll
            for (int h = 0; h < kHeld; ++h) sum[h] = sum[h] + x[j][h] * (second * weight);
        }
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) c.write(4 * lane + 128 * h, sum[h]);
}

// --- sums of the features ------------------------------------------------------------------------

// Adds a class to the sums of a part, of which it is the `first` or not; by its warp, which reads the
// rows again.
__device__ inline void add_class(const ClassRows& c, const PartSums& to, bool first) {
    const bool others = c.of->has_others();
    const auto stretch = [&](float r) { return 1.0f / c.of->apart<float>(double(r)); };
    const float usual = stretch(1.0f);
    const auto add = [&](float* sums, int64_t d, float4 value) {
        if (!first) value = value + load_row4(sums, d, c.D, c.aligned);
        store_row4(sums, d, c.D, c.aligned, value);
    };
    for (int64_t d = 4 * (threadIdx.x % 32); d < c.D; d += 128) {
        const float4 mean = load_row4(c.mean, d, c.D, c.aligned), square = mean * mean;
        float4 inside = make_float4(0, 0, 0, 0), stretched = inside, squares = inside;
#pragma unroll 4
        for (int i = c.begin; i < c.end; ++i) {
            const int64_t s = c.order[i];
            const float r = c.weight(s), judged = others ? r : 0.0f;
            const float4 x = c.load<true>(s, c.firsts[s], d) * c.seconds[s], away = x - mean;
            const float4 far = away * away * judged;
            inside = inside + far;
            stretched = stretched + far * (c.weights == nullptr ? usual : stretch(r));
            squares = squares + x * x;
        }
        add(to.inside, d, inside);
        add(to.stretched, d, stretched);
        add(to.squares, d, squares);
        add(to.between, d, square);
        add(to.fourths, d, square * square);
    }
}

// All outputs.
void launch_labelled(const LabelledPlan& p, cudaStream_t stream);

}  // namespace paddle_ext
