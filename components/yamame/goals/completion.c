/* When the goals of instructions are completed along trajectories, one trajectory after the other. */

#include <math.h>
#include <stdint.h>

static int differs(const float *goal, int64_t size, float pad)
{
    for (int64_t i = 0; i < size; i++)
        if (goal[i] != pad)
            return 1;
    return 0;
}

/* What is no number is near to nothing. */
static int near(const float *goal, const float *achieved, int64_t size, float tolerance)
{
    for (int64_t i = 0; i < size; i++)
        if (!(fabsf(achieved[i] - goal[i]) < tolerance))
            return 0;
    return 1;
}

/* instruction [batch, slots, size], of which slots that hold `pad` alone are none; achieved [batch, steps, many, size],
   valid [batch, steps, many] -> times [batch, slots]: `steps` where a goal never was. */
void completed(const float *instruction, const float *achieved, const uint8_t *valid, int64_t *times, int64_t batch,
               int64_t slots, int64_t steps, int64_t many, int64_t size, float tolerance, float pad)
{
    for (int64_t b = 0; b < batch; b++) {
        const float *goals = instruction + b * slots * size;
        int64_t number = 0, place = many; /* the first timestep completes nothing */
        for (int64_t slot = 0; slot < slots; slot++)
            number += differs(goals + slot * size, size, pad);
        for (int64_t slot = 0; slot < slots; slot++) {
            int64_t found = steps;
            for (; slot < number && place < steps * many; place++) {
                int64_t at = b * steps * many + place;
                if (valid[at] && near(goals + slot * size, achieved + at * size, size, tolerance)) {
                    found = place / many;
                    place = (found + 1) * many;
                    break;
                }
            }
            times[b * slots + slot] = found;
        }
    }
}
