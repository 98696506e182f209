#define KVR_ISA kvr_amx
#define KVR_NAME "amx"
#define KVR_TILE_OPS "tile_ops_amx.h"
#define KVR_TILES "tiles_amx.h"
#include "../kernels.h"
#include "lanes_avx512.h"
#include "kernels.inc"

const kvr::KernelTable *kvr::amx_kernels() { return &KVR_ISA::table; }
