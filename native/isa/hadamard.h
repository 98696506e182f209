// A block Hadamard rotation of one head: orthonormal, its own inverse. Blocks are the largest power of two that divides the head.
//
// The order of the sums is fixed: first within sixteen channels, then butterflies over ever larger distances.
#pragma once

namespace KVR_ISA {

struct Signs { alignas(64) float v[16][16]; };

constexpr Signs hadamard_signs() {
  Signs s{};
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) {
      int ones = 0;
      for (int bits = i & j; bits; bits &= bits - 1) ones++;
      s.v[i][j] = ones % 2 ? -1.f : 1.f;
    }
  return s;
}
static constexpr Signs SIGNS = hadamard_signs();

INL int hadamard_block(int head_dim) { return head_dim & -head_dim; }

// y = H x, in place.
static void hadamard(float *x, int head_dim) {
  const int block = hadamard_block(head_dim);
  for (int c = 0; c < head_dim; c += 16) {
    F y = zero();
    UNROLL for (int j = 0; j < 16; j++) y = fma(set1(x[c + j]), load(SIGNS.v[j]), y);
    store(x + c, y);
  }
  for (int s = 16; s < block; s *= 2)
    for (int c = 0; c < head_dim; c += 2 * s)
      for (int i = c; i < c + s; i += 16) {
        const F a = load(x + i), b = load(x + i + s);
        store(x + i, add(a, b));
        store(x + i + s, sub(a, b));
      }
  const F norm = set1((float)(1.0 / __builtin_sqrt((double)block)));
  for (int c = 0; c < head_dim; c += 16) store(x + c, mul(load(x + c), norm));
}

}  // namespace KVR_ISA
