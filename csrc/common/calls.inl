// Every call, and each of its parameters once: the fields of its struct (params.h), its keyword
// arguments in Python (bindings.cpp) and the functions that run it.
//
//   CALL(Name, name, cpu, cuda)           struct NameParams; name_call(..) in Python returns an object
//                                         whose method `run` runs the call. On the CPU it solves its
//                                         tasks one by one (CPU_TASKS, see cpu/levels.h), or has its
//                                         own run_cpu (CPU), or none (NO_CPU); likewise on CUDA.
//   MAKE(type, name)                      given to name_call: a size, an option or an early pointer
//   RUN(type, name)                       given to `run`: mostly pointers
//   OWN(type, name)                       set by native code, not from Python
//   MEMORY()                              given to `run`: as many bytes of memory as `workspace` says
//
// Letters used throughout: B tasks, Q queries, S support rows, K classes, D features, N rows of a
// feature bank, or of each task in a chunk of large tasks. Sizes are in elements; all arrays are
// contiguous. "Real" is double for float64 features, logits or rows, and float otherwise.

CALL(Paddle, paddle, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of the features
    MAKE(TaskSizes, size);
    MAKE(double, lam);
    MAKE(Scaling, scaling);
    MAKE(double, temperature);
    MAKE(double, epsilon);
    MAKE(int, max_iter);
    MAKE(double, tol);                    // mean shift of the prototypes
    RUN(const void*, support);            // [B, S, D], [S, D] when shared, or the bank [N, D]
    RUN(const int64_t*, support_labels);  // [B, S], or [S] when shared
    RUN(const void*, query);              // [B, Q, D], or the bank [N, D]
    RUN(const int64_t*, support_index);   // [B, S], or [S] when shared; null without a bank
    RUN(const int64_t*, query_index);     // [B, Q]; null without a bank
    RUN(int64_t*, labels);                // out [B, Q]
    RUN(void*, probabilities);            // out [B, Q, K] real
    RUN(void*, proportions);              // out [B, K]    real
    RUN(void*, dual);                     // out [B, K]    real
    RUN(int32_t*, iterations);            // out [B]
    RUN(void*, criterion);                // out [B]       real
    RUN(void*, prototypes);               // out [B, K, D] real, or null
    MEMORY();
};

CALL(Sinkhorn, sinkhorn, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    MAKE(int64_t, K);
    MAKE(bool, row_mass_shared);
    MAKE(bool, col_mass_shared);
    MAKE(double, sharpness);  // the factor on the cost
    MAKE(int, max_iter);
    MAKE(double, tol);
    RUN(const void*, cost);      // [B, Q, K]
    RUN(const void*, row_mass);  // [B, Q], or [Q] when shared
    RUN(const void*, col_mass);  // [B, K], or [K] when shared
    RUN(void*, plan);            // out [B, Q, K]
    RUN(int32_t*, iterations);   // out [B]
    RUN(void*, residual);        // out [B]
    MEMORY();
};

// Whether the labels and the numbers of a call are valid.
CALL(Values, values, CPU, CUDA) {
    MAKE(DType, dtype);  // of the numbers
    MAKE(int64_t, B);
    MAKE(int64_t, S);
    MAKE(double, most);            // a valid number is at most this in magnitude
    MAKE(ValuesCounts, counts);    // of the numbers
    RUN(const int64_t*, labels);   // [B, S]
    RUN(ValuesPointers, numbers);  // null if absent
    // out: the smallest K of all tasks, and minus the largest. K is 0 for a task in which a class
    // below its largest label is missing; an invalid number makes the smallest K 0.
    RUN(int64_t*, found);  // [2]
};

CALL(Tim, tim, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of the features
    MAKE(TaskSizes, size);
    MAKE(TimSolver, solver);
    MAKE(bool, normalize);  // normalise rows to unit length first
    MAKE(double, temperature);
    // Of the support's cross-entropy, the marginal, the conditional entropy; an order of 1 is
    // Shannon's.
    MAKE(TimTerms, weight);
    MAKE(TimTerms, alpha);
    MAKE(double, learning_rate);  // of Adam, or the step fraction towards the closed form
    MAKE(int, max_iter);
    RUN(const void*, support);            // [B, S, D], or [S, D] when shared
    RUN(const int64_t*, support_labels);  // [B, S], or [S] when shared
    RUN(const void*, query);              // [B, Q, D]
    RUN(int64_t*, labels);                // out [B, Q]
    RUN(void*, probabilities);            // out [B, Q, K] real
    RUN(void*, prototypes);  // out [B, K, D] real, in the coordinates of the (normalised) features
    RUN(void*, losses);      // out [max_iter, B] real, each before its step; or null
    MEMORY();
};

CALL(Adapt, adapt, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of the logits
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    MAKE(int64_t, K);
    MAKE(double, weight);  // of a query in the counts
    MAKE(int, max_iter);
    MAKE(double, tol);
    MAKE(int64_t, priors);       // number of measures to choose from; see common/adapt.h
    RUN(const void*, logits);    // [B, Q, K]
    RUN(const void*, measures);  // [B, priors, K] real; null: one, 1 for all classes
    RUN(int64_t*, labels);       // out [B, Q]
    RUN(void*, probabilities);   // out [B, Q, K] real
    RUN(void*, proportions);     // out [B, K]    real
    RUN(void*, dual);            // out [B, K]    real
    RUN(int32_t*, iterations);   // out [B]
    RUN(void*, criterion);       // out [B]       real
    RUN(void*, concentration);   // out [B]       real
    RUN(void*, bound);           // out [B]       real
    RUN(int32_t*, chosen);       // out [B]       the measure with the largest bound
    MEMORY();
};

// Groups of rows that share what they know: the algebra is in common/groups.h. In the next three
// calls one group is one task.

// What the pairs of a group say of how concentrated its proportions are.
CALL(Pairs, pairs, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // real: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    MAKE(int64_t, K);
    MAKE(int64_t, N);             // rows in `order`
    RUN(const void*, logits);     // [Q, K] real
    RUN(const int64_t*, order);   // [N] rows to compare, group by group: see kMostPaired
    RUN(const int64_t*, starts);  // [B + 1] of the groups in `order`
    RUN(const int64_t*, sizes);   // [B] rows of each group, whether compared or not
    RUN(const double*, measure);  // [B, K], or null: 1 for all classes
    RUN(double*, evidence);       // out [B, kChances] logs
    MEMORY();
};

// The proportions of groups.
CALL(Groups, groups, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // real: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    MAKE(int64_t, K);
    MAKE(int, steps);                   // from the probabilities; 0: they become those alone
    MAKE(bool, alone);                  // from rows alone instead
    RUN(const void*, logits);           // [Q, K] real
    RUN(const int64_t*, order);         // [Q] the rows, group by group
    RUN(const int64_t*, starts);        // [B + 1] of the groups in `order`
    RUN(const double*, measure);        // [B, K], or null: 1 for all classes
    RUN(const double*, concentration);  // [B]
    RUN(const double*, weight);         // [B] of a row in the counts
    RUN(const double*, likeness);       // [1], or null: 0
    RUN(void*, probabilities);          // [Q, K] real, replaced
    RUN(double*, counts);               // out [B, K]
    RUN(double*, criterion);            // out [B] largest change of a count in the last step
    RUN(double*, bound);                // out [B] of the log evidence; or null
    MEMORY();
};

// Groups of few classes: how likely their rows are if they are equally often of every class of a set,
// over all sets of the group's likeliest classes; and the probabilities of rows under these sets.
CALL(Sets, sets, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // real: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    MAKE(int64_t, K);
    RUN(const void*, logits);           // [Q, K] real
    RUN(const int64_t*, order);         // [Q] the rows, group by group
    RUN(const int64_t*, starts);        // [B + 1] of the groups in `order`
    RUN(const double*, measure);        // [B, K], or null: 1 for all classes
    RUN(const double*, concentration);  // [B]
    RUN(const double*, weight);         // [B] of a row in the counts
    RUN(const double*, likeness);       // [1], or null: 0
    RUN(const double*, counts);         // [B, K] of any proportions
    RUN(void*, ratios);  // [Q, kSetClasses] real, memory: rows of each of them over any rows
    // out [B, kCases] logs: of sets of 1, 2, .. classes, and of any proportions; or null, and
    RUN(double*, evidence);
    RUN(const double*, chances);  // [B, kCases] of these, and
    RUN(void*, probabilities);    // [Q, K] real: in any proportions; then with those of the sets
    MEMORY();
};

// The chances of the C cases of N groups, under the likeliest mixture of cases. One task.
CALL(Mixture, mixture, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // float64
    MAKE(int64_t, N);
    MAKE(int64_t, C);
    MAKE(int64_t, K);             // of `concentration`
    RUN(double*, evidence);       // [N, C] logs; out: the chances
    RUN(double*, concentration);  // out [N] of each group, from those of pairs; or null
    MEMORY();
};

// How alike rows of a class are in groups, from sums.
CALL(Likeness, likeness, CPU, CUDA) {
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    RUN(const void*, sums);      // LikenessSums: 7 numbers
    RUN(const int64_t*, sizes);  // [B] rows of each group
    RUN(double*, likeness);      // out [1]
    RUN(double*, worth);         // out [B] of a row
};

// The mean proportions of earlier batches, under a Dirichlet prior that is learned.
CALL(Mean, mean, CPU, CUDA) {
    MAKE(int64_t, K);
    MAKE(int, steps);
    RUN(const double*, held);  // [K] the draws that each class holds
    RUN(double*, measure);     // out [K] the proportions, times K
};

// Rows in the coordinates chosen by the labelled rows: unit norm, minus the centre, unit norm.
CALL(Coordinates, coordinates, CPU, CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, D);
    MAKE(bool, shared);        // one centre for all tasks
    MAKE(bool, split);         // on CUDA: x split, see cuda/mma.cuh
    RUN(const void*, rows);    // [B, N, D]
    RUN(const void*, centre);  // [B, D], or [D] when shared; or null: rows as they are
    RUN(const void*, scale);   // likewise: x is multiplied by its root; or null
    RUN(void*, x);             // out [B, N, D]
    OWN(bool*, finite);        // out [B] set to false where a row is not plainly finite; or null
};

// (7) and (8): the sharpness under which the labels of rows are likeliest, and hubs.
CALL(Calibrate, calibrate, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of the distances: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, R);
    MAKE(int64_t, K);
    MAKE(double, centre);         // the expected sharpness
    MAKE(double, spread);         // the spread of its logarithm
    RUN(const void*, distances);  // [B, R, K] below kFarBehind; that if a class does not compete
    RUN(const int64_t*, labels);  // [B, R]
    RUN(const void*, weights);    // [B, R] how much a row counts in (7); null: 1
    RUN(void*, sharpness);        // out [B]
    RUN(void*, objective);        // out [B]
    RUN(void*, drawn);            // out [B, K] share of other classes' rows that a class attracts
    MEMORY();
};

// What labelled rows determine: coordinates, feature weights, model, metric, sharpness and the bias of
// hubs. Rows are multiplied by the root of the feature weights first; their product in the metric is
// then plain x.y + projected (Z x).(Z y), see common/adaptive.h.
CALL(Likelihood, likelihood, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, S);
    MAKE(int64_t, K);
    MAKE(int64_t, D);
    MAKE(int64_t, R);              // calibration rows, of which the others are evenly between
    MAKE(bool, full);              // the full metric too, as far as these rows choose it
    MAKE(bool, every);             // write `left_out`
    MAKE(bool, centred);           // `centre` is given
    MAKE(bool, scaled);            // `scale` is given
    MAKE(const void*, support);    // [B, S, D]
    MAKE(const int64_t*, labels);  // [B, S]
    RUN(const void*, weights);     // [B, S] > 0 how much a row counts; null: 1
    RUN(void*, centre);            // out [B, D], or given
    RUN(void*, prototypes);        // out [B, K, D]
    // out [B, N, D] scaled prototypes, after the scaled offsets if N = K + S: by rows
    RUN(void*, rows);
    RUN(void*, squares);     // out [B, K] of the prototypes, in the metric
    RUN(void*, bias);        // out [B, K]
    RUN(void*, shots);       // out [B, K]
    RUN(void*, prior_rows);  // out [B]
    RUN(void*, variance);    // out [B]
    RUN(void*, sharpness);   // out [B]
    RUN(void*, scale);       // out [B, D], or given
    RUN(void*, factor);      // out [B, M', M'] null unless full, like the next three
    RUN(void*, solved);      // out [B, K, M'] Z of the scaled prototypes
    RUN(void*, scatter);     // out [B]
    RUN(void*, shares);    // out [B, 3] weight of the full metric in the mixture, plain, projected
    RUN(bool*, finite);    // out [B] see plainly_finite
    RUN(void*, left_out);  // out [B, S, K] distances (5) of every row, left out; or null
    MEMORY();
};

// --- the rounds of a batch: common/rounds.h ------------------------------------------------------

// The logits of rows under likelihoods (5): steepness_k times minus the square of the row, and a
// constant, next to products with prototypes.
CALL(Density, density, CPU, CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, K);
    RUN(const void*, squares);        // [B, K] of the prototypes
    RUN(const void*, mass);           // [B, K] of how many rows each is the mean, ..
    RUN(const void*, labelled_mass);  // [B, K] .. and was before it absorbed a batch
    RUN(const void*, bias);           // [B, K]
    RUN(const void*, variance);       // [B]
    RUN(const void*, sharpness);      // [B]
    RUN(void*, steepness);            // out [B, K]
    RUN(void*, constant);             // out [B, K]
};

// Queries in the coordinates, and their products with the prototypes and with one another in the
// metric.
CALL(Products, products, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(ProductsSizes, size);
    RUN(const void*, query);   // [B, Q, D]
    RUN(const void*, centre);  // [L, D]
    RUN(const void*, rows);    // [L, N, D]
    RUN(const void*, scale);   // [L, D]
    RUN(const void*, factor);  // [L, M', M'] or null, like the next two
    RUN(const void*, solved);  // [L, K, M']
    RUN(const void*, shares);  // [L, 3]
    RUN(void*, cross);         // out [B, Q, K]
    RUN(void*, gram);          // out [B, Q, Q]
    RUN(bool*, finite);        // out [B] see plainly_finite; of the queries
    MEMORY();
};

// (10) The weights of queries in prototypes, and their sums by class.
CALL(Weigh, weigh, CPU, CUDA) {
    MAKE(DType, dtype);    // of the probabilities: float32 or float64
    MAKE(DType, written);  // of `weights` and `rest`: the same, or float16 on CUDA
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, K);
    MAKE(double, most);               // of a query
    RUN(const void*, probabilities);  // [B, N, K]
    RUN(const void*, worth);          // [B, N] a factor on the weights; null: 1
    RUN(void*, weights);              // out [B, N, K]
    RUN(void*, rest);                 // out [B, N, K] their rounding errors; or null
    RUN(double*, held);               // [B, K] incremented by their sums
    MEMORY();
};

// (10) Prototypes that absorbed the queries, by the products of queries with one another.
CALL(Gather, gather, CPU_TASKS, CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    MAKE(int64_t, K);
    RUN(const void*, gram);     // [B, Q, Q]
    RUN(const void*, weights);  // [B, Q, K]
    RUN(const void*, cross);    // [B, Q, K] products with the prototypes before, ..
    RUN(const void*, squares);  // [B, K] .. their squares, ..
    RUN(const void*, before);   // [B, K] .. and of how many rows they are the means
    RUN(const void*, mass);     // [B, K] the same of the new ones
    RUN(void*, products);       // out [B, Q, K] with the new ones
    RUN(void*, square);         // out [B, K] of these
    MEMORY();
};

// (5), (10) and (11) The logits of rows that the prototypes have absorbed, each without itself.
CALL(Absorb, absorb, CPU, CUDA) {
    MAKE(DType, dtype);  // of all arrays but those of doubles: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, K);
    MAKE(double, weight);             // of a query in the counts
    MAKE(double, most);               // of a query in a prototype
    RUN(void*, products);             // [B, N, K] with the prototypes; out: the logits
    RUN(const void*, own);            // [B, N] of rows with themselves
    RUN(const void*, probabilities);  // [B, N, K] that the prototypes absorbed; null: nothing
    RUN(const void*, worth);          // [B, N] as in `weigh`; or null
    RUN(const void*, added);          // [B, N, K] further logits; or null
    RUN(const void*, square);         // [B, K] this and the next three as in `density`
    RUN(const void*, mass);           // [B, K]
    RUN(const void*, labelled_mass);  // [B, K]
    RUN(const void*, bias);           // [B, K]
    RUN(const void*, variance);       // [B]
    RUN(const void*, sharpness);      // [B]
    RUN(const double*, counts);       // [B, K] of the batch; null: no proportions, and no next two
    RUN(const double*, concentration);  // [B]
    RUN(const double*, measure);        // [B, K]
};

// (16) The logs of probabilities, and how many times of these are claimed.
CALL(Claim, claim, CPU, CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, K);
    RUN(const void*, shots);          // [B, K]
    RUN(const void*, probabilities);  // [B, N, K]
    RUN(void*, logs);                 // out [B, N, K], where they may be too
    RUN(void*, confidence);           // out [B, N]
};

// A block of rows of large tasks: from their products with prototypes to probabilities.
//   logit = slope length_q product + bias_k
CALL(Assign, assign, CPU, CUDA) {
    MAKE(DType, dtype);    // of the products, and of all reals: float32 or float64
    MAKE(DType, written);  // of `probabilities` and `rest`
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, K);
    MAKE(int64_t, stride);     // numbers per row of the products, of which the first K count
    MAKE(int64_t, top);        // most probable classes reported per row; may be 0
    MAKE(bool, normalise);     // else write likelihoods, the largest of a row being kLikelihoodUnit
    MAKE(bool, weigh);         // the output is multiplied by the length of the row
    RUN(void*, products);      // [B, N, stride]; overwritten if `leads` are wanted
    RUN(const void*, length);  // [B, N], or null for 1
    RUN(const void*, slope);   // [B]
    RUN(const void*, bias);    // [B, K]
    // out; null if not wanted
    RUN(void*, probabilities);  // [B, N, K]
    RUN(void*, rest);           // [B, N, K] their rounding errors
    RUN(double*, held);         // [B, K] incremented by the sums of the probabilities
    RUN(double*, log_sums);     // [B] incremented by the sums of the log normalisers of the rows
    RUN(void*, top_probabilities);  // [B, N, top]
    RUN(int64_t*, top_classes);     // [B, N, top]
    // [B, 2] incremented by the lead of the nearest class over the median one, and by the distance of
    // the median one minus the row's squared norm
    RUN(double*, leads);
    MEMORY();
};

// Stored likelihoods, and the sums of probabilities under class weights.
CALL(Count, count, CPU, CUDA) {
    MAKE(DType, dtype);  // of the likelihoods; float16 or float32, float64 on the CPU
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, K);
    RUN(const void*, likelihood);  // [B, N, K]
    RUN(const void*, weights);     // [B, K] real
    RUN(const int32_t*, running);  // [B] tasks where it is not 1 are left out; or null: none
    RUN(double*, held);            // [B, K] incremented by the sums of the probabilities
    RUN(double*, faint);           // [B] incremented by the number of rows that lost precision
    MEMORY();
};

// The end of an iteration of large tasks: the dual, the bias of the next logits, and whether a task
// continues. A stopped task keeps its state.
CALL(Dual, dual, CPU, CUDA) {
    MAKE(DType, dtype);  // real
    MAKE(int64_t, B);
    MAKE(int64_t, K);
    MAKE(Prior, prior);
    MAKE(double, total);    // number of queries times their weight
    MAKE(double, weight);   // of a query in the counts
    MAKE(double, epsilon);  // of PADDLE's proportions
    MAKE(double, tol);
    MAKE(double, dual_weight);  // of the dual in the logits
    MAKE(double, least);        // concentration
    MAKE(bool, learns);         // whether the concentration takes a Newton step
    RUN(double*, held);         // [B, K] sums of the queries' probabilities; then 0
    // [B, K] how far prototypes moved, or null: the largest change of a count
    RUN(const double*, away);
    RUN(const double*, unit);     // [B] of these distances; the criterion is their mean
    RUN(const double*, base);     // [B, K] the bias without the dual, or null
    RUN(const double*, measure);  // [B, K] of the Dirichlet prior; null: 1 for all classes
    RUN(void*, bias);             // out [B, K] real, with the base
    // For `count`, or null: out [B, K] real, the next weights relative to the dual `anchor` [B, K],
    // and [B] rows that lost precision
    RUN(void*, weights);
    RUN(const double*, anchor);
    RUN(const double*, faint);
    // in and out
    RUN(double*, counts);         // [B, K] of the iteration before
    RUN(double*, dual);           // [B, K]
    RUN(double*, before);         // [B, K] the dual of the last probabilities
    RUN(double*, concentration);  // [B]
    RUN(double*, criterion);      // [B]
    RUN(int32_t*, iterations);    // [B]
    RUN(int32_t*, running);       // [B] 1, 0 if stopped, -1 if stopped because rows are faint
};

// Rows for tensor cores, which multiply halves: a row in the task's coordinates,
//   x = length_n row scale - centre,
// as high halves, or as high, low and again high halves. In the coordinates of `adaptive` the length
// is 1 / norm of the row, and x is made unit-norm again.
CALL(Split, split, NO_CPU, CUDA) {
    MAKE(DType, dtype);  // of the rows: float16, bfloat16 or float32
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, D);
    MAKE(int64_t, pieces);      // 1 or 3
    MAKE(bool, unit);           // the coordinates of `adaptive`
    RUN(const void*, rows);     // [B, N, D]
    RUN(const float*, length);  // [B, N], or null for 1
    RUN(const float*, scale);   // [B, D]
    RUN(const float*, centre);  // [B, D]
    RUN(const float*, metric);  // [B, D] of `own`
    RUN(void*, out);            // out [B, N, pieces, D] float16
    RUN(float*, own);           // out [B, N] of `unit`, or null: sum_d metric_d x_d^2
};

// Sums of rows by class, when most probabilities are too small to count.
CALL(Sums, sums, CPU, NO_CUDA) {
    MAKE(DType, dtype);  // of all arrays: float32 or float64
    MAKE(int64_t, N);
    MAKE(int64_t, K);
    MAKE(int64_t, D);
    MAKE(double, threshold);          // smaller probabilities are ignored
    MAKE(int64_t, most);              // limit on entries above it; with more, nothing is done
    RUN(const void*, probabilities);  // [N, K]
    RUN(const void*, rows);           // [N, D]
    RUN(void*, sums);                 // [K, D] added to
    RUN(int64_t*, found);  // out [1] entries above the threshold; a lower bound if over `most`
    MEMORY();
};

// One pass over a chunk of rows: what the coordinates of a task depend on. Rows are first made
// unit-norm if lengths are wanted. NaN makes both extremes NaN.
CALL(Survey, survey, CPU, CUDA) {
    MAKE(DType, dtype);  // of the rows; real on the CPU
    MAKE(int64_t, B);
    MAKE(int64_t, N);
    MAKE(int64_t, D);
    RUN(const void*, rows);  // [B, N, D]
    RUN(void*, length);      // out [B, N] real, 1 / norm, 0 for a row of zeros; or null
    RUN(double*, sums);      // [B, D] incremented
    RUN(double*, squares);   // [B] incremented by the sum of squares
    RUN(void*, least);       // [B, D] real, lowered
    RUN(void*, most);        // [B, D] real, raised
    MEMORY();
};

// The coordinates of large tasks, in which numbers are about 1, and the class means of the labelled
// rows in them.
CALL(Place, place, CPU, CUDA) {
    MAKE(DType, dtype);    // of the support; float64 on the CPU
    MAKE(DType, written);  // real
    MAKE(int64_t, B);
    MAKE(int64_t, S);
    MAKE(int64_t, K);
    MAKE(int64_t, D);
    MAKE(bool, shared);         // one support set for all tasks
    MAKE(Scaling, scaling);     // sets the width, and whether support rows are made unit-norm first
    MAKE(double, total);        // number of queries
    RUN(const void*, support);  // [B, S, D], or [S, D] when shared
    RUN(const int64_t*, order);   // [B, S], or [S]: support rows grouped by class
    RUN(const int64_t*, start);   // [B, K + 1], or [K + 1]: where the rows of a class begin in it
    RUN(const double*, sums);     // [B, D], this and the next three by a survey of all queries
    RUN(const double*, squares);  // [B]
    RUN(const void*, least);      // [B, D] real
    RUN(const void*, most);       // [B, D] real
    RUN(void*, means);            // out [B, K, D] real
    RUN(double*, shots);          // out [B, K]
    RUN(void*, scale);            // out [B, D] real, x = length_n row scale - centre
    RUN(void*, centre);           // out [B, D] real
    RUN(double*, unit);           // out [B] a power of two
    RUN(double*, spread);         // out [B] sum of the squares of the queries, without the width
    MEMORY();
};

// The factor of the logits on products in these coordinates.
CALL(Slope, slope, CPU, CUDA) {
    MAKE(int64_t, B);
    MAKE(double, total);  // number of queries
    MAKE(double, temperature);
    MAKE(double, steepest);       // limit on the slope
    RUN(const double*, unit);     // [B]
    RUN(const double*, spread);   // [B]
    RUN(const double*, leads);    // [B, 2] as summed by Assign, for unit-norm rows; or null
    RUN(double*, slope);          // out [B]
    RUN(double*, distance_unit);  // out [B] the size of 1, in units of the scaling
};

// Prototypes of large tasks: moved by the sums of an iteration, or as they are without sums; as
// factors of products, and with their part of the logits' bias. A stopped task keeps its own.
CALL(Move, move, CPU, CUDA) {
    MAKE(DType, dtype);  // real
    MAKE(int64_t, B);
    MAKE(int64_t, K);
    MAKE(int64_t, D);
    MAKE(int64_t, parts);        // of the sums of a task
    MAKE(int64_t, width);        // numbers per class in `sums`: D, or 2 D, which are added
    MAKE(int64_t, pieces);       // halves of a factor: high; high, low; high, high, low; 0: none
    MAKE(const void*, start);    // [B, K, D] means of the labelled rows
    MAKE(const double*, shots);  // [B, K]
    // Rows that were multiplied as they are, row = (x + centre) / scale: the sums are of these, and
    // factors of products are multiplied by `factor`. Or null.
    MAKE(const void*, scale);      // [B, D]
    MAKE(const void*, centre);     // [B, D]
    MAKE(const void*, factor);     // [B, D]
    MAKE(const double*, slope);    // [B]
    RUN(const void*, sums);        // [B * parts, K, width], or null
    RUN(const void*, rest);        // [B * parts, K, D], added to the sums; or null
    RUN(const double*, held);      // [B, K]
    RUN(const int32_t*, running);  // [B]
    RUN(void*, prototypes);        // [B, K, D] in and out
    RUN(void*, before);            // out [B, K, D] prototypes of the last sums
    RUN(double*, away);            // out [B, K] how far they moved
    RUN(double*, base);            // out [B, K] their part of the bias
    RUN(void*, operand);           // out [B, K, pieces, D] halves
};

CALL(Task, tasks, CPU, NO_CUDA) {
    MAKE(int64_t, B);
    MAKE(int64_t, Q);
    MAKE(int64_t, K);            // classes of the bank
    MAKE(int64_t, M);            // rows to draw from
    MAKE(int64_t, num_classes);  // candidates of a task
    MAKE(int64_t, k_eff);        // how many of them have queries
    MAKE(int64_t, shots);        // per class; 0 when the support is not drawn
    MAKE(Sampling, sampling);
    MAKE(double, alpha);  // of the Dirichlet distribution
    MAKE(uint64_t, seed);
    MAKE(uint64_t, start);               // number of the first task
    RUN(const int64_t*, labels);         // [N]
    RUN(const int32_t*, rows);           // [M], rows of the bank; each class contiguous
    RUN(const int32_t*, support_begin);  // [K], where in `rows`
    RUN(const int32_t*, support_end);    // [K]
    RUN(const int32_t*, query_begin);    // [K]; may be the same minus the first `shots`
    RUN(const int32_t*, query_end);      // [K]
    RUN(int64_t*, support_index);        // out [B, num_classes * shots]
    RUN(int64_t*, support_labels);       // out [B, num_classes * shots]
    RUN(int64_t*, query_index);          // out [B, Q]
    RUN(int64_t*, query_labels);         // out [B, Q]
    MEMORY();
};

// Those of CPU_TASKS.
ONE_BY_ONE(PaddleParams, SinkhornParams, TimParams, AdaptParams, CalibrateParams, LikelihoodParams,
           ProductsParams, GatherParams, PairsParams, GroupsParams, MixtureParams, SetsParams);
