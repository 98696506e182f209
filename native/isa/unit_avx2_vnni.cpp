#define KVR_ISA kvr_avx2_vnni
#define KVR_NAME "avx2-vnni"
#define KVR_VNNI
#define KVR_TILES "tiles_none.h"
#include "../kernels.h"
#include "lanes_avx2.h"
#include "kernels.inc"

const kvr::KernelTable *kvr::avx2_vnni_kernels() { return &KVR_ISA::table; }
