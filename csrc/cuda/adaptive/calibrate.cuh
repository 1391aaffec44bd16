// `calibrate` on CUDA: one kernel for all steps. The algebra is in common/adaptive.h. Eight lanes
// share a row. If the rows of a task fit in shared memory they stay there and one block solves the
// task, else they are in the workspace, and a team of blocks does. Sums over the rows are taken in one
// order for any team.
//
// Distances provides (task, i, k, share), the distance of row i to class k in a mixture of two
// metrics, with this share of the second; weight(task, i), how much the row counts in (7); start(task),
// which all threads of all blocks call once, and which ends with a barrier if it writes; and
// finish(task, sharpness, share), called by one block after the share and the sharpness that fit best have been found and `drawn` is complete.
// The share grows from 0 to 1 in this many `mixtures`, see kStandardError; with 0 mixtures there is
// one metric.
#pragma once

#include "common/adaptive.h"
#include "cuda/reduce.cuh"
#include "cuda/team.cuh"

namespace paddle_ext {

// Of a block: the most if only one fits a multiprocessor with its rows, else fewer.
constexpr int kCalibrateThreads = 512, kMostCalibrateThreads = 1024;
constexpr int kRowLanes = 8;  // lanes that share a row

// Exchange between the threads of a block.
struct CalibrateShared {
    double2 sums[kMostCalibrateThreads / 32];
    double prior;
    float sharpness;
    bool goes_on;
};

// A call, and the arrays of all tasks in its workspace.
struct CalibratePlan : CalibrateParams {
    SharedArena arena{workspace};
    // Of the rows.
    int64_t parts =
        max(kCalibrateThreads / 32 / ceil_div(K, int64_t(32)), ceil_div(R, int64_t(64)));
    double2* moments = arena.take<double2>(B * 2 * R);  // [B, 2, R] of the rows, written in turns
    // Distances minus the smallest of their row, padded, and that to the own class last.
    int64_t width = round_up(K, int64_t(4 * kRowLanes)), pitch = width + kRowLanes;
    bool staged = staged_bytes() + kOtherShared <= most_shared();  // rows are in shared memory
    float* rows = arena.take<float>(staged ? 0 : B * R * pitch);   // [B, R, pitch]
    float* normaliser = arena.take<float>(B * R);                  // [B, R]
    float* drawn_parts = arena.take<float>(B * parts * K);         // [B, parts, K]
    TeamMemory* teams = arena.take<TeamMemory>(B);                 // [B]

    static constexpr int64_t kOtherShared =
        8192;  // bytes, more than the kernel's other shared memory
    static int64_t most_shared() {
        return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    }
    int64_t staged_bytes() const { return R * pitch * int64_t(sizeof(float)); }
};

// A task from the view of one thread. If kStaged, its rows are in shared memory, and it has one block.
template <bool kStaged, typename Distances>
struct CalibrateTask {
    const CalibratePlan& p;
    const Distances& source;
    float* rows;  // [R, pitch] of the task
    int64_t task;
    Team team;
    CalibrateShared& shared;
    int64_t count = p.R, width = p.width;
    const int64_t* labels = p.labels + task * p.R;
    float* normaliser = p.normaliser + task * p.R;
    int turn = 0;
    float share = 0;

    __device__ int own(int64_t i) const { return int(min(max(labels[i], int64_t(0)), p.K - 1)); }

    __device__ float* row(int64_t i) const { return rows + i * p.pitch; }

    // Calls body(distance) for the classes of this lane.
    template <typename Body>
    __device__ void each_class(int64_t i, const Body& body) const {
        if (i >= count) return;
#pragma unroll 2
        for (int64_t k = 4 * (threadIdx.x % kRowLanes); k < width; k += 4 * kRowLanes) {
            const float4 d = *reinterpret_cast<const float4*>(row(i) + k);
            body(d.x), body(d.y), body(d.z), body(d.w);
        }
    }

    // Calls body(i) for every row with the eight lanes that share it. All lanes of a warp stay in
    // the loop because they take part in sums, so i may be beyond the last row.
    template <typename Body>
    __device__ void each_row(const Body& body) const {
        for (int64_t first = 0; first < count; first += team.threads / kRowLanes) {
            body(first + team.thread / kRowLanes);
        }
    }

    // Changes the mixture.
    __device__ void set_share(float to) {
        share = to;
        const int lane = threadIdx.x % kRowLanes;
        each_row([&](int64_t i) {
            float low = Range<float>::kInfinity;
#pragma unroll 8
            for (int64_t k = lane; i < count && k < p.K; k += kRowLanes) {
                const float value = source(task, i, k, share);
                row(i)[k] = value;
                low = fminf(low, value);
            }
            low = group_min(low, kRowLanes);
            if (i >= count) return;
            const int mine = own(i);
            for (int64_t k = lane; k < width; k += kRowLanes) {
                const float value = k < p.K ? row(i)[k] - low : kFarBehind;
                row(i)[k] = value;
                if (k == mine) row(i)[width] = value;
            }
        });
        __syncthreads();
    }

    // The sums over all rows of moments_of(i).
    template <typename Moments>
    __device__ double2 sums(const Moments& moments_of) {
        double2* const moments = p.moments + (task * 2 + turn) * p.R;
        turn = 1 - turn;  // other blocks may still be reading the previous ones
        double2 sum = make_double2(0.0, 0.0);
        each_row([&](int64_t i) {
            const double2 of_row = moments_of(i);
            if (i >= count || threadIdx.x % kRowLanes != 0) return;
            if (kStaged) sum.x += of_row.x, sum.y += of_row.y;
            if (!kStaged) moments[i] = of_row;
        });
        if (!kStaged) {
            team.sync();
            for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
                sum.x += moments[i].x, sum.y += moments[i].y;
            }
        }
        return block_sum(sum, shared.sums);
    }

    // Lag and variance of all rows at a sharpness.
    __device__ double2 moments(float f) {
        const float factor = -0.5f * kLog2e<float> * f;
        return sums([&](int64_t i) {
            float sum = 0, mean = 0, second = 0;
            each_class(i, [&](float d) {
                const float e = exp2f(factor * d), first = e * d;
                sum += e;
                mean += first;
                second += first * d;
            });
            sum = group_sum(sum, kRowLanes);
            mean = group_sum(mean, kRowLanes) / sum;
            second = group_sum(second, kRowLanes) / sum;
            const float weight = i < count ? source.weight(task, i) : 0.0f;
            if (weight == 0.0f) return make_double2(0.0, 0.0);
            const float lag = weight * (row(i)[width] - mean);
            return make_double2(double(lag), double(weight * fmaxf(second - mean * mean, 0.0f)));
        });
    }

    // The cross-entropy of the rows; finds their normalisers.
    __device__ double normalise(float f) {
        const float half = 0.5f * kLog2e<float> * f;
        const auto entropy = sums([&](int64_t i) {
            float sum = 0;
            each_class(i, [&](float d) { sum += exp2f(-half * d); });
            sum = group_sum(sum, kRowLanes);
            if (i >= count) return make_double2(0.0, 0.0);
            if (threadIdx.x % kRowLanes == 0) normaliser[i] = -log2f(sum);
            const double weight = double(source.weight(task, i));
            if (weight == 0.0) return make_double2(0.0, 0.0);
            const double off = 0.5 * double(f) * double(row(i)[width]);
            return make_double2(weight * (log(double(sum)) + off), 0.0);
        });
        return entropy.x;
    }

    // The share of rows that other classes attract: each warp takes 32 classes and some of the
    // rows. The first block adds up.
    __device__ void write_drawn(float f) {
        const float half = 0.5f * kLog2e<float> * f;
        const int64_t tiles = ceil_div(p.K, int64_t(32));
        float* const parts = p.drawn_parts + task * p.parts * p.K;
        for (int64_t item = team.thread / 32; item < tiles * p.parts; item += team.threads / 32) {
            const int64_t k = item % tiles * 32 + threadIdx.x % 32, part = item / tiles;
            if (k >= p.K) continue;
            float sum = 0;
            for (int64_t i = part; i < count; i += p.parts) {
                sum += k == own(i) ? 0.0f : exp2f(normaliser[i] - half * row(i)[k]);
            }
            parts[part * p.K + k] = sum;
        }
        team.sync();
        for (int64_t k = team.thread; k < p.K && team.thread < blockDim.x; k += blockDim.x) {
            float sum = 0;
            for (int64_t part = 0; part < p.parts; ++part) sum += parts[part * p.K + k];
            floats(p.drawn)[task * p.K + k] = sum;
        }
    }

    // The sharpness for the distances, starting from bracket.at; all threads get it. Only the first
    // thread's bracket counts, that of each block of a team with the same numbers.
    __device__ float find_sharpness(Bracket& bracket) {
        if (threadIdx.x == 0) shared.sharpness = float(bracket.sharpness());
        __syncthreads();
        for (int step = 0; step < kMaxCalibrationSteps; ++step) {
            const double2 found = moments(shared.sharpness);
            if (threadIdx.x == 0) {
                shared.goes_on = bracket.step(found.x, found.y);
                shared.sharpness = float(bracket.sharpness());
                shared.prior = bracket.prior();
            }
            __syncthreads();
            if (!shared.goes_on) break;
        }
        return shared.sharpness;
    }
};

template <bool kStaged, int kThreads, typename Distances>
__global__ void __launch_bounds__(kThreads, kMostCalibrateThreads / kThreads)
    calibrate_kernel(CalibratePlan p, Distances source, int mixtures, int blocks) {
    extern __shared__ __align__(16) float staged[];
    __shared__ CalibrateShared shared;
    const int64_t task = blockIdx.x / blocks;
    float* const rows = kStaged ? staged : p.rows + task * p.R * p.pitch;
    const int rank = int(blockIdx.x % blocks);
    const Team team = kStaged || blocks == 1 ? Team() : Team(p.teams + task, rank, blocks);
    CalibrateTask<kStaged, Distances> t{p, source, rows, task, team, shared};
    source.start(task);
    double least = 0;
    float best = 0, sharpness = 0;
    for (int mixture = 0; mixture <= mixtures; ++mixture) {
        t.set_share(mixtures > 0 ? float(mixture) / float(mixtures) : 0.0f);
        Bracket bracket(p.centre, p.spread);
        if (mixture > 0) bracket.at = log(double(sharpness));
        const float found = t.find_sharpness(bracket);
        const double objective = t.normalise(found) + shared.prior;
        if (mixture > 0 && !(objective < least + kStandardError)) break;
        least = mixture > 0 ? fmin(least, objective) : objective;
        best = t.share, sharpness = found;
    }
    if (t.share != best) {  // back to the best mixture
        t.set_share(best);
        t.normalise(sharpness);
    }
    t.write_drawn(sharpness);
    if (rank > 0) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        floats(p.sharpness)[task] = sharpness;
        floats(p.objective)[task] = float(least);
    }
    source.finish(task, sharpness, best);
}

template <typename Distances>
void launch_calibrate(const CalibrateParams& p, const Distances& source, int mixtures,
                      cudaStream_t stream) {
    const CalibratePlan plan{p};
    const int64_t bytes = plan.staged ? plan.staged_bytes() : 0;
    const bool alone = 2 * (bytes + CalibratePlan::kOtherShared) > CalibratePlan::most_shared();
    constexpr int kFew = kCalibrateThreads, kMany = kMostCalibrateThreads;
    const auto kernel = !plan.staged ? calibrate_kernel<false, kFew, Distances>
                        : alone      ? calibrate_kernel<true, kMany, Distances>
                                     : calibrate_kernel<true, kFew, Distances>;
    launch_teams("calibrate_kernel", kernel, p.B, plan.staged ? 1 : ceil_div(p.R * kRowLanes, kFew),
                 plan.staged && alone ? kMany : kFew, bytes, plan.teams, stream, plan, source,
                 mixtures);
}

}  // namespace paddle_ext
