// Preloaded into ranks: the rank SHIM_RANK is stopped where it enters the MPI call that SHIM_CALL names, for ever, as on a
// node that hangs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void stop_at(const char* call) {
    const char *where = getenv("SHIM_CALL"), *who = getenv("SHIM_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (where && who && rank && strcmp(where, call) == 0 && strcmp(who, rank) == 0) raise(SIGSTOP);
}

int MPI_Init_thread(int* argc, char*** argv, int wanted, int* given) {
    int (*real)(int*, char***, int, int*) = dlsym(RTLD_NEXT, "MPI_Init_thread");
    stop_at("MPI_Init_thread");
    return real(argc, argv, wanted, given);
}

int MPI_Finalize(void) {
    int (*real)(void) = dlsym(RTLD_NEXT, "MPI_Finalize");
    stop_at("MPI_Finalize");
    return real();
}
