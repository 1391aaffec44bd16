"""The limits on what the package takes and returns; nothing here needs torch."""

import sys

# Iterations, classes and labelled rows: native code counts them in int32.
LARGEST_INT32 = 2**31 - 1

# Options that are numbers, such as `lam`: the largest finite one.
LARGEST_FLOAT = sys.float_info.max

# The magnitude of a feature: up to this, any number of rows can be summed without overflow, in
# float32 (half precision is summed in it too) and in float64.
LARGEST_FEATURE_FLOAT32, LARGEST_FEATURE_FLOAT64 = 1e30, 1e290

# The least weight of a query in class counts: below it, rounding decides whether a prior is used.
LEAST_QUERY_WEIGHT = 1e-6

# The least weight of a possible class in a prior, relative to the mean weight: smaller ones are
# raised to it, so that float32 can hold them.
LEAST_PRIOR_WEIGHT = 1e-8

# The most probabilities of a task that are returned unless asked otherwise: 1 GiB in float32.
MOST_PROBABILITIES = 2**28

# The most probable classes that are returned for each query.
MOST_TOP = 64

# The most queries times classes of a task for one thread or thread block; more go in chunks.
MOST_IN_ONE_BLOCK = 2**22

# `adaptive`: how many more multiplications the products of all queries of a task with one another
# may take than sums of queries by class, which are found in chunks.
MOST_GRAM_WORK = {"cpu": 2**28, "cuda": 2**33}

# On CUDA, where the blocks of this many tasks run at the same time: the most queries times (classes
# + 128) of one task for its block; from there on the whole device, in chunks, is quicker.
BLOCKS_AT_A_TIME, MOST_BLOCK_WORK = 128, 2**19

# The numbers in the largest matrix of such a chunk: on a GPU, enough to hide the cost of launches.
CHUNK_NUMBERS = {"cpu": 2**19, "cuda": 5 * 2**23}

# What a task in chunks stores from one pass over its rows for the next, in bytes; if it would take
# more, every pass computes it again.
MOST_STORED_LIKELIHOODS = 2**31 - 2**26
# The probabilities between the rounds of `adaptive` may take this share of the memory of a GPU.
STORED_SHARE = 1 / 8
MOST_STORED_ROWS = 2**28

# For each GPU: how many CUDA graphs of repeated calls are kept; the most bytes of tensors given to
# such a call, since larger ones keep a GPU busy; and the most bytes of memory that a graph keeps.
MOST_GRAPHS, MOST_GRAPH_BYTES, MOST_GRAPH_MEMORY = 4, 2**26, 2**28

# Probabilities are called calibrated with so many labelled rows, of classes that have `SEVERAL`.
FEWEST_TO_CALIBRATE = 20
# Labelled rows of a class that calibrate it, and on average decide next to class names.
SEVERAL = 3

# How deep lists and objects of JSON may be inside each other. Arrow takes seconds and gigabytes for
# hundreds of levels; its own files have at most as many.
MOST_NESTED = 64
