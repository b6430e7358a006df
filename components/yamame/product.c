/* Products of few rows with a matrix in bfloat16, summed in float32: x [rows, inner] w [inner, outer] + bias [outer].

   The matrix is kept as the processor's instruction multiplies it: in panels of 16 columns, the last filled up with
   zeros, where numbers of every two rows stand side by side. inner is even. */

#include <stdint.h>
#include <string.h>

#ifndef __AVX512BF16__
const int32_t available = 0;
#else
#include <immintrin.h>

const int32_t available = 1;

enum { LANES = 16, PAIR = 2, TALL = 8, WIDE = 2 };

struct product {
    const uint16_t *x, *w;
    const float *bias;
    uint16_t *out;
    int64_t x_stride, inner, outer;
};

/* Rows from `row` on, panels from `panel` on. Their numbers are constants where this is called: sums stay in registers. */
static inline __attribute__((always_inline)) void tile(struct product p, int64_t row, int64_t panel, int tall, int wide)
{
    __m512 sums[TALL][WIDE];
    for (int i = 0; i < tall; i++)
        for (int j = 0; j < wide; j++)
            sums[i][j] = _mm512_loadu_ps(p.bias + (panel + j) * LANES);
    for (int64_t k = 0; k < p.inner; k += PAIR)
        for (int j = 0; j < wide; j++) {
            __m512bh columns = (__m512bh)_mm512_loadu_si512(p.w + ((panel + j) * p.inner + k) * LANES);
            for (int i = 0; i < tall; i++) {
                int32_t pair;
                memcpy(&pair, p.x + (row + i) * p.x_stride + k, sizeof pair);
                sums[i][j] = _mm512_dpbf16_ps(sums[i][j], (__m512bh)_mm512_set1_epi32(pair), columns);
            }
        }
    for (int j = 0; j < wide; j++) {
        int64_t column = (panel + j) * LANES, left = p.outer - column;
        __mmask16 mask = left < LANES ? (1u << left) - 1 : 0xffff;
        for (int i = 0; i < tall; i++)
            _mm256_mask_storeu_epi16(p.out + (row + i) * p.outer + column, mask,
                                     (__m256i)_mm512_cvtneps_pbh(sums[i][j]));
    }
}

static inline __attribute__((always_inline)) void all_rows(struct product p, int64_t rows, int64_t panel, int wide)
{
    int64_t row = 0;
    for (; row + TALL <= rows; row += TALL)
        tile(p, row, panel, TALL, wide);
    if (row + 4 <= rows) {
        tile(p, row, panel, 4, wide);
        row += 4;
    }
    if (row + 2 <= rows) {
        tile(p, row, panel, 2, wide);
        row += 2;
    }
    if (row < rows)
        tile(p, row, panel, 1, wide);
}

/* Rows of x lie `x_stride` numbers apart, those of `out` one after the other. */
void multiply(const uint16_t *x, int64_t x_stride, const uint16_t *w, const float *bias, uint16_t *out, int64_t rows,
              int64_t inner, int64_t outer, int32_t threads)
{
    struct product p = {x, w, bias, out, x_stride, inner, outer};
    int64_t panels = (outer + LANES - 1) / LANES;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t panel = 0; panel < panels; panel += WIDE)
        if (panel + WIDE <= panels)
            all_rows(p, rows, panel, WIDE);
        else
            all_rows(p, rows, panel, 1);
}
#endif
