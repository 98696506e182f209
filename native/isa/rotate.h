// Rotary embedding of queries and keys, and the one place where keys and values are written into pages.
//
// A tile of 32 tokens, bf16: keys [2 halves of 16 tokens][head_dim / 2][16 tokens][2 channels],
// values [head_dim / 16][16 token pairs][16 channels][2 tokens]. Both are the operands of a bf16 tile product.
#pragma once

namespace KVR_ISA {

// Rotates the pairs of one head: r0 = x0 cos - x1 sin, r1 = x1 cos + x0 sin. Channels past `dims` pass unchanged.
static void rotate_head(const float *x, const float *cosines, const float *sines, int dims, int head_dim, bool interleaved,
                        float *y) {
  const int half = dims / 2, step = interleaved ? 2 : 1, second = interleaved ? 1 : half;
  for (int i = 0; i < half; i++) {
    const float x0 = x[i * step], x1 = x[i * step + second], c = cosines[i], s = sines[i];
    const float a = x1 * s, b = x0 * s;
    y[i * step] = __builtin_fmaf(x0, c, -a);
    y[i * step + second] = __builtin_fmaf(x1, c, b);
  }
  for (int i = dims; i < head_dim; i++) y[i] = x[i];
}

// One head of a row before rotation: with its bias and its norm, where it has them. `space`: one head.
INL const float *prepare_head(const float *x, const float *bias, const float *norm, float eps, int head_dim, float *space) {
  if (!bias && !norm) return x;
  for (int i = 0; i < head_dim; i += 16) store(space + i, bias ? add(load(x + i), load(bias + i)) : load(x + i));
  if (norm) rms_norm_row(space, norm, eps, head_dim, space);
  return space;
}

// Where the tile of a position lies in the plane of (layer, K or V, head).
INL uint8_t *tile_at(const kvr::KVGeometry &kv, const kvr::StepRows &step, int seq, int position, int layer, bool value, int head) {
  const int32_t page = step.tables[(size_t)seq * step.table_stride + position / kv.page_size];
  return kv.pool + (size_t)page * kv.page_bytes + (size_t)layer * kv.layer_bytes +
         (size_t)(value ? kv.kv_heads + head : head) * kv.plane_bytes +
         (size_t)(position % kv.page_size / kvr::TILE_TOKENS) * kv.tile_bytes;
}

static void encode_key(const float *k, int head_dim, int token, uint8_t *tile) {
  uint32_t *to = (uint32_t *)tile + (size_t)(token / 16) * head_dim * 8 + token % 16;
  for (int d = 0; d < head_dim; d += 16) {
    int32_t bits[16];
    istore(bits, bf16_bits(load(k + d)));
    for (int i = 0; i < 16; i += 2) to[(size_t)(d + i) / 2 * 16] = (uint32_t)bits[i] | (uint32_t)bits[i + 1] << 16;
  }
}

static void encode_value(const float *v, int head_dim, int token, uint8_t *tile) {
  for (int d = 0; d < head_dim; d += 16)
    store_even_u16((uint16_t *)tile + (size_t)d * 32 + token / 2 * 32 + token % 2, bf16_bits(load(v + d)));
}

// Rows of `qkv` are [heads * head_dim | kv_heads * head_dim | kv_heads * head_dim].
static void rotate_encode(const kvr::KVGeometry &kv, const kvr::StepRows &step, const kvr::HeadInputs &input,
                          const kvr::Rotary &rope, int layer, float query_scale, const float *qkv, size_t qkv_stride,
                          float *queries, int row_begin, int row_end) {
  const int hd = kv.head_dim, heads = kv.kv_heads * kv.group_size, half = rope.dims / 2;
  float space[256], rotated[256];
  for (int row = row_begin; row < row_end; row++) {
    const float *x = qkv + (size_t)row * qkv_stride;
    const int position = step.positions[row], seq = step.row_seq[row], token = position % kvr::TILE_TOKENS;
    const float *c = rope.cosines + (size_t)position * half, *s = rope.sines + (size_t)position * half;
    auto head = [&](int h, const float *norm) {
      return prepare_head(x + h * hd, input.bias ? input.bias + h * hd : nullptr, norm, input.eps, hd, space);
    };
    for (int h = 0; h < heads; h++) {
      float *q = queries + ((size_t)row * heads + h) * hd;
      rotate_head(head(h, input.q_norm), c, s, rope.dims, hd, rope.interleaved, rotated);
      for (int i = 0; i < hd; i += 16) store(q + i, round_bf16(mul(load(rotated + i), set1(query_scale))));
    }
    for (int h = 0; h < kv.kv_heads; h++) {
      rotate_head(head(heads + h, input.k_norm), c, s, rope.dims, hd, rope.interleaved, rotated);
      encode_key(rotated, hd, token, tile_at(kv, step, seq, position, layer, false, h));
      encode_value(head(heads + kv.kv_heads + h, nullptr), hd, token, tile_at(kv, step, seq, position, layer, true, h));
    }
  }
}

}  // namespace KVR_ISA
