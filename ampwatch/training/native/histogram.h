/* What histogram.c makes for one set of instructions. It is compiled once for each of them. */

#ifndef AMPWATCH_HISTOGRAM_H
#define AMPWATCH_HISTOGRAM_H

#include <stdint.h>

enum { NUM_FLOATS = 4 }; /* dtypes of more than 8 bits, which come first */

typedef struct {
    void (*measure)(int64_t count, const void *const *data, const int64_t *numel,
                    const uint8_t *dtype, const int64_t *stride, const void *words, void *rows,
                    void *blocks);
    void (*measure_blocks)(int64_t count, const void *const *data, const int64_t *numel,
                           const uint8_t *dtype, const void *rows, void *out);
    void (*squares)(int64_t count, const void *const *data, const int64_t *numel,
                    const uint8_t *dtype, double *sums);
    int (*is_finite[NUM_FLOATS])(const void *data, int64_t numel);
} kernels;

#endif
