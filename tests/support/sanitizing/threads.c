/* Threads play the ranks of a node, for a sanitizer that sees threads and no other processes: each
 * executes programs of its own in the extension's interpreter, over the same pipes and slots. MPI and
 * Python are never called. Prints the number of wrong elements; status 1 where there is one.
 */
#include "_engine.c"

#include <pthread.h>
#include <stdio.h>

enum { MOST_RANKS = 3, ROUNDS = 300, WORDS = FIRST_ENTRY + ENTRIES * ENTRY_WORDS, MOST = 1000 };
enum { PIECE = 64, INT32 = 2 };

/* of a pipe from one rank to another */
typedef struct {
    _Alignas(128) Word words[WORDS];
    _Alignas(128) char slots[SLOTS * PIECE];
} PipeOf;

static PipeOf pipes[MOST_RANKS][MOST_RANKS];
static int ranks;

typedef enum { IN_SLOTS, WHERE_IT_LIES, WRITES } Way;

/* of a rank: what it sends, and what it gets, with its own elements added or not */
typedef struct {
    int rank, wrong;
    int32_t sent[MOST], received[MOST];
} Rank;

static Instruction message(enum Code code, int peer, int request, void *memory, int elements, Way way)
{
    Instruction i = {.code = code, .peer = peer, .request = request, .operand = -1,
                     .count = 4 * elements, .chunk = PIECE};
    i.at[0] = i.at[1] = i.at[2] = (intptr_t)memory;
    i.location = way == IN_SLOTS ? NOWHERE : (intptr_t)memory;
    return i;
}

static Instruction waiting(int request) { return (Instruction){.code = WAIT, .request = request}; }

/* To the right neighbour, and from the left one. */
static Program *exchange(Rank *me, int elements, Way way)
{
    int right = (me->rank + 1) % ranks, left = (me->rank + ranks - 1) % ranks;
    int nears = left == right ? 1 : 2, to_right = nears - 1;
    Program *p = calloc(1, sizeof *p);
    p->near = calloc(nears, sizeof *p->near);
    p->message = calloc(2, sizeof *p->message);
    p->code = calloc(4, sizeof *p->code);
    p->nears = nears;
    p->requests = 2;
    p->length = 4;
    p->polls = 100;
    for (int number = 0; number < nears; number++) {
        int peer = number == to_right ? right : left;
        Near *n = p->near + number;
        n->out = pipes[me->rank][peer].words;
        n->in = pipes[peer][me->rank].words;
        n->segments = 1;
        n->segment[0] = (Segment){1, UINT64_MAX, (char *)1}; /* a location is an address */
    }
    Instruction send = message(way == WRITES ? NEAR_WRITE : NEAR_SEND, to_right, 0, me->sent,
                               elements, way);
    Instruction receive = message(way == WRITES ? NEAR_WRITTEN : NEAR_RECV, 0, 1, me->received,
                                  elements, way);
    PipeOf *out = &pipes[me->rank][right];
    send.slots = send.slots_location = (intptr_t)out->slots;
    send.slot_bytes = PIECE;
    if (way != WRITES) {
        receive.operand = HIGHER;
        receive.type = INT32;
        receive.op = SUM;
        receive.at[1] = (intptr_t)me->sent;
    }
    p->code[0] = receive;
    p->code[1] = send;
    p->code[2] = waiting(1); /* in any other order each would wait for the other to receive */
    p->code[3] = waiting(0);
    for (int number = 0; number < p->length; number++)
        if (!is_valid(p->code + number, p)) abort();
    if (link_messages(p)) abort();
    return p;
}

static int32_t element(int rank, int round, int at) { return 1000003 * round + 101 * rank + at; }

static void *play(void *argument)
{
    static const int SIZES[] = {1, PIECE / 4, PIECE / 4 + 1, 6 * PIECE / 4 + 3, MOST};
    Rank *me = argument;
    int left = (me->rank + ranks - 1) % ranks, round = 0;
    for (size_t size = 0; size < sizeof SIZES / sizeof *SIZES; size++)
        for (Way way = IN_SLOTS; way <= WRITES; way++) {
            int count = SIZES[size];
            Program *p = exchange(me, count, way);
            for (int repetition = 0; repetition < ROUNDS; repetition++, round++) {
                for (int at = 0; at < count; at++) me->sent[at] = element(me->rank, round, at);
                begin(p, round);
                while (advance_for(p, 1.0) != DONE) continue;
                for (int at = 0; at < count; at++) {
                    int32_t expected = element(left, round, at);
                    if (way != WRITES) expected += element(me->rank, round, at);
                    me->wrong += me->received[at] != expected;
                }
            }
            release(p);
        }
    return NULL;
}

int main(int argc, char **argv)
{
    static Rank rank[MOST_RANKS];
    pthread_t thread[MOST_RANKS];
    int wrong = 0;
    mpi.request_bytes = 8;
    ranks = argc > 1 ? atoi(argv[1]) : 2;
    for (int number = 0; number < ranks; number++) {
        rank[number].rank = number;
        pthread_create(thread + number, NULL, play, rank + number);
    }
    for (int number = 0; number < ranks; number++) {
        pthread_join(thread[number], NULL);
        wrong += rank[number].wrong;
    }
    printf("%d ranks, wrong elements: %d\n", ranks, wrong);
    return wrong > 0;
}
