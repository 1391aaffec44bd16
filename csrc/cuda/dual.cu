// The end of an iteration of large tasks on CUDA: one block per task.

#include "common/large.h"
#include "common/prepare.h"
#include "common/proportions.h"
#include "cuda/adapt.cuh"

namespace paddle_ext {

namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads) dual_kernel(DualParams p) {
    const int64_t task = blockIdx.x;
    if (p.running[task] == 0) return;
    const double* const held = p.held + task * p.K;
    double* const counts = p.counts + task * p.K;
    double* const dual = p.dual + task * p.K;
    Proportions proportions(p.prior, p.total, double(p.K), p.epsilon);
    proportions.concentration = p.concentration[task];
    const auto measure = [&](int64_t k) {
        return p.measure == nullptr ? 1.0 : p.measure[task * p.K + k];
    };
    __shared__ Update<double> scratch[kWarps];
    __shared__ double sums[kWarps];
    Update<double> own{0, 0, 0};
    double away = 0;
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
        const double count = p.weight * held[k];
        own.moved = fmax(own.moved, fabs(count - counts[k]));
        counts[k] = count;
        if (p.away != nullptr) away += p.away[task * p.K + k];
        if (!proportions.dirichlet) continue;
        const PriorTerm term = class_term(count, proportions.concentration, measure(k));
        own.slope += term.slope;
        own.curvature += term.curvature;
    }
    const Update<double> all = block_reduce(own, scratch);
    if (p.away != nullptr) away = block_sum(away, sums);
    if (proportions.dirichlet) proportions.learn(all.slope, all.curvature, p.least);
    for (int64_t k = threadIdx.x; k < p.K; k += kThreads) {
        p.before[task * p.K + k] = dual[k];
        dual[k] = proportions.dual(counts[k], measure(k));
        if (p.base != nullptr) set_bias(p, task * p.K + k);
    }
    __syncthreads();  // the state of the task has been read by all
    if (threadIdx.x != 0) return;
    const double moved = p.away == nullptr ? all.moved : away / double(p.K) * p.unit[task];
    p.concentration[task] = proportions.concentration;
    p.criterion[task] = moved;
    p.iterations[task] += 1;
    p.running[task] = !(p.tol > 0 && moved <= p.tol);
}

}  // namespace

void run_cuda(const DualParams& p, int device, void* stream) {
    const DeviceGuard guard(device);
    dual_kernel<<<grid_size(p.B), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
    check_launch("dual_kernel");
}

}  // namespace paddle_ext
