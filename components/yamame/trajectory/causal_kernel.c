/* Causal attention within sequences, forward and backward, in float32.

   A query at t finds the sum of values from oldest[t] to t, weighted by softmax(scale q k); oldest never falls. Only what
   is seen is computed, for ROWS queries and a PANEL of keys at a time. What belongs to one head is gathered into a
   workspace, for it is read again and again; there it has zeros at the end, so that no panel and no block is shorter.

   SIZE    of a head
   LANES   how many of its numbers are computed at once; divides SIZE */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "exponential.h"
#include "products.h"

enum { ROWS = 8, BLOCK = 8 * ROWS, WIDE = 16, PANEL = 3 * WIDE };

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4)));
typedef int32_t wide_mask __attribute__((vector_size(4 * WIDE)));

PRODUCT(wide1, wide, WIDE, ROWS, 1)
PRODUCT(wide2, wide, WIDE, ROWS, 2)
PRODUCT(wide3, wide, WIDE, ROWS, 3)
PRODUCT(head1, lanes, LANES, ROWS, 1)
PRODUCT(head2, lanes, LANES, ROWS, 2)

/* out [ROWS, parts * WIDE] = a [ROWS, SIZE] panel [SIZE, PANEL], the beginning of the panel alone */
static void multiply_panel(const float *a, const float *panel, float *out, int64_t out_row, int parts)
{
    if (parts == 3)
        wide3(a, SIZE, 1, panel, PANEL, out, out_row, SIZE, 0);
    else if (parts == 2)
        wide2(a, SIZE, 1, panel, PANEL, out, out_row, SIZE, 0);
    else
        wide1(a, SIZE, 1, panel, PANEL, out, out_row, SIZE, 0);
}

/* out [ROWS, SIZE] += a [ROWS, depth] b [depth, SIZE] */
static inline __attribute__((always_inline)) void add_product(const float *a, int64_t a_row, int64_t a_step,
                                                              const float *b, float *out, int64_t depth)
{
    int column = 0;
    for (; column + 2 * LANES <= SIZE; column += 2 * LANES)
        head2(a, a_row, a_step, b + column, SIZE, out + column, SIZE, depth, 1);
    if (column < SIZE)
        head1(a, a_row, a_step, b + column, SIZE, out + column, SIZE, depth, 1);
}

static void add_rows(const float *a, int64_t a_row, const float *b, float *out, int64_t depth)
{
    add_product(a, a_row, 1, b, out, depth);
}

static void add_columns(const float *a, const float *b, float *out, int64_t depth)
{
    add_product(a, 1, PANEL, b, out, depth);
}

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t padded(int64_t length) { return ((length + BLOCK) / PANEL + 1) * PANEL; }

/* How much of the panel that begins at this key a query sees, in WIDE. */
static int parts_of(int64_t key, int64_t query) { return lesser((query - key) / WIDE + 1, PANEL / WIDE); }

/* One head of x: strides of sequences, timesteps and heads. */
static const float *head_of(const float *x, const int64_t *strides, int64_t b, int64_t h)
{
    return x + b * strides[0] + h * strides[2];
}

/* from [length, SIZE], its rows so far apart, times a factor -> to [padded, SIZE] */
static void gather(const float *from, int64_t row, int64_t length, float factor, float *to)
{
    for (int64_t t = 0; t < length; t++)
        for (int c = 0; c < SIZE; c++)
            to[t * SIZE + c] = factor * from[t * row + c];
    memset(to + length * SIZE, 0, sizeof(float) * (padded(length) - length) * SIZE);
}

/* from [length, SIZE], times a factor -> to [length, SIZE], its rows so far apart */
static void scatter(const float *from, int64_t row, int64_t length, float factor, float *to)
{
    for (int64_t t = 0; t < length; t++)
        for (int c = 0; c < SIZE; c++)
            to[t * row + c] = factor * from[t * SIZE + c];
}

/* from [padded, SIZE] -> panels [padded / PANEL, SIZE, PANEL] */
static void turn(const float *from, int64_t length, float *to)
{
    for (int64_t first = 0; first < padded(length); first += PANEL)
        for (int c = 0; c < SIZE; c++)
            for (int t = 0; t < PANEL; t++)
                to[first * SIZE + c * PANEL + t] = from[(first + t) * SIZE + c];
}

/* Functions over rows are not inlined: within others, not all of their loops are made for many numbers at once. */

/* Scores of keys from low to high -> their shares but for a factor, zero elsewhere; gives the shares' sum. */
static __attribute__((noinline)) float softmax(float *p, int low, int high, int count, float *largest)
{
    wide tops;
    wide_mask lane;
    float top = -INFINITY, sum = 0;
    for (int l = 0; l < WIDE; l++)
        tops[l] = -INFINITY, lane[l] = l;
    for (int key = 0; key < count; key += WIDE) {
        wide score = *(const wide *)(p + key);
        wide_mask better = (score > tops) & (lane >= low - key) & (lane < high - key);
        tops = (wide)(((wide_mask)score & better) | ((wide_mask)tops & ~better));
    }
    for (int l = 0; l < WIDE; l++)
        top = tops[l] > top ? tops[l] : top;
    for (int first = 0; first < count; first += WIDE)
        for (int key = first; key < first + WIDE; key++) {
            float share = exponential(p[key] - top);
            share = key < low || key >= high ? 0 : share;
            p[key] = share;
            sum += share;
        }
    *largest = top;
    return sum;
}

/* Scores of keys from low to high -> their shares p, zero elsewhere; gradients of the shares -> of the scores. */
static __attribute__((noinline)) void softmax_gradient(float *restrict p, float *restrict grad, float normaliser,
                                                       float mean, int low, int high, int count)
{
    for (int first = 0; first < count; first += WIDE)
        for (int key = first; key < first + WIDE; key++) {
            float share = exponential(p[key] - normaliser);
            share = key < low || key >= high ? 0 : share;
            p[key] = share;
            grad[key] = share * (grad[key] - mean);
        }
}

/* Floats that a worker needs. */
int64_t forward_space(int64_t length) { return padded(length) * (4 * SIZE + ROWS); }
int64_t backward_space(int64_t length) { return padded(length) * 7 * SIZE; }

/* Of one head: out [length, SIZE], its rows so far apart, and the logarithms of what divided the shares [length]. */
static void forward_head(const float *keys, const float *values, const float *queries, const float *turned,
                         float *strip, const int32_t *oldest, float *out, int64_t row, float *normaliser,
                         int64_t length)
{
    int64_t width = padded(length);
    for (int64_t first = 0; first < length; first += ROWS) {
        int64_t rows = lesser(ROWS, length - first), begin = oldest[first] / PANEL * PANEL, count = 0;
        for (int64_t key = begin; key < first + rows; key += PANEL) {
            int parts = parts_of(key, first + rows - 1);
            multiply_panel(queries + first * SIZE, turned + key * SIZE, strip + count, width, parts);
            count += parts * WIDE;
        }
        float found[ROWS * SIZE] = {0}, sums[ROWS];
        for (int i = 0; i < rows; i++) {
            int64_t t = first + i;
            float largest;
            sums[i] = softmax(strip + i * width, oldest[t] - begin, t - begin + 1, count, &largest);
            normaliser[t] = largest + logf(sums[i]);
        }
        add_rows(strip, width, values + begin * SIZE, found, count);
        for (int i = 0; i < rows; i++)
            for (int c = 0; c < SIZE; c++)
                found[i * SIZE + c] /= sums[i];
        scatter(found, row, rows, 1, out + first * row);
    }
}

/* q, k, v [batch, length, heads, SIZE] with strides of the first three, in turn; oldest [batch, length] -> out
   [batch, length, heads, SIZE] and normaliser [batch, heads, length]. */
void forward(const float *q, const float *k, const float *v, const int64_t *strides, const int32_t *oldest, float *out,
             float *normaliser, float *space, int64_t batch, int64_t length, int64_t heads, float scale,
             int32_t workers)
{
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int32_t worker = 0; worker < workers; worker++) {
        int64_t part = padded(length) * SIZE;
        float *keys = space + worker * forward_space(length), *values = keys + part, *queries = values + part;
        float *turned = queries + part, *strip = turned + part;
        for (int64_t job = worker; job < batch * heads; job += workers) {
            int64_t b = job / heads, h = job % heads;
            gather(head_of(q, strides, b, h), strides[1], length, scale, queries);
            gather(head_of(k, strides + 3, b, h), strides[4], length, 1, keys);
            gather(head_of(v, strides + 6, b, h), strides[7], length, 1, values);
            turn(keys, length, turned);
            forward_head(keys, values, queries, turned, strip, oldest + b * length,
                         out + (b * length * heads + h) * SIZE, heads * SIZE, normaliser + job * length, length);
        }
    }
}

/* What one block of queries, from `first` on, and one panel of keys, from `key` on, add to the gradients of both.
   `above` [BLOCK, SIZE] is the gradient of what the queries found, `mean` [BLOCK] its product with what they found. */
static void backward_panel(const float *queries, const float *above, const float *mean, const float *keys,
                           const float *turned_keys, const float *turned_values, const int32_t *oldest,
                           const float *normaliser, float *to_queries, float *to_keys, float *to_values,
                           int64_t first, int64_t key, int64_t length)
{
    float p[BLOCK * PANEL], grad[BLOCK * PANEL];
    int64_t rows = lesser(BLOCK, length - first), top = key > first ? (key - first) / ROWS * ROWS : 0, end = top;
    int parts = 0;
    for (; end < rows; end += ROWS) {
        parts = parts_of(key, lesser(first + end + ROWS, length) - 1);
        float *shares = p + end * PANEL, *to_scores = grad + end * PANEL;
        multiply_panel(queries + end * SIZE, turned_keys, shares, PANEL, parts);
        multiply_panel(above + end * SIZE, turned_values, to_scores, PANEL, parts);
        for (int i = 0; i < ROWS; i++) {
            int64_t t = first + end + i;
            int seen = t < length, low = seen ? lesser(greater(oldest[t] - key, 0), PANEL) : 0;
            softmax_gradient(shares + i * PANEL, to_scores + i * PANEL, seen ? normaliser[t] : 0, mean[end + i], low,
                             seen ? lesser(t - key + 1, PANEL) : 0, parts * WIDE);
        }
        add_rows(to_scores, PANEL, keys, to_queries + end * SIZE, parts * WIDE);
    }
    for (int column = 0; column < parts * WIDE; column += ROWS) {
        /* Rows above are not computed for this column, or are all zero. */
        int64_t over = greater(top, (key + column - first) / ROWS * ROWS);
        if (over >= end)
            break;
        const float *of_column = p + over * PANEL + column, *grad_of_column = grad + over * PANEL + column;
        add_columns(of_column, above + over * SIZE, to_values + column * SIZE, end - over);
        add_columns(grad_of_column, queries + over * SIZE, to_keys + column * SIZE, end - over);
    }
}

/* grad, out [batch, length, heads, SIZE] and the rest as it was forward -> grad_q, grad_k, grad_v, shaped as grad. */
void backward(const float *grad, const float *out, const float *normaliser, const float *q, const float *k,
              const float *v, const int64_t *strides, const int32_t *oldest, float *grad_q, float *grad_k,
              float *grad_v, float *space, int64_t batch, int64_t length, int64_t heads, float scale, int32_t workers)
{
#pragma omp parallel for num_threads(workers) if (workers > 1)
    for (int32_t worker = 0; worker < workers; worker++) {
        int64_t part = padded(length) * SIZE, row = heads * SIZE;
        float *keys = space + worker * backward_space(length), *queries = keys + part, *above = queries + part;
        float *turned_keys = above + part, *turned_values = turned_keys + part;
        float *to_keys = turned_values + part, *to_values = to_keys + part;
        for (int64_t job = worker; job < batch * heads; job += workers) {
            int64_t b = job / heads, h = job % heads, place = (b * length * heads + h) * SIZE;
            gather(head_of(v, strides + 6, b, h), strides[7], length, 1, keys);
            turn(keys, length, turned_values);
            gather(head_of(k, strides + 3, b, h), strides[4], length, 1, keys);
            turn(keys, length, turned_keys);
            gather(head_of(q, strides, b, h), strides[1], length, scale, queries);
            gather(grad + place, row, length, 1, above);
            memset(to_keys, 0, sizeof(float) * 2 * part);
            for (int64_t first = 0; first < length; first += BLOCK) {
                int64_t rows = lesser(BLOCK, length - first);
                float to_queries[BLOCK * SIZE] = {0}, mean[BLOCK] = {0};
                for (int64_t i = 0; i < rows; i++)
                    for (int c = 0; c < SIZE; c++)
                        mean[i] += above[(first + i) * SIZE + c] * out[place + (first + i) * row + c];
                for (int64_t key = oldest[b * length + first] / PANEL * PANEL; key < first + rows; key += PANEL)
                    backward_panel(queries + first * SIZE, above + first * SIZE, mean, keys + key * SIZE,
                                   turned_keys + key * SIZE, turned_values + key * SIZE, oldest + b * length,
                                   normaliser + job * length, to_queries, to_keys + key * SIZE,
                                   to_values + key * SIZE, first, key, length);
                scatter(to_queries, row, rows, scale, grad_q + place + first * row);
            }
            scatter(to_keys, row, length, 1, grad_k + place);
            scatter(to_values, row, length, 1, grad_v + place);
        }
    }
}
