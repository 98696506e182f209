// Included first by every instruction-set unit. No standard templates and no shared inline functions here: the linker
// may keep any unit's copy of those, and an older CPU would then meet instructions that it lacks.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifndef KVR_ISA
#error "an instruction-set unit defines KVR_ISA, its namespace, before it includes anything"
#endif

#define INL static inline __attribute__((always_inline))
#define INL_LAMBDA __attribute__((always_inline))
#ifdef KVR_NO_UNROLL
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
