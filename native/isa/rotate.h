// From a linear's output to queries, and to keys and values in pages: bias, norm, rotary embedding, transform.
#pragma once

namespace KVR_ISA {

// Pairs i of two channels each, from `from` on: r0 = x0 cos - x1 sin, r1 = x1 cos + x0 sin.
INL void rotate_pairs(const float *x, const float *cosines, const float *sines, int from, int half, bool interleaved, float *y) {
  const int step = interleaved ? 2 : 1, second = interleaved ? 1 : half;
  for (int i = from; i < half; i++) {
    const float x0 = x[i * step], x1 = x[i * step + second], c = cosines[i], s = sines[i];
    const float a = x1 * s, b = x0 * s;
    y[i * step] = __builtin_fmaf(x0, c, -a);
    y[i * step + second] = __builtin_fmaf(x1, c, b);
  }
}

// Rotates one head: what fills lanes in lanes, the rest pair by pair. Channels past `dims` pass unchanged.
static void rotate_head(const float *x, const float *cosines, const float *sines, int dims, int head_dim, bool interleaved,
                        float *y) {
  const int half = dims / 2;
  const F minus = set1(-1.f), signs = select(odd_lanes(), set1(1.f), minus);
  int i = 0;
  if (interleaved)
    for (; i + 8 <= half; i += 8) {
      const F v = load(x + 2 * i), turned = mul(swap_pairs(v), mul(twice(sines + i), signs));
      store(y + 2 * i, fma(v, twice(cosines + i), turned));
    }
  else
    for (; i + 16 <= half; i += 16) {
      const F x0 = load(x + i), x1 = load(x + half + i), c = load(cosines + i), s = load(sines + i);
      store(y + i, fma(x0, c, mul(x1, mul(s, minus))));
      store(y + half + i, fma(x1, c, mul(x0, s)));
    }
  rotate_pairs(x, cosines, sines, i, half, interleaved, y);
  for (int d = dims; d < head_dim; d++) y[d] = x[d];
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
  const kvr::Plane &plane = kv.plane(layer, value, head);
  return kv.pool + (size_t)page * kv.page_bytes + plane.offset +
         (size_t)(position % kv.page_size / kvr::TILE_TOKENS) * plane.tile_bytes;
}

// A rotated key, in place, as its page stores it.
INL void transform_key(const kvr::Transform &t, int head, int head_dim, float *k) {
  const size_t at = (size_t)head * head_dim;
  if (t.constant) for (int d = 0; d < head_dim; d += 16) store(k + d, sub(load(k + d), load(t.constant + at + d)));
  if (t.inverse) for (int d = 0; d < head_dim; d += 16) store(k + d, mul(load(k + d), load(t.inverse + at + d)));
  if (t.rotate_keys) hadamard(k, head_dim);
}

// A rotated query of a KV head, scaled, as its keys want it. Only keys in bf16 want queries in bf16.
INL void transform_query(const kvr::Transform &t, int head, int head_dim, float query_scale, bool rounded, float *q) {
  const float *scale = t.scale ? t.scale + (size_t)head * head_dim : nullptr;
  for (int d = 0; d < head_dim; d += 16) {
    const F x = mul(load(q + d), set1(query_scale));
    store(q + d, scale ? mul(x, load(scale + d)) : x);
  }
  if (t.rotate_keys) hadamard(q, head_dim);
  if (rounded) for (int d = 0; d < head_dim; d += 16) store(q + d, round_bf16(load(q + d)));
}

// Rows of `qkv` are [heads * head_dim | kv_heads * head_dim | kv_heads * head_dim].
static void rotate_encode(const kvr::KVGeometry &kv, const kvr::StepRows &step, const kvr::HeadInputs &input,
                          const kvr::Rotary &rope, const kvr::Transform &transform, int layer, float query_scale, const float *qkv,
                          size_t qkv_stride, float *queries, int row_begin, int row_end) {
  const int hd = kv.head_dim, heads = kv.kv_heads * kv.group_size, half = rope.dims / 2;
  float space[256], row_of_head[256];
  for (int row = row_begin; row < row_end; row++) {
    const float *x = qkv + (size_t)row * qkv_stride;
    const int position = step.positions[row], seq = step.row_seq[row], token = position % kvr::TILE_TOKENS;
    const float *c = rope.cosines + (size_t)position * half, *s = rope.sines + (size_t)position * half;
    auto head = [&](int h, const float *norm) {
      return prepare_head(x + h * hd, input.bias ? input.bias + h * hd : nullptr, norm, input.eps, hd, space);
    };
    for (int h = 0; h < heads; h++) {
      const int kv_head = h / kv.group_size;
      float *q = queries + ((size_t)row * heads + h) * hd;
      rotate_head(head(h, input.q_norm), c, s, rope.dims, hd, rope.interleaved, q);
      transform_query(transform, kv_head, hd, query_scale, kv.plane(layer, false, kv_head).codec == Codec::BF16, q);
    }
    for (int h = 0; h < kv.kv_heads; h++) {
      rotate_head(head(heads + h, input.k_norm), c, s, rope.dims, hd, rope.interleaved, row_of_head);
      transform_key(transform, h, hd, row_of_head);
      encode_row(row_of_head, hd, token, kv.plane(layer, false, h), false, tile_at(kv, step, seq, position, layer, false, h));
      const float *v = head(heads + kv.kv_heads + h, nullptr);
      if (transform.rotate_values) {
        for (int d = 0; d < hd; d += 16) store(row_of_head + d, load(v + d));
        hadamard(row_of_head, hd);
        v = row_of_head;
      }
      encode_row(v, hd, token, kv.plane(layer, true, h), true, tile_at(kv, step, seq, position, layer, true, h));
    }
  }
}

}  // namespace KVR_ISA
