/* Executes programs without Python between two instructions; see mpicoll/engine/.
 *
 * It includes no mpi.h and links no MPI: one binary serves all MPI libraries. Their functions come
 * by address (`setup`), their handles as machine words: the int handles of MPICH and the pointers
 * of Open MPI both travel in a register of 64 bits.
 */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <errno.h>
#include <float.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef uintptr_t Handle;

/* ---- MPI ----------------------------------------------------------------------------------- */

static struct {
    int (*Isend)(const void *, int, Handle, int, int, Handle, void *);
    int (*Irecv)(void *, int, Handle, int, int, Handle, void *);
    int (*Test)(void *, int *, void *);
    int (*Iprobe)(int, int, Handle, int *, void *);
    Handle byte;
    int any_source;
    Py_ssize_t request_bytes;
} mpi;

/* MPI_Status has 20 to 32 bytes; a real one needs no constant MPI_STATUS_IGNORE */
#define STATUS_BYTES 128

/* ---- Reductions ---------------------------------------------------------------------------- */

typedef void Loop(const void *lower, const void *higher, void *result, size_t count);

/* the result may be one of the operands, but never a shifted part of one */
#define LOOP(NAME, TYPE, RESULT) LOOP_FOR(, NAME, TYPE, RESULT)
#define LOOP_FOR(TARGETS, NAME, TYPE, RESULT)                                           \
    TARGETS static void NAME(const void *lower, const void *higher, void *result, size_t count) \
    {                                                                                   \
        const TYPE *x = lower, *y = higher;                                             \
        TYPE *z = result;                                                               \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) z[i] = (TYPE)(RESULT);  \
    }
#define LOGICAL(TYPE, NAME)                   \
    LOOP(land_##NAME, TYPE, (x[i] != 0) & (y[i] != 0)) \
    LOOP(lor_##NAME, TYPE, (x[i] != 0) | (y[i] != 0))  \
    LOOP(lxor_##NAME, TYPE, (x[i] != 0) ^ (y[i] != 0))
#define INTEGERS(TYPE, NAME)                          \
    LOOP(sum_##NAME, TYPE, x[i] + y[i])               \
    LOOP(prod_##NAME, TYPE, x[i] * y[i])              \
    LOOP(max_##NAME, TYPE, x[i] > y[i] ? x[i] : y[i]) \
    LOOP(min_##NAME, TYPE, x[i] < y[i] ? x[i] : y[i]) \
    LOOP(band_##NAME, TYPE, x[i] & y[i])              \
    LOOP(bor_##NAME, TYPE, x[i] | y[i])               \
    LOOP(bxor_##NAME, TYPE, x[i] ^ y[i])              \
    LOGICAL(TYPE, NAME)
/* Of floats the larger, or the smaller; a nan stays one. NumPy has what the processor's instruction
 * chooses: on AArch64 0.0 is larger than -0.0, and a nan that signals becomes a quiet one. */
#ifdef __aarch64__
#define LOWER_IS_MAX(X, Y) ((X) == (Y) && !__builtin_signbit(X))
#define LOWER_IS_MIN(X, Y) ((X) == (Y) && __builtin_signbit(X))
#define CHOICE(X, BEFORE, Y, IS_LOWER) \
    (X != X || Y != Y ? X + Y : X BEFORE Y || IS_LOWER(X, Y) ? X : Y)
#else
#define CHOICE(X, BEFORE, Y, IS_LOWER) (X BEFORE Y || X != X ? X : Y)
#endif
#define FLOATS(TYPE, NAME)                                           \
    LOOP(sum_##NAME, TYPE, x[i] + y[i])                              \
    LOOP(prod_##NAME, TYPE, x[i] * y[i])                             \
    LOOP(max_##NAME, TYPE, CHOICE(x[i], >, y[i], LOWER_IS_MAX))      \
    LOOP(min_##NAME, TYPE, CHOICE(x[i], <, y[i], LOWER_IS_MIN))
/* real and imaginary part */
#define COMPLEX(TYPE, NAME)                                                             \
    static void sum_c##NAME(const void *lower, const void *higher, void *result, size_t count) \
    {                                                                                   \
        sum_f##TYPE(lower, higher, result, 2 * count);                                  \
    }

/* Halves of 16 bits: widened, reduced as floats, and rounded to the nearest, to even. All of it
 * without floats below the normal ones, which a thread may have the processor take for zero. */

/* compiled twice, where the linker can choose; who defines it as nothing has it compiled once */
#ifndef WIDE
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif
#endif

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* float16: 5 bits of the exponent, 10 of the fraction */
static inline int is_nan_f2(uint16_t half) { return (half & 0x7FFF) > 0x7C00; }

static inline float float_of_f2(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7FFF;
    uint32_t normal = (rest << 13) + (rest >= 0x7C00 ? 0x70000000u : 0x38000000u);
    uint32_t small = bits_of_float((float)(int32_t)rest * 0x1p-24f);
    return float_of_bits(sign | (rest < 0x400 ? small : normal));
}

static inline uint16_t f2_of_float(float value)
{
    uint32_t bits = bits_of_float(value), rest = bits & 0x7FFFFFFF;
    uint16_t sign = bits >> 16 & 0x8000;
    uint32_t normal = (rest + 0xFFF + (rest >> 13 & 1) - 0x38000000u) >> 13;
    /* the sum has the unit of a float16 below 2^-14 in its last place */
    uint32_t small = bits_of_float(float_of_bits(rest) + 0.5f) - 0x3F000000u;
    uint32_t nan = 0x7C00 | (rest >> 13 & 0x3FF) | 0x200;
    uint32_t half = rest < 0x38800000u ? small : normal > 0x7C00 ? 0x7C00 : normal;
    return sign | (rest > 0x7F800000u ? nan : half);
}

/* Whether the nan of the result is the higher operand's: what NumPy and ml_dtypes, compiled for the
 * processor, choose. AArch64 prefers one that signals; NumPy's conversion leaves none of float16. */
#ifdef __aarch64__
#define HIGHER_NAN_F2(X, Y) (is_nan_f2(Y) && !is_nan_f2(X))
#define HIGHER_NAN_B2(X, Y) (is_nan_b2(Y) && (!is_nan_b2(X) || (X & 0x40 && !(Y & 0x40))))
#else
#define HIGHER_NAN_F2(X, Y) is_nan_f2(Y)
#define HIGHER_NAN_B2(X, Y) is_nan_b2(Y)
#endif

/* as NumPy */
static inline uint16_t rounded_f2(uint16_t x, uint16_t y, float result)
{
    uint16_t nan = HIGHER_NAN_F2(x, y) ? y : x;
    return is_nan_f2(nan) ? nan | 0x200 : f2_of_float(result);
}

/* bfloat16: the upper half of a float */
static inline float float_of_b2(uint16_t half) { return float_of_bits((uint32_t)half << 16); }

static inline uint16_t b2_of_float(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t half = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7FFFFFFF) > 0x7F800000u ? (bits >> 16 & 0x8000) | 0x7FC0 : half;
}

static inline int is_nan_b2(uint16_t half) { return (half & 0x7FFF) > 0x7F80; }

/* as ml_dtypes: the same, and a nan keeps its sign alone */
static inline uint16_t rounded_b2(uint16_t x, uint16_t y, float result)
{
    uint16_t nan = HIGHER_NAN_B2(x, y) ? y : x;
    return is_nan_b2(nan) ? (nan & 0x8000) | 0x7FC0 : b2_of_float(result);
}

#define HALF(NAME, OPERATION, RESULT) LOOP_FOR(WIDE, OPERATION##_##NAME, uint16_t, RESULT)
#define SUM_OF(NAME) rounded_##NAME(x[i], y[i], float_of_##NAME(x[i]) + float_of_##NAME(y[i]))
#define PRODUCT_OF(NAME) rounded_##NAME(x[i], y[i], float_of_##NAME(x[i]) * float_of_##NAME(y[i]))
/* BEFORE: >, for example */
#define CHOICE_OF(NAME, BEFORE)                                                    \
    float_of_##NAME(x[i]) BEFORE float_of_##NAME(y[i]) || is_nan_##NAME(x[i]) ? x[i] : y[i]

HALF(f2, sum, SUM_OF(f2))
HALF(f2, prod, PRODUCT_OF(f2))
HALF(f2, max, CHOICE_OF(f2, >=))
HALF(f2, min, CHOICE_OF(f2, <=))
HALF(b2, sum, SUM_OF(b2))
HALF(b2, prod, PRODUCT_OF(b2))
HALF(b2, max, CHOICE_OF(b2, >))
HALF(b2, min, CHOICE_OF(b2, <))

INTEGERS(int8_t, i1)
INTEGERS(int16_t, i2)
INTEGERS(int32_t, i4)
INTEGERS(int64_t, i8)
INTEGERS(uint8_t, u1)
INTEGERS(uint16_t, u2)
INTEGERS(uint32_t, u4)
INTEGERS(uint64_t, u8)
LOGICAL(uint8_t, b1)
FLOATS(float, f4)
FLOATS(double, f8)
COMPLEX(4, 8)
COMPLEX(8, 16)

#define LOGICAL_COLUMNS(NAME) \
    .op[LAND] = land_##NAME, .op[LOR] = lor_##NAME, .op[LXOR] = lxor_##NAME
#define FLOAT_COLUMNS(NAME) \
    .op[SUM] = sum_##NAME, .op[PROD] = prod_##NAME, .op[MAX] = max_##NAME, .op[MIN] = min_##NAME
#define INTEGER_ROW(NAME, BYTES)                                                       \
    {                                                                                  \
        BYTES, FLOAT_COLUMNS(NAME), LOGICAL_COLUMNS(NAME), .op[BAND] = band_##NAME,    \
            .op[BOR] = bor_##NAME, .op[BXOR] = bxor_##NAME                             \
    }
/* engine/lowering.py has the names of these columns and rows */
enum { SUM, PROD, MAX, MIN, BAND, BOR, BXOR, LAND, LOR, LXOR, OPS };
static const struct {
    size_t itemsize;
    Loop *op[OPS];
} TYPES[] = {
    INTEGER_ROW(i1, 1),       INTEGER_ROW(i2, 2),        INTEGER_ROW(i4, 4),
    INTEGER_ROW(i8, 8),       INTEGER_ROW(u1, 1),        INTEGER_ROW(u2, 2),
    INTEGER_ROW(u4, 4),       INTEGER_ROW(u8, 8),        {4, FLOAT_COLUMNS(f4)},
    {8, FLOAT_COLUMNS(f8)},   {8, .op[SUM] = sum_c8},    {16, .op[SUM] = sum_c16},
    {1, LOGICAL_COLUMNS(b1)}, {2, FLOAT_COLUMNS(f2)},    {2, FLOAT_COLUMNS(b2)},
};
enum { KINDS = sizeof TYPES / sizeof *TYPES };

/* ---- Codes of floats ----------------------------------------------------------------------- */

/* as buffers/compression.py; count: of floats */
typedef void Convert(const void *source, void *target, size_t count);

static inline size_t shorter(size_t one, size_t other) { return one < other ? one : other; }

/* The largest magnitude over the largest integer; nan where it is not finite. It is rounded down
 * where the largest integer times it would be infinite. A smaller scale than the smallest normal
 * float could have no finite quotient. */
static inline float scale_of(const float *x, size_t count, float largest)
{
    uint32_t most = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of_float(x[i]) & 0x7FFFFFFF;
        most = bits > most ? bits : most;
    }
    if (most >= 0x7F800000u) return float_of_bits(0x7FC00000u);
    float scale = float_of_bits(most) / largest;
    if (scale * largest > FLT_MAX) scale = float_of_bits(bits_of_float(scale) - 1);
    return scale > 0x1p-126f ? scale : 0x1p-126f;
}

/* Whole numbers below 2^22 in magnitude, rounded to the nearest, to even: in the lowest bits of a
 * float that has no others. */
static inline int32_t rounded(float value)
{
    return (int32_t)(bits_of_float(value + 0x1.8p23f) - 0x4B400000u);
}

enum { GROUP_I1 = 256, BYTES_I1 = 4 + GROUP_I1, GROUP_I4 = 64, HALF_I4 = GROUP_I4 / 2,
       BYTES_I4 = 4 + HALF_I4 };

WIDE static void encode_i1(const void *source, void *target, size_t count)
{
    const float *x = source;
    uint8_t *codes = target;
    for (; count; codes += BYTES_I1) {
        size_t n = shorter(count, GROUP_I1);
        float scale = scale_of(x, n, 127);
        memcpy(codes, &scale, sizeof scale);
        for (size_t i = 0; i < n; i++) codes[4 + i] = (uint8_t)rounded(x[i] / scale);
        memset(codes + 4 + n, 0, GROUP_I1 - n);
        x += n;
        count -= n;
    }
}

WIDE static void decode_i1(const void *source, void *target, size_t count)
{
    const uint8_t *codes = source;
    float *x = target;
    for (; count; codes += BYTES_I1) {
        size_t n = shorter(count, GROUP_I1);
        float scale;
        memcpy(&scale, codes, sizeof scale);
        for (size_t i = 0; i < n; i++) x[i] = (float)(int8_t)codes[4 + i] * scale;
        x += n;
        count -= n;
    }
}

/* four bits: the first half of a group in the lower ones */
WIDE static void encode_i4(const void *source, void *target, size_t count)
{
    const float *x = source;
    uint8_t *codes = target;
    for (; count; codes += BYTES_I4) {
        size_t n = shorter(count, GROUP_I4);
        float scale = scale_of(x, n, 7);
        uint8_t whole[GROUP_I4];
        memcpy(codes, &scale, sizeof scale);
        for (size_t i = 0; i < n; i++) whole[i] = (uint8_t)rounded(x[i] / scale);
        memset(whole + n, 0, GROUP_I4 - n);
        for (size_t i = 0; i < HALF_I4; i++)
            codes[4 + i] = (uint8_t)((whole[i] & 15) | whole[HALF_I4 + i] << 4);
        x += n;
        count -= n;
    }
}

WIDE static void decode_i4(const void *source, void *target, size_t count)
{
    const uint8_t *codes = source;
    float *x = target;
    for (; count; codes += BYTES_I4) {
        size_t n = shorter(count, GROUP_I4);
        float scale, all[GROUP_I4];
        memcpy(&scale, codes, sizeof scale);
        for (size_t i = 0; i < HALF_I4; i++) {
            all[i] = (float)((int8_t)(codes[4 + i] << 4) >> 4) * scale;
            all[HALF_I4 + i] = (float)((int8_t)codes[4 + i] >> 4) * scale;
        }
        memcpy(x, all, n * sizeof *x);
        x += n;
        count -= n;
    }
}

#define HALF_CODES(NAME)                                                                 \
    WIDE static void encode_##NAME(const void *source, void *target, size_t count)       \
    {                                                                                    \
        const float *x = source;                                                         \
        uint16_t *codes = target;                                                        \
        for (size_t i = 0; i < count; i++) codes[i] = NAME##_of_float(x[i]);             \
    }                                                                                    \
    WIDE static void decode_##NAME(const void *source, void *target, size_t count)       \
    {                                                                                    \
        const uint16_t *codes = source;                                                  \
        float *x = target;                                                               \
        for (size_t i = 0; i < count; i++) x[i] = float_of_##NAME(codes[i]);             \
    }

HALF_CODES(f2)
HALF_CODES(b2)

/* codes.py has their names, in this order */
static const struct {
    Convert *encode, *decode;
} COMPRESSIONS[] = {
    {encode_f2, decode_f2}, {encode_b2, decode_b2}, {encode_i1, decode_i1}, {encode_i4, decode_i4}};
enum { COMPRESSION_KINDS = sizeof COMPRESSIONS / sizeof *COMPRESSIONS };

/* ---- What codes lose ------------------------------------------------------------------------- */

/* As buffers/coding_loss.py, of float32, a group at a time in one pass. `before` and `after` may be
 * the same memory. */
typedef void Feed(float *vector, const float *before, float *after, size_t count, float factor);
typedef void FeedSums(const float *sums, float *after, size_t count, float factor);

#define CODED_IN_GROUPS(NAME, LARGEST)                                                        \
    enum { GROUP_##NAME##_F = GROUP_##NAME };                                                 \
    static inline float scale_##NAME(const float *x, size_t n) { return scale_of(x, n, LARGEST); } \
    static inline float sent_##NAME(float x, float scale) { return (float)rounded(x / scale) * scale; }
#define CODED_ALONE(NAME, SENT)                                                               \
    enum { GROUP_##NAME##_F = 256 };                                                          \
    static inline float scale_##NAME(const float *x, size_t n) { (void)x; (void)n; return 1; } \
    static inline float sent_##NAME(float x, float scale) { (void)scale; return SENT; }

CODED_IN_GROUPS(I1, 127)
CODED_IN_GROUPS(I4, 7)
CODED_ALONE(F2, float_of_f2(f2_of_float(x)))
CODED_ALONE(B2, float_of_b2(b2_of_float(x)))
/* of what a rank sums itself nothing is coded */
CODED_ALONE(OWN, x)

#define FEED(NAME)                                                                            \
    WIDE static void feed_##NAME(float *vector, const float *before, float *after, size_t count, \
                                 float factor)                                                \
    {                                                                                         \
        for (size_t n; count; vector += n, before += n, after += n, count -= n) {             \
            n = shorter(count, GROUP_##NAME##_F);                                             \
            for (size_t i = 0; i < n; i++) vector[i] = before[i] * factor + vector[i];        \
            float scale = scale_##NAME(vector, n);                                            \
            for (size_t i = 0; i < n; i++) {                                                  \
                float lost = (vector[i] - sent_##NAME(vector[i], scale)) / factor;            \
                after[i] = fabsf(lost) <= FLT_MAX ? lost : before[i];                         \
            }                                                                                 \
        }                                                                                     \
    }                                                                                         \
    WIDE static void feed_sums_##NAME(const float *sums, float *after, size_t count, float factor) \
    {                                                                                         \
        for (size_t n; count; sums += n, after += n, count -= n) {                            \
            n = shorter(count, GROUP_##NAME##_F);                                             \
            float scale = scale_##NAME(sums, n);                                              \
            for (size_t i = 0; i < n; i++) {                                                  \
                float lost = (sums[i] - sent_##NAME(sums[i], scale)) / factor;                \
                after[i] += fabsf(lost) <= FLT_MAX ? lost : 0;                                \
            }                                                                                 \
        }                                                                                     \
    }

FEED(F2)
FEED(B2)
FEED(I1)
FEED(I4)
FEED(OWN)

/* as COMPRESSIONS; and last, of no codes */
static const struct {
    Feed *feed;
    FeedSums *feed_sums;
} FEEDS[] = {{feed_F2, feed_sums_F2}, {feed_B2, feed_sums_B2}, {feed_I1, feed_sums_I1},
             {feed_I4, feed_sums_I4}, {feed_OWN, feed_sums_OWN}};

/* ---- Programs ------------------------------------------------------------------------------ */

/* NEAR: to or from a rank of the node, through memory that both share */
enum Code { SEND, RECV, NEAR_SEND, NEAR_RECV, NEAR_WRITE, NEAR_WRITTEN, WAIT, REDUCE, COPY,
            ENCODE, DECODE, CODES };
enum { BUFFERS = 4, LOWER = 0, HIGHER = 1 };

typedef struct {
    int32_t code;
    /* of MPI's messages the rank at the other end; of others its number among the near ranks */
    int32_t peer;
    /* number of the request that a message starts, or that is awaited */
    int32_t request;
    /* of a reduction: its row and column among the loops; of codes: their row */
    int32_t type, op;
    /* of a message that is reduced as it comes: which operand it is; -1: it is copied */
    int32_t operand;
    /* where each place is: 0: `at` is an address; else an offset in that buffer of the call */
    int32_t buffer[3];
    /* of a near message: how many slots there are */
    int32_t slot_count;
    /* of a message: memory (source, or result), other operand, landing for what comes through MPI;
     * of a copy, and of codes: source, target; of a reduction: lower, higher, result */
    int64_t at[3];
    /* bytes of a message or a copy, elements of all else */
    int64_t count;
    /* of a near message: the location of an address, or NOWHERE; bytes of its pieces; and the
     * address, location and distance of the slots that these are copied to */
    int64_t location, chunk, slots, slots_location, slot_bytes;
} Instruction;

#define NOWHERE (-1)

/* a message on its way */
typedef struct {
    const Instruction *instruction;
    /* MPI has not ended its request */
    char active;
    /* it is published, or needs no such step */
    char published;
    /* a near message that comes or goes through MPI */
    char distant;
    /* of a NEAR_WRITE: the receiver has said where; whether it is copied there */
    char opened, is_put;
    /* the next message to the same rank that waits to be published; -1: none */
    int32_t behind;
    /* of a NEAR_WRITE: the next to the same rank; -1: none */
    int32_t next_write;
    /* bytes published or taken */
    int64_t moved;
    /* the pipe's count after it */
    uint64_t last;
    /* of a NEAR_WRITE: the receiver's location */
    uint64_t landing;
} Message;

/* a mapped segment of another process's memory */
typedef struct {
    uint64_t begin, end;
    char *address;
} Segment;

typedef _Atomic uint64_t Word;

/* a message that Python has set aside, as it was in front of one of another call: its entry, or the
 * address of its copy */
typedef struct {
    uint64_t location, nbytes;
    char *address;
} Kept;

/* a rank of the node; the pipes to it and from it: see shared_memory/ring.py */
enum { SEGMENTS = 16 };
typedef struct {
    Word *out;
    /* NULL until the rank has created it */
    Word *in;
    /* 1: the process sleeps until one of its node wakes it */
    Word *sleeps;
    int32_t rank;
    /* messages that the rank has read, when it was last looked at */
    uint64_t read;
    /* messages that wait to be published, in order; -1: none */
    int32_t first, last;
    /* the first NEAR_WRITE of the program, and that whose location comes next; -1: none */
    int32_t first_write, opening;
    int32_t segments;
    Segment segment[SEGMENTS];
    /* of the call under way: messages that were set aside, and how many of them were taken */
    Kept *kept;
    int32_t keeps, kept_taken;
} Near;

/* the tags of messages by which other ranks say that they gave up, and what calls they have made */
enum { NOTICE, ACCOUNT, WATCHED };

typedef struct {
    Instruction *code;
    int32_t length;
    int32_t requests;
    /* the instruction that comes next */
    int32_t next;
    /* of the messages of the call; MPI gets the lower half */
    int64_t tag;
    Handle comm;
    char *buffer[BUFFERS];
    /* location minus address of each buffer, or NOWHERE */
    int64_t shift[BUFFERS];
    char *handles;
    Message *message;
    int32_t nears;
    Near *near;
    /* of this process: see Near */
    Word *sleeps;
    /* polls before a rank that waits yields its core */
    int polls;
    /* seconds for which a call that does not block waits; the same on a core that others use */
    double moment[2];
    int watched[WATCHED];
    /* it receives messages through MPI */
    int hears;
    /* polls for which a call keeps the interpreter's lock; 0: it does much, or calls MPI */
    int brief;
    /* of a plan: starts that will not wait, and how many there were the last time */
    int skips, last_skips;
    /* of the last `advance_for`; since when nothing has moved, 0: something has */
    int result;
    double still_since;
    /* of a location that is in no segment known here */
    int32_t unknown_near;
    uint64_t unknown;
    /* what was awaited and has come since this was set to 0 */
    int moved;
    /* its scratch serves other calls by now */
    int freed;
    /* a thread advances it, beside which others may try to */
    _Atomic int locked;
    /* its calls that have begun, and those that were taken from `attend` */
    long calls;
    /* `attend` has advanced this call, and Python has not seen its end; nor the last `result` */
    int attended, unseen;
} Program;

/* what `advance` returns besides MPI's errors, which are positive */
enum { WAITS = 0, UNKNOWN_LOCATION = -1, PEER_GAVE_UP = -2, WRONG_SIZE = -3, TOLD = -4, DONE = -5 };

static inline char *place(const Program *p, const Instruction *i, int number)
{
    return p->buffer[i->buffer[number]] + i->at[number];
}

static inline char *handle(const Program *p, int32_t request)
{
    return p->handles + request * mpi.request_bytes;
}

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static double seconds(void) { return seconds_of(CLOCK_MONOTONIC); }

/* of this thread on a core */
static double own_seconds(void) { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("yield")
#else
#define RELAX() ((void)0)
#endif

/* ---- Messages through MPI ------------------------------------------------------------------ */

/* Each function returns DONE, WAITS, or an error. */

static int tag_for_mpi(const Program *p) { return (int)(p->tag & 0xFFFFFFFF); }

static int isend(Program *p, int32_t request, const Instruction *i, int32_t rank)
{
    int error = mpi.Isend(place(p, i, 0), (int)i->count, mpi.byte, rank, tag_for_mpi(p),
                          p->comm, handle(p, request));
    p->message[request].active = !error;
    return error ? error : DONE;
}

static int irecv(Program *p, int32_t request, char *landing, int64_t count, int32_t rank)
{
    int error = mpi.Irecv(landing, (int)count, mpi.byte, rank, tag_for_mpi(p), p->comm,
                          handle(p, request));
    p->message[request].active = !error;
    return error ? error : DONE;
}

static int test(Program *p, int32_t request)
{
    char status[STATUS_BYTES];
    int done = 1;
    if (!p->message[request].active) return DONE; /* it was taken */
    int error = mpi.Test(handle(p, request), &done, status);
    if (error || done) p->message[request].active = 0;
    return error ? error : done ? DONE : WAITS;
}

/* ---- Messages through shared memory -------------------------------------------------------- */

/* the words of a pipe, and what stands in place of a location: see shared_memory/ring.py */
enum { GIVEN_UP = 0, READ = 8, PUBLISHED = 16, FIRST_ENTRY = 24, ENTRY_WORDS = 8 };
enum { NUMBER = 0, TAG = 1, LOCATION = 2, NBYTES = 3 };
enum { ENTRIES = 8 };
enum { THROUGH_MPI = 0, WRITTEN = 1, UNMAPPED = 0 };
#define OPEN ((uint64_t)1 << 62)
/* messages from this size on go through MPI, if they are not in shared memory */
#define LARGE (1 << 20)

static inline uint64_t get(const Word *word) { return atomic_load_explicit(word, memory_order_acquire); }
static inline uint64_t own(const Word *word) { return atomic_load_explicit(word, memory_order_relaxed); }
static inline void set(Word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

#ifdef SYS_futex
enum { WAIT_SHARED = 0, WAKE_SHARED = 1 };
/* The half of a word that holds a small number: a futex has 32 bits. */
static uint32_t *low_half(Word *word)
{
    return (uint32_t *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}
#endif

/* Sleep for so many seconds at most. The caller has set the word, and has looked once more whether
 * anything moves. */
static void sleep_on(Word *sleeps, double seconds)
{
#ifdef SYS_futex
    struct timespec length = {0, (long)(seconds * 1e9)};
    syscall(SYS_futex, low_half(sleeps), WAIT_SHARED, 1, &length, NULL, 0);
#endif
}

/* Wake a rank for which something has moved, if it sleeps. One that lies down at the same moment
 * may not be seen here, and wakes by itself. */
static void wake(Word *sleeps)
{
#ifdef SYS_futex
    if (!own(sleeps)) return;
    set(sleeps, 0);
    syscall(SYS_futex, low_half(sleeps), WAKE_SHARED, INT_MAX, NULL, NULL, 0);
#endif
}

/* Whether fewer messages than that are unread. Asks the receiver only where it has to: its count
 * is in a cache line of its own. */
static int has_room(Near *n, uint64_t most)
{
    uint64_t published = own(n->out + PUBLISHED);
    if (published - n->read < most) return 1;
    n->read = get(n->out + READ);
    return published - n->read < most;
}

static inline Word *entry_of(Word *pipe, uint64_t count)
{
    return pipe + FIRST_ENTRY + ENTRY_WORDS * (count % ENTRIES);
}

static void publish(Program *p, Near *n, uint64_t location, uint64_t nbytes)
{
    uint64_t count = own(n->out + PUBLISHED);
    Word *entry = entry_of(n->out, count);
    atomic_store_explicit(entry + TAG, (uint64_t)p->tag, memory_order_relaxed);
    atomic_store_explicit(entry + LOCATION, location, memory_order_relaxed);
    atomic_store_explicit(entry + NBYTES, nbytes, memory_order_relaxed);
    set(entry + NUMBER, count + 1);
    atomic_store_explicit(n->out + PUBLISHED, count + 1, memory_order_relaxed);
    wake(n->sleeps);
    p->moved++;
}

/* The location of a message's memory, or NOWHERE. */
static int64_t location_of(const Program *p, const Instruction *i)
{
    if (!i->buffer[0]) return i->location;
    if (p->shift[i->buffer[0]] == NOWHERE) return NOWHERE;
    return (int64_t)(intptr_t)place(p, i, 0) + p->shift[i->buffer[0]];
}

/* The address here of a location there; NULL: Python has to map it. */
static char *address_of(Program *p, Near *n, uint64_t location)
{
    for (int32_t number = 0; number < n->segments; number++) {
        const Segment *s = n->segment + number;
        if (location >= s->begin && location < s->end) return s->address + (location - s->begin);
    }
    p->unknown_near = (int32_t)(n - p->near);
    p->unknown = location;
    return NULL;
}

/* The sender may have changed the memory of what was read before. The fence keeps the processor
 * from reading memory after the word: a load that acquires holds back later loads alone. */
static int has_given_up(const Near *n)
{
    atomic_thread_fence(memory_order_acquire);
    return get(n->in + GIVEN_UP) != 0;
}

/* One more message is read. */
static int count_read(Program *p, Near *n)
{
    if (has_given_up(n)) return PEER_GAVE_UP;
    set(n->in + READ, own(n->in + READ) + 1);
    wake(n->sleeps);
    p->moved++;
    return DONE;
}

/* The rank lets this one write to a place: the next write goes there. */
static int open_place(Program *p, Near *n, uint64_t location, uint64_t nbytes)
{
    if (n->opening < 0) return WAITS; /* it is for the next start of a plan */
    Message *m = p->message + n->opening;
    if (nbytes != (uint64_t)m->instruction->count) return WRONG_SIZE;
    m->landing = location;
    m->opened = 1;
    m->is_put = location != UNMAPPED;
    n->opening = m->next_write;
    p->moved++;
    return DONE;
}

/* DONE: *entry is the next message of this call from a rank. On the way, take the places that the
 * rank lets this one write to. */
static int next_entry(Program *p, Near *n, const Word **entry)
{
    if (!n->in) return WAITS;
    for (;;) {
        uint64_t count = own(n->in + READ);
        const Word *found = entry_of(n->in, count);
        if (get(found + NUMBER) != count + 1) return WAITS;
        if (own(found + TAG) != (uint64_t)p->tag) return WAITS; /* of another call */
        if (own(found + NBYTES) < OPEN) {
            *entry = found;
            return DONE;
        }
        int result = open_place(p, n, own(found + LOCATION), own(found + NBYTES) - OPEN);
        if (result == DONE) result = count_read(p, n);
        if (result != DONE) return result;
    }
}

/* Publish as much of a message as the pipe has room for. */
static int publish_some(Program *p, int32_t request)
{
    Message *m = p->message + request;
    const Instruction *i = m->instruction;
    Near *n = p->near + i->peer;
    if (i->code == NEAR_WRITTEN) {
        if (!has_room(n, ENTRIES)) return WAITS;
        int64_t location = location_of(p, i);
        publish(p, n, location == NOWHERE ? UNMAPPED : (uint64_t)location, i->count + OPEN);
        return DONE;
    }
    if (i->code == NEAR_WRITE) {
        if (!m->opened) {
            const Word *entry;
            int result = next_entry(p, n, &entry);
            if (!m->opened) return result == DONE ? WAITS : result;
        }
        if (m->is_put) {
            if (!has_room(n, ENTRIES)) return WAITS;
            char *target = address_of(p, n, m->landing);
            if (!target) return UNKNOWN_LOCATION;
            memcpy(target, place(p, i, 0), i->count);
            publish(p, n, WRITTEN, i->count);
            return DONE;
        }
    }
    int64_t location = location_of(p, i);
    m->distant = location == NOWHERE && i->count >= LARGE;
    if (location != NOWHERE || m->distant) {
        if (!has_room(n, ENTRIES)) return WAITS;
        publish(p, n, m->distant ? THROUGH_MPI : (uint64_t)location, i->count);
        m->last = own(n->out + PUBLISHED);
        return m->distant ? isend(p, request, i, n->rank) : DONE;
    }
    while (m->moved < i->count) {
        if (!has_room(n, i->slot_count)) return WAITS;
        uint64_t slot = own(n->out + PUBLISHED) % i->slot_count * i->slot_bytes;
        int64_t left = i->count - m->moved;
        int64_t piece = left < i->chunk ? left : i->chunk;
        memcpy((char *)(intptr_t)i->slots + slot, place(p, i, 0) + m->moved, piece);
        publish(p, n, i->slots_location + slot, piece);
        m->moved += piece;
    }
    return DONE;
}

/* Publish messages to a rank that wait, in their order. */
static int publish_waiting(Program *p, Near *n)
{
    while (n->first >= 0) {
        int result = publish_some(p, n->first);
        if (result != DONE) return result;
        Message *m = p->message + n->first;
        m->published = 1;
        n->first = m->behind;
    }
    return DONE;
}

static int publish_all(Program *p)
{
    for (int32_t number = 0; number < p->nears; number++) {
        int result = publish_waiting(p, p->near + number);
        if (result != DONE && result != WAITS) return result;
    }
    return DONE;
}

/* Take a part of a message from where it lies. */
static void take(const Program *p, const Instruction *i, const char *part, int64_t from,
                 int64_t nbytes)
{
    char *into = place(p, i, 0) + from;
    if (i->operand < 0) {
        if (into != part) memcpy(into, part, nbytes);
        return;
    }
    const char *other = place(p, i, 1) + from;
    TYPES[i->type].op[i->op](i->operand == LOWER ? part : other,
                             i->operand == LOWER ? other : part, into,
                             nbytes / TYPES[i->type].itemsize);
}

/* Take what has come of a message. */
static int receive(Program *p, int32_t request)
{
    Message *m = p->message + request;
    const Instruction *i = m->instruction;
    Near *n = p->near + i->peer;
    while (!m->distant) {
        int is_kept = n->kept_taken < n->keeps;
        const Word *entry = NULL;
        int result = is_kept ? DONE : next_entry(p, n, &entry);
        if (result != DONE) return result;
        const Kept *kept = n->kept + n->kept_taken;
        uint64_t location = is_kept ? kept->location : own(entry + LOCATION);
        int64_t nbytes = (int64_t)(is_kept ? kept->nbytes : own(entry + NBYTES));
        if (nbytes > i->count - m->moved) return WRONG_SIZE;
        if (location == THROUGH_MPI) {
            result = irecv(p, request, place(p, i, 2), i->count, n->rank);
            if (result != DONE) return result;
            m->distant = 1;
        } else if (location != WRITTEN) {
            const char *part = is_kept ? kept->address : address_of(p, n, location);
            if (!part) return UNKNOWN_LOCATION;
            take(p, i, part, m->moved, nbytes);
        }
        if (is_kept)
            n->kept_taken++;
        else if ((result = count_read(p, n)) != DONE)
            return result;
        m->moved += nbytes;
        if (m->moved == i->count && !m->distant) return DONE;
    }
    int result = test(p, request);
    if (result != DONE) return result;
    if (has_given_up(n)) return PEER_GAVE_UP;
    take(p, i, place(p, i, 2), 0, i->count);
    return DONE;
}

/* ---- The interpreter ----------------------------------------------------------------------- */

static int start_message(Program *p, const Instruction *i)
{
    Message *m = p->message + i->request;
    m->active = m->published = m->distant = 0;
    m->moved = 0;
    if (i->code == SEND) return isend(p, i->request, i, i->peer);
    if (i->code == RECV) return irecv(p, i->request, place(p, i, 0), i->count, i->peer);
    if (i->code == NEAR_RECV) return DONE;
    Near *n = p->near + i->peer;
    m->behind = -1;
    if (n->first < 0)
        n->first = i->request;
    else
        p->message[n->last].behind = i->request;
    n->last = i->request;
    int result = publish_waiting(p, n);
    /* what else it needs is seen to when something is awaited: the message stands in line */
    return result == WAITS || result == UNKNOWN_LOCATION ? DONE : result;
}

static int wait_for(Program *p, int32_t request)
{
    Message *m = p->message + request;
    const Instruction *i = m->instruction;
    /* whatever is awaited: ranks of the node may wait for what the pipes had no room for */
    int result = publish_all(p);
    if (result != DONE) return result;
    if (i->code == SEND || i->code == RECV) return test(p, request);
    if (i->code == NEAR_RECV || i->code == NEAR_WRITTEN) return receive(p, request);
    if (!m->published) return WAITS;
    if (m->distant) return test(p, request);
    if (m->is_put || m->moved == i->count) return DONE; /* it was copied */
    return get(p->near[i->peer].out + READ) >= m->last ? DONE : WAITS;
}

static int try_lock(Program *p)
{
    return !atomic_exchange_explicit(&p->locked, 1, memory_order_acquire);
}

static void unlock(Program *p) { atomic_store_explicit(&p->locked, 0, memory_order_release); }

/* From here on `attend` leaves it alone, until it is called anew. */
static void take_over(Program *p)
{
    while (!try_lock(p)) sched_yield();
    p->calls++;
    p->attended = p->unseen = 0;
    unlock(p);
}

/* The next instruction is the first. */
static void begin(Program *p, int64_t tag)
{
    take_over(p);
    p->tag = tag;
    p->next = 0;
    p->result = WAITS;
    p->still_since = 0;
    for (int32_t number = 0; number < p->requests; number++)
        p->message[number].active = p->message[number].opened = p->message[number].is_put = 0;
    for (int32_t number = 0; number < p->nears; number++) {
        p->near[number].first = -1;
        p->near[number].opening = p->near[number].first_write;
        p->near[number].keeps = p->near[number].kept_taken = 0;
    }
}

static int is_under_way(const Program *p) { return p->next < p->length; }

/* The same, for those who might begin another call. */
static int is_taken(Program *p)
{
    if (!try_lock(p)) return 1;
    int taken = is_under_way(p) || p->attended;
    unlock(p);
    return taken;
}

/* Execute until something is awaited that has not come. */
static int advance(Program *p)
{
    for (; p->next < p->length; p->next++) {
        const Instruction *i = p->code + p->next;
        int result = DONE;
        switch (i->code) {
        case WAIT:
            result = wait_for(p, i->request);
            break;
        case REDUCE:
            TYPES[i->type].op[i->op](place(p, i, 0), place(p, i, 1), place(p, i, 2), i->count);
            break;
        case COPY:
            memmove(place(p, i, 1), place(p, i, 0), i->count);
            break;
        case ENCODE:
            COMPRESSIONS[i->type].encode(place(p, i, 0), place(p, i, 1), i->count);
            break;
        case DECODE:
            COMPRESSIONS[i->type].decode(place(p, i, 0), place(p, i, 1), i->count);
            break;
        default:
            result = start_message(p, i);
        }
        if (result != DONE) return result;
        p->moved += i->code == WAIT;
    }
    return DONE;
}

/* Whether another rank has told something that Python has to see to: TOLD, or DONE. Lets MPI make
 * progress. tags: how many of those watched. */
static int look(Program *p, int tags)
{
    char status[STATUS_BYTES];
    for (int tag = 0; tag < tags && p->watched[tag] >= 0; tag++) {
        int found = 0;
        int error = mpi.Iprobe(mpi.any_source, p->watched[tag], p->comm, &found, status);
        if (error || found) return TOLD;
    }
    return DONE;
}

static int advance_and_look(Program *p)
{
    p->moved = 0;
    p->result = advance(p);
    /* a rank that gave up may have sent what was written there since */
    if (p->result == DONE && p->hears) p->result = look(p, 1);
    return p->result;
}

/* bytes and elements that are sent, copied and reduced in a moment */
enum { BRIEF = 16 << 10 };

/* seconds between two looks of one that waits */
static const double LOOK = 500e-6;
/* seconds without a move after which a rank that waits for a single call sleeps: to wake it takes
 * some microseconds, and others have its core meanwhile */
static const double AWAKE = 1e-3;

/* Say that this rank sleeps; 0 where nobody would wake it, as MPI has messages of the call. */
static int lie_down(Program *p)
{
    if (!p->nears) return 0;
    for (int32_t number = 0; number < p->requests; number++)
        if (p->message[number].active) return 0;
    atomic_store(p->sleeps, 1);
    return 1;
}

/* The same, and poll for as long as something moves at least every `patience` seconds. */
static int advance_for(Program *p, double patience)
{
    double began = 0, until = 0, looks = 0;
    int lies = 0;
    for (int polls = 1;; polls++) {
        advance_and_look(p);
        if (p->moved) p->still_since = 0;
        if (p->result == DONE || patience <= 0) return p->result;
        if (p->result != WAITS) {
            if (!p->moved && !p->still_since) p->still_since = seconds();
            return p->result;
        }
        if (p->moved) {
            until = 0;
            polls = lies = 0;
        } else if (lies) {
            sleep_on(p->sleeps, LOOK);
            lies = 0;
        } else if (polls > p->polls) {
            sched_yield();
        } else {
            RELAX();
        }
        if (polls % 16) continue;
        double now = seconds();
        if (!p->still_since) p->still_since = now;
        if (!until) {
            began = now;
            until = now + patience;
            looks = now + LOOK;
        }
        if (now >= until) return WAITS;
        if (now >= looks) {
            looks = now + LOOK;
            if (look(p, WATCHED) == TOLD) return p->result = TOLD;
        }
        lies = now - began > AWAKE && lie_down(p);
    }
}

/* Seconds without a move after which a task is made of a call that does not block: of most calls; of
 * one that sends and receives no more than SMALL_BYTES, all through shared memory; of a small one on
 * a core that others use, too. A task takes as long, and more there, as it takes the core from
 * others. */
static const double MOMENT = 10e-6, NEAR_MOMENT = 50e-6, SHARED_MOMENT = 500e-6, PLAN_MOMENT = 4e-6;
enum { SMALL_BYTES = 64 << 10 };
/* polls before a yield where messages come through MPI, too: its polls take as long as several */
enum { FEW_POLLS = 4 };
/* seconds between two looks at the clocks */
static const double SLICE = 1e-6;

/* The same for a call that does not block. */
static void advance_for_a_moment(Program *p, const double *moment)
{
    double began = 0, own = 0;
    for (int32_t next = -1;;) {
        if (p->next != next) {
            next = p->next;
            began = seconds();
            own = own_seconds();
        }
        advance_for(p, SLICE);
        if (p->result != WAITS) return;
        double waited = seconds() - began;
        int is_shared = own_seconds() - own < waited / 2;
        if (p->next == next && waited > moment[is_shared]) return;
    }
}

/* The same, briefly, without releasing the interpreter's lock, which takes as long as a small
 * message. */
static void advance_briefly(Program *p)
{
    for (int polls = 0; polls < p->brief && p->result == WAITS; polls++) {
        advance_and_look(p);
        if (p->moved) polls = 0;
    }
}

/* ---- Progress beside Python ------------------------------------------------------------------ */

/* When to poll, and for how long to pause, by the time between the last moves: the law and the
 * constants of progress/rhythm.py. `paused` shows what this makes of them, and a test compares it. */
typedef struct {
    double least, spin, longest;
    double moved, idle, idle_before, gap_before, patience;
    long moves;
} Rhythm;

/* One thread attends. */
static Rhythm rhythm;

static void start_rhythm(Rhythm *r, double now)
{
    r->moved = now;
    r->idle = r->idle_before = r->gap_before = 0;
    r->patience = r->longest;
    r->moves = 1;
}

/* Seconds since something moved. moves: how much just moved. */
static double still_for(Rhythm *r, long moves, double now)
{
    double still = now - r->moved;
    if (!moves) return still;
    if (still > r->spin) { /* else it came together with what moved before */
        r->gap_before = r->idle / r->moves;
        r->idle_before = r->idle;
        r->idle = still;
        r->moves = 0;
        double shorter = still < r->idle_before ? still : r->idle_before;
        r->patience = shorter > r->longest ? 0 : r->longest;
    }
    r->moves += moves;
    r->moved = now;
    return 0;
}

/* Seconds to pause. parts, most: see `Pace` there. */
static double pause_of(const Rhythm *r, int parts, double most)
{
    double gap = r->idle / r->moves;
    if (r->gap_before < gap) gap = r->gap_before;
    gap /= parts;
    if (gap < r->least) gap = r->least;
    return gap < most ? gap : most;
}

/* Another thread wants the attending one to return; whether there is one. */
static _Atomic uint32_t interrupted;
static _Atomic int attending;

static void sleep_for(double seconds)
{
    struct timespec length = {0, (long)(seconds * 1e9)};
#ifdef SYS_futex
    enum { WAIT_PRIVATE = 128 };
    syscall(SYS_futex, &interrupted, WAIT_PRIVATE, 0, &length, NULL, 0);
#else
    nanosleep(&length, NULL);
#endif
}

static void interrupt(void)
{
    atomic_store(&interrupted, 1);
#ifdef SYS_futex
    enum { WAKE_PRIVATE = 129 };
    if (atomic_load(&attending)) syscall(SYS_futex, &interrupted, WAKE_PRIVATE, 1, NULL, NULL, 0);
#endif
}

/* Advance it, unless another thread does; whether Python has to see to it. call: which one of the
 * program. */
static int attend_once(Program *p, long call, int looks, long *moves)
{
    if (!try_lock(p)) return 0;
    int is_due = 1;
    if (p->calls == call && is_under_way(p) && !p->unseen) {
        p->attended = 1;
        if (advance_and_look(p) == WAITS && looks && look(p, WATCHED) == TOLD) p->result = TOLD;
        *moves += (p->moved + 1) / 2; /* a step sends and receives */
        is_due = p->unseen = p->result != WAITS;
    }
    unlock(p);
    return is_due;
}

enum { ATTENDED = 16 };

/* Advance programs for so many seconds, or until Python has to see to one of them; whether nothing
 * had to be seen to at once. */
static int attend(Program **program, const long *call, int count, int parts, double most,
                  double length)
{
    double now = seconds(), until = now + length, looks = now;
    rhythm.moved = now;
    for (int polls = 0;; polls++) {
        long moves = 0;
        int is_due = 0, is_looking = now >= looks;
        if (is_looking) looks = now + LOOK;
        for (int n = 0; n < count; n++)
            is_due |= attend_once(program[n], call[n], is_looking, &moves);
        now = seconds();
        double still = still_for(&rhythm, moves, now);
        if (is_due || atomic_load(&interrupted) || now > until) return polls > 0;
        if (still > (rhythm.patience < rhythm.spin ? rhythm.patience : rhythm.spin))
            sleep_for(pause_of(&rhythm, parts, most));
    }
}

/* `advance_for` beside that: 0 where the other thread is at it, else *result and *next are set. */
static int advance_beside(Program *p, double patience, int *result, int *next)
{
    if (!try_lock(p)) return 0;
    *result = p->unseen ? p->result : advance_for(p, patience);
    *next = p->next;
    p->unseen = 0;
    if (!is_under_way(p)) p->attended = 0;
    unlock(p);
    return 1;
}

/* ---- Python -------------------------------------------------------------------------------- */

static const char CAPSULE[] = "mpicoll._engine.Program";

static void release(Program *p)
{
    if (!p) return;
    free(p->code);
    free(p->handles);
    free(p->message);
    for (int32_t number = 0; number < p->nears; number++) free(p->near[number].kept);
    free(p->near);
    free(p);
}

static Program *program_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

static void discard(PyObject *capsule)
{
    release(program_of(capsule));
}

PyDoc_STRVAR(setup_doc, "setup(Isend, Irecv, Test, Iprobe, byte, any_source, request_bytes)\n\n"
                        "Take the addresses of MPI's functions, the handle of MPI_BYTE, the number\n"
                        "MPI_ANY_SOURCE, and the size of a request.");
static PyObject *setup(PyObject *self, PyObject *args)
{
    unsigned long long isend, irecv, test, iprobe, byte;
    if (!PyArg_ParseTuple(args, "KKKKKin", &isend, &irecv, &test, &iprobe, &byte, &mpi.any_source,
                          &mpi.request_bytes))
        return NULL;
    mpi.Isend = (int (*)(const void *, int, Handle, int, int, Handle, void *))(uintptr_t)isend;
    mpi.Irecv = (int (*)(void *, int, Handle, int, int, Handle, void *))(uintptr_t)irecv;
    mpi.Test = (int (*)(void *, int *, void *))(uintptr_t)test;
    mpi.Iprobe = (int (*)(int, int, Handle, int *, void *))(uintptr_t)iprobe;
    mpi.byte = (Handle)byte;
    Py_RETURN_NONE;
}

static int reduces(const Instruction *i)
{
    return i->type >= 0 && i->type < KINDS && i->op >= 0 && i->op < OPS && TYPES[i->type].op[i->op];
}

/* What would write outside of the program's memory, or call nothing. */
static int is_valid(const Instruction *i, const Program *p)
{
    if (i->code < 0 || i->code >= CODES || i->count < 0) return 0;
    if (i->code <= WAIT && (i->request < 0 || i->request >= p->requests)) return 0;
    for (int number = 0; number < 3; number++)
        if (i->buffer[number] < 0 || i->buffer[number] >= BUFFERS) return 0;
    if (i->code == REDUCE) return reduces(i);
    if (i->code > COPY) return i->type >= 0 && i->type < COMPRESSION_KINDS;
    if (i->code >= WAIT) return 1;
    if (i->count > INT32_MAX) return 0;
    if (i->code == SEND || i->code == RECV) return 1;
    if (i->peer < 0 || i->peer >= p->nears || i->chunk <= 0 || i->slot_count <= 0) return 0;
    return i->operand < 0 || (i->operand <= HIGHER && reduces(i));
}

/* Link messages to their instructions, and the writes to one rank with each other. */
static int link_messages(Program *p)
{
    for (int32_t number = 0; number < p->nears; number++)
        p->near[number].first_write = p->near[number].first = -1;
    for (int32_t number = p->length - 1; number >= 0; number--) {
        const Instruction *i = p->code + number;
        if (i->code >= WAIT) continue;
        Message *m = p->message + i->request;
        if (m->instruction) return -1;
        m->instruction = i;
        m->next_write = -1;
        if (i->code != NEAR_WRITE) continue;
        Near *n = p->near + i->peer;
        m->next_write = n->first_write;
        n->first_write = i->request;
    }
    for (int32_t number = 0; number < p->requests; number++)
        if (!p->message[number].instruction) return -1;
    return 0;
}

PyDoc_STRVAR(program_doc,
             "program(code, requests, comm, sleeps, nears, polls, notice, account)\n\n"
             "A program of packed instructions. comm: the communicator's handle; sleeps: the\n"
             "address of the word by which this process says that it sleeps; nears: of each rank\n"
             "of the node the addresses of the pipes to it and from it, and of that word, and its\n"
             "number in comm; polls: how often a waiting rank looks before it yields its core, less\n"
             "often where messages come through MPI; notice, account: the tags of messages that\n"
             "Python receives when `advance` returns TOLD, or -1.");
static PyObject *program(PyObject *self, PyObject *args)
{
    PyObject *code_bytes, *near_bytes;
    char *code, *nears;
    Py_ssize_t nbytes, nears_bytes;
    int requests, polls, notice, account;
    unsigned long long comm, sleeps;
    /* no format with #: compiled with Python 3.13 or later it would not run on earlier ones */
    if (!PyArg_ParseTuple(args, "SiKKSiii", &code_bytes, &requests, &comm, &sleeps, &near_bytes,
                          &polls, &notice, &account) ||
        PyBytes_AsStringAndSize(code_bytes, &code, &nbytes) ||
        PyBytes_AsStringAndSize(near_bytes, &nears, &nears_bytes))
        return NULL;
    const int64_t *row = (const int64_t *)nears;
    Program *p = calloc(1, sizeof *p);
    if (!p) return PyErr_NoMemory();
    p->length = (int32_t)(nbytes / sizeof(Instruction));
    p->requests = requests;
    p->next = p->length;
    p->comm = (Handle)comm;
    p->watched[NOTICE] = notice;
    p->watched[ACCOUNT] = account;
    p->sleeps = (Word *)(uintptr_t)sleeps;
    p->nears = (int32_t)(nears_bytes / (4 * sizeof *row));
    p->code = malloc(nbytes + 1);
    p->handles = calloc(requests + 1, mpi.request_bytes);
    p->message = calloc(requests + 1, sizeof *p->message);
    p->near = calloc(p->nears + 1, sizeof *p->near);
    if (!p->code || !p->handles || !p->message || !p->near) {
        release(p);
        return PyErr_NoMemory();
    }
    memcpy(p->code, code, nbytes);
    for (int32_t number = 0; number < p->nears; number++, row += 4) {
        p->near[number].out = (Word *)(intptr_t)row[0];
        p->near[number].in = (Word *)(intptr_t)row[1];
        p->near[number].sleeps = (Word *)(intptr_t)row[2];
        p->near[number].rank = (int32_t)row[3];
    }
    uint64_t work = 0, moved = 0;
    int is_near = 1;
    for (int32_t number = 0; number < p->length; number++) {
        const Instruction *i = p->code + number;
        p->hears |= i->code == RECV;
        is_near &= i->code != SEND && i->code != RECV;
        work += (uint64_t)i->count;
        if (i->code < WAIT) moved += (uint64_t)i->count;
        if (!is_valid(i, p)) {
            release(p);
            return PyErr_Format(PyExc_ValueError, "instruction %d of the program is invalid",
                                (int)number);
        }
    }
    p->polls = is_near || polls < FEW_POLLS ? polls : FEW_POLLS;
    p->brief = is_near && work < BRIEF ? polls : 0;
    p->moment[0] = is_near && moved <= SMALL_BYTES ? NEAR_MOMENT : MOMENT;
    p->moment[1] = moved <= SMALL_BYTES ? SHARED_MOMENT : MOMENT;
    if (link_messages(p)) {
        release(p);
        return PyErr_Format(PyExc_ValueError, "each request belongs to one message");
    }
    PyObject *capsule = PyCapsule_New(p, CAPSULE, discard);
    if (!capsule) release(p);
    return capsule;
}

/* Where the buffers of a call lie; -1 and an exception. */
static int take_buffers(PyObject *buffers, char **buffer, int64_t *shift)
{
    Py_ssize_t count = PyTuple_Size(buffers);
    if (count >= BUFFERS) {
        PyErr_Format(PyExc_ValueError, "too many buffers");
        return -1;
    }
    for (Py_ssize_t number = 0; number < count; number++) {
        unsigned long long address;
        long long distance;
        if (!PyArg_ParseTuple(PyTuple_GetItem(buffers, number), "KL", &address, &distance))
            return -1;
        buffer[number + 1] = (char *)(uintptr_t)address;
        shift[number + 1] = distance;
    }
    return 0;
}

PyDoc_STRVAR(start_doc, "start(program, tag, buffers)\n\n"
                        "Begin at the first instruction. buffers: of each buffer of the call the\n"
                        "address, and location minus address, or -1 where it is not shared.\n"
                        "Returns the number of the call, for `attend`.");
static PyObject *start(PyObject *self, PyObject *args)
{
    PyObject *capsule, *buffers;
    long long tag;
    if (!PyArg_ParseTuple(args, "OLO!", &capsule, &tag, &PyTuple_Type, &buffers)) return NULL;
    Program *p = program_of(capsule);
    if (!p || take_buffers(buffers, p->buffer, p->shift)) return NULL;
    begin(p, tag);
    return PyLong_FromLong(p->calls);
}

PyDoc_STRVAR(advance_doc,
             "advance(program, seconds)\n\n"
             "Execute until something is awaited that does not come within so many seconds.\n"
             "Returns (result, next instruction), or None while another thread advances it. The\n"
             "result is 0, an error of MPI, or one of UNKNOWN_LOCATION, PEER_GAVE_UP, WRONG_SIZE\n"
             "and TOLD.");
static PyObject *advance_from_python(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    double patience;
    if (!PyArg_ParseTuple(args, "Od", &capsule, &patience)) return NULL;
    Program *p = program_of(capsule);
    if (!p) return NULL;
    int has_advanced, result, next;
    Py_BEGIN_ALLOW_THREADS
    has_advanced = advance_beside(p, patience, &result, &next);
    Py_END_ALLOW_THREADS
    if (!has_advanced) Py_RETURN_NONE;
    return Py_BuildValue("ii", result == DONE ? 0 : result, next);
}

PyDoc_STRVAR(setup_rhythm_doc, "setup_rhythm(least, spin, patience)\n\n"
                               "Seconds, as of progress/rhythm.py.");
static PyObject *setup_rhythm(PyObject *self, PyObject *args)
{
    if (!PyArg_ParseTuple(args, "ddd", &rhythm.least, &rhythm.spin, &rhythm.longest)) return NULL;
    start_rhythm(&rhythm, seconds());
    Py_RETURN_NONE;
}

PyDoc_STRVAR(paused_doc, "paused(constants, idle, parts, most)\n\n"
                         "(patience, pause) after moves, of a rhythm of its own. constants: as of\n"
                         "`setup_rhythm`; idle: of each move (seconds since the last one, how much\n"
                         "moved); parts, most: of a pace.");
static PyObject *paused(PyObject *self, PyObject *args)
{
    Rhythm r;
    PyObject *idle;
    int parts;
    double most, now = 0, passed;
    long moves;
    if (!PyArg_ParseTuple(args, "(ddd)O!id", &r.least, &r.spin, &r.longest, &PyList_Type, &idle,
                          &parts, &most))
        return NULL;
    start_rhythm(&r, now);
    for (Py_ssize_t n = 0; n < PyList_Size(idle); n++) {
        if (!PyArg_ParseTuple(PyList_GetItem(idle, n), "dl", &passed, &moves)) return NULL;
        now += passed;
        still_for(&r, moves, now);
    }
    return Py_BuildValue("dd", r.patience, pause_of(&r, parts, most));
}

PyDoc_STRVAR(attend_doc, "attend(calls, parts, most, seconds)\n\n"
                         "Advance (program, number of the call) whose messages all go through MPI, for\n"
                         "so many seconds, or until `advance` has something to tell. parts, most: of\n"
                         "a pace, see progress/rhythm.py. Returns False where there was something to tell at once.");
static PyObject *attend_from_python(PyObject *self, PyObject *args)
{
    PyObject *calls, *capsule;
    Program *program[ATTENDED];
    long call[ATTENDED];
    int parts;
    double most, length;
    if (!PyArg_ParseTuple(args, "O!idd", &PyTuple_Type, &calls, &parts, &most, &length))
        return NULL;
    Py_ssize_t count = PyTuple_Size(calls);
    if (count > ATTENDED) Py_RETURN_FALSE;
    for (Py_ssize_t n = 0; n < count; n++)
        if (!PyArg_ParseTuple(PyTuple_GetItem(calls, n), "Ol", &capsule, call + n) ||
            !(program[n] = program_of(capsule)))
            return NULL;
    int has_waited;
    atomic_store(&attending, 1);
    Py_BEGIN_ALLOW_THREADS
    has_waited = attend(program, call, (int)count, parts, most, length);
    Py_END_ALLOW_THREADS
    atomic_store(&attending, 0);
    atomic_store(&interrupted, 0);
    return PyBool_FromLong(has_waited);
}

PyDoc_STRVAR(interrupt_doc, "interrupt()\n\n"
                            "Let `attend` return in another thread, or at once if it is called next.");
static PyObject *interrupt_from_python(PyObject *self, PyObject *unused)
{
    interrupt();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(reached_doc, "reached(program)\n\n"
                          "What `advance` returned, the seconds for which nothing has moved, and the\n"
                          "number of the call.");
static PyObject *reached(PyObject *self, PyObject *capsule)
{
    Program *p = program_of(capsule);
    if (!p) return NULL;
    double still = p->still_since ? seconds() - p->still_since : 0;
    return Py_BuildValue("iidl", p->result == DONE ? 0 : p->result, (int)p->next, still, p->calls);
}

/* The near rank of this number, or NULL and an exception. */
static Near *near_of(Program *p, int number)
{
    if (!p) return NULL;
    if (number >= 0 && number < p->nears) return p->near + number;
    PyErr_Format(PyExc_ValueError, "no near rank %d", number);
    return NULL;
}

PyDoc_STRVAR(found_doc, "found(program, near, address)\n\n"
                        "The rank has created the pipe from it, whose words are at the address.");
static PyObject *found(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    int number;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "OiK", &capsule, &number, &address)) return NULL;
    Near *n = near_of(program_of(capsule), number);
    if (!n) return NULL;
    n->in = (Word *)(uintptr_t)address;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(unknown_doc, "unknown(program)\n\n"
                          "(near rank, location) after UNKNOWN_LOCATION.");
static PyObject *unknown(PyObject *self, PyObject *capsule)
{
    Program *p = program_of(capsule);
    if (!p) return NULL;
    return Py_BuildValue("iK", (int)p->unknown_near, (unsigned long long)p->unknown);
}

PyDoc_STRVAR(mapped_doc, "mapped(program, near, begin, end, address)\n\n"
                         "These locations of the rank are mapped at the address.");
static PyObject *mapped(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    int number;
    unsigned long long begin, end, address;
    if (!PyArg_ParseTuple(args, "OiKKK", &capsule, &number, &begin, &end, &address)) return NULL;
    Near *n = near_of(program_of(capsule), number);
    if (!n) return NULL;
    if (n->segments == SEGMENTS) /* forget the oldest */
        memmove(n->segment, n->segment + 1, --n->segments * sizeof *n->segment);
    n->segment[n->segments++] = (Segment){begin, end, (char *)(uintptr_t)address};
    Py_RETURN_NONE;
}

PyDoc_STRVAR(opened_doc, "opened(program, near, location, bytes)\n\n"
                         "Python has found the place that a rank lets the next write go to. Returns\n"
                         "whether there is such a write.");
static PyObject *opened(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    int number;
    unsigned long long location, nbytes;
    if (!PyArg_ParseTuple(args, "OiKK", &capsule, &number, &location, &nbytes)) return NULL;
    Near *n = near_of(program_of(capsule), number);
    if (!n) return NULL;
    return PyBool_FromLong(open_place(program_of(capsule), n, location, nbytes) == DONE);
}

PyDoc_STRVAR(keep_doc, "keep(program, near, location, bytes, address)\n\n"
                       "Python has set the next message from a rank aside: its entry, and the address\n"
                       "of its copy, which lives as long as the call.");
static PyObject *keep(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    int number;
    unsigned long long location, nbytes, address;
    if (!PyArg_ParseTuple(args, "OiKKK", &capsule, &number, &location, &nbytes, &address))
        return NULL;
    Near *n = near_of(program_of(capsule), number);
    if (!n) return NULL;
    Kept *more = realloc(n->kept, (n->keeps + 1) * sizeof *more);
    if (!more) return PyErr_NoMemory();
    n->kept = more;
    more[n->keeps++] = (Kept){location, nbytes, (char *)(uintptr_t)address};
    Py_RETURN_NONE;
}

PyDoc_STRVAR(kept_taken_doc, "kept_taken(program, near)\n\n"
                             "How many of the messages were taken that were set aside.");
static PyObject *kept_taken(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    int number;
    if (!PyArg_ParseTuple(args, "Oi", &capsule, &number)) return NULL;
    Near *n = near_of(program_of(capsule), number);
    return n ? PyLong_FromLong(n->kept_taken) : NULL;
}

PyDoc_STRVAR(taken_doc, "take_requests(program)\n\n"
                        "{number: the handle's bytes} of the requests that MPI has not ended,\n"
                        "which the program no longer tests.");
static PyObject *take_requests(PyObject *self, PyObject *capsule)
{
    Program *p = program_of(capsule);
    PyObject *taken = p ? PyDict_New() : NULL;
    if (taken) take_over(p);
    for (int32_t number = 0; taken && number < p->requests; number++) {
        if (!p->message[number].active) continue;
        p->message[number].active = 0;
        PyObject *key = PyLong_FromLong(number);
        PyObject *bytes = PyBytes_FromStringAndSize(handle(p, number), mpi.request_bytes);
        if (!key || !bytes || PyDict_SetItem(taken, key, bytes)) Py_CLEAR(taken);
        Py_XDECREF(key);
        Py_XDECREF(bytes);
    }
    return taken;
}

PyDoc_STRVAR(forget_doc, "forget(program)\n\n"
                         "Its scratch serves other calls from now on: no door uses it.");
static PyObject *forget(PyObject *self, PyObject *capsule)
{
    Program *p = program_of(capsule);
    if (!p) return NULL;
    p->freed = 1;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(under_way_doc, "is_under_way(program)\n\n"
                            "Whether it has begun and not ended.");
static PyObject *is_under_way_from_python(PyObject *self, PyObject *capsule)
{
    Program *p = program_of(capsule);
    return p ? PyBool_FromLong(is_taken(p)) : NULL;
}

/* ---- Ledgers: what doors and Python's recorder both write -------------------------------------- */

typedef struct {
    PyObject_HEAD
    /* see failure/recorder.py */
    unsigned long long count, places, sequence;
    char is_hashed;
    /* the communicator serves no further call */
    char is_closed;
    /* a call is in a door, the last of `passed` */
    char is_passing;
    /* of so many calls, one is compared, 0: none; the place of the last one that was */
    unsigned long long every, compared_at;
    /* messages and bytes that were sent by calls through doors; the thread of the last one */
    unsigned long long messages, nbytes, thread;
    /* starts of plans are recorded, too */
    char lists_all;
} Ledger;

static PyMemberDef ledger_members[] = {
    {"count", T_ULONGLONG, offsetof(Ledger, count), 0, "calls begun so far"},
    {"places", T_ULONGLONG, offsetof(Ledger, places), 0, "those of them that have places"},
    {"sequence", T_ULONGLONG, offsetof(Ledger, sequence), 0, "a hash of these, in their order"},
    {"is_hashed", T_BOOL, offsetof(Ledger, is_hashed), 0, "whether `sequence` is kept"},
    {"is_closed", T_BOOL, offsetof(Ledger, is_closed), 0, "whether doors serve no call"},
    {"is_passing", T_BOOL, offsetof(Ledger, is_passing), 0, "whether a call is in a door"},
    {"every", T_ULONGLONG, offsetof(Ledger, every), 0, "of so many calls, one is compared"},
    {"compared_at", T_ULONGLONG, offsetof(Ledger, compared_at), 0, "the place of the last one"},
    {"messages", T_ULONGLONG, offsetof(Ledger, messages), 0, "sent by calls through doors"},
    {"nbytes", T_ULONGLONG, offsetof(Ledger, nbytes), 0, "the same in bytes"},
    {"thread", T_ULONGLONG, offsetof(Ledger, thread), 0, "of the last call through a door"},
    {"lists_all", T_BOOL, offsetof(Ledger, lists_all), 0, "whether starts of plans are recorded"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot ledger_slots[] = {
    {Py_tp_doc, "The counts of a communicator's calls."},
    {Py_tp_members, ledger_members},
    {0, NULL},
};
static PyType_Spec ledger_spec = {
    "mpicoll._engine.Ledger", sizeof(Ledger), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    ledger_slots,
};

/* zlib's crc32 */
static uint32_t crc_table[256];

static void make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++) rest = rest & 1 ? rest >> 1 ^ 0xEDB88320u : rest >> 1;
        crc_table[byte] = rest;
    }
}

static uint32_t crc32(const unsigned char *bytes, size_t count, uint32_t crc)
{
    crc = ~crc;
    while (count--) crc = crc_table[(crc ^ *bytes++) & 0xFF] ^ crc >> 8;
    return ~crc;
}

/* ---- Doors: repeated calls without Python ---------------------------------------------------- */

/* The head of NumPy's arrays, which no header of ours may include. `array_fields` shows what is
 * read there, and engine/library.py compares it with what NumPy says: else no door opens. */
typedef struct {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions, *strides;
    PyObject *base, *descr;
    int flags;
} Array;
enum { IS_CONTIGUOUS = 3 };

static struct {
    PyObject *array_type;
    /* changes whenever an address may have another location */
    const uint64_t *epoch;
} numpy;

static Py_ssize_t elements_of(const Array *a)
{
    Py_ssize_t count = 1;
    for (int n = 0; n < a->nd; n++) count *= a->dimensions[n];
    return count;
}

enum { LISTED = 3 };

/* an argument of a known call: an object, an array, or a list of an array and what mpi4py takes
 * beside it: perhaps a count, and a type */
typedef struct {
    PyObject *object;
    /* of a list; 0: it is none */
    Py_ssize_t items;
    PyObject *beside[LISTED - 1];
    char *data;
    Py_ssize_t elements, nbytes;
    PyObject *descr;
    int flags;
} Argument;

enum { ARGUMENTS = 6, MARK_BYTES = 8, KNOWN = 16, TRACKS = 4, PARAMETERS = 8 };

/* a function of MPI whose parameters are addresses, handles, and numbers that are not negative: a
 * register holds any of them */
typedef struct {
    uintptr_t function;
    int count;
    uintptr_t value[PARAMETERS];
    /* of each array, the parameter that is its address */
    int address[BUFFERS];
} Native;

/* a call that was served before */
typedef struct {
    int count;
    Argument argument[ARGUMENTS];
    PyObject *mark;
    /* by MPI's own function, if there is one */
    Native native;
    /* or by the programs of `operation`: calls take turns in them, by their numbers; of a plan,
     * which has a tag of its own, by one */
    PyObject *capsules, *operation;
    int tracks;
    Program *program[TRACKS];
    unsigned char hash[MARK_BYTES];
    /* the tag of call 0, or of the plan */
    int64_t tag;
    uint64_t epoch;
    /* arrays elsewhere will do: nothing of the call is shared with other processes */
    int moves;
    char *buffer[BUFFERS];
    int64_t shift[BUFFERS];
    unsigned long long messages, nbytes;
    /* seconds for which it waits; then Python looks around. -1: for a moment */
    double patience;
} Known;

enum {
    LEDGER,
    /* numbers of calls; marks of calls that are not recorded; listeners to all */
    CALLS, PASSED, LISTENERS,
    /* remember_passed(); finish(operation, tag, mark, arguments, raised);
     * interrupted(operation, error): whether `finish` is to be called again; fail(code, arguments) */
    REMEMBER_PASSED, FINISH, INTERRUPTED, FAIL,
    /* its calls begin where these lists are empty, and this backoff, or None, has nothing aside */
    LISTS, BACKOFF,
    /* of plans: the unattended ones, holds that let none begin, all tasks, and the lock of the
     * thread that advances them */
    UNATTENDED, HOLDS, TASKS, TURN,
    HELD
};

typedef struct {
    PyObject_HEAD
    PyObject *held[HELD];
    /* (number, tag) of the last calls begun: see transport/channel.py */
    int64_t *begun;
    int64_t recent;
    int half;
    Py_ssize_t most_passed;
    /* the newest first */
    int knows;
    Known *known[KNOWN];
    /* of a plan: whether its last start has begun here, and has ended here */
    char has_begun, has_ended;
} Door;

static void forget_known(Known *k)
{
    for (int n = 0; n < k->count; n++) {
        Py_XDECREF(k->argument[n].object);
        Py_XDECREF(k->argument[n].descr);
        for (int item = 0; item < LISTED - 1; item++) Py_XDECREF(k->argument[n].beside[item]);
    }
    Py_XDECREF(k->capsules);
    Py_XDECREF(k->operation);
    Py_XDECREF(k->mark);
    free(k);
}

static PyObject *door_clear(PyObject *self, PyObject *unused)
{
    Door *d = (Door *)self;
    while (d->knows) forget_known(d->known[--d->knows]);
    Py_RETURN_NONE;
}

static int door_traverse(PyObject *self, visitproc visit, void *arg)
{
    Door *d = (Door *)self;
    for (size_t n = 0; n < HELD; n++) Py_VISIT(d->held[n]);
    for (int at = 0; at < d->knows; at++) Py_VISIT(d->known[at]->operation);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int door_break(PyObject *self)
{
    Door *d = (Door *)self;
    Py_XDECREF(door_clear(self, NULL));
    for (size_t n = 0; n < HELD; n++) Py_CLEAR(d->held[n]);
    return 0;
}

static void door_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    door_break(self);
    freefunc release_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release_memory(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(door_doc,
             "Door(ledger, calls, passed, listeners, remember_passed, finish, interrupted, fail,\n"
             "     lists, backoff, unattended, holds, tasks, turn, begun, recent, half,\n"
             "     most_passed)\n\n"
             "Serves the calls of one method that it knows, where all `lists` are empty, and\n"
             "`backoff.aside` is 0; backoff may be None. It knows what its arguments refer to, and\n"
             "keeps it alive, but for arrays. For plans: see `Progress.rooms`.");
static PyObject *door_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *held[HELD];
    unsigned long long begun;
    long long recent;
    int half;
    Py_ssize_t most;
    if (!PyArg_ParseTuple(args, "OOO!O!OOOOO!OO!O!O!OKLin", held, held + CALLS, &PyList_Type,
                          held + PASSED, &PyList_Type, held + LISTENERS, held + REMEMBER_PASSED,
                          held + FINISH, held + INTERRUPTED, held + FAIL, &PyTuple_Type,
                          held + LISTS, held + BACKOFF, &PyList_Type, held + UNATTENDED,
                          &PyList_Type, held + HOLDS, &PyList_Type, held + TASKS, held + TURN,
                          &begun, &recent, &half, &most))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Door *d = (Door *)allocate(type, 0);
    if (!d) return NULL;
    for (size_t n = 0; n < HELD; n++) {
        d->held[n] = held[n];
        Py_INCREF(held[n]);
    }
    d->begun = (int64_t *)(uintptr_t)begun;
    d->recent = recent;
    d->half = half;
    d->most_passed = most;
    return (PyObject *)d;
}

static int is_array(PyObject *object)
{
    return (PyObject *)Py_TYPE(object) == numpy.array_type;
}

/* How many items a list or a tuple has; 0: it is another object. */
static Py_ssize_t items_of(PyObject *object)
{
    if (PyList_CheckExact(object)) return PyList_Size(object);
    return PyTuple_CheckExact(object) ? PyTuple_Size(object) : 0;
}

static PyObject *item_of(PyObject *list, Py_ssize_t n)
{
    return PyList_CheckExact(list) ? PyList_GetItem(list, n) : PyTuple_GetItem(list, n);
}

/* The array of an argument, perhaps in a list; NULL: there is none. */
static PyObject *array_of(PyObject *object)
{
    if (items_of(object)) object = item_of(object, 0);
    return is_array(object) ? object : NULL;
}

static int is_same(PyObject *known, PyObject *object)
{
    if (known == object) return 1;
    /* a root, or a count: small integers only are one object each */
    return PyLong_CheckExact(object) && PyLong_CheckExact(known) &&
           PyObject_RichCompareBool(object, known, Py_EQ) == 1;
}

/* Whether an argument is the same, except for where an array lies. */
static int is_alike(const Argument *a, PyObject *object)
{
    if (a->object) return is_same(a->object, object);
    const Array *array = (const Array *)array_of(object);
    if (!array || items_of(object) != a->items) return 0;
    for (Py_ssize_t n = 1; n < a->items; n++)
        if (!is_same(a->beside[n - 1], item_of(object, n))) return 0;
    return array->descr == a->descr && array->flags == a->flags &&
           elements_of(array) == a->elements;
}

/* Whether an address has the alignment that elements of the argument had. In a list the type of
 * MPI may be another one than the array's, of which NumPy says whether it is aligned. */
static int is_aligned_as(const Argument *a, const char *data)
{
    uintptr_t bytes = (uintptr_t)a->nbytes | _Alignof(double);
    uintptr_t power_of_two = bytes & -bytes; /* the largest that divides both, of elements, too */
    return !a->items || !(((uintptr_t)data - (uintptr_t)a->data) & (power_of_two - 1));
}

/* Whether arrays elsewhere may take the place of those of the known call: as these, any two of them
 * are the same memory, or apart. */
static int may_move(const Known *k, PyObject *const *args)
{
    if (!k->moves) return 0;
    for (int n = 0; n < k->count; n++) {
        const Argument *a = k->argument + n;
        if (!a->object && !is_aligned_as(a, ((Array *)args[n])->data)) return 0;
    }
    for (int n = 1; n < k->count; n++)
        for (int m = 0; m < n; m++) {
            const Argument *a = k->argument + m, *b = k->argument + n;
            if (a->object || b->object) continue;
            const char *x = ((Array *)args[m])->data, *y = ((Array *)args[n])->data;
            if (a->data == b->data ? x != y : x < y + b->nbytes && y < x + a->nbytes) return 0;
        }
    return 1;
}

/* The known call with these arguments; plain: the arguments, with arrays in place of lists; buffer,
 * shift: where its arrays lie now. */
static Known *find(Door *d, PyObject *const *args, Py_ssize_t count, PyObject **plain,
                   char **buffer, int64_t *shift)
{
    for (int at = 0; at < d->knows; at++) {
        Known *k = d->known[at];
        int n = 0, moved = 0, arrays = 0;
        if (k->count != count) continue;
        while (n < count && is_alike(k->argument + n, args[n])) n++;
        if (n < count) continue;
        if (k->tracks && (k->program[0]->freed || k->epoch != *numpy.epoch)) {
            d->known[at] = d->known[--d->knows];
            forget_known(k);
            return NULL;
        }
        memcpy(buffer, k->buffer, sizeof k->buffer);
        memcpy(shift, k->shift, sizeof k->shift);
        for (n = 0; n < count; n++) {
            plain[n] = k->argument[n].object ? args[n] : array_of(args[n]);
            if (k->argument[n].object) continue;
            char *data = ((Array *)plain[n])->data;
            moved |= data != k->argument[n].data;
            buffer[++arrays] = data;
        }
        if (!moved || may_move(k, plain)) return k;
    }
    return NULL;
}

/* Whether a call like it has not ended. */
static int is_busy(const Known *k)
{
    for (int track = 0; track < k->tracks; track++)
        if (is_taken(k->program[track])) return 1;
    return 0;
}

/* Whether the next call is one that ranks compare, of those that MPI's own functions serve. Where
 * ranks compare all calls, messages of schedules name theirs. */
static int is_due(const Ledger *l)
{
    return l->every && l->places + 1 - l->compared_at >= l->every;
}

/* Give the call its place. */
static void enter(Door *d, const Known *k)
{
    Ledger *l = (Ledger *)d->held[LEDGER];
    l->count++;
    l->places++;
    if (l->is_hashed) l->sequence = crc32(k->hash, MARK_BYTES, (uint32_t)l->sequence);
    l->thread = PyThread_get_thread_ident();
    l->is_passing = 1;
}

/* Give the call its number and its place; returns its tag, or -1 and an exception. */
static int64_t enter_numbered(Door *d, const Known *k)
{
    PyObject *next = PyIter_Next(d->held[CALLS]);
    if (!next) return -1;
    long long number = PyLong_AsLongLong(next);
    Py_DECREF(next);
    enter(d, k);
    Ledger *l = (Ledger *)d->held[LEDGER];
    long long mask = (1LL << d->half) - 1;
    int64_t sequence = (int64_t)l->sequence;
    int64_t tag = (k->tag | (number & mask) << d->half) ^ (sequence & mask);
    tag |= sequence >> d->half << 32;
    d->begun[2 * (number & d->recent)] = number;
    d->begun[2 * (number & d->recent) + 1] = tag;
    return tag;
}

/* The exception that was raised, as a new reference. */
static PyObject *taken_error(void)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return value;
}

/* What signal handlers raise now, as a new reference, or None. They run here and not at the first
 * step of `finish`. */
static PyObject *raised_by_handlers(void)
{
    if (!PyErr_CheckSignals()) Py_RETURN_NONE;
    return taken_error();
}

static PyObject *tuple_of(PyObject *const *args, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t n = 0; tuple && n < count; n++) {
        Py_INCREF(args[n]);
        PyTuple_SetItem(tuple, n, args[n]);
    }
    return tuple;
}

/* How often what signal handlers raise may interrupt `interrupted`. */
enum { INTERRUPTIONS = 100 };

/* Whether a call that an exception has ended goes on. */
static int goes_on(Door *d, PyObject *operation, PyObject *error)
{
    PyObject *told = NULL;
    for (int n = 0; !told && n < INTERRUPTIONS; n++) {
        told = PyObject_CallFunctionObjArgs(d->held[INTERRUPTED], operation, error, NULL);
        if (!told) PyErr_Clear();
    }
    int result = told && PyObject_IsTrue(told) == 1;
    Py_XDECREF(told);
    return result;
}

/* What does not end soon is awaited by Python, which looks around meanwhile. Returns what that
 * returns. A signal handler may raise in any line of it. */
static PyObject *finish(Door *d, PyObject *operation, PyObject *mark, int64_t tag,
                        PyObject *const *args, Py_ssize_t count)
{
    PyObject *tuple = tuple_of(args, count), *done = NULL;
    if (!tuple) return NULL;
    PyObject *raised = raised_by_handlers();
    for (;;) {
        done = PyObject_CallFunction(d->held[FINISH], "OLOOO", operation, (long long)tag, mark,
                                     tuple, raised);
        if (done) break;
        Py_DECREF(raised);
        raised = taken_error();
        if (goes_on(d, operation, raised)) continue;
        PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
        break;
    }
    Py_DECREF(tuple);
    Py_DECREF(raised);
    return done;
}

/* Execute the program of a known call, which has begun, for as long as it waits. */
static void advance_known(Ledger *l, const Known *k, Program *p)
{
    double patience = k->patience; /* another thread may have the door forget the call meanwhile */
    l->messages += k->messages;
    l->nbytes += k->nbytes;
    advance_briefly(p);
    if (p->result == WAITS) {
        Py_BEGIN_ALLOW_THREADS
        if (patience < 0)
            advance_for_a_moment(p, p->moment);
        else
            advance_for(p, patience);
        Py_END_ALLOW_THREADS
    }
}

/* Execute the programs of a known call; True, or what `finish` returns. */
static PyObject *execute(Door *d, const Known *k, PyObject *const *args, Py_ssize_t count,
                         char *const *buffer, const int64_t *shift)
{
    int64_t tag = enter_numbered(d, k);
    if (tag < 0) return NULL;
    Program *p = k->program[(tag >> d->half) % k->tracks];
    memcpy(p->buffer, buffer, sizeof p->buffer);
    memcpy(p->shift, shift, sizeof p->shift);
    begin(p, tag);
    /* another thread may have the door forget the call meanwhile */
    PyObject *capsules = k->capsules, *operation = k->operation, *mark = k->mark;
    Py_INCREF(capsules);
    Py_INCREF(operation);
    Py_INCREF(mark);
    Ledger *l = (Ledger *)d->held[LEDGER];
    advance_known(l, k, p);
    PyObject *served = Py_True;
    if (p->result == DONE)
        Py_INCREF(served);
    else
        served = finish(d, operation, mark, tag, args, count);
    l->is_passing = 0;
    Py_DECREF(capsules);
    Py_DECREF(operation);
    Py_DECREF(mark);
    return served;
}

static PyObject *aside_name;

/* Whether other calls come first, or Python has messages of this one; -1 and an exception. */
static int is_hindered(const Door *d)
{
    for (Py_ssize_t n = 0; n < PyTuple_Size(d->held[LISTS]); n++)
        if (PyList_Size(PyTuple_GetItem(d->held[LISTS], n))) return 1;
    if (d->held[BACKOFF] == Py_None) return 0;
    PyObject *aside = PyObject_GetAttr(d->held[BACKOFF], aside_name);
    int result = aside ? PyObject_IsTrue(aside) : -1;
    Py_XDECREF(aside);
    return result;
}

static PyObject *acquire_name, *release_name;

/* Take the turn, if no other thread has it; whether it is taken, or -1 and an exception. No signal
 * handler runs before it is returned: they run between two lines of Python. */
static int take_turn(Door *d)
{
    PyObject *taken = PyObject_CallMethodObjArgs(d->held[TURN], acquire_name, Py_False, NULL);
    int result = taken ? PyObject_IsTrue(taken) : -1;
    Py_XDECREF(taken);
    return result;
}

static int return_turn(Door *d)
{
    PyObject *none = PyObject_CallMethodObjArgs(d->held[TURN], release_name, NULL);
    Py_XDECREF(none);
    return none ? 0 : -1;
}

/* starts in a row that do not wait, at most */
enum { MOST_SKIPS = 63 };

/* Wait for a plan that has begun, for a moment, where that was not in vain the last time: ranks
 * that compute between start and wait differ by more than that. It waits in turn: no other thread
 * makes a task of it meanwhile. */
static int wait_for_started(Door *d, Program *p)
{
    if (p->skips) {
        p->skips--;
        return 0;
    }
    const double moment[] = {PLAN_MOMENT, p->moment[1]};
    int taken = p->result == WAITS ? take_turn(d) : 0;
    if (taken < 0) return -1;
    if (taken) {
        Py_BEGIN_ALLOW_THREADS
        advance_for_a_moment(p, moment);
        Py_END_ALLOW_THREADS
    }
    if (p->result != WAITS)
        p->last_skips = 0;
    else if (p->last_skips < MOST_SKIPS)
        p->last_skips = 2 * p->last_skips + 1;
    p->skips = p->last_skips;
    return taken ? return_turn(d) : 0;
}

static PyObject *place_name;

/* Where a plan is among those that are unattended; -1: it is none of them. */
static Py_ssize_t number_of(const Door *d, PyObject *plan)
{
    PyObject *unattended = d->held[UNATTENDED];
    for (Py_ssize_t n = 0; n < PyList_Size(unattended); n++)
        if (PyList_GetItem(unattended, n) == plan) return n;
    return -1;
}

/* Whether no other unattended plan comes before it at its place; -1 and an exception. */
static int is_first(const Door *d, PyObject *plan)
{
    PyObject *unattended = d->held[UNATTENDED];
    int is_elsewhere = 1;
    for (Py_ssize_t n = 0; is_elsewhere == 1 && n < PyList_Size(unattended); n++) {
        PyObject *other = PyList_GetItem(unattended, n);
        if (other == plan) break;
        Py_INCREF(other);
        PyObject *place = PyObject_GetAttr(plan, place_name);
        PyObject *taken = PyObject_GetAttr(other, place_name);
        is_elsewhere = place && taken ? PyObject_RichCompareBool(place, taken, Py_NE) : -1;
        Py_XDECREF(place);
        Py_XDECREF(taken);
        Py_DECREF(other);
    }
    return is_elsewhere;
}

/* A plan has ended: no thread sees that before it is off the list of those that are unattended, as
 * its owner may then start it again. -1 and an exception. */
static int end_plan(Door *d, PyObject *plan)
{
    Py_ssize_t number = number_of(d, plan);
    if (number >= 0 && PyList_SetSlice(d->held[UNATTENDED], number, number + 1, NULL)) return -1;
    d->has_ended = 1;
    return 0;
}

PyDoc_STRVAR(start_plan_doc,
             "start(plan)\n\n"
             "Begin a plan, if no unattended one comes before it at its place. True: it has\n"
             "ended. None: it has not, and is unattended. False: it has not begun.");
static PyObject *door_start(PyObject *self, PyObject *plan)
{
    Door *d = (Door *)self;
    Ledger *l = (Ledger *)d->held[LEDGER];
    if (!d->knows || l->is_closed || l->lists_all || PyList_Size(d->held[LISTENERS]) ||
        PyList_Size(d->held[HOLDS]))
        Py_RETURN_FALSE;
    int hindered = is_hindered(d), first = is_first(d, plan);
    if (first < 0 || hindered < 0) return NULL;
    const Known *k = d->known[0];
    Program *p = k->program[0];
    if (p->freed || k->epoch != *numpy.epoch) {
        Py_XDECREF(door_clear(self, NULL));
        Py_RETURN_FALSE;
    }
    if (!first || hindered || is_busy(k)) Py_RETURN_FALSE;
    memcpy(p->buffer, k->buffer, sizeof p->buffer);
    memcpy(p->shift, k->shift, sizeof p->shift);
    begin(p, k->tag);
    d->has_begun = 1;
    d->has_ended = 0;
    l->messages += k->messages;
    l->nbytes += k->nbytes;
    if (p->skips)
        advance_and_look(p);
    else
        advance_briefly(p);
    if (p->result != DONE) {
        /* listed before another thread may run: it would begin another one at this place */
        if (number_of(d, plan) < 0 && PyList_Append(d->held[UNATTENDED], plan)) return NULL;
        PyObject *capsules = k->capsules; /* another thread may have the door forget the call */
        Py_INCREF(capsules);
        int failed = wait_for_started(d, p), has_ended = p->result == DONE;
        Py_DECREF(capsules);
        if (failed) return NULL;
        if (!has_ended) Py_RETURN_NONE;
    }
    l->count++;
    return end_plan(d, plan) ? NULL : PyBool_FromLong(1);
}

/* Advance a plan that has begun here until nothing moves for so long; WAITS, DONE, or what Python
 * has to see to. *moved: whether it has moved. */
static int advance_plan(Door *d, double patience, int *moved)
{
    const Known *k = d->known[0];
    Ledger *l = (Ledger *)d->held[LEDGER];
    Program *p = k->program[0];
    int32_t before = p->next;
    int has_advanced, result, next;
    PyObject *capsules = k->capsules; /* another thread may have the door forget the call */
    Py_INCREF(capsules);
    Py_BEGIN_ALLOW_THREADS
    has_advanced = advance_beside(p, patience, &result, &next);
    Py_END_ALLOW_THREADS
    *moved = has_advanced && next != before;
    l->count += has_advanced && result == DONE && before < p->length;
    Py_DECREF(capsules);
    return has_advanced ? result : WAITS;
}

PyDoc_STRVAR(go_on_doc, "go_on(plan)\n\n"
                        "Advance a plan that has begun here as far as it can. True: it has moved,\n"
                        "or has ended; None: Python has to see to it.");
static PyObject *door_go_on(PyObject *self, PyObject *plan)
{
    Door *d = (Door *)self;
    int moved, hindered = is_hindered(d);
    if (hindered < 0) return NULL;
    if (hindered || !d->knows) Py_RETURN_NONE;
    int result = advance_plan(d, 0.0, &moved);
    if (result == DONE) return end_plan(d, plan) ? NULL : PyBool_FromLong(1);
    return result == WAITS ? PyBool_FromLong(moved) : (Py_INCREF(Py_None), Py_None);
}

PyDoc_STRVAR(finish_doc, "finish(plan, seconds)\n\n"
                         "Advance a plan that is unattended until nothing moves for so long.\n"
                         "True: it has ended, and is not unattended any more. False: it has not,\n"
                         "or is not all that is under way.");
static PyObject *door_finish(PyObject *self, PyObject *args)
{
    Door *d = (Door *)self;
    PyObject *plan, *unattended = d->held[UNATTENDED];
    double patience;
    if (!PyArg_ParseTuple(args, "Od", &plan, &patience)) return NULL;
    if (PyList_Size(unattended) != 1 || PyList_GetItem(unattended, 0) != plan || !d->knows ||
        PyList_Size(d->held[TASKS]))
        Py_RETURN_FALSE;
    int hindered = is_hindered(d);
    if (hindered) return hindered < 0 ? NULL : PyBool_FromLong(0);
    int taken = take_turn(d);
    if (taken <= 0) return taken < 0 ? NULL : PyBool_FromLong(0);
    int moved, has_ended = advance_plan(d, patience, &moved) == DONE;
    int failed = has_ended ? end_plan(d, plan) : 0;
    return return_turn(d) || failed ? NULL : PyBool_FromLong(has_ended);
}

static int call_native(const Native *n)
{
    typedef uintptr_t V;
    const V *v = n->value;
    switch (n->count) {
    case 1:
        return ((int (*)(V))n->function)(v[0]);
    case 5:
        return ((int (*)(V, V, V, V, V))n->function)(v[0], v[1], v[2], v[3], v[4]);
    case 6:
        return ((int (*)(V, V, V, V, V, V))n->function)(v[0], v[1], v[2], v[3], v[4], v[5]);
    case 7:
        return ((int (*)(V, V, V, V, V, V, V))n->function)(v[0], v[1], v[2], v[3], v[4], v[5],
                                                           v[6]);
    default:
        return ((int (*)(V, V, V, V, V, V, V, V))n->function)(v[0], v[1], v[2], v[3], v[4], v[5],
                                                              v[6], v[7]);
    }
}

/* Make MPI's own call; True, or what `fail` raises. */
static PyObject *execute_native(Door *d, const Known *k, PyObject *const *args, Py_ssize_t count,
                                char *const *buffer)
{
    Ledger *l = (Ledger *)d->held[LEDGER];
    Native n = k->native; /* another thread may have the door forget the call meanwhile */
    for (int array = 1; array < BUFFERS && buffer[array]; array++)
        n.value[n.address[array]] = (uintptr_t)buffer[array];
    int error;
    enter(d, k);
    Py_BEGIN_ALLOW_THREADS
    error = call_native(&n);
    Py_END_ALLOW_THREADS
    l->is_passing = 0;
    if (!error) Py_RETURN_TRUE;
    PyObject *tuple = tuple_of(args, count);
    return tuple ? PyObject_CallFunction(d->held[FAIL], "iN", error, tuple) : NULL;
}

PyDoc_STRVAR(call_doc, "call(*arguments)\n\n"
                       "False: it is not known here. True: the call was served. Else what `finish`\n"
                       "returns.");
static PyObject *door_call(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    Door *d = (Door *)self;
    Ledger *l = (Ledger *)d->held[LEDGER];
    if (!d->knows || l->is_closed || PyList_Size(d->held[LISTENERS])) Py_RETURN_FALSE;
    int hindered = is_hindered(d);
    if (hindered < 0) return NULL;
    if (hindered) Py_RETURN_FALSE;
    PyObject *plain[ARGUMENTS];
    char *buffer[BUFFERS];
    int64_t shift[BUFFERS];
    Known *k = find(d, args, count, plain, buffer, shift);
    if (!k || is_busy(k)) Py_RETURN_FALSE;
    if (PyList_Size(d->held[PASSED]) >= d->most_passed) {
        PyObject *remembered = PyObject_CallFunctionObjArgs(d->held[REMEMBER_PASSED], NULL);
        if (!remembered) return NULL;
        Py_DECREF(remembered);
        /* a signal handler may have made calls, and had the door forget others */
        if (l->is_closed || find(d, args, count, plain, buffer, shift) != k || is_busy(k))
            Py_RETURN_FALSE;
    }
    if (k->native.function && is_due(l)) Py_RETURN_FALSE;
    /* before it has a place: memory may be short */
    if (PyList_Append(d->held[PASSED], k->mark)) return NULL;
    /* another thread may change lists during the call */
    for (Py_ssize_t n = 0; n < count; n++) Py_INCREF(plain[n]);
    PyObject *served = k->native.function ? execute_native(d, k, plain, count, buffer)
                                          : execute(d, k, plain, count, buffer, shift);
    for (Py_ssize_t n = 0; n < count; n++) Py_DECREF(plain[n]);
    return served;
}

/* A call with these arguments, or NULL and an exception. arrays: (address, shift, bytes) of each. */
static Known *new_known(PyObject *arguments, PyObject *mark, PyObject *arrays)
{
    Py_ssize_t count = PyTuple_Size(arguments), places = PyTuple_Size(arrays), at = 0;
    if (count > ARGUMENTS || places >= BUFFERS || PyBytes_Size(mark) != MARK_BYTES) {
        PyErr_Format(PyExc_ValueError, "too many arguments, or a mark of another size");
        return NULL;
    }
    Known *k = calloc(1, sizeof *k);
    if (!k) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *object = PyTuple_GetItem(arguments, n);
        Argument *a = k->argument + k->count;
        const Array *array = (const Array *)array_of(object);
        if (array) {
            unsigned long long address;
            long long shift;
            if (at == places || items_of(object) > LISTED) break;
            if (!PyArg_ParseTuple(PyTuple_GetItem(arrays, at++), "KLn", &address, &shift,
                                  &a->nbytes)) {
                forget_known(k);
                return NULL;
            }
            k->buffer[at] = (char *)(uintptr_t)address;
            k->shift[at] = shift;
            a->data = array->data;
            a->elements = elements_of(array);
            a->flags = array->flags;
            a->descr = array->descr;
            Py_INCREF(a->descr);
            a->items = items_of(object);
            for (Py_ssize_t item = 1; item < a->items; item++) {
                a->beside[item - 1] = item_of(object, item);
                Py_INCREF(a->beside[item - 1]);
            }
        } else {
            a->object = object;
            Py_INCREF(object);
        }
        k->count++;
    }
    if (k->count < count || at < places) {
        forget_known(k);
        PyErr_Format(PyExc_ValueError, "not three numbers for each array, or a long list");
        return NULL;
    }
    memcpy(k->hash, PyBytes_AsString(mark), MARK_BYTES);
    k->mark = mark;
    Py_INCREF(mark);
    return k;
}

/* Know a call from now on. */
static PyObject *know(Door *d, Known *k)
{
    Known *oldest = d->knows == KNOWN ? d->known[--d->knows] : NULL;
    memmove(d->known + 1, d->known, d->knows++ * sizeof *d->known);
    d->known[0] = k;
    if (oldest) forget_known(oldest);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(learn_doc,
             "learn(arguments, programs, operation, mark, tag, buffers, moves, messages, nbytes,\n"
             "      patience)\n\n"
             "Know a call that programs serve. programs: one for each track; mark: 8 bytes; tag: of\n"
             "call 0; buffers: of each array as of `start`, and its bytes; moves: whether arrays\n"
             "elsewhere will do; messages, nbytes: that it sends; patience: seconds for which it\n"
             "waits, or -1: for a moment.");
static PyObject *door_learn(PyObject *self, PyObject *args)
{
    PyObject *arguments, *capsules, *operation, *mark, *buffers;
    int tag, moves;
    unsigned long long messages, nbytes;
    double patience;
    if (!PyArg_ParseTuple(args, "O!O!OSiO!pKKd", &PyTuple_Type, &arguments, &PyTuple_Type,
                          &capsules, &operation, &mark, &tag, &PyTuple_Type, &buffers, &moves,
                          &messages, &nbytes, &patience))
        return NULL;
    Py_ssize_t tracks = PyTuple_Size(capsules);
    Program *program[TRACKS];
    if (tracks < 1 || tracks > TRACKS)
        return PyErr_Format(PyExc_ValueError, "not a program for each track");
    for (Py_ssize_t track = 0; track < tracks; track++)
        if (!(program[track] = program_of(PyTuple_GetItem(capsules, track)))) return NULL;
    Known *k = new_known(arguments, mark, buffers);
    if (!k) return NULL;
    k->capsules = capsules;
    k->tracks = (int)tracks;
    memcpy(k->program, program, sizeof program);
    k->operation = operation;
    Py_INCREF(capsules);
    Py_INCREF(operation);
    k->tag = tag;
    k->epoch = *numpy.epoch;
    k->moves = moves;
    k->messages = messages;
    k->nbytes = nbytes;
    k->patience = patience;
    return know((Door *)self, k);
}

PyDoc_STRVAR(learn_native_doc,
             "learn_native(arguments, function, parameters, addresses, mark, buffers)\n\n"
             "Know a call that MPI's own function serves, with arrays that may lie elsewhere.\n"
             "function: its address; parameters: their values; addresses: the number of the\n"
             "parameter that is the address, for each array; mark, buffers: as of `learn`.");
static PyObject *door_learn_native(PyObject *self, PyObject *args)
{
    PyObject *arguments, *parameters, *addresses, *mark, *buffers;
    unsigned long long function;
    if (!PyArg_ParseTuple(args, "O!KO!O!SO!", &PyTuple_Type, &arguments, &function, &PyTuple_Type,
                          &parameters, &PyTuple_Type, &addresses, &mark, &PyTuple_Type, &buffers))
        return NULL;
    Native native = {(uintptr_t)function, (int)PyTuple_Size(parameters), {0}, {0}};
    Py_ssize_t arrays = PyTuple_Size(addresses);
    int is_callable = native.count == 1 || (native.count >= 5 && native.count <= PARAMETERS);
    if (!is_callable || arrays >= BUFFERS || arrays != PyTuple_Size(buffers))
        return PyErr_Format(PyExc_ValueError, "1, or 5 to 8 parameters, and one for each array");
    for (int n = 0; n < native.count; n++)
        native.value[n] = (uintptr_t)PyLong_AsUnsignedLongLongMask(PyTuple_GetItem(parameters, n));
    for (int n = 0; n < arrays; n++) {
        long at = PyLong_AsLong(PyTuple_GetItem(addresses, n));
        if (at < 0 || at >= native.count)
            return PyErr_Format(PyExc_ValueError, "an address that is no parameter");
        native.address[n + 1] = (int)at;
    }
    if (PyErr_Occurred()) return NULL;
    Known *k = new_known(arguments, mark, buffers);
    if (!k) return NULL;
    k->native = native;
    k->moves = 1;
    return know((Door *)self, k);
}

PyDoc_STRVAR(learn_plan_doc,
             "learn_plan(program, tag, buffers, messages, nbytes)\n\n"
             "Know no other call than this one, without arguments: the start of a plan with that\n"
             "tag. buffers: as of `start`; the rest as of `learn`.");
static PyObject *door_learn_plan(PyObject *self, PyObject *args)
{
    PyObject *capsule, *buffers;
    long long tag;
    unsigned long long messages, nbytes;
    if (!PyArg_ParseTuple(args, "OLO!KK", &capsule, &tag, &PyTuple_Type, &buffers, &messages,
                          &nbytes))
        return NULL;
    Program *p = program_of(capsule);
    Known *k = p ? calloc(1, sizeof *k) : NULL;
    if (!k) return p ? PyErr_NoMemory() : NULL;
    if (take_buffers(buffers, k->buffer, k->shift)) {
        free(k);
        return NULL;
    }
    k->capsules = capsule;
    Py_INCREF(capsule);
    k->program[0] = p;
    k->tracks = 1;
    k->tag = tag;
    k->epoch = *numpy.epoch;
    k->messages = messages;
    k->nbytes = nbytes;
    Py_XDECREF(door_clear(self, NULL));
    return know((Door *)self, k);
}

static PyMethodDef door_methods[] = {
    {"call", (PyCFunction)(void (*)(void))door_call, METH_FASTCALL, call_doc},
    {"start", door_start, METH_O, start_plan_doc},
    {"go_on", door_go_on, METH_O, go_on_doc},
    {"finish", door_finish, METH_VARARGS, finish_doc},
    {"learn", door_learn, METH_VARARGS, learn_doc},
    {"learn_native", door_learn_native, METH_VARARGS, learn_native_doc},
    {"learn_plan", door_learn_plan, METH_VARARGS, learn_plan_doc},
    {"clear", door_clear, METH_NOARGS, "clear()\n\nKnow no call any more."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef door_members[] = {
    {"knows", T_INT, offsetof(Door, knows), READONLY, "how many calls it knows"},
    {"has_begun", T_BOOL, offsetof(Door, has_begun), 0, "whether the plan's start has begun here"},
    {"has_ended", T_BOOL, offsetof(Door, has_ended), READONLY, "whether it has ended here"},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot door_slots[] = {
    {Py_tp_doc, (void *)door_doc}, {Py_tp_new, door_new},        {Py_tp_dealloc, door_free},
    {Py_tp_methods, door_methods}, {Py_tp_traverse, door_traverse}, {Py_tp_clear, door_break},
    {Py_tp_members, door_members}, {0, NULL},
};
static PyType_Spec door_spec = {
    "mpicoll._engine.Door", sizeof(Door), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, door_slots,
};

PyDoc_STRVAR(feed_doc, "feed(kind, vector, before, after, count, factor)\n\n"
                       "Add what was lost before, and write what codes of that kind will lose.");
static PyObject *feed_from_python(PyObject *self, PyObject *args)
{
    int kind;
    unsigned long long vector, before, after;
    Py_ssize_t count;
    float factor;
    if (!PyArg_ParseTuple(args, "iKKKnf", &kind, &vector, &before, &after, &count, &factor))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    FEEDS[kind].feed((float *)(uintptr_t)vector, (const float *)(uintptr_t)before,
                     (float *)(uintptr_t)after, (size_t)count, factor);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(feed_sums_doc, "feed_sums(kind, sums, after, count, factor)\n\n"
                            "Add what codes of the sums will lose.");
static PyObject *feed_sums_from_python(PyObject *self, PyObject *args)
{
    int kind;
    unsigned long long sums, after;
    Py_ssize_t count;
    float factor;
    if (!PyArg_ParseTuple(args, "iKKnf", &kind, &sums, &after, &count, &factor)) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    FEEDS[kind].feed_sums((const float *)(uintptr_t)sums, (float *)(uintptr_t)after, (size_t)count,
                          factor);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(setup_doors_doc, "setup_doors(ndarray, epoch)\n\n"
                              "Take NumPy's class of arrays, and the address of the epoch.");
static PyObject *setup_doors(PyObject *self, PyObject *args)
{
    PyObject *array_type;
    unsigned long long epoch;
    if (!PyArg_ParseTuple(args, "OK", &array_type, &epoch)) return NULL;
    aside_name = PyUnicode_InternFromString("aside");
    acquire_name = PyUnicode_InternFromString("acquire");
    release_name = PyUnicode_InternFromString("release");
    place_name = PyUnicode_InternFromString("place");
    if (!aside_name || !acquire_name || !release_name || !place_name) return NULL;
    Py_INCREF(array_type);
    numpy.array_type = array_type;
    numpy.epoch = (const uint64_t *)(uintptr_t)epoch;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fields_doc, "array_fields(array)\n\n"
                         "(address, elements, id of the dtype, flags) as doors read them.");
static PyObject *array_fields(PyObject *self, PyObject *object)
{
    const Array *a = (const Array *)object;
    return Py_BuildValue("KnKi", (unsigned long long)(uintptr_t)a->data, elements_of(a),
                         (unsigned long long)(uintptr_t)a->descr, a->flags);
}

/* ---- A signal ------------------------------------------------------------------------------ */

static struct {
    int descriptor;
    char word;
} told;

/* It may interrupt any line, of Python's interpreter, too, so it reads none of its data. */
static void tell(int number)
{
    int kept = errno;
    /* a full pipe has been told enough */
    if (write(told.descriptor, &told.word, 1) < 0) errno = kept;
}

PyDoc_STRVAR(write_at_signal_doc, "write_at_signal(signal, descriptor, word)\n\n"
                                  "Write a byte to a pipe that does not block, at once.");
static PyObject *write_at_signal(PyObject *self, PyObject *args)
{
    int number;
    struct sigaction action = {.sa_handler = tell, .sa_flags = SA_RESTART | SA_ONSTACK};
    if (!PyArg_ParseTuple(args, "iic", &number, &told.descriptor, &told.word)) return NULL;
    if (sigaction(number, &action, NULL)) return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, setup_doc},
    {"program", program, METH_VARARGS, program_doc},
    {"start", start, METH_VARARGS, start_doc},
    {"advance", advance_from_python, METH_VARARGS, advance_doc},
    {"setup_rhythm", setup_rhythm, METH_VARARGS, setup_rhythm_doc},
    {"paused", paused, METH_VARARGS, paused_doc},
    {"attend", attend_from_python, METH_VARARGS, attend_doc},
    {"interrupt", interrupt_from_python, METH_NOARGS, interrupt_doc},
    {"reached", reached, METH_O, reached_doc},
    {"found", found, METH_VARARGS, found_doc},
    {"unknown", unknown, METH_O, unknown_doc},
    {"mapped", mapped, METH_VARARGS, mapped_doc},
    {"opened", opened, METH_VARARGS, opened_doc},
    {"keep", keep, METH_VARARGS, keep_doc},
    {"kept_taken", kept_taken, METH_VARARGS, kept_taken_doc},
    {"take_requests", take_requests, METH_O, taken_doc},
    {"forget", forget, METH_O, forget_doc},
    {"is_under_way", is_under_way_from_python, METH_O, under_way_doc},
    {"setup_doors", setup_doors, METH_VARARGS, setup_doors_doc},
    {"array_fields", array_fields, METH_O, fields_doc},
    {"feed", feed_from_python, METH_VARARGS, feed_doc},
    {"feed_sums", feed_sums_from_python, METH_VARARGS, feed_sums_doc},
    {"write_at_signal", write_at_signal, METH_VARARGS, write_at_signal_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "mpicoll._engine",
    .m_doc = "Executes programs without Python between two instructions.", .m_size = -1,
    .m_methods = functions,
};

static int add_type(PyObject *made, PyType_Spec *spec, const char *name)
{
    PyObject *type = PyType_FromSpec(spec);
    if (!type) return -1;
    int failed = PyModule_AddObject(made, name, type);
    if (failed) Py_DECREF(type);
    return failed;
}

PyMODINIT_FUNC PyInit__engine(void)
{
    make_crc_table();
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddIntConstant(made, "INSTRUCTION_BYTES", sizeof(Instruction)) ||
                 PyModule_AddIntConstant(made, "UNKNOWN_LOCATION", UNKNOWN_LOCATION) ||
                 PyModule_AddIntConstant(made, "PEER_GAVE_UP", PEER_GAVE_UP) ||
                 PyModule_AddIntConstant(made, "WRONG_SIZE", WRONG_SIZE) ||
                 PyModule_AddIntConstant(made, "TOLD", TOLD) ||
                 add_type(made, &ledger_spec, "Ledger") || add_type(made, &door_spec, "Door")))
        Py_CLEAR(made);
    return made;
}
