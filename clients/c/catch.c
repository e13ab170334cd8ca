/* A world in C that learns under SEED: a ball falls through a board, and a paddle in the lowest row catches it.
 *
 *   cc -O2 -o catch catch.c
 *   ./catch ADDRESS JOIN [STEPS]     plays until the run is over, or for STEPS steps; prints the mean return
 *
 * ADDRESS and JOIN are what `seedbed train foreign:catch.json --agent vtrace --actors 0 --listen ...` or `seedbed serve` printed.
 */
#define _POSIX_C_SOURCE 200809L
#define SEEDBED_IMPLEMENTATION
#include "seedbed.h"

enum { HEIGHT = 10, WIDTH = 5, MOST = 1024 };

typedef struct {
    int row, column, paddle, over;
} ball;

static uint64_t state;

static int draw(int below) { /* a generator of Marsaglia's (xorshift64*) */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (int)((state * 2685821657736338717u >> 33) % (unsigned)below);
}

static void begin(ball *one) {
    one->row = 0, one->column = draw(WIDTH), one->paddle = WIDTH / 2, one->over = 0;
}

static void show(const ball *one, float *board) {
    memset(board, 0, HEIGHT * WIDTH * sizeof *board);
    board[one->row * WIDTH + one->column] = 1;
    board[(HEIGHT - 1) * WIDTH + one->paddle] = 1;
}

int main(int count, char **given) {
    static ball balls[2][MOST];
    char error[SEEDBED_ERROR];
    seedbed_options options;
    long steps = 0, most = count > 3 ? atol(given[3]) : 0, episodes = 0, caught = 0;
    int lane, i;
    seedbed *run;
    memset(&options, 0, sizeof options);
    options.address = count > 1 ? given[1] : NULL;
    options.join = count > 2 ? given[2] : NULL;
    options.timeout = 60;
    if (!(run = seedbed_connect(&options, error))) return fprintf(stderr, "catch: %s\n", error), 1;
    if (seedbed_rows(run) > MOST || seedbed_lanes(run) > 2) return fprintf(stderr, "catch: too many environments\n"), 1;
    for (lane = 0; lane < seedbed_lanes(run); lane++) {
        float *boards = (float *)seedbed_observation(run, lane, 0, "float32", HEIGHT * WIDTH);
        if (!boards || !seedbed_action(run, lane, "int32", 1)) return fprintf(stderr, "catch: another world\n"), 1;
        state = 88172645463325252u ^ (uint64_t)seedbed_seed(run, lane);
        for (i = 0; i < seedbed_rows(run); i++) {
            begin(&balls[lane][i]);
            show(&balls[lane][i], boards + i * HEIGHT * WIDTH);
            seedbed_first(run, lane)[i] = 1; /* rewards and the other flags are zeros */
        }
        seedbed_send(run, lane);
    }
    while ((lane = seedbed_receive(run)) >= 0 && (!most || steps < most)) {
        const int32_t *action = (const int32_t *)seedbed_action(run, lane, "int32", 1);
        float *boards = (float *)seedbed_observation(run, lane, 0, "float32", HEIGHT * WIDTH);
        for (i = 0; i < seedbed_rows(run); i++) {
            ball *one = &balls[lane][i];
            int first = one->over; /* the step after the last one of an episode shows the next one's beginning */
            float reward = 0;
            if (first) {
                begin(one);
            } else {
                one->paddle += action[i] - 1;
                one->paddle = one->paddle < 0 ? 0 : one->paddle >= WIDTH ? WIDTH - 1 : one->paddle;
                one->over = ++one->row == HEIGHT - 1;
                if (one->over) reward = one->column == one->paddle ? 1 : -1;
                episodes += one->over, caught += reward > 0, steps++;
            }
            show(one, boards + i * HEIGHT * WIDTH);
            seedbed_reward(run, lane)[i] = reward;
            seedbed_terminated(run, lane)[i] = (uint8_t)one->over;
            seedbed_first(run, lane)[i] = (uint8_t)first;
        }
        seedbed_send(run, lane);
    }
    printf("%ld steps, %ld episodes, mean return %.3f: %s\n", steps, episodes,
           episodes ? (2.0 * (double)caught - (double)episodes) / (double)episodes : 0.0, seedbed_error(run));
    i = lane < 0 && !seedbed_over(run);
    seedbed_close(run, "");
    return i;
}
