#define KVR_ISA kvr_avx2
#define KVR_NAME "avx2"
#define KVR_TILES "tiles_none.h"
#include "../kernels.h"
#include "lanes_avx2.h"
#include "kernels.inc"

const kvr::KernelTable *kvr::avx2_kernels() { return &KVR_ISA::table; }
