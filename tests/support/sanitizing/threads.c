/* Threads play the ranks of a node: each advances a program of its own over the same pipes and
 * slots, with the functions of _engine.c. For ThreadSanitizer, which sees no other process. Beside
 * rank 0 another thread attends to its programs.
 *
 * usage: threads RANKS CALLS SECONDS. Exits with 1 where a rank gets wrong data, or stands still for
 * so long.
 */
#include "_engine.c"

#include <pthread.h>
#include <stdio.h>

enum { MOST_RANKS = 3, PIPE_WORDS = FIRST_ENTRY + ENTRY_WORDS * ENTRIES };
/* elements of a message; bytes of a piece, so that slots are used many times in a message; no room
 * between slots, so that a copy that is too long writes to the next one */
enum { COUNT = 125, BYTES = 8 * COUNT, CHUNK = 64, SLOT_BYTES = CHUNK };
enum { SLOTS = 4, ROOM = 4, SMALL_COUNT = ENTRY_WORDS - ROOM };
enum { ROW_F8 = 9, MOST_MESSAGES = 2 * ENTRIES };
/* ways of a message: copied into the receiver's memory; through slots, and there also added to
 * what the receiver has; read where it lies; in its entry */
enum { WRITE = 'w', PIECES = 'p', REDUCED = 'r', LATE = 'l', SMALL = 's' };
/* the messages that each rank sends to the next one in a call. Each way is once the last one: what
 * comes behind a message would hide that a rank did not wait for it. */
static const char *const CALLS_MADE[] = {
    "w", "p", "r", "l", "wplr", "rlpw", "llllllllllllllll", "lplpwlplpwlplpwr", "s",
    "ssssssssssssssss", "spslsrswspslsrss",
};
/* of so many calls each rank is late once */
enum { LATE_ONE = 40 };
enum { KINDS_OF_CALLS = sizeof CALLS_MADE / sizeof *CALLS_MADE };

static double patience;

typedef struct {
    double sent[MOST_MESSAGES][COUNT];
    double received[MOST_MESSAGES][COUNT];
    double own[COUNT];
} Memory;

static struct {
    Word words[PIPE_WORDS];
    char slots[SLOTS * SLOT_BYTES];
} pipes[MOST_RANKS][MOST_RANKS];
static Word sleeps[MOST_RANKS];
static Memory memory[MOST_RANKS];
static int ranks, calls;

static void fail(int rank, int call, const char *what)
{
    fprintf(stderr, "rank %d, call %d: %s\n", rank, call, what);
    exit(1);
}

static double element(int rank, int call, int message, int at)
{
    return (((double)rank * 100000 + call) * MOST_MESSAGES + message) * COUNT + at;
}

static int count_of(int way) { return way == SMALL ? SMALL_COUNT : COUNT; }

static Instruction message(int code, int peer, int number, int way, void *place)
{
    Instruction i = {.code = code, .peer = peer, .operand = -1, .count = 8 * count_of(way),
                     .location = NOWHERE, .chunk = CHUNK, .slot_bytes = SLOT_BYTES, .slot_count = SLOTS};
    i.request = number;
    i.at[0] = (int64_t)(intptr_t)place;
    return i;
}

/* The program of a rank: messages to the next rank, and as many from the one before. */
static Program *made(int rank, const char *ways)
{
    int messages = (int)strlen(ways);
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    /* on two ranks they are the same */
    int peers[] = {next, before}, nears = next == before ? 1 : 2;
    Memory *m = memory + rank;
    Program *p = calloc(1, sizeof *p);
    p->requests = 2 * messages;
    p->code = calloc(2 * p->requests, sizeof *p->code);
    p->message = calloc(p->requests, sizeof *p->message);
    p->near = calloc(nears, sizeof *p->near);
    p->nears = nears;
    p->sleeps = sleeps + rank;
    p->polls = 32;
    p->watched[NOTICE] = p->watched[ACCOUNT] = -1;
    for (int number = 0; number < nears; number++) {
        Near *n = p->near + number;
        n->out = pipes[rank][peers[number]].words;
        n->in = pipes[peers[number]][rank].words;
        n->rank = peers[number];
        n->sleeps = sleeps + peers[number];
        /* locations are addresses here */
        n->segments = 1;
        n->segment[0] = (Segment){1, INT64_MAX, (char *)1};
    }
    for (int number = 0; number < messages; number++) {
        int code = ways[number] == WRITE ? NEAR_WRITTEN : NEAR_RECV;
        Instruction i = message(code, nears - 1, number, ways[number], m->received[number]);
        if (ways[number] == WRITE) i.location = i.at[0];
        if (ways[number] == REDUCED) {
            i.type = ROW_F8;
            i.op = SUM;
            i.operand = HIGHER;
            i.at[1] = (int64_t)(intptr_t)m->own;
        }
        p->code[p->length++] = i;
    }
    for (int number = 0; number < messages; number++) {
        int code = ways[number] == WRITE ? NEAR_WRITE : NEAR_SEND;
        Instruction i = message(code, 0, messages + number, ways[number], m->sent[number]);
        i.slots = i.slots_location = (int64_t)(intptr_t)pipes[rank][next].slots;
        if (ways[number] == LATE) i.location = i.at[0];
        if (ways[number] == SMALL) {
            Word *room = entry_of(pipes[rank][next].words, 0) + ROOM;
            i.slots = i.slots_location = (int64_t)(intptr_t)room;
            i.slot_bytes = 8 * ENTRY_WORDS;
            i.slot_count = ENTRIES;
        }
        p->code[p->length++] = i;
    }
    for (int number = 0; number < p->requests; number++)
        p->code[p->length++] = (Instruction){.code = WAIT, .request = number};
    for (int number = 0; number < p->length; number++)
        if (!is_valid(p->code + number, p)) fail(rank, 0, "an invalid instruction");
    if (link_messages(p)) fail(rank, 0, "a request of two messages");
    return p;
}

/* What is sent, and what is there before something is received: other values in each call. */
static void fill(int rank, int call, int messages)
{
    Memory *m = memory + rank;
    memset(m->received, 0xFF, messages * sizeof *m->received);
    for (int number = 0; number < messages; number++)
        for (int at = 0; at < COUNT; at++) m->sent[number][at] = element(rank, call, number, at);
    for (int at = 0; at < COUNT; at++) m->own[at] = call + 0.5 * at;
}

static void compare(int rank, int call, const char *ways)
{
    Memory *m = memory + rank;
    int before = (rank + ranks - 1) % ranks;
    for (int number = 0; ways[number]; number++)
        for (int at = 0; at < count_of(ways[number]); at++) {
            double expected = element(before, call, number, at);
            if (ways[number] == REDUCED) expected += m->own[at];
            if (m->received[number][at] != expected) fail(rank, call, "wrong data");
        }
}

/* the program and the call that the attending thread has to advance */
static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Program *program;
    long call;
    int has_ended;
} attendance = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *attend_rank(void *unused)
{
    pthread_mutex_lock(&attendance.mutex);
    while (!attendance.has_ended) {
        Program *program = attendance.program;
        long call = attendance.call;
        attendance.program = NULL;
        if (!program) {
            pthread_cond_wait(&attendance.changed, &attendance.mutex);
            continue;
        }
        pthread_mutex_unlock(&attendance.mutex);
        atomic_store(&attending, 1);
        attend(&program, &call, 1, 8, 1e-3, patience);
        atomic_store(&attending, 0);
        atomic_store(&interrupted, 0);
        pthread_mutex_lock(&attendance.mutex);
    }
    pthread_mutex_unlock(&attendance.mutex);
    return NULL;
}

static void hand_over(Program *program)
{
    pthread_mutex_lock(&attendance.mutex);
    attendance.program = program;
    attendance.call = program ? program->calls : 0;
    attendance.has_ended = !program;
    pthread_cond_signal(&attendance.changed);
    pthread_mutex_unlock(&attendance.mutex);
    interrupt();
}

/* As a thread of Python's does that waits for a call which others may advance. */
static int advance_in_turn(Program *program)
{
    int result = WAITS, next;
    double until = seconds() + patience;
    while (result == WAITS && seconds() < until)
        if (!advance_beside(program, 0, &result, &next)) result = WAITS;
    return result;
}

static pthread_t attending_thread;

static void *play(void *number)
{
    int rank = (int)(intptr_t)number;
    Program *programs[KINDS_OF_CALLS];
    for (int kind = 0; kind < KINDS_OF_CALLS; kind++) programs[kind] = made(rank, CALLS_MADE[kind]);
    for (int call = 0; call < calls; call++) {
        int kind = call % KINDS_OF_CALLS;
        fill(rank, call, (int)strlen(CALLS_MADE[kind]));
        if (call % LATE_ONE == rank) sleep_for(3 * AWAKE); /* the others sleep, too */
        begin(programs[kind], call);
        if (rank == 0) hand_over(programs[kind]);
        if (rank ? advance_for(programs[kind], patience) != DONE
                 : advance_in_turn(programs[kind]) != DONE)
            fail(rank, call, "no progress, or an error");
        compare(rank, call, CALLS_MADE[kind]);
    }
    if (rank == 0) {
        hand_over(NULL);
        pthread_join(attending_thread, NULL);
    }
    for (int kind = 0; kind < KINDS_OF_CALLS; kind++) release(programs[kind]);
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t thread[MOST_RANKS];
    if (count != 4) return 2;
    ranks = atoi(arguments[1]);
    calls = atoi(arguments[2]);
    patience = atof(arguments[3]);
    if (ranks < 2 || ranks > MOST_RANKS) return 2;
    rhythm.least = 1e-6;
    rhythm.spin = rhythm.longest = 1e-6;
    rhythm.moves = 1;
    if (pthread_create(&attending_thread, NULL, attend_rank, NULL)) return 2;
    for (int rank = 0; rank < ranks; rank++)
        if (pthread_create(thread + rank, NULL, play, (void *)(intptr_t)rank)) return 2;
    for (int rank = 0; rank < ranks; rank++) pthread_join(thread[rank], NULL);
    printf("%d ranks, %d calls: right\n", ranks, calls);
    return 0;
}
