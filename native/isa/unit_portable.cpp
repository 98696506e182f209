#define KVR_ISA kvr_portable
#define KVR_NAME "portable"
#define KVR_NO_UNROLL  // the lanes are loops: unrolling around them costs a minute of compile time and gains nothing
#define KVR_TILES "tiles_none.h"
#include "../kernels.h"
#include "lanes_portable.h"
#include "kernels.inc"

const kvr::KernelTable *kvr::portable_kernels() { return &KVR_ISA::table; }
