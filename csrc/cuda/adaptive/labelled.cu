// Statistics of labelled rows, and `coordinates`, on CUDA; the algebra is in common/adaptive.h.
//
// One kernel groups the rows by class, then passes over the support three times: for the norms and the
// centre, with one warp per class for the norms after centring and the class means, and with one warp
// for some classes for the sums of the features. Sums are taken in a fixed order, without atomics,
// whatever the number of blocks.

#include "cuda/adaptive/labelled.cuh"
#include "cuda/mma.cuh"

namespace paddle_ext {

namespace {

// (2) and (4): the feature weights, V and n0, by one block.
__device__ void find_model(const LabelledPlan& p, int64_t task) {
    __shared__ double scratch[kThreads / 32];
    const int64_t K = p.K, D = p.D;
    float* const scale = floats(p.scale, task * D);
    const auto feature = [&](int64_t d) {
        FeatureSums sums;
        for (int64_t part = 0; part < p.classes; ++part) {
            const PartSums from = p.part_sums(task, part);
            sums.inside += double(from.inside[d]);
            sums.stretched += double(from.stretched[d]);
            sums.squares += double(from.squares[d]);
            sums.between += double(from.between[d]);
            sums.fourths += double(from.fourths[d]);
        }
        return sums;
    };

    double rows = 0, degrees = 0, counted = 0;
    for (int64_t k = threadIdx.x; k < K; k += kThreads) {
        const ClassSums of = p.members[task * K + k];
        rows += of.rows;
        degrees += of.degrees();
        counted += of.has_others() ? of.weight : 0;
    }
    rows = block_sum(rows, scratch);
    degrees = block_sum(degrees, scratch);
    counted = block_sum(counted, scratch);

    FeatureTotals of(double(D), degrees);
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        const FeatureSums sums = feature(d);
        of.inside += sums.inside;
        of.between += sums.between;
    }
    of.inside = block_sum(of.inside, scratch);
    of.between = block_sum(of.between, scratch);

    double total = 0, stretched = 0, squares = 0;
    for (int64_t d = threadIdx.x; d < D; d += kThreads) {
        const FeatureSums sums = feature(d);
        const double weight = p.scaled ? double(scale[d]) : feature_weight(sums, of);
        if (!p.scaled) scale[d] = float(weight);
        total += weight;
        stretched += weight * sums.stretched;
        squares += weight * sums.squares;
    }
    total = block_sum(total, scratch);
    const double unit = p.scaled ? 1.0 : double(D) / total;
    stretched = unit * block_sum(stretched, scratch);
    squares = unit * block_sum(squares, scratch);
    if (!p.scaled) {
        for (int64_t d = threadIdx.x; d < D; d += kThreads) scale[d] *= float(unit);
    }
    if (threadIdx.x != 0) return;
    const ClassModel model(stretched, counted, squares, fmax(rows, 1.0), degrees);
    p.degrees[task] = degrees;
    floats(p.variance)[task] = float(model.variance);
    floats(p.prior_rows)[task] = float(model.prior_rows);
}

// --- all of it ----------------------------------------------------------------------------------

// By one block per task, or a team of blocks if there are few tasks.
template <int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld <= 4 ? 3 : 1)
    labelled_kernel(LabelledPlan p, int blocks) {
    const int64_t task = blockIdx.x / blocks, D = p.D;
    const int rank = int(blockIdx.x % blocks);
    Team team = blocks == 1 ? Team() : Team(p.teams + task, rank, blocks);
    const auto each_class = [&](const auto& body) {  // one warp each
        for (int64_t k = team.thread / 32; k < p.K; k += team.threads / 32) {
            body(ClassRows(p, task, k));
        }
        team.sync();
    };
    if (rank == 0) order_rows(p, task);
    team.sync();
    if constexpr (kHeld > 0) {
        for (int64_t part = rank; part < p.parts; part += blocks) {
            sum_rows<kHeld>(p, task, part);
        }
        team.sync();
    } else {
        each_class([&](const ClassRows& c) { find_long_mean<false>(c); });
    }
    // The mean of the class means unless it is given: from sums of rows, or from the means. A single
    // class is not centred.
    const float* const from = kHeld > 0 ? p.sums : floats(p.means);
    const int64_t count = kHeld > 0 ? p.parts : p.K;
    const float share = kHeld > 0 ? 1.0f : 1.0f / float(p.K);
    for (int64_t d = team.thread; !p.centred && d < D; d += team.threads) {
        float sum = 0;
#pragma unroll 8
        for (int64_t i = 0; i < count; ++i) sum += from[(task * count + i) * D + d];
        floats(p.centre)[task * D + d] = p.K > 1 ? sum * share : 0.0f;
    }
    team.sync();
    each_class([&](const ClassRows& c) {
        if constexpr (kHeld > 0) {
            find_mean<kHeld>(c);
        } else {
            find_long_mean<true>(c);
        }
    });
    for (int64_t part = team.thread / 32; part < p.classes; part += team.threads / 32) {
        const int64_t first = part * p.K / p.classes, end = (part + 1) * p.K / p.classes;
        const PartSums sums = p.part_sums(task, part);
        for (int64_t k = first; k < end; ++k) add_class(ClassRows(p, task, k), sums, k == first);
    }
    team.sync();
    if (rank == 0) find_model(p, task);
}

// --- query rows ---------------------------------------------------------------------------------

// 1 / norm of (row times `first` minus the centre).
__device__ float second_norm(const float* row, float first, const float* centre, int64_t D,
                             bool aligned) {
    float sum = 0;
    for (int64_t d = 4 * (threadIdx.x % 32); d < D; d += 128) {
        const float4 c = load_row4(centre, d, D, aligned);
        sum += squared_norm(centred(load_row4(row, d, D, aligned), first, c));
    }
    return inverse_of_centred(warp_sum(sum));
}

// One warp per row.
__global__ void __launch_bounds__(kThreads) coordinates_kernel(CoordinatesParams p, bool aligned) {
    const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
    if (item >= p.B * p.N) return;
    const int64_t D = p.D, task = p.shared ? 0 : item / p.N;
    const auto of_task = [&](const void* all) {
        return all == nullptr ? nullptr : floats(all, task * D);
    };
    const float *const centre = of_task(p.centre), *const scale = of_task(p.scale);
    const float* const row = floats(p.rows, item * D);
    float first = 1, second = 1;
    if (centre != nullptr) {
        first = warp_inverse_norm(row, D, aligned);
        second = second_norm(row, first, centre, D, aligned);
    }
    const int64_t end = p.split ? row_numbers(D) : D;
    for (int64_t d = 4 * (threadIdx.x % 32); d < end; d += 128) {
        float4 x = load_row4(row, d, D, aligned);
        if (centre != nullptr) x = centred(x, first, load_row4(centre, d, D, aligned));
        float4 s = make_float4(1, 1, 1, 1);
        if (scale != nullptr) s = load_row4(scale, d, D, aligned);
        const float4 out = x * second * roots_approx(s);
        if (p.split) {
            store_row4(static_cast<__half*>(p.x) + item * row_halves(D), d, out);
        } else {
            store_row4(floats(p.x, item * D), d, D, aligned, out);
        }
    }
    if (threadIdx.x % 32 == 0 && p.finite != nullptr && !plainly_finite(first)) {
        p.finite[item / p.N] = false;
    }
}

}  // namespace

void launch_labelled(const LabelledPlan& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "support on CUDA must be float32 for the native code");
    require(p.S <= INT32_MAX && p.K < INT32_MAX, "support must have fewer than 2^31 rows");
    const int held = rows_held(p.D);
    const auto kernel = held == 1   ? labelled_kernel<1>
                        : held == 4 ? labelled_kernel<4>
                        : held == 8 ? labelled_kernel<8>
                                    : labelled_kernel<0>;
    const int64_t useful = max(p.parts, ceil_div(p.K, kWarps));
    launch_teams("labelled_kernel", kernel, p.B, useful, kThreads, row_sums_bytes(p.D), p.teams,
                 stream, p);
}

void run_cuda(const CoordinatesParams& p, cudaStream_t stream) {
    require(p.dtype == DType::kFloat32, "rows on CUDA must be float32 for the native code");
    const bool aligned = rows_aligned(p.dtype, p.D, {p.rows, p.centre, p.scale, p.x});
    launch("coordinates_kernel", coordinates_kernel, ceil_div(p.B * p.N, kWarps), kThreads, 0,
           stream, p, aligned);
}

}  // namespace paddle_ext
