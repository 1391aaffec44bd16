// The parameters of the steps of large tasks, filled by bindings_large.cpp; see common/params.h.
//
// Letters: B tasks, N rows of each in a chunk, K classes, D features. "Real" is the dtype of the
// computation: double for float64 rows, float otherwise.
#pragma once

#include "common/params.h"

namespace paddle_ext {

// A block of rows of large tasks: from their products with prototypes to probabilities.
//   logit = slope length_q product + bias_k
struct AssignParams : WithWorkspace {
    int64_t B, N, K;
    int64_t stride;  // numbers per row of the products, of which the first K count
    int64_t top;     // most probable classes reported per row; may be 0
    DType dtype;     // of the products, and of all reals: float32 or float64
    DType written;   // of `probabilities` and `rest`
    bool normalise;  // else write likelihoods, the largest of a row being kLikelihoodUnit
    bool weigh;      // the output is multiplied by the length of the row
    bool squared;    // whether the outputs are of the squares of the probabilities

    // in
    void* products;      // [B, N, stride]; overwritten if `leads` are wanted
    const void* length;  // [B, N], or null for 1
    const void* slope;   // [B]
    const void* bias;    // [B, K]

    // out; null if not wanted
    void* probabilities;  // [B, N, K]
    void* rest;           // [B, N, K] their rounding errors
    double* held;         // [B, K]    incremented by the sums of the probabilities
    double* log_sums;     // [B]       incremented by the sums of the log normalisers of the rows
    void* top_probabilities;  // [B, N, top]
    int64_t* top_classes;     // [B, N, top]
    double* leads;  // [B, 2]    incremented by the lead of the nearest class over the median one,
                    //           and by the distance of the median one minus the row's squared norm
};

// Sums of rows by class, when most probabilities are too small to count. CPU only.
struct SumsParams : WithWorkspace {
    int64_t B, N, K, D;
    DType dtype;       // of all arrays: float32 or float64
    double threshold;  // smaller probabilities are ignored
    int64_t most;      // limit on entries above it, over all tasks; with more, nothing is done

    const void* probabilities;  // [B, N, K]
    const void* rows;           // [B, N, D]

    void* sums;      // [B, K, D] added to
    int64_t* found;  // [1]       entries above the threshold; if more than `most`, a lower bound
};

// The end of an iteration of large tasks: the dual, the bias of the next logits, and whether a task
// continues. A stopped task keeps its state.
struct DualParams : WithWorkspace {
    int64_t B, K;
    DType dtype;  // real
    Prior prior;
    double total;    // number of queries times their weight
    double weight;   // of a query in the counts
    double epsilon;  // of PADDLE's proportions
    double tol;
    double dual_weight;  // of the dual in the logits
    double least;        // concentration

    const double* held;  // [B, K] sums of the queries' probabilities
    const double* away;  // [B, K] how far prototypes moved, or null: the largest change of a count
    const double* unit;  // [B]    of these distances; the criterion is their mean
    const double* base;  // [B, K] the bias without the dual, or null
    const double* measure;  // [B, K] of the Dirichlet prior; null: 1 for all classes

    // in and out
    double* counts;         // [B, K] of the iteration before
    double* dual;           // [B, K]
    double* before;         // [B, K] the dual of the last probabilities
    double* concentration;  // [B]
    double* criterion;      // [B]
    int32_t* iterations;    // [B]
    int32_t* running;       // [B]    1 or 0
    void* bias;             // [B, K] real, with the base
};

// One pass over a chunk of rows: what the coordinates of a task depend on. Rows are first made
// unit-norm if lengths are wanted. NaN makes both extremes NaN.
struct SurveyParams : WithWorkspace {
    int64_t B, N, D;
    DType dtype;  // of the rows; real on the CPU

    const void* rows;  // [B, N, D]

    void* length;     // [B, N] real, 1 / norm, 0 for a row of zeros; or null
    double* sums;     // [B, D] incremented
    double* squares;  // [B]    incremented by the sum of squares
    void* least;      // [B, D] real, lowered
    void* most;       // [B, D] real, raised
};

// The coordinates of tasks, in which numbers are about 1, and their class means:
//   x = (length_n row / width - mean of the queries) / unit
struct PlaceParams : WithWorkspace {
    int64_t B, S, K, D;
    bool shared;      // one support set for all tasks
    DType rows;       // of the support; float64 on the CPU
    DType dtype;      // real
    Scaling scaling;  // sets the width, and whether support rows are made unit-norm first
    double total;     // number of queries

    // in; the last four are the results of a survey of all queries
    const void* support;    // [B, S, D], or [S, D] when shared
    const int64_t* order;   // [B, S], or [S]: support rows grouped by class
    const int64_t* start;   // [B, K + 1], or [K + 1]: where the rows of a class begin in it
    const double* sums;     // [B, D]
    const double* squares;  // [B]
    const void* least;      // [B, D] real
    const void* most;       // [B, D] real

    // out
    void* means;     // [B, K, D] real
    double* shots;   // [B, K]
    void* scale;     // [B, D]    real, x = length_n row scale - centre
    void* centre;    // [B, D]    real
    double* unit;    // [B]       a power of two
    double* spread;  // [B]       sum of the squares of the queries, without the width
};

// The factor of the logits on products in these coordinates.
struct SlopeParams : WithWorkspace {
    int64_t B;
    Scaling scaling;
    double total;  // number of queries
    double temperature;
    double steepest;  // limit on the slope

    const double* unit;    // [B]
    const double* spread;  // [B]
    const double* leads;   // [B, 2] as summed by AssignParams, for unit-norm rows

    double* slope;          // [B]
    double* distance_unit;  // [B] the size of 1, in units of the scaling
};

// Prototypes of large tasks: moved by the sums of an iteration, or as they are without sums; as
// factors of products, and with their part of the logits' bias. A stopped task keeps its own.
struct MoveParams : WithWorkspace {
    int64_t B, K, D;
    int64_t parts;   // of the sums of a task
    int64_t width;   // numbers per class in `sums`: D, or 2 D, which are added
    int64_t pieces;  // halves per number of a factor: high; high, low; high, high, low; 0: none
    DType dtype;     // real

    // in
    const void* start;    // [B, K, D] means of the labelled rows
    const double* shots;  // [B, K]
    // Rows that were multiplied as they are, row = (x + centre) / scale: the sums are of these, and
    // factors of products are multiplied by `factor`. Or null.
    const void* scale;       // [B, D]
    const void* centre;      // [B, D]
    const void* factor;      // [B, D]
    const double* slope;     // [B]
    const void* sums;        // [B * parts, K, width], or null
    const void* rest;        // [B * parts, K, D], added to the sums; or null
    const double* held;      // [B, K]
    const int32_t* running;  // [B]

    // in and out
    void* prototypes;  // [B, K, D]

    // out
    void* before;   // [B, K, D] prototypes of the last sums
    double* away;   // [B, K]    how far they moved
    double* base;   // [B, K]    their part of the bias
    void* operand;  // [B, K, pieces, D] halves
};

// Rows for tensor cores, which multiply halves: a row in the task's coordinates,
//   x = length_n row scale - centre,
// as high halves, or as high, low and again high halves; or rows that are halves already, twice. In
// the coordinates of `adaptive` the length is 1 / norm of the row, and x is made unit-norm again.
// CUDA only.
struct SplitParams : WithWorkspace {
    int64_t B, N, D;
    int64_t pieces;  // 1, 3 or 2
    DType dtype;     // of the rows: float16, bfloat16 or float32
    bool unit;       // the coordinates of `adaptive`

    const void* rows;     // [B, N, D]
    const float* length;  // [B, N], or null for 1
    const float* scale;   // [B, D]
    const float* centre;  // [B, D]
    const float* metric;  // [B, D] of `own`

    void* out;   // [B, N, pieces, D] float16
    float* own;  // [B, N] of `unit`, or null: sum_d metric_d x_d^2
};

// The late step of `adaptive` for a block of rows of one large task; the algebra is in
// common/step.h. The contribution of other rows to the class sums s_k is known, so rows are
// independent.
struct LateParams : WithWorkspace {
    int64_t N, K;
    DType dtype;  // of all arrays: float32 or float64
    double weight, trust, temper;
    double slope;    // of the logits before the step
    double sharper;  // factor on distances
    double share;    // factor on `added`

    // [N, 2, K]: products of rows with the prototypes in the metric, and with s_k; the new logits
    // overwrite the first
    void* products;
    const void* added;     // [N, K] further logits, before and after the step; or null
    const void* own;       // [N] products of rows with themselves
    const void* bias;      // [K] of the logits before the step
    const void* square;    // [K] s_k.s_k
    const void* mass;      // [K] total weight of the rows in s_k
    const void* constant;  // [K] added to the logits
    const void* total;     // [K] count of the class plus its prior
    const void* prior;     // [K] the prior alone: `total` without a row is at least this
};

// Stored likelihoods, and the sums of probabilities under class weights.
struct CountParams : WithWorkspace {
    int64_t B, N, K;
    DType dtype;  // of the likelihoods; float16 or float32, float64 on the CPU

    const void* likelihood;  // [B, N, K]
    const void* weights;     // [B, K] real

    double* held;   // [B, K] incremented by the sums of the probabilities
    double* faint;  // [B]    incremented by the number of rows that lost precision
};

PADDLE_EXT_ON_CPU(AssignParams);
PADDLE_EXT_ON_CPU(CountParams);
PADDLE_EXT_ON_CPU(DualParams);
PADDLE_EXT_ON_CPU(LateParams);
PADDLE_EXT_ON_CPU(SumsParams);
PADDLE_EXT_ON_CPU(SurveyParams);
PADDLE_EXT_ON_CPU(PlaceParams);
PADDLE_EXT_ON_CPU(SlopeParams);
PADDLE_EXT_ON_CPU(MoveParams);

PADDLE_EXT_ON_CUDA(AssignParams);
PADDLE_EXT_ON_CUDA(CountParams);
PADDLE_EXT_ON_CUDA(DualParams);
PADDLE_EXT_ON_CUDA(LateParams);
PADDLE_EXT_ON_CUDA(SplitParams);
PADDLE_EXT_ON_CUDA(SurveyParams);
PADDLE_EXT_ON_CUDA(PlaceParams);
PADDLE_EXT_ON_CUDA(SlopeParams);
PADDLE_EXT_ON_CUDA(MoveParams);

}  // namespace paddle_ext
