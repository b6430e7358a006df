/* Attention of single queries over a cache of keys and values, one row of the cache after the other.

   Every row stores its new key and value in its slot, then reads its own slots, each once, in the order in which they
   lie: scores, their softmax, the sum of values. All sums are in float32, whatever the cache is kept in.

   HEADS, SIZE   number of heads, and of numbers in each
   LANES         how many of these are multiplied at once; divides SIZE
   BYTES         of an entry of the cache: 4 for float32, 2 for bfloat16 */

#include <stdint.h>
#include <string.h>

#include "exponential.h"
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif

enum { WIDTH = HEADS * SIZE, PARTS = SIZE / LANES };

#if BYTES == 2
typedef uint16_t entry;
#else
typedef float entry;
#endif

typedef entry entries __attribute__((vector_size(BYTES * LANES), aligned(BYTES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef float lanes __attribute__((vector_size(4 * LANES)));

static inline lanes load(const entry *from)
{
    entries found = *(const entries *)from;
#if BYTES == 2
    return (lanes)(__builtin_convertvector(found, words) << 16); /* bfloat16 is the upper half of a float32 */
#else
    return found;
#endif
}

static inline void store(entry *to, float x)
{
#if BYTES == 2
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    *to = (word + 0x7fff + (word >> 16 & 1)) >> 16; /* to the nearest, ties to even */
#else
    *to = x;
#endif
}

static inline float total(lanes x)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += x[i];
    return sum;
}

/* One row: q [WIDTH], keys and values [slots, WIDTH] of which `used` are read, weights [HEADS, used] to work in. */
static void attend_row(const entry *q, const entry *keys, const entry *values, entry *out, float *weights,
                       int64_t used)
{
    lanes query[HEADS][PARTS], found[HEADS][PARTS];
    memset(found, 0, sizeof found);
    for (int h = 0; h < HEADS; h++)
        for (int p = 0; p < PARTS; p++)
            query[h][p] = load(q + h * SIZE + p * LANES);
    for (int64_t s = 0; s < used; s++)
        for (int h = 0; h < HEADS; h++) {
            const entry *key = keys + s * WIDTH + h * SIZE;
            lanes sum = query[h][0] * load(key);
            for (int p = 1; p < PARTS; p++)
                sum += query[h][p] * load(key + p * LANES);
            weights[h * used + s] = total(sum);
        }
    float sums[HEADS];
    for (int h = 0; h < HEADS; h++) {
        float *weight = weights + h * used, most = weight[0], sum = 0;
        for (int64_t s = 1; s < used; s++)
            most = weight[s] > most ? weight[s] : most;
        for (int64_t s = 0; s < used; s++)
            sum += weight[s] = exponential(weight[s] - most);
        sums[h] = sum;
    }
    for (int64_t s = 0; s < used; s++)
        for (int h = 0; h < HEADS; h++)
            for (int p = 0; p < PARTS; p++)
                found[h][p] += weights[h * used + s] * load(values + s * WIDTH + h * SIZE + p * LANES);
    for (int h = 0; h < HEADS; h++)
        for (int p = 0; p < PARTS; p++)
            for (int i = 0; i < LANES; i++)
                store(out + h * SIZE + p * LANES + i, found[h][p][i] / sums[h]);
}

/* n rows: q, k, v [n, WIDTH] whose rows lie so many entries apart; keys and values [n, slots, WIDTH]; where the new
   ones go, slot [n], and the last that is read, last [n]; out [n, WIDTH]; work [threads, HEADS * slots]. */
void attend(const entry *q, int64_t q_stride, const entry *k, const entry *v, int64_t kv_stride, entry *keys,
            entry *values, int64_t slots, const int64_t *slot, const int64_t *last, entry *out, float *work,
            int64_t n, int32_t threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < n; row++) {
        entry *row_keys = keys + row * slots * WIDTH, *row_values = values + row * slots * WIDTH;
        memcpy(row_keys + slot[row] * WIDTH, k + row * kv_stride, WIDTH * sizeof(entry));
        memcpy(row_values + slot[row] * WIDTH, v + row * kv_stride, WIDTH * sizeof(entry));
        attend_row(q + row * q_stride, row_keys, row_values, out + row * WIDTH,
                   work + omp_get_thread_num() * HEADS * slots, last[row] + 1);
    }
}
