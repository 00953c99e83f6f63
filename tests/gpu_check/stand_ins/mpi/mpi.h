// In the place of MPI, for the check of the GPUs of one machine, which may have no MPI: what src/comm and
// src/collective call. The world is this process alone, or the processes that share a SharedWorld. Their
// collectives go through its memory, wait in the call, and fail after a deadline. There are no messages
// between ranks: the groups of such a program use NCCL. What is missing fails with
// MPI_ERR_UNSUPPORTED_OPERATION.
#pragma once

#include <cstddef>
#include <cstdint>

#define MAESTRO_MPI_STAND_IN 1

struct MpiCommunicator;
using MPI_Comm = MpiCommunicator*;
using MPI_Request = struct MpiRequest*;
using MPI_Group = struct MpiGroup*;
using MPI_Info = struct MpiInfo*;
using MPI_Message = struct MpiMessage*;
using MPI_Errhandler = int;
using MPI_Aint = std::ptrdiff_t;
enum MPI_Datatype { MPI_BYTE, MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T };
enum MPI_Op { MPI_SUM, MPI_MAX };
struct MPI_Status {
    int MPI_SOURCE = 0, MPI_TAG = 0;
};

extern MpiCommunicator mpi_world, mpi_self;
#define MPI_COMM_WORLD (&mpi_world)
#define MPI_COMM_SELF (&mpi_self)
inline constexpr MPI_Comm MPI_COMM_NULL = nullptr;
inline constexpr MPI_Request MPI_REQUEST_NULL = nullptr;
inline constexpr MPI_Group MPI_GROUP_NULL = nullptr;
inline constexpr MPI_Info MPI_INFO_NULL = nullptr;
inline constexpr MPI_Status* MPI_STATUS_IGNORE = nullptr;
inline const void* const MPI_IN_PLACE = nullptr;

enum MpiNumbers : int {
    MPI_SUCCESS = 0,
    MPI_ERR_OTHER = 1,
    MPI_ERR_INTERN,
    MPI_ERR_UNKNOWN,
    MPI_ERR_PENDING,
    MPI_ERR_IN_STATUS,
    MPI_ERR_NAME,
    MPI_ERR_SPAWN,
    MPI_ERR_NO_MEM,
    MPI_ERR_UNSUPPORTED_OPERATION,
    MPI_ANY_SOURCE = -1,
    MPI_ANY_TAG = -2,
    MPI_UNDEFINED = -3,
    MPI_ERRORS_RETURN = 0,
    MPI_COMM_TYPE_SHARED = 0,
    MPI_THREAD_SINGLE = 0,
    MPI_THREAD_MULTIPLE = 3,
    MPI_MAX_ERROR_STRING = 256,
    MPI_MAX_OBJECT_NAME = 64,
};

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided);
int MPI_Initialized(int* flag);
int MPI_Finalized(int* flag);
int MPI_Finalize();
[[noreturn]] int MPI_Abort(MPI_Comm communicator, int code);
int MPI_Error_class(int code, int* error_class);
int MPI_Error_string(int code, char* text, int* length);

int MPI_Comm_rank(MPI_Comm communicator, int* rank);
int MPI_Comm_size(MPI_Comm communicator, int* size);
int MPI_Comm_dup(MPI_Comm communicator, MPI_Comm* created);
/// All ranks pass the same colour.
int MPI_Comm_split(MPI_Comm communicator, int colour, int key, MPI_Comm* created);
int MPI_Comm_split_type(MPI_Comm communicator, int type, int key, MPI_Info info, MPI_Comm* created);
int MPI_Comm_create_group(MPI_Comm communicator, MPI_Group group, int tag, MPI_Comm* created);
int MPI_Comm_free(MPI_Comm* communicator);
int MPI_Comm_group(MPI_Comm communicator, MPI_Group* group);
int MPI_Comm_set_errhandler(MPI_Comm communicator, MPI_Errhandler handler);
int MPI_Comm_set_name(MPI_Comm communicator, const char* name);
int MPI_Group_incl(MPI_Group group, int count, const int* ranks, MPI_Group* created);
int MPI_Group_free(MPI_Group* group);
int MPI_Group_translate_ranks(MPI_Group from, int count, const int* ranks, MPI_Group to, int* translated);

int MPI_Ibarrier(MPI_Comm communicator, MPI_Request* request);
int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm communicator,
               MPI_Request* request);
int MPI_Iallgather(const void* data, int count, MPI_Datatype type, void* all, int all_count,
                   MPI_Datatype all_type, MPI_Comm communicator, MPI_Request* request);
/// In place.
int MPI_Iallreduce(const void* in_place, void* data, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm communicator, MPI_Request* request);

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm communicator,
              MPI_Request* request);
int MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm communicator,
              MPI_Request* request);
int MPI_Recv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm communicator,
             MPI_Status* status);
int MPI_Iprobe(int peer, int tag, MPI_Comm communicator, int* flag, MPI_Status* status);
int MPI_Get_count(const MPI_Status* status, MPI_Datatype type, int* count);
int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status);
int MPI_Testall(int count, MPI_Request* requests, int* flag, MPI_Status* statuses);
int MPI_Request_get_status(MPI_Request request, int* flag, MPI_Status* status);
int MPI_Request_free(MPI_Request* request);
