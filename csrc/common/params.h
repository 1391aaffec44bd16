// The parameters of one solver call: sizes, pointers, options, and where it runs. Filled by
// bindings.cpp from keyword arguments of the same names, passed by value. At the end, the functions
// that take them.
//
// Letters used throughout: B tasks, Q queries, S support rows, K classes, D features, N rows of a
// feature bank. Sizes are in elements; all arrays are contiguous.
#pragma once

#include <cstdint>

namespace paddle_ext {

// Runs on the CPU with this many threads, or on a stream of a CUDA device.
struct Target {
    bool cuda;
    int threads;   // CPU
    int device;    // CUDA
    void* stream;  // CUDA
};

struct WithWorkspace {
    void* workspace;
    int64_t workspace_bytes;
};

enum class DType : int { kFloat16 = 0, kBFloat16 = 1, kFloat32 = 2, kFloat64 = 3 };
// With kAuto, rows are normalised to unit length.
enum class Scaling : int { kNone = 0, kMinMax = 1, kAuto = 2 };
enum class Prior : int { kPaddle = 0, kDirichlet = 1 };  // of the class proportions

struct PaddleSizes {
    int64_t B, Q, S, K, D;
    int64_t N;            // rows of the bank; 0 when support and query are given directly
    bool support_shared;  // one support set for all tasks
};

// Returned instead of a workspace size: a task does not fit this code.
constexpr int64_t kTooLarge = -1;

struct PaddleParams : WithWorkspace {
    PaddleSizes size;
    DType dtype;  // of the features

    // in
    const void* support;            // [B, S, D], [S, D] when shared, or the bank [N, D]
    const int64_t* support_labels;  // [B, S], or [S] when shared
    const void* query;              // [B, Q, D], or the bank [N, D]
    const int64_t* support_index;   // [B, S], or [S] when shared; null without a bank
    const int64_t* query_index;     // [B, Q]; null without a bank

    // options
    double lam;
    Scaling scaling;
    double temperature;
    double epsilon;
    int max_iter;
    double tol;  // mean shift of the prototypes

    // out; "real" is double for float64 features, float otherwise
    int64_t* labels;      // [B, Q]
    void* probabilities;  // [B, Q, K] real
    void* proportions;    // [B, K]    real
    void* dual;           // [B, K]    real
    int32_t* iterations;  // [B]
    void* criterion;      // [B]       real
    void* prototypes;     // [B, K, D] real, or null
};

struct SinkhornParams : WithWorkspace {
    int64_t B, Q, K;
    DType dtype;  // of all arrays: float32 or float64

    // in
    const void* cost;      // [B, Q, K]
    const void* row_mass;  // [B, Q], or [Q] when shared
    const void* col_mass;  // [B, K], or [K] when shared
    bool row_mass_shared, col_mass_shared;

    // options
    double sharpness;  // the factor on the cost
    int max_iter;
    double tol;

    // out
    void* plan;           // [B, Q, K]
    int32_t* iterations;  // [B]
    void* residual;       // [B]
};

struct AdaptParams : WithWorkspace {
    int64_t B, Q, K;
    DType dtype;  // of the logits

    const void* logits;  // [B, Q, K]

    // options
    double weight;  // of a query in the counts
    int max_iter;
    double tol;

    // Of the Dirichlet prior; see common/adapt.h.
    int64_t priors;        // number of measures to choose from
    const void* measures;  // [B, priors, K] real; null: one, 1 for all classes

    // out; "real" is double for float64 logits, float otherwise
    int64_t* labels;      // [B, Q]
    void* probabilities;  // [B, Q, K] real
    void* proportions;    // [B, K]    real
    void* dual;           // [B, K]    real
    int32_t* iterations;  // [B]
    void* criterion;      // [B]       real
    void* concentration;  // [B]       real
    void* bound;          // [B]       real
    int32_t* chosen;      // [B]       the measure with the largest bound

    const volatile int* stop;  // CUDA, set there: 1 once the call is cancelled; or null
};

struct CalibrateParams : WithWorkspace {
    int64_t B, R, K;  // R calibration rows
    DType dtype;      // of the distances: float32 or float64

    // in
    const void* distances;  // [B, R, K]
    const int64_t* labels;  // [B, R]
    const int64_t* count;   // [B]: number of rows used, from the first on

    // options: the expected sharpness, and the spread of its logarithm
    double centre, spread;

    // out
    void* sharpness;  // [B]
    void* objective;  // [B]
    void* drawn;      // [B, K] share of other classes' rows that a class attracts
};

// Statistics of the labelled rows of `adaptive`, before calibration.
struct LabelledParams : WithWorkspace {
    int64_t B, S, K, D;
    int64_t R;    // calibration rows; 0 if every class has one row
    DType dtype;  // of all arrays: float32 or float64

    // in
    const void* support;    // [B, S, D]
    const int64_t* labels;  // [B, S]

    // out
    void* first;       // [B, S]    1 / norm of a row
    void* second;      // [B, S]    1 / norm of the unit row minus the centre
    void* centre;      // [B, D]
    void* means;       // [B, K, D] of the rows in these coordinates
    void* shots;       // [B, K]
    int64_t* own;      // [B, R]    class of a calibration row
    int64_t* judging;  // [B]       number of calibration rows; the rest is padding
    void* scale;       // [B, D]    the feature scale
    bool* finite;      // [B]       every class has a row, each plainly finite; or null
};

// Rows in the coordinates chosen by the labelled rows: unit norm, minus the centre, unit norm.
struct CoordinatesParams {
    int64_t B, N, D;
    bool shared;  // one centre for all tasks
    DType dtype;  // of all arrays: float32 or float64
    bool split;   // on CUDA: x split, see cuda/split_rows.cuh

    const void* rows;    // [B, N, D]
    const void* centre;  // [B, D], or [D] when shared; or null: rows as they are
    const void* scale;   // likewise: x is multiplied by its root; or null

    // out
    void* x;       // [B, N, D]
    bool* finite;  // [B]       set to false where a row is not plainly finite; or null
};

// The late step of `posterior`: prototypes absorb the queries, each query classified without itself.
struct StepParams : WithWorkspace {
    int64_t B, Q, K;
    bool shared;    // the statistics of the labelled rows are shared by all tasks
    DType dtype;    // of all arrays: float32 or float64
    double weight;  // of a query in the counts
    double temper;  // factor on the logits

    // in
    const void* given;     // [B, Q, K] probabilities before the step
    const void* cross;     // [B, Q, K] products of queries and prototypes, ...
    const void* gram;      // [B, Q, Q] on CUDA: of queries with one another, for the next two
    void* inner;           // [B, Q, K] ... of queries and weighted sums of queries, ...
    void* own;             // [B, Q]    ... and of queries with themselves
    const void* added;     // [B, Q, K] further logits, reduced like the others; or null
    const void* shots;     // [B, K], or [K] when shared
    const void* squares;   // [B, K], or [K] when shared: products of prototypes with themselves
    const void* variance;  // [B], or [1] when shared: see excess_distance, like the next
    double mean_shots;
    const void* sharpness;      // [B]
    const void* bias;           // [B, K]    of the logits before the step
    const void* concentration;  // [B]
    int64_t priors;             // the same as in AdaptParams, like the next two
    const void* measures;
    const int32_t* chosen;

    // in and out: under the Dirichlet prior, then class_share
    void* proportions;  // [B, K]

    // out
    void* probabilities;  // [B, Q, K]
    int64_t* labels;      // [B, Q]
};

// Likelihoods estimated from labelled rows: `labelled`, then the metric, the sharpness and the bias
// of hubs. Rows are multiplied by the root of the feature scale first; their product in the metric
// is then plain x.y + projected (Z x).(Z y), see common/likelihood.h.
struct LikelihoodParams : WithWorkspace {
    int64_t B, S, K, D;
    int64_t R;                       // calibration rows
    bool full;                       // the full metric too, as far as these rows choose it
    bool every;                      // write `left_out`
    DType dtype;                     // of all arrays: float32 or float64
    double prior_sharpness, spread;  // as in CalibrateParams

    // in
    const void* support;    // [B, S, D]
    const int64_t* labels;  // [B, S]

    // out
    void* centre;     // [B, D]
    void* means;      // [B, K, D]
    void* rows;       // [B, N, D]    scaled means, after the scaled offsets if N = K + S: by rows
    void* squares;    // [B, K]       of the means, in the metric
    void* bias;       // [B, K]
    void* shots;      // [B, K]
    void* sharpness;  // [B]
    void* variance;   // [B]          of the calibration rows, see excess_distance
    bool* finite;     // [B]          see plainly_finite
    void* scale;      // [B, D]
    void* factor;     // [B, M', M']  null unless full, like the next two
    void* solved;     // [B, K, M']   Z of the scaled means
    void* shares;     // [B, 3]       weight of the full metric in the mixture, plain, projected
    void* left_out;   // [B, S, K]    squared distances of every row, left out of its class, up to a
                      //              constant per row; or null
};

struct PosteriorSizes {
    int64_t B, Q, K, D;
    int64_t M;  // columns of the factor, 0 without
    int64_t N;  // rows of a likelihood, as above
    int64_t L;  // likelihoods: one for each task, or one for all
};

// Probabilities of queries under these likelihoods: coordinates, proportions, late step.
struct PosteriorParams : WithWorkspace {
    PosteriorSizes size;
    DType dtype;    // of all arrays: float32 or float64
    double weight;  // of a query in the counts
    double temper;  // factor on the logits of the late step
    int max_iter;
    double tol;

    // in
    const void* query;     // [B, Q, D]
    const void* added;     // [B, Q, K] further logits, or null
    const void* centre;    // [L, D]
    const void* scale;     // [L, D]
    const void* rows;      // [L, N, D]
    const void* factor;    // [L, M', M'] or null, like the next two
    const void* solved;    // [L, K, M']
    const void* shares;    // [L, 3]
    const void* squares;   // [L, K]
    const void* shots;     // [L, K]
    const void* variance;  // [L]
    double mean_shots;
    const void* bias;       // [B, K]
    const void* sharpness;  // [B]
    int64_t priors;         // as in AdaptParams, like the next
    const void* measures;

    // out, as in AdaptParams; labels and probabilities are after the late step
    int64_t* labels;
    void* probabilities;
    void* proportions;
    void* dual;
    int32_t* iterations;
    void* criterion;
    void* concentration;
    void* bound;
    int32_t* chosen;
    bool* finite;  // [B] see plainly_finite; of the queries
};

// Whether the labels and the numbers of a call are valid.
constexpr int kValuesArrays = 3;
struct ValuesParams {
    int64_t B, S;
    DType dtype;  // of the numbers
    double most;  // a valid number is at most this in magnitude

    // in
    const int64_t* labels;               // [B, S]
    const void* numbers[kValuesArrays];  // null if absent
    int64_t counts[kValuesArrays];

    // out: the smallest K of all tasks, and minus the largest. K is 0 for a task in which a class
    // below its largest label is missing; an invalid number makes the smallest K 0.
    int64_t* found;  // [2]
};

enum class TimSolver : int { kGradient = 0, kAlternating = 1 };

struct TimSizes {
    int64_t B, Q, S, K, D;
    bool support_shared;  // one support set for all tasks
};

struct TimParams : WithWorkspace {
    TimSizes size;
    DType dtype;  // of the features

    // in
    const void* support;            // [B, S, D], or [S, D] when shared
    const int64_t* support_labels;  // [B, S], or [S] when shared
    const void* query;              // [B, Q, D]

    // options
    TimSolver solver;
    bool normalize;  // normalise rows to unit length first
    double temperature;
    double weight[3];      // of the support's cross-entropy, the marginal, the conditional entropy
    double alpha[3];       // of the same three; 1 is Shannon's
    double learning_rate;  // of Adam, or the step fraction towards the closed form
    int max_iter;

    // out; "real" is double for float64 features, float otherwise
    int64_t* labels;      // [B, Q]
    void* probabilities;  // [B, Q, K] real
    void* prototypes;     // [B, K, D] real, in the coordinates of the (normalised) features
    void* losses;         // [max_iter, B] real, each before its step; or null
};

enum class Sampling : int { kUniform = 0, kBalanced = 1, kDirichlet = 2 };

struct TaskParams : WithWorkspace {
    int64_t B, Q;
    int64_t K;                   // classes of the bank
    int64_t M;                   // rows to draw from
    int64_t num_classes, k_eff;  // candidates of a task, and how many of them have queries
    int64_t shots;               // per class; 0 when the support is not drawn
    Sampling sampling;
    double alpha;  // of the Dirichlet distribution
    uint64_t seed;
    uint64_t start;  // number of the first task

    // in
    const int64_t* labels;                       // [N]
    const int32_t* rows;                         // [M], rows of the bank; each class contiguous
    const int32_t *support_begin, *support_end;  // [K], where in `rows`
    const int32_t *query_begin,
        *query_end;  // [K]; may be the same minus the first `shots`

    // out
    int64_t* support_index;   // [B, num_classes * shots]
    int64_t* support_labels;  // [B, num_classes * shots]
    int64_t* query_index;     // [B, Q]
    int64_t* query_labels;    // [B, Q]
};

// --- the functions of a call ---------------------------------------------------------------------

// The bytes of workspace that a call needs, and the call itself. On the CPU, cpu/launch.h has both
// for kernels that solve their tasks one by one, ...
template <typename... Params>
struct ParamsList;
using OneByOne = ParamsList<SinkhornParams, TimParams, AdaptParams, LabelledParams, CalibrateParams,
                            LikelihoodParams, PosteriorParams>;
// ... and others have their own. Those that need no memory have no function for it: kNeedsMemory in
// calls.h. On CUDA everything runs on `stream`.
#define PADDLE_EXT_ON_CPU(Params)                        \
    int64_t workspace_cpu(const Params& p, int threads); \
    void run_cpu(const Params& p, int threads)
#define PADDLE_EXT_ON_CUDA(Params)                       \
    int64_t workspace_cuda(const Params& p, int device); \
    void run_cuda(const Params& p, int device, void* stream)

PADDLE_EXT_ON_CPU(PaddleParams);
PADDLE_EXT_ON_CPU(CoordinatesParams);
PADDLE_EXT_ON_CPU(ValuesParams);
PADDLE_EXT_ON_CPU(TaskParams);

PADDLE_EXT_ON_CUDA(PaddleParams);
PADDLE_EXT_ON_CUDA(SinkhornParams);
PADDLE_EXT_ON_CUDA(ValuesParams);
PADDLE_EXT_ON_CUDA(TimParams);
PADDLE_EXT_ON_CUDA(AdaptParams);
PADDLE_EXT_ON_CUDA(LabelledParams);
PADDLE_EXT_ON_CUDA(CoordinatesParams);
PADDLE_EXT_ON_CUDA(CalibrateParams);
PADDLE_EXT_ON_CUDA(StepParams);
PADDLE_EXT_ON_CUDA(LikelihoodParams);
PADDLE_EXT_ON_CUDA(PosteriorParams);

}  // namespace paddle_ext
