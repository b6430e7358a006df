/* e^x that, unlike expf, can be computed for many x at once. */

#ifndef EXPONENTIAL_H
#define EXPONENTIAL_H

#include <stdint.h>
#include <string.h>

/* To about one part in 10^7, for |x| < 87: 2^n e^r with |r| <= ln(2) / 2, whose series ends at the seventh power. */
static inline float exponential(float x)
{
    x = x < -87 ? -87 : x;
    x = x > 87 ? 87 : x;
    float n = __builtin_rintf(x * 1.44269504f);
    float r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln(2) in two parts, the first of few digits */
    float series = 1 / 720.0f + r * (1 / 5040.0f);
    series = 1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r * series));
    series = 1 + r * (1 + r * (1 / 2.0f + r * series));
    int32_t word = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &word, sizeof power);
    return power * series;
}

#endif
