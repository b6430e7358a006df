/* Products of small matrices that lie in the processor's cache, their sums in registers. */

#ifndef PRODUCTS_H
#define PRODUCTS_H

#include <stdint.h>

/* A function NAME: out [RS, PARTS * WIDTH] = a [RS, depth] b [depth, PARTS * WIDTH], or that much more than it was if
   `add`. Matrices have strides; a KIND is WIDTH numbers in a row. */
#define PRODUCT(NAME, KIND, WIDTH, RS, PARTS)                                                                         \
    static inline __attribute__((always_inline)) void NAME(const float *a, int64_t a_row, int64_t a_step,             \
                                                           const float *b, int64_t b_step, float *out,                \
                                                           int64_t out_row, int64_t depth, int add)                   \
    {                                                                                                                 \
        KIND sum[RS][PARTS];                                                                                          \
        for (int i = 0; i < RS; i++)                                                                                  \
            for (int p = 0; p < PARTS; p++)                                                                           \
                sum[i][p] = add ? *(const KIND *)(out + i * out_row + p * WIDTH) : (KIND){0};                         \
        for (int64_t k = 0; k < depth; k++) {                                                                         \
            KIND part[PARTS];                                                                                         \
            for (int p = 0; p < PARTS; p++)                                                                           \
                part[p] = *(const KIND *)(b + k * b_step + p * WIDTH);                                                \
            for (int i = 0; i < RS; i++)                                                                              \
                for (int p = 0; p < PARTS; p++)                                                                       \
                    sum[i][p] += a[i * a_row + k * a_step] * part[p];                                                 \
        }                                                                                                             \
        for (int i = 0; i < RS; i++)                                                                                  \
            for (int p = 0; p < PARTS; p++)                                                                           \
                *(KIND *)(out + i * out_row + p * WIDTH) = sum[i][p];                                                 \
    }

#endif
