/* A tool that NVTX loads by NVTX_INJECTION64_PATH. It writes all pushed and popped ranges with their domains
 * to the file MAESTRO_NVTX_RECORD.RANK of each rank. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE* record(void) {
    static FILE* file = NULL;
    if (file == NULL) {
        char path[4096];
        const char* rank = getenv("OMPI_COMM_WORLD_RANK");
        snprintf(path, sizeof path, "%s.%s", getenv("MAESTRO_NVTX_RECORD"), rank ? rank : "0");
        file = fopen(path, "a");
        if (file == NULL) abort();
        setvbuf(file, NULL, _IOLBF, 0);
    }
    return file;
}

static nvtxDomainHandle_t NVTX_API create(const char* name) {
    return (nvtxDomainHandle_t)strdup(name);
}
static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
    fprintf(record(), "push\t%s\t%s\n", (const char*)domain, range->message.ascii);
    return 0;
}
static int NVTX_API pop(nvtxDomainHandle_t domain) {
    fprintf(record(), "pop\t%s\n", (const char*)domain);
    return 0;
}

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    const NvtxExportTableCallbacks* callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned int size = 0;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
