// Scores and weighted values of a few query rows against tiles of 8-bit and 4-bit keys and values.
//
// Queries and weights become integers of 15 bits, as two signed bytes: products are exact in int32, whatever their order, and
// the stored codes are read as they are. Scales come in afterwards.
#pragma once

namespace KVR_ISA {

constexpr float MOST = 16256.f;  // 127 * 128: the largest integer that a query or a weight becomes

INL int32_t word(const int8_t *bytes, int i) {
  int32_t w;
  __builtin_memcpy(&w, bytes + 4 * i, 4);
  return w;
}

// 128 * high + low.
INL F joined(I high, I low) { return to_float(iadd(shl<7>(high), low)); }

// A query as integers lies where its floats would: [head_dim] high bytes, [head_dim] low bytes, then these.
struct QueryFacts {
  float scale;
  int32_t high_sum, low_sum;
  float group_sums[4];  // of the integers, by group of 64 channels
};
struct IntQuery {
  const int8_t *high, *low;
  const QueryFacts *facts;
};
INL IntQuery int_query(const float *space, int head_dim) {
  const int8_t *bytes = (const int8_t *)space;
  return {bytes, bytes + head_dim, (const QueryFacts *)(bytes + 2 * head_dim)};
}

// Halves of sixteen integers of up to MOST in magnitude, as bytes; returns what they are.
INL void split_bytes(I x, int8_t *high, int8_t *low, I &high_sum, I &low_sum) {
  const I h = isub(shr<7>(iadd(x, iset1(64 + 16384))), iset1(128)), l = isub(x, shl<7>(h));
  store_i8(high, h);
  store_i8(low, l);
  high_sum = iadd(high_sum, h);
  low_sum = iadd(low_sum, l);
}
INL int32_t exact_sum(I x) { return (int32_t)sum16(to_float(x)); }  // of sums below 2^24

static void quantise_query(const float *q, int head_dim, float *space) {
  F largest = zero();
  for (int d = 0; d < head_dim; d += 16) largest = max(largest, magnitudes(load(q + d)));
  const float scale = reduce_max(largest) * (1.f / MOST), inverse = inverse_of(scale);
  int8_t *high = (int8_t *)space, *low = high + head_dim;
  QueryFacts facts = {scale, 0, 0, {0, 0, 0, 0}};
  I high_sum = izero(), low_sum = izero();
  for (int d = 0; d < head_dim; d += kvr::CHANNEL_GROUP) {
    I group = izero();
    for (int i = d; i < d + kvr::CHANNEL_GROUP && i < head_dim; i += 16) {
      const I x = scaled_int(load(q + i), inverse, MOST);
      split_bytes(x, high + i, low + i, high_sum, low_sum);
      group = iadd(group, x);
    }
    facts.group_sums[d / kvr::CHANNEL_GROUP] = sum16(to_float(group));
  }
  facts.high_sum = exact_sum(high_sum);
  facts.low_sum = exact_sum(low_sum);
  *(QueryFacts *)(high + 2 * head_dim) = facts;
}

// s[r][h] = scores of row r with the tokens of half h of a tile of 8-bit keys.
template <int R> INL void score_tile_8(const uint8_t *tile, int head_dim, const float *q, const uint8_t *next, F (*s)[2]) {
  constexpr int H = R <= 4 ? 2 : 1;
  const float *scales = (const float *)(tile + (size_t)head_dim * 32);
  UNROLL for (int h0 = 0; h0 < 2; h0 += H) {
    I high[R][H], low[R][H];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < H; h++) {
      const QueryFacts *facts = int_query(q + (size_t)r * head_dim, head_dim).facts;
      high[r][h] = dot8_start(facts->high_sum);
      low[r][h] = dot8_start(facts->low_sum);
    }
    for (int u = 0; u < head_dim / 4; u++)
      UNROLL for (int h = 0; h < H; h++) {
        const size_t at = ((size_t)(h0 + h) * head_dim / 4 + u) * 64;
        const B keys = load_bytes(tile + at);
        if (R <= 4 || next != tile) prefetch_l2(next + at);
        UNROLL for (int r = 0; r < R; r++) {
          const IntQuery row = int_query(q + (size_t)r * head_dim, head_dim);
          high[r][h] = dot8(high[r][h], keys, word(row.high, u));
          low[r][h] = dot8(low[r][h], keys, word(row.low, u));
        }
      }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < H; h++)
      s[r][h0 + h] = mul(mul(joined(high[r][h], low[r][h]), load(scales + 16 * (h0 + h))),
                         set1(int_query(q + (size_t)r * head_dim, head_dim).facts->scale));
  }
}

// The same of 4-bit keys.
template <int R> INL void score_tile_4(const uint8_t *tile, int head_dim, const float *q, const uint8_t *next, F (*s)[2]) {
  constexpr int H = R <= 4 ? 2 : 1;
  const uint16_t *scales = (const uint16_t *)(tile + (size_t)head_dim * 16);
  const uint16_t *minima = scales + (size_t)(head_dim + kvr::CHANNEL_GROUP - 1) / kvr::CHANNEL_GROUP * 32;
  UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = zero();
  UNROLL for (int h0 = 0; h0 < 2; h0 += H)
    for (int d = 0, g = 0; d < head_dim; d += kvr::CHANNEL_GROUP, g++) {
      const int end = d + kvr::CHANNEL_GROUP < head_dim ? d + kvr::CHANNEL_GROUP : head_dim;
      I high[R][H], low[R][H];
      UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < H; h++) high[r][h] = low[r][h] = izero();
      for (int u = d / 8; u < end / 8; u++)
        UNROLL for (int h = 0; h < H; h++) {
          const size_t at = ((size_t)(h0 + h) * head_dim / 8 + u) * 64;
          const B packed = load_bytes(tile + at), first = low_nibbles(packed), second = high_nibbles(packed);
          if (R <= 4 || next != tile) prefetch_l2(next + at);
          UNROLL for (int r = 0; r < R; r++) {
            const IntQuery row = int_query(q + (size_t)r * head_dim, head_dim);
            high[r][h] = dot4(high[r][h], first, word(row.high, 2 * u));
            low[r][h] = dot4(low[r][h], first, word(row.low, 2 * u));
            high[r][h] = dot4(high[r][h], second, word(row.high, 2 * u + 1));
            low[r][h] = dot4(low[r][h], second, word(row.low, 2 * u + 1));
          }
        }
      UNROLL for (int h = 0; h < H; h++) {
        const F scale = load_f16(scales + g * 32 + 16 * (h0 + h)), minimum = load_f16(minima + g * 32 + 16 * (h0 + h));
        UNROLL for (int r = 0; r < R; r++) {
          const QueryFacts *facts = int_query(q + (size_t)r * head_dim, head_dim).facts;
          const F term = fma(joined(high[r][h], low[r][h]), scale, mul(set1(facts->group_sums[g]), minimum));
          F &sum = s[r][h0 + h];
          sum = g ? add(sum, term) : term;
          if (end == head_dim) sum = mul(sum, set1(facts->scale));
        }
      }
    }
}

// The weights of one row and step, times the scales of a group of values, as integers.
struct IntWeights {
  alignas(64) int8_t high[kvr::STEP_TOKENS], low[kvr::STEP_TOKENS];
  float scale, minimum;
  int32_t high_sum, low_sum;
};

// p: 64 weights, 0 where the row sees nothing: there scales and minima may be anything. `minima` may be null.
INL void quantise_weights(const F *p, const F *scales, const F *minima, IntWeights &out) {
  F w[4], m[4], largest = zero();
  UNROLL for (int i = 0; i < 4; i++) {
    const Mask seen = greater(p[i], zero());
    w[i] = select(seen, mul(p[i], scales[i]), zero());
    if (minima) m[i] = select(seen, mul(p[i], minima[i]), zero());
    largest = max(largest, magnitudes(w[i]));
  }
  out.scale = reduce_max(largest) * (1.f / MOST);
  const float inverse = inverse_of(out.scale);
  I high_sum = izero(), low_sum = izero();
  UNROLL for (int i = 0; i < 4; i++)
    split_bytes(scaled_int(w[i], inverse, MOST), out.high + 16 * i, out.low + 16 * i, high_sum, low_sum);
  out.high_sum = exact_sum(high_sum);
  out.low_sum = exact_sum(low_sum);
  out.minimum = minima ? sum16(add(add(m[0], m[1]), add(m[2], m[3]))) : 0.f;
}

// o[r] += w[r] V of one step, for C times 16 channels of 8-bit values from channel d.
template <int R, int C> INL void value_columns_8(const StepTiles &tiles, int d, const IntWeights *w, float *o, size_t o_stride) {
  I high[R][C], low[R][C];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) {
    high[r][c] = dot8_start(w[r].high_sum);
    low[r][c] = dot8_start(w[r].low_sum);
  }
  for (int t = 0; t < tiles.count; t++)
    for (int quad = 0; quad < 8; quad++)
      UNROLL for (int c = 0; c < C; c++) {
        const size_t at = (size_t)(d + 16 * c) * 32 + quad * 64;
        const B values = load_bytes(tiles.values[t] + at);
        if (R <= 4 || tiles.next_values[t] != tiles.values[t]) prefetch_l2(tiles.next_values[t] + at);
        UNROLL for (int r = 0; r < R; r++) {
          high[r][c] = dot8(high[r][c], values, word(w[r].high, 8 * t + quad));
          low[r][c] = dot8(low[r][c], values, word(w[r].low, 8 * t + quad));
        }
      }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < C; c++) {
    float *to = o + r * o_stride + d + 16 * c;
    store(to, fma(joined(high[r][c], low[r][c]), set1(w[r].scale), load(to)));
  }
}

template <int R> INL void value_step_8(const StepTiles &tiles, int head_dim, const F (*p)[4], float *o, size_t o_stride) {
  constexpr int C = R <= 2 ? 4 : R <= 4 ? 2 : 1;
  IntWeights w[R];
  F scales[4];
  UNROLL for (int i = 0; i < 4; i++)
    scales[i] = i / 2 < tiles.count ? load((const float *)(tiles.values[i / 2] + (size_t)head_dim * 32) + i % 2 * 16) : zero();
  for (int r = 0; r < R; r++) quantise_weights(p[r], scales, nullptr, w[r]);
  int d = 0;
  for (; d + 16 * C <= head_dim; d += 16 * C) value_columns_8<R, C>(tiles, d, w, o, o_stride);
  for (; d < head_dim; d += 16) value_columns_8<R, 1>(tiles, d, w, o, o_stride);
}

// The same for 4-bit values: the 32 channels from d, or half of them (LOW first, HIGH second) where registers are short.
template <int R, bool LOW, bool HIGH> INL void value_columns_4(const StepTiles &tiles, int d, const IntWeights *w, float *o, size_t o_stride) {
  I high[R][2], low[R][2];
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < 2; c++) high[r][c] = low[r][c] = izero();
  for (int t = 0; t < tiles.count; t++)
    for (int quad = 0; quad < 8; quad++) {
      const size_t at = (size_t)d * 16 + quad * 64;
      const B packed = load_bytes(tiles.values[t] + at), first = low_nibbles(packed), second = high_nibbles(packed);
      if (R <= 4 || tiles.next_values[t] != tiles.values[t]) prefetch_l2(tiles.next_values[t] + at);
      UNROLL for (int r = 0; r < R; r++) {
        const int32_t wh = word(w[r].high, 8 * t + quad), wl = word(w[r].low, 8 * t + quad);
        if (LOW) high[r][0] = dot4(high[r][0], first, wh), low[r][0] = dot4(low[r][0], first, wl);
        if (HIGH) high[r][1] = dot4(high[r][1], second, wh), low[r][1] = dot4(low[r][1], second, wl);
      }
    }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int c = 0; c < 2; c++) {
    if (!(c ? HIGH : LOW)) continue;
    float *to = o + r * o_stride + d + 16 * c;
    store(to, fma(joined(high[r][c], low[r][c]), set1(w[r].scale), add(load(to), set1(w[r].minimum))));
  }
}

template <int R> INL void value_step_4(const StepTiles &tiles, int head_dim, const F (*p)[4], float *o, size_t o_stride) {
  const size_t codes = (size_t)(head_dim + 31) / 32 * 512, groups = (head_dim + kvr::CHANNEL_GROUP - 1) / kvr::CHANNEL_GROUP;
  IntWeights w[R];
  for (int g = 0; g < (int)groups; g++) {
    F scales[4], minima[4];
    UNROLL for (int i = 0; i < 4; i++) {
      const uint16_t *at = (const uint16_t *)(tiles.values[i / 2 < tiles.count ? i / 2 : 0] + codes) + g * 32 + i % 2 * 16;
      scales[i] = i / 2 < tiles.count ? load_f16(at) : zero();
      minima[i] = i / 2 < tiles.count ? load_f16(at + groups * 32) : zero();
    }
    for (int r = 0; r < R; r++) quantise_weights(p[r], scales, minima, w[r]);
    for (int d = g * kvr::CHANNEL_GROUP; d < (g + 1) * kvr::CHANNEL_GROUP && d < head_dim; d += 32) {
      if (d + 16 >= head_dim) value_columns_4<R, true, false>(tiles, d, w, o, o_stride);
      else if (R <= 4) value_columns_4<R, true, true>(tiles, d, w, o, o_stride);
      else {
        value_columns_4<R, true, false>(tiles, d, w, o, o_stride);
        value_columns_4<R, false, true>(tiles, d, w, o, o_stride);
      }
    }
  }
}

}  // namespace KVR_ISA
