// Preloaded into ranks: counts the messages and the bytes that a rank sends and puts, by the name of the communicator. At
// MPI_Finalize a file SHIM_COUNTS.RANK gets a line for each: kind, messages, bytes, the communicator's ranks in the world, its name.
//   send TAG  MPI_Isend
//   to RANK   of these, messages within groups (tag 3), by the receiver's rank in the world
//   edge      of these, messages of channels (tag 2 of "edge ..."): their rows alone, see Tail in transport_messages.cpp
//   put       MPI_Put of rows, in bytes
//   word      MPI_Put of 8 bytes or less: what tells that rows are there
#define _GNU_SOURCE
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostLines = 512, kEdgeTag = 2, kGroupTag = 3 };

static struct Line {
    char kind[16], name[MPI_MAX_OBJECT_NAME], ranks[256];
    long long messages, bytes;
} lines[kMostLines];
static int used = 0;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // a thread of the program moves messages too

static void world_ranks(MPI_Group group, char* text, size_t size) {
    int members = 0;
    size_t at = 0;
    MPI_Group world;
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_size(group, &members);
    text[0] = 0;
    for (int i = 0; i < members; ++i) {
        int in_world = -1;
        PMPI_Group_translate_ranks(group, 1, &i, world, &in_world);
        at += (size_t)snprintf(text + at, at < size ? size - at : 0, "%s%d", i ? "," : "", in_world);
        if (at >= size) break;
    }
    PMPI_Group_free(&world);
}

static void count(const char* kind, const char* name, MPI_Group group, long long bytes) {
    char ranks[sizeof lines[0].ranks];
    world_ranks(group, ranks, sizeof ranks);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < used && (strcmp(lines[i].kind, kind) || strcmp(lines[i].name, name) || strcmp(lines[i].ranks, ranks))) ++i;
    if (i == kMostLines) abort();
    if (i == used) {
        ++used;
        strcpy(lines[i].kind, kind);
        strcpy(lines[i].name, name);
        strcpy(lines[i].ranks, ranks);
    }
    ++lines[i].messages;
    lines[i].bytes += bytes;
    pthread_mutex_unlock(&lock);
}

/// Without the places and words that end a message of a channel.
static long long rows_of(const char* message, long long bytes) {
    unsigned long long tail[2];  // pieces, words: of 16 bytes each, as the tail itself
    memcpy(tail, message + bytes - sizeof tail, sizeof tail);
    return bytes - 16 * (long long)(1 + tail[0] + tail[1]);
}

int MPI_Isend(const void* data, int elements, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
    char name[MPI_MAX_OBJECT_NAME] = "", kind[16];
    int length = 0, size = 0, in_world = -1;
    MPI_Group group, world;
    PMPI_Comm_get_name(comm, name, &length);
    PMPI_Type_size(type, &size);
    PMPI_Comm_group(comm, &group);
    snprintf(kind, sizeof kind, "send %d", tag);
    count(kind, name, group, (long long)elements * size);
    if (tag == kEdgeTag && strncmp(name, "edge ", 5) == 0) count("edge", name, group, rows_of(data, (long long)elements * size));
    if (tag == kGroupTag) {
        PMPI_Comm_group(MPI_COMM_WORLD, &world);
        PMPI_Group_translate_ranks(group, 1, &to, world, &in_world);
        PMPI_Group_free(&world);
        snprintf(kind, sizeof kind, "to %d", in_world);
        count(kind, name, group, (long long)elements * size);
    }
    PMPI_Group_free(&group);
    return PMPI_Isend(data, elements, type, to, tag, comm, request);
}

/// A window has no name: it gets that of its communicator.
int MPI_Win_allocate(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void* base, MPI_Win* window) {
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    const int code = PMPI_Win_allocate(size, unit, info, comm, base, window);
    PMPI_Comm_get_name(comm, name, &length);
    if (code == MPI_SUCCESS) PMPI_Win_set_name(*window, name);
    return code;
}

int MPI_Put(const void* data, int elements, MPI_Datatype type, int to, MPI_Aint at, int to_elements, MPI_Datatype to_type, MPI_Win window) {
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0, size = 0;
    MPI_Group group;
    PMPI_Win_get_name(window, name, &length);
    PMPI_Type_size(type, &size);
    PMPI_Win_get_group(window, &group);
    const long long bytes = (long long)elements * size;
    count(bytes <= 8 ? "word" : "put", name, group, bytes);
    PMPI_Group_free(&group);
    return PMPI_Put(data, elements, type, to, at, to_elements, to_type, window);
}

int MPI_Finalize(void) {
    char path[4096];
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s.%d", getenv("SHIM_COUNTS") ? getenv("SHIM_COUNTS") : "counts", rank);
    FILE* file = fopen(path, "w");
    if (!file) abort();
    for (int i = 0; i < used; ++i)
        fprintf(file, "%s\t%lld\t%lld\t%s\t%s\n", lines[i].kind, lines[i].messages, lines[i].bytes, lines[i].ranks, lines[i].name);
    fclose(file);
    return PMPI_Finalize();
}
