#define KVR_ISA kvr_avx512
#define KVR_NAME "avx512"
#define KVR_TILES "tiles_none.h"
#include "../kernels.h"
#include "lanes_avx512.h"
#include "kernels.inc"

const kvr::KernelTable *kvr::avx512_kernels() { return &KVR_ISA::table; }
