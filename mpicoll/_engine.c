/* Executes programs without Python between two instructions; see mpicoll/engine/.
 *
 * It includes no mpi.h and links no MPI: one binary serves all MPI libraries. Their functions come
 * by address (`setup`), their handles as machine words: the int handles of MPICH and the pointers
 * of Open MPI both travel in a register of 64 bits.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef uintptr_t Handle;

/* ---- MPI ----------------------------------------------------------------------------------- */

static struct {
    int (*Isend)(const void *, int, Handle, int, int, Handle, void *);
    int (*Irecv)(void *, int, Handle, int, int, Handle, void *);
    int (*Test)(void *, int *, void *);
    Handle byte;
    Py_ssize_t request_bytes;
} mpi;

/* MPI_Status has 20 to 32 bytes; a real one needs no constant MPI_STATUS_IGNORE */
#define STATUS_BYTES 128

/* ---- Reductions ---------------------------------------------------------------------------- */

typedef void Loop(const void *lower, const void *higher, void *result, size_t count);

#define LOOP(NAME, TYPE, RESULT)                                                  \
    static void NAME(const void *lower, const void *higher, void *result, size_t count) \
    {                                                                             \
        const TYPE *x = lower, *y = higher;                                       \
        TYPE *z = result;                                                         \
        for (size_t i = 0; i < count; i++) z[i] = RESULT;                         \
    }
#define INTEGERS(TYPE, NAME)                          \
    LOOP(sum_##NAME, TYPE, x[i] + y[i])               \
    LOOP(prod_##NAME, TYPE, x[i] * y[i])              \
    LOOP(max_##NAME, TYPE, x[i] > y[i] ? x[i] : y[i]) \
    LOOP(min_##NAME, TYPE, x[i] < y[i] ? x[i] : y[i]) \
    LOOP(and_##NAME, TYPE, x[i] & y[i])               \
    LOOP(or_##NAME, TYPE, x[i] | y[i])                \
    LOOP(xor_##NAME, TYPE, x[i] ^ y[i])
#define FLOATS(TYPE, NAME)              \
    LOOP(sum_##NAME, TYPE, x[i] + y[i]) \
    LOOP(prod_##NAME, TYPE, x[i] * y[i])

INTEGERS(int8_t, i1)
INTEGERS(int16_t, i2)
INTEGERS(int32_t, i4)
INTEGERS(int64_t, i8)
INTEGERS(uint8_t, u1)
INTEGERS(uint16_t, u2)
INTEGERS(uint32_t, u4)
INTEGERS(uint64_t, u8)
FLOATS(float, f4)
FLOATS(double, f8)

#define INTEGER_ROW(NAME)                                                          \
    {                                                                              \
        sum_##NAME, prod_##NAME, max_##NAME, min_##NAME, and_##NAME, or_##NAME,    \
            xor_##NAME                                                             \
    }
#define FLOAT_ROW(NAME) {sum_##NAME, prod_##NAME}
enum { TYPES = 10, OPS = 7 };
/* engine/lowering.py has the names of these rows and columns */
static Loop *const LOOPS[TYPES][OPS] = {
    INTEGER_ROW(i1), INTEGER_ROW(i2), INTEGER_ROW(i4), INTEGER_ROW(i8), INTEGER_ROW(u1),
    INTEGER_ROW(u2), INTEGER_ROW(u4), INTEGER_ROW(u8), FLOAT_ROW(f4),   FLOAT_ROW(f8),
};

/* ---- Programs ------------------------------------------------------------------------------ */

enum Code { SEND, RECV, WAIT, REDUCE, COPY, CODES };
enum { BUFFERS = 4 };

typedef struct {
    int32_t code;
    /* the rank at the other end of a message */
    int32_t peer;
    /* number of the request that a message starts, or that is awaited */
    int32_t request;
    /* of a reduction: its row and column among the loops */
    int32_t type, op;
    /* where each place is: 0: `at` is an address; else an offset in that buffer of the call */
    int32_t buffer[3];
    /* of a message (memory), of a copy (source, target), of a reduction (lower, higher, result) */
    int64_t at[3];
    /* bytes of a message or a copy, elements of a reduction */
    int64_t count;
} Instruction;

typedef struct {
    Instruction *code;
    int32_t length;
    int32_t requests;
    /* the instruction that comes next */
    int32_t next;
    int tag;
    Handle comm;
    char *buffer[BUFFERS];
    char *handles;
    /* by request: whether MPI has not ended it yet */
    char *active;
} Program;

static inline char *place(const Program *p, const Instruction *i, int number)
{
    return p->buffer[i->buffer[number]] + i->at[number];
}

static inline char *handle(const Program *p, int32_t request)
{
    return p->handles + request * mpi.request_bytes;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Execute until a request is awaited that is not done; returns 0 or MPI's error. */
static int advance(Program *p)
{
    char status[STATUS_BYTES];
    for (; p->next < p->length; p->next++) {
        const Instruction *i = p->code + p->next;
        int error = 0, done = 1;
        switch (i->code) {
        case SEND:
            error = mpi.Isend(place(p, i, 0), (int)i->count, mpi.byte, i->peer, p->tag, p->comm,
                              handle(p, i->request));
            p->active[i->request] = !error;
            break;
        case RECV:
            error = mpi.Irecv(place(p, i, 0), (int)i->count, mpi.byte, i->peer, p->tag, p->comm,
                              handle(p, i->request));
            p->active[i->request] = !error;
            break;
        case WAIT:
            if (!p->active[i->request]) break; /* it was taken */
            error = mpi.Test(handle(p, i->request), &done, status);
            if (error || done) p->active[i->request] = 0;
            break;
        case REDUCE:
            LOOPS[i->type][i->op](place(p, i, 0), place(p, i, 1), place(p, i, 2), i->count);
            break;
        case COPY:
            memmove(place(p, i, 1), place(p, i, 0), i->count);
            break;
        }
        if (error || !done) return error;
    }
    return 0;
}

/* ---- Python -------------------------------------------------------------------------------- */

static const char CAPSULE[] = "mpicoll._engine.Program";

static void discard(PyObject *capsule)
{
    Program *p = PyCapsule_GetPointer(capsule, CAPSULE);
    free(p->code);
    free(p->handles);
    free(p->active);
    free(p);
}

static Program *program_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE);
}

PyDoc_STRVAR(setup_doc, "setup(Isend, Irecv, Test, byte, request_bytes)\n\n"
                        "Take the addresses of MPI's functions, the handle of MPI_BYTE, and the\n"
                        "size of a request.");
static PyObject *setup(PyObject *self, PyObject *args)
{
    unsigned long long isend, irecv, test, byte;
    Py_ssize_t request_bytes;
    if (!PyArg_ParseTuple(args, "KKKKn", &isend, &irecv, &test, &byte, &request_bytes)) return NULL;
    mpi.Isend = (int (*)(const void *, int, Handle, int, int, Handle, void *))(uintptr_t)isend;
    mpi.Irecv = (int (*)(void *, int, Handle, int, int, Handle, void *))(uintptr_t)irecv;
    mpi.Test = (int (*)(void *, int *, void *))(uintptr_t)test;
    mpi.byte = (Handle)byte;
    mpi.request_bytes = request_bytes;
    Py_RETURN_NONE;
}

/* What would write outside of the program's memory, or call nothing. */
static int is_valid(const Instruction *i, int32_t requests)
{
    if (i->code < 0 || i->code >= CODES || i->count < 0) return 0;
    if (i->code <= WAIT && (i->request < 0 || i->request >= requests)) return 0;
    if (i->code <= RECV && i->count > INT32_MAX) return 0;
    for (int number = 0; number < 3; number++)
        if (i->buffer[number] < 0 || i->buffer[number] >= BUFFERS) return 0;
    if (i->code != REDUCE) return 1;
    return i->type >= 0 && i->type < TYPES && i->op >= 0 && i->op < OPS && LOOPS[i->type][i->op];
}

PyDoc_STRVAR(program_doc, "program(code, requests, comm)\n\n"
                          "A program of packed instructions. comm: the communicator's handle.");
static PyObject *program(PyObject *self, PyObject *args)
{
    const char *code;
    Py_ssize_t nbytes;
    int requests;
    unsigned long long comm;
    if (!PyArg_ParseTuple(args, "y#iK", &code, &nbytes, &requests, &comm)) return NULL;
    Program *p = calloc(1, sizeof *p);
    if (p) {
        p->length = (int32_t)(nbytes / sizeof(Instruction));
        p->requests = requests;
        p->next = p->length;
        p->comm = (Handle)comm;
        p->code = malloc(nbytes + 1);
        p->handles = calloc(requests + 1, mpi.request_bytes);
        p->active = calloc(requests + 1, 1);
    }
    if (!p || !p->code || !p->handles || !p->active) {
        if (p) free(p->code), free(p->handles), free(p->active), free(p);
        return PyErr_NoMemory();
    }
    memcpy(p->code, code, nbytes);
    PyObject *capsule = PyCapsule_New(p, CAPSULE, discard);
    for (int32_t number = 0; capsule && number < p->length; number++)
        if (!is_valid(p->code + number, requests)) {
            PyErr_Format(PyExc_ValueError, "instruction %d of the program is invalid", number);
            Py_CLEAR(capsule);
        }
    return capsule;
}

PyDoc_STRVAR(start_doc, "start(program, tag, buffers)\n\n"
                        "Begin at the first instruction. buffers: addresses of the call's buffers.");
static PyObject *start(PyObject *self, PyObject *args)
{
    PyObject *capsule, *buffers;
    int tag;
    if (!PyArg_ParseTuple(args, "OiO!", &capsule, &tag, &PyTuple_Type, &buffers)) return NULL;
    Program *p = program_of(capsule);
    if (!p) return NULL;
    Py_ssize_t count = PyTuple_Size(buffers);
    if (count >= BUFFERS) return PyErr_Format(PyExc_ValueError, "too many buffers");
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *address = PyTuple_GetItem(buffers, number);
        p->buffer[number + 1] = PyLong_AsVoidPtr(address);
        if (PyErr_Occurred()) return NULL;
    }
    p->tag = tag;
    p->next = 0;
    memset(p->active, 0, p->requests);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(advance_doc, "advance(program, seconds)\n\n"
                          "Execute until a request is awaited that is not done within so many\n"
                          "seconds; returns (error of MPI or 0, next instruction).");
static PyObject *advance_from_python(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    double patience;
    if (!PyArg_ParseTuple(args, "Od", &capsule, &patience)) return NULL;
    Program *p = program_of(capsule);
    if (!p) return NULL;
    int error;
    Py_BEGIN_ALLOW_THREADS
    double until = 0;
    do {
        int32_t before = p->next;
        error = advance(p);
        if (error || p->next == p->length || patience <= 0) break;
        if (p->next != before || !until) until = seconds() + patience;
    } while (seconds() < until);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("ii", error, (int)p->next);
}

PyDoc_STRVAR(taken_doc, "take_requests(program)\n\n"
                        "{number: the handle's bytes} of the requests that MPI has not ended,\n"
                        "which the program no longer tests.");
static PyObject *take_requests(PyObject *self, PyObject *capsule)
{
    Program *p = program_of(capsule);
    PyObject *found = p ? PyDict_New() : NULL;
    for (int32_t number = 0; found && number < p->requests; number++) {
        if (!p->active[number]) continue;
        p->active[number] = 0;
        PyObject *key = PyLong_FromLong(number);
        PyObject *bytes = PyBytes_FromStringAndSize(handle(p, number), mpi.request_bytes);
        if (!key || !bytes || PyDict_SetItem(found, key, bytes)) Py_CLEAR(found);
        Py_XDECREF(key);
        Py_XDECREF(bytes);
    }
    return found;
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, setup_doc},
    {"program", program, METH_VARARGS, program_doc},
    {"start", start, METH_VARARGS, start_doc},
    {"advance", advance_from_python, METH_VARARGS, advance_doc},
    {"take_requests", take_requests, METH_O, taken_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "mpicoll._engine",
    .m_doc = "Executes programs without Python between two instructions.", .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__engine(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made) PyModule_AddIntConstant(made, "INSTRUCTION_BYTES", sizeof(Instruction));
    return made;
}
