// x.w of all rows and classes: [N, K] = X W^T, a tile of 64 rows by up to 160 classes per block. If
// that covers all classes, the block continues with the softmax and the weights of the support's
// rows; those of the queries depend on each other.

#include "cuda/tim/chunk.cuh"

namespace paddle_ext {

namespace {

constexpr int kRows = kTimRows;
constexpr int kStages = 3;
constexpr int kWarpsDown = 2, kWarpsAcross = 2;  // a warp has 32 rows and half of the classes
constexpr int kThreads = 32 * kWarpsDown * kWarpsAcross;
constexpr int kRowTiles = kRows / kWarpsDown / 16;
constexpr int kMostClasses = 160;  // per tile

struct Tiling {
    int64_t class_tiles, support_tiles, query_tiles;
};

template <int Classes>
constexpr int kStageBytes = (kRows + Classes) * kGroupHalves * int(sizeof(__half));

// Rows that a block copies to shared memory, one group of features at a time: eight threads copy a
// row's group, and a thread has several rows.
template <int Rows>
struct RowCopies {
    static constexpr int kStep = kThreads / kGroupPieces;
    static constexpr int kCopies = Rows / kStep;
    const __half* from;
    unsigned to;       // in shared memory, from the start of the rows
    int left;          // rows from the thread's first one on
    int64_t row_step;  // in halves

    __device__ RowCopies(const __half* rows, int64_t first, int64_t count, int64_t groups) {
        const int row = threadIdx.x / kGroupPieces, piece = threadIdx.x % kGroupPieces;
        left = int(min(max(count - first - row, int64_t(0)), int64_t(Rows)));
        from = rows + (left > 0 ? (first + row) * groups * kGroupHalves : 0) + piece * 8;
        to = row * 128 + piece_offset(row, piece);
        row_step = kStep * groups * kGroupHalves;
    }

    __device__ void copy(unsigned base, int group) const {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            const bool valid = i * kStep < left;
            copy_async16(base + to + i * kStep * 128,
                         from + (valid ? i * row_step : 0) + group * kGroupHalves, valid);
        }
    }
};

// The sums of one warp: rows in tiles of 16, classes in blocks of 8. In every block a lane has the
// classes 2 (lane % 4) and the next, of the rows lane / 4 and lane / 4 + 8.
template <int Classes>
using WarpSums = float[kRowTiles][Classes / kWarpsAcross / 8][4];

// Exchange between the warps of a block about their rows.
struct Exchange {
    float best[kWarpsAcross][kRows], own[kWarpsAcross][kRows], others[kWarpsAcross][kRows];
    float loss[kRows];
    float column[kWarpsDown][kMostClasses];
};

// The support rows of a lane: two neighbours of every tile.
struct OwnRows {
    int label[kRowTiles][2];  // -1 beyond the last row
    int across;               // which half of the classes
};

// Calls body(tile, side, row) for the rows of a lane in a warp's rows from row0 on.
template <typename Body>
__device__ __forceinline__ void for_own_rows(int row0, const Body& body) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            body(tile, side, row0 + tile * 16 + side * 8 + int(threadIdx.x % 32) / 4);
        }
    }
}

// From scores to exponentials, and their sums over the class of a row and over the others:
// separate, because 1 - p would cancel.
template <int Classes>
__device__ __forceinline__ void exponentiate(WarpSums<Classes>& score, float temperature, int row0,
                                             int class0, const OwnRows& own_rows,
                                             Exchange& exchange) {
    const int lane = threadIdx.x % 32;
    for_own_rows(row0, [&](int tile, int side, int row) {
        float best = Range<float>::kMinusInfinity;
#pragma unroll
        for (auto& block : score[tile]) {
            best = fmaxf(best, fmaxf(block[2 * side], block[2 * side + 1]));
        }
        best = quad_max(best);
        if (lane % 4 == 0) exchange.best[own_rows.across][row] = best;
    });
    __syncthreads();  // the best of both halves of the classes is known
    for_own_rows(row0, [&](int tile, int side, int row) {
        const float best = fmaxf(exchange.best[0][row], exchange.best[1][row]);
        float own = 0.0f, others = 0.0f;
#pragma unroll
        for (int i = 0; i < Classes / kWarpsAcross / 8; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int k = class0 + i * 8 + lane % 4 * 2 + j;
                float& value = score[tile][i][2 * side + j];
                value = tim_exp(temperature * (value - best));
                (k == own_rows.label[tile][side] ? own : others) += value;
            }
        }
        own = quad_sum(own);
        others = quad_sum(others);
        if (lane % 4 == 0) {
            exchange.own[own_rows.across][row] = own;
            exchange.others[own_rows.across][row] = others;
        }
    });
    __syncthreads();  // the sums of both halves are known
}

// From exponentials to the weights of the rows, and their sums over the rows of a lane.
template <int Classes>
__device__ __forceinline__ void write_weights(const TimChunk& c, int64_t task, int64_t first,
                                              const WarpSums<Classes>& value, int row0, int class0,
                                              const OwnRows& own_rows, Exchange& exchange,
                                              float (&column)[Classes / kWarpsAcross / 8][2]) {
    const int64_t S = c.call.size.S;
    const int lane = threadIdx.x % 32;
    const bool alternating = c.call.solver == TimSolver::kAlternating;
    const TimOrder<float> order(c.call.alpha[0]);
    for_own_rows(row0, [&](int tile, int side, int row) {
        const float own = exchange.own[0][row] + exchange.own[1][row];
        const float others = exchange.others[0][row] + exchange.others[1][row];
        const float inverse = 1.0f / (own + others), p = own * inverse;
        const float factor = alternating ? -1.0f : tim_support_factor(p, order);
        const float stored = factor * inverse * kHalfRange;
        if (c.call.losses != nullptr && own_rows.across == 0 && lane % 4 == 0) {
            exchange.loss[row] = first + row < S ? tim_cross_entropy(p, order) : 0.0f;
        }
        if (first + row >= S) return;
        __half* const out = weights_of(c, task, first + row);
#pragma unroll
        for (int i = 0; i < Classes / kWarpsAcross / 8; ++i) {
            const int k = class0 + i * 8 + lane % 4 * 2;
            if (k >= c.plan.classes) continue;
            float weight[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const bool is_own = k + j == own_rows.label[tile][side];
                weight[j] = stored * (is_own ? -others : value[tile][i][2 * side + j]);
                column[i][j] += weight[j];
            }
            store_halves(out + group_offset(k), weight[0], weight[1]);
        }
    });
}

// From scores to the weights of support rows; like support_row of weights.cu, on a tile.
template <int Classes>
__device__ void weigh_support(const TimChunk& c, int64_t task, int64_t first, int row0, int class0,
                              WarpSums<Classes>& score, Exchange& exchange) {
    const TaskSizes& n = c.call.size;
    const int lane = threadIdx.x % 32;
    const int64_t* const labels = of_support(c.call.support_labels, n, c.first + task, n.S);
    OwnRows own_rows;
    own_rows.across = class0 * kWarpsAcross / Classes;
    for_own_rows(row0, [&](int tile, int side, int row) {
        own_rows.label[tile][side] = first + row < n.S ? load_label(labels, first + row, n.K) : -1;
    });
    exponentiate<Classes>(score, c.scale[task].temperature, row0, class0, own_rows, exchange);
    float column[Classes / kWarpsAcross / 8][2] = {};
    write_weights<Classes>(c, task, first, score, row0, class0, own_rows, exchange, column);

    // Sums over the rows of a lane, then of a warp, then of the block.
#pragma unroll
    for (int i = 0; i < Classes / kWarpsAcross / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float sum = sum_over_quads(column[i][j]);
            const int k = class0 + i * 8 + lane * 2 + j;
            if (lane < 4) exchange.column[row0 * kWarpsDown / kRows][k] = sum;
        }
    }
    __syncthreads();  // the sums of all warps and the losses of all rows are complete
    const int64_t part = task * (1 + c.plan.row_blocks) + 1 + first / kRows;
    for (int64_t k = threadIdx.x; k < n.K; k += kThreads) {
        float sum = 0.0f;
        for (int i = 0; i < kWarpsDown; ++i) sum += exchange.column[i][k];
        c.weight_parts[part * n.K + k] = sum / kHalfRange;
    }
    if (c.call.losses != nullptr && threadIdx.x < 32) {
        float loss = 0.0f;
        for (int row = lane; row < kRows; row += 32) loss += exchange.loss[row];
        loss = warp_sum(loss) * float(c.call.weight[0]) / float(n.S);
        if (lane == 0) c.loss_parts[part] = loss;
    }
}

template <int Classes>
__global__ void __launch_bounds__(kThreads, Classes <= 64 ? 4 : 2)
    logits_kernel(TimChunk c, Tiling tiling, TimStage stage) {
    constexpr int kBlocks = Classes / kWarpsAcross / 8;  // of 8 classes, per warp
    extern __shared__ __align__(128) unsigned char memory[];
    const TaskSizes& n = c.call.size;
    const int64_t skipped = stage == TimStage::kFinish ? tiling.support_tiles : 0;
    const int64_t row_tiles = tiling.support_tiles + tiling.query_tiles - skipped;
    const int64_t first_class = blockIdx.x % tiling.class_tiles * Classes;
    const int64_t row_tile = blockIdx.x / tiling.class_tiles % row_tiles + skipped;
    const int64_t task = blockIdx.x / tiling.class_tiles / row_tiles;
    const bool is_query = row_tile >= tiling.support_tiles;
    const int64_t first = (is_query ? row_tile - tiling.support_tiles : row_tile) * kRows;
    const int64_t rows = is_query ? n.Q : n.S;
    const int groups = int(c.plan.groups);
    const __half* const x = is_query ? c.query + task * n.Q * groups * kGroupHalves
                                     : of_support(c.support, n, task, n.S * groups * kGroupHalves);
    const __half* const w = c.w_halves + task * n.K * groups * kGroupHalves;

    const RowCopies<kRows> x_copies(x, first, rows, groups);
    const RowCopies<Classes> w_copies(w, first_class, n.K, groups);
    const unsigned base = shared_address(memory);
    const auto load = [&](int group) {
        if (group < groups) {
            const unsigned to = base + unsigned(group % kStages) * kStageBytes<Classes>;
            x_copies.copy(to, group);
            w_copies.copy(to + kRows * 128, group);
        }
        commit_copies();
    };
#pragma unroll
    for (int group = 0; group < kStages - 1; ++group) load(group);

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int block8 = lane / 8, within8 = lane % 8;  // which 8 x 8 matrix a lane addresses
    const int row0 = warp % kWarpsDown * (kRows / kWarpsDown);
    const int class0 = warp / kWarpsDown * (Classes / kWarpsAcross);
    const unsigned x_lane =
        (row0 + block8 % 2 * 8 + within8) * 128 + piece_offset(within8, block8 / 2);
    const unsigned w_lane =
        (kRows + class0 + block8 / 2 * 8 + within8) * 128 + piece_offset(within8, block8 % 2);
    WarpSums<Classes> total = {}, sum = {};
    for (int group = 0; group < groups; ++group) {
        wait_copies<kStages - 2>();
        __syncthreads();  // this group is complete, and the previous one has been read by all
        load(group + kStages - 1);
        const unsigned at = base + unsigned(group % kStages) * kStageBytes<Classes>;
        multiply_group<2>(sum, at + x_lane, at + w_lane);
        if (group % kFlush == kFlush - 1 || group == groups - 1) flush_sums(total, sum);
    }

    const TimScale scale = c.scale[task];
    const float factor = 1.0f / ((is_query ? scale.query : kHalfRange) * scale.prototype);
    if (is_query || !c.plan.fused) {
        float* const out = products_of(c, task, is_query ? n.S : 0);
        const int64_t classes = c.plan.classes;
        for_own_rows(row0, [&](int tile, int side, int row) {
            if (first + row >= rows) return;
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
                const int64_t k = first_class + class0 + i * 8 + lane % 4 * 2;
                if (k >= classes) continue;
                const float2 value = make_float2(total[tile][i][2 * side] * factor,
                                                 total[tile][i][2 * side + 1] * factor);
                *reinterpret_cast<float2*>(out + (first + row) * classes + k) = value;
            }
        });
        return;
    }

    wait_copies<0>();
    __syncthreads();  // the stages have been read by all; their memory is reused
    float* const half_norm = reinterpret_cast<float*>(memory);  // [Classes]
    Exchange& exchange = *reinterpret_cast<Exchange*>(memory + Classes * sizeof(float));
    for (int k = threadIdx.x; k < Classes; k += kThreads) {
        float norm = 0.0f;
        for (int64_t part = 0; k < n.K && part < c.plan.chunks; ++part) {
            norm += c.norm_parts[(task * c.plan.chunks + part) * n.K + k];
        }
        half_norm[k] = k < n.K ? 0.5f * norm : Range<float>::kInfinity;  // padding
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float norm = half_norm[class0 + i * 8 + lane % 4 * 2 + j % 2];
#pragma unroll
            for (auto& tile : total) tile[i][j] = tile[i][j] * factor - norm;
        }
    }
    weigh_support<Classes>(c, task, first, row0, class0, total, exchange);
}

}  // namespace

void launch_tim_logits(const TimChunk& c, const TimIteration& it) {
    with_class_tile(c.plan.class_tile, [&](auto classes) {
        constexpr int kClasses = decltype(classes)::value;
        const TaskSizes& n = c.call.size;
        const Tiling tiling{ceil_div(n.K, int64_t(kClasses)), ceil_div(n.S, int64_t(kRows)),
                            ceil_div(n.Q, int64_t(kRows))};
        const int64_t support_tiles = it.stage == TimStage::kFinish ? 0 : tiling.support_tiles;
        constexpr int kBytes = kStages * kStageBytes<kClasses>;
        static_assert(kBytes >= kClasses * 4 + int(sizeof(Exchange)), "the exchange must fit");
        allow_shared(logits_kernel<kClasses>, kBytes);
        const int64_t tiles = (tiling.query_tiles + support_tiles) * tiling.class_tiles;
        launch("logits_kernel", logits_kernel<kClasses>, c.tasks * tiles, kThreads, kBytes,
               c.stream, c, tiling, it.stage);
    });
}

}  // namespace paddle_ext
