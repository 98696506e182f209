#define KVR_ISA kvr_amx_sim
#define KVR_NAME "amx-sim"
#define KVR_TILE_OPS "tile_ops_sim.h"
#define KVR_TILES "tiles_amx.h"
#include "../kernels.h"
#include "lanes_avx512.h"
#include "kernels.inc"

const kvr::KernelTable *kvr::amx_sim_kernels() { return &KVR_ISA::table; }
