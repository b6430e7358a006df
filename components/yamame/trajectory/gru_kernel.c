/* A layer of gated recurrent units over sequences, forward and backward, in float32; and one timestep of it.

   r = sigmoid(x_r + W_r h + b_r), z = sigmoid(x_z + W_z h + b_z), n = tanh(x_n + r (W_n h + b_n)),
   h' = (1 - z) n + z h, beginning with h = 0; x is what the input adds. Sequences are independent of each other: a few
   at a time go through all timesteps, and W stays in the processor's cache.

   SIZE    number of units
   LANES   how many of them are computed at once; divides SIZE */

#include <stdint.h>
#include <string.h>

#include "exponential.h"
#include "products.h"

enum { GATES = 3 * SIZE, ROWS = 8, BACK = SIZE / LANES % 2 ? 1 : 2 };

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));

static inline float sigmoid(float x) { return 1 / (1 + exponential(-x)); }
static inline float hyperbolic_tangent(float x) { return 1 - 2 / (1 + exponential(2 * x)); }

PRODUCT(forward_rows, lanes, LANES, ROWS, 3)
PRODUCT(forward_row, lanes, LANES, 1, 3)
PRODUCT(backward_rows, lanes, LANES, ROWS, BACK)
PRODUCT(backward_row, lanes, LANES, 1, BACK)

/* out [rows, GATES] += a [rows, SIZE] b [SIZE, GATES] */
static void multiply_forward(const float *a, int64_t a_stride, const float *b, float *out, int rows)
{
    for (int column = 0; column < GATES; column += 3 * LANES)
        if (rows == ROWS)
            forward_rows(a, a_stride, 1, b + column, GATES, out + column, GATES, SIZE, 1);
        else
            for (int i = 0; i < rows; i++)
                forward_row(a + i * a_stride, 0, 1, b + column, GATES, out + i * GATES + column, GATES, SIZE, 1);
}

/* out [rows, SIZE] += a [rows, GATES] b [GATES, SIZE] */
static void multiply_backward(const float *a, const float *b, float *out, int rows)
{
    for (int column = 0; column < SIZE; column += BACK * LANES)
        if (rows == ROWS)
            backward_rows(a, GATES, 1, b + column, SIZE, out + column, SIZE, GATES, 1);
        else
            for (int i = 0; i < rows; i++)
                backward_row(a + i * GATES, 0, 1, b + column, SIZE, out + i * SIZE + column, SIZE, GATES, 1);
}

/* x [n, length, GATES], weight [SIZE, GATES], bias [GATES] -> h [n, length, SIZE], and what `backward` needs, saved
   [n, length, 4, SIZE]: r, z, n and W_n h + b_n; not if it is null. */
void forward(const float *x, const float *weight, const float *bias, float *h, float *saved, int64_t n,
             int64_t length, int32_t threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < n; first += ROWS) {
        int rows = n - first < ROWS ? n - first : ROWS;
        float sums[ROWS * GATES];
        for (int64_t t = 0; t < length; t++) {
            for (int i = 0; i < rows; i++)
                memcpy(sums + i * GATES, bias, sizeof(float) * GATES);
            if (t > 0)
                multiply_forward(h + (first * length + t - 1) * SIZE, length * SIZE, weight, sums, rows);
            for (int i = 0; i < rows; i++) {
                int64_t place = (first + i) * length + t;
                const float *in = x + place * GATES, *sum = sums + i * GATES;
                float *restrict out = h + place * SIZE, gates[4][SIZE];
                for (int u = 0; u < SIZE; u++) {
                    gates[0][u] = sigmoid(in[u] + sum[u]);
                    gates[1][u] = sigmoid(in[SIZE + u] + sum[SIZE + u]);
                    gates[3][u] = sum[2 * SIZE + u];
                    gates[2][u] = hyperbolic_tangent(in[2 * SIZE + u] + gates[0][u] * gates[3][u]);
                }
                for (int u = 0; u < SIZE; u++)
                    out[u] = gates[2][u] - gates[1][u] * gates[2][u];
                if (t > 0)
                    for (int u = 0; u < SIZE; u++)
                        out[u] += gates[1][u] * out[u - SIZE];
                if (saved)
                    memcpy(saved + place * 4 * SIZE, gates, sizeof gates);
            }
        }
    }
}

/* The gradient of h [n, length, SIZE] to those of x [n, length, GATES] and of W_n h + b_n [n, length, SIZE]; weight
   [GATES, SIZE]. The gradients of W_r h + b_r and W_z h + b_z are those of x_r and x_z. */
void backward(const float *grad, const float *h, const float *saved, const float *weight, float *grad_x,
              float *grad_n, int64_t n, int64_t length, int32_t threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < n; first += ROWS) {
        int rows = n - first < ROWS ? n - first : ROWS;
        float grads[ROWS * SIZE] = {0}, sums[ROWS * GATES];
        for (int64_t t = length - 1; t >= 0; t--) {
            for (int i = 0; i < rows; i++) {
                int64_t place = (first + i) * length + t;
                const float *gates = saved + place * 4 * SIZE, *above = grad + place * SIZE;
                const float *before = t > 0 ? h + (place - 1) * SIZE : 0;
                float *restrict to_h = grads + i * SIZE, *restrict sum = sums + i * GATES;
                for (int u = 0; u < SIZE; u++) {
                    float r = gates[u], z = gates[SIZE + u], new = gates[2 * SIZE + u];
                    float to = to_h[u] + above[u], last = before ? before[u] : 0;
                    float to_new = to * (1 - z) * (1 - new * new);
                    sum[u] = to_new * gates[3 * SIZE + u] * r * (1 - r);
                    sum[SIZE + u] = to * (last - new) * z * (1 - z);
                    sum[2 * SIZE + u] = to_new * r;
                    to_h[u] = to * z;
                    grad_x[place * GATES + 2 * SIZE + u] = to_new;
                }
                memcpy(grad_x + place * GATES, sum, sizeof(float) * 2 * SIZE);
                memcpy(grad_n + place * SIZE, sum + 2 * SIZE, sizeof(float) * SIZE);
            }
            if (t > 0)
                multiply_backward(sums, weight, grads, rows);
        }
    }
}

/* To float32 from that, or from bfloat16, which is its upper half. */
static void widen(const void *from, int32_t half, float *restrict to)
{
    if (half)
        for (int u = 0; u < GATES; u++) {
            uint32_t word = (uint32_t)((const uint16_t *)from)[u] << 16;
            memcpy(to + u, &word, sizeof word);
        }
    else
        memcpy(to, from, sizeof(float) * GATES);
}

/* One timestep: W x + b and W h + b [rows, GATES], in bfloat16 if half, and h [rows, SIZE] -> h'. */
void cell(const char *of_input, const char *of_state, float *h, int64_t rows, int32_t half)
{
    int64_t bytes = GATES * (half ? sizeof(uint16_t) : sizeof(float));
    for (int64_t i = 0; i < rows; i++) {
        float in[GATES], sum[GATES], *restrict state = h + i * SIZE;
        widen(of_input + i * bytes, half, in);
        widen(of_state + i * bytes, half, sum);
        for (int u = 0; u < SIZE; u++) {
            float r = sigmoid(in[u] + sum[u]), z = sigmoid(in[SIZE + u] + sum[SIZE + u]);
            float new = hyperbolic_tangent(in[2 * SIZE + u] + r * sum[2 * SIZE + u]);
            state[u] = new + z * (state[u] - new);
        }
    }
}
