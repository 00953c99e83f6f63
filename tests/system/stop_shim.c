// Preloaded into ranks: stops the rank SHIM_RANK, as on a node that hangs, when it enters the MPI call that SHIM_CALL names.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void stop_at(const char* call) {
    const char *where = getenv("SHIM_CALL"), *who = getenv("SHIM_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (where && who && rank && strcmp(where, call) == 0 && strcmp(who, rank) == 0) raise(SIGSTOP);
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
    int (*real)(int*, char***, int, int*) = dlsym(RTLD_NEXT, "MPI_Init_thread");
    stop_at("MPI_Init_thread");
    return real(argc, argv, required, provided);
}

int MPI_Finalize(void) {
    int (*real)(void) = dlsym(RTLD_NEXT, "MPI_Finalize");
    stop_at("MPI_Finalize");
    return real();
}
