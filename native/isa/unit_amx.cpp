#define KVR_ISA kvr_amx
#define KVR_NAME "amx"
#define KVR_TILES "tiles_amx.h"
#include "../kernels.h"
#include "lanes_avx512.h"
#include "tile_ops_amx.h"
#include "kernels.inc"

const kvr::KernelTable *kvr::amx_kernels() { return &KVR_ISA::table; }
