/* The draws of PyTorch's generator of a CPU, a Mersenne Twister (Matsumoto and Nishimura 1998, MT19937), as masks of
   dropout. PyTorch draws one number after the other; here a whole state is computed at once, with the same results.

   A kept number takes two words of 32 bits, the upper one first: the lower 53 bits of these 64 below the threshold. */

#include <stdint.h>

enum { STATE = 624, AHEAD = 397 };

struct generator { /* how torch.Generator.get_state begins */
    uint64_t seed;
    int32_t left, seeded; /* words left of this state, the next one included, plus one */
    uint64_t next, state[STATE];
};

static inline uint32_t twist(uint32_t upper, uint32_t lower)
{
    return ((upper & 0x80000000u) | (lower & 0x7fffffffu)) >> 1 ^ (-(lower & 1) & 0x9908b0dfu);
}

static void renew(uint32_t *state)
{
    for (int i = 0; i < STATE - AHEAD; i++)
        state[i] = state[i + AHEAD] ^ twist(state[i], state[i + 1]);
    for (int i = STATE - AHEAD; i < STATE - 1; i++)
        state[i] = state[i + AHEAD - STATE] ^ twist(state[i], state[i + 1]);
    state[STATE - 1] = state[AHEAD - 1] ^ twist(state[STATE - 1], state[0]);
}

static void temper(uint32_t *to, const uint32_t *from, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t x = from[i];
        x ^= x >> 11;
        x ^= x << 7 & 0x9d2c5680u;
        x ^= x << 15 & 0xefc60000u;
        to[i] = x ^ x >> 18;
    }
}

/* Of `count` numbers those that are kept: `kept`, else 0, in formats of 4 or 2 bytes. The generator is left as PyTorch
   would leave it. */
void bernoulli(struct generator *generator, void *to, int64_t count, uint64_t threshold, uint32_t kept, int32_t bytes)
{
    uint32_t state[STATE], drawn[STATE + 1], upper_limit = threshold >> 32, lower_limit = (uint32_t)threshold;
    int next = generator->left == 1 ? STATE : (int)generator->next;
    int waiting = 0; /* whether one word was drawn without its second half */
    for (int i = 0; i < STATE; i++)
        state[i] = (uint32_t)generator->state[i];
    for (int64_t done = 0; done < count;) {
        if (next == STATE) {
            renew(state);
            next = 0;
        }
        int64_t wanted = 2 * (count - done) - waiting;
        int words = STATE - next < wanted ? STATE - next : (int)wanted;
        temper(drawn + waiting, state + next, words);
        next += words;
        words += waiting;
        for (int i = 0; i < words / 2; i++) {
            uint32_t upper = drawn[2 * i] & 0x1fffff, lower = drawn[2 * i + 1];
            uint32_t below = (upper < upper_limit) | ((upper == upper_limit) & (lower < lower_limit));
            if (bytes == 2)
                ((uint16_t *)to)[done + i] = -below & kept;
            else
                ((uint32_t *)to)[done + i] = -below & kept;
        }
        done += words / 2;
        waiting = words % 2;
        drawn[0] = drawn[words - waiting];
    }
    for (int i = 0; i < STATE; i++)
        generator->state[i] = state[i];
    generator->next = next;
    generator->left = STATE + 1 - next;
}
