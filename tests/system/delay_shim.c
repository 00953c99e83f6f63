// Preloaded into ranks: MPI calls that send, put or test wait 0 to 2 ms now and then, at random but the same for one SHIM_SEED
// and rank, so that ranks of a lane drift apart as they do on a busy machine.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t drawn(void) {  // splitmix64
    static _Atomic uint64_t state;
    if (state == 0) {
        const char *seed = getenv("SHIM_SEED"), *rank = getenv("OMPI_COMM_WORLD_RANK");
        state = 1 + 1000003 * strtoull(seed ? seed : "0", NULL, 10) + 7919 * strtoull(rank ? rank : "0", NULL, 10);
    }
    uint64_t z = atomic_fetch_add(&state, 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/// One call of `every` waits.
static void delay(unsigned every) {
    const uint64_t z = drawn();
    if (z % every == 0) usleep((z >> 32) % 2000);
}

#define DELAYED(name, every, parameters, arguments)                      \
    int name parameters {                                                \
        static int(*real) parameters;                                    \
        if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name);    \
        delay(every);                                                    \
        return real arguments;                                           \
    }

DELAYED(MPI_Isend, 8, (const void* b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request* r), (b, n, t, to, tag, c, r))
DELAYED(MPI_Irecv, 16, (void* b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request* r), (b, n, t, from, tag, c, r))
DELAYED(MPI_Put, 4, (const void* b, int n, MPI_Datatype t, int to, MPI_Aint at, int m, MPI_Datatype u, MPI_Win w), (b, n, t, to, at, m, u, w))
DELAYED(MPI_Win_flush, 4, (int to, MPI_Win w), (to, w))
DELAYED(MPI_Win_sync, 64, (MPI_Win w), (w))
DELAYED(MPI_Ibcast, 4, (void* b, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request* r), (b, n, t, root, c, r))
DELAYED(MPI_Test, 64, (MPI_Request* r, int* flag, MPI_Status* s), (r, flag, s))
DELAYED(MPI_Testall, 64, (int n, MPI_Request* r, int* flag, MPI_Status* s), (n, r, flag, s))
