// Preloaded into ranks: what MPI allows to the puts of a window, and shared memory never does. MPI_Put does nothing; a flush
// carries out what was put to its rank since the last one, the last put first, with pauses now and then. A word that is put
// before its rows are known to be there arrives before them. Fails where nothing was put.
#define _GNU_SOURCE
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct Put {
    const void* data;
    int elements, to, to_elements;
    MPI_Datatype type, to_type;
    MPI_Aint at;
    MPI_Win window;
} *held = NULL;
static int used = 0, room = 0;
static unsigned long long flushes = 0, carried = 0;

static void carry_out(int to, MPI_Win window) {
    int mine = 0;
    for (int i = used - 1; i >= 0; --i) {
        const struct Put p = held[i];
        if (p.window != window || (to >= 0 && p.to != to)) continue;
        if (mine++ > 0 && ++carried % 8 == 0) usleep(300);
        PMPI_Put(p.data, p.elements, p.type, p.to, p.at, p.to_elements, p.to_type, window);
        PMPI_Win_flush(p.to, window);
    }
    int kept = 0;
    for (int i = 0; i < used; ++i)
        if (held[i].window != window || (to >= 0 && held[i].to != to)) held[kept++] = held[i];
    used = kept;
    flushes += mine > 0;
}

int MPI_Put(const void* data, int elements, MPI_Datatype type, int to, MPI_Aint at, int to_elements, MPI_Datatype to_type, MPI_Win window) {
    if (used == room) held = realloc(held, (size_t)(room = 2 * room + 64) * sizeof *held);
    if (!held) abort();
    held[used++] = (struct Put){data, elements, to, to_elements, type, to_type, at, window};
    return MPI_SUCCESS;
}

int MPI_Win_flush(int to, MPI_Win window) {
    carry_out(to, window);
    return PMPI_Win_flush(to, window);
}

int MPI_Win_unlock_all(MPI_Win window) {
    carry_out(-1, window);
    return PMPI_Win_unlock_all(window);
}

int MPI_Finalize(void) {
    if (flushes == 0) {
        fprintf(stderr, "hold_shim: nothing was put\n");
        abort();
    }
    return PMPI_Finalize();
}
