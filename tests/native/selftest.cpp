// The portable kernels on fixed inputs: one line a result, with the hash of its bits. expected.txt has those of x86-64.
//
// It is for machines that cannot run the suite, and for cross compilers: see check.sh.
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "../../native/operations.h"

#if defined(__x86_64__)  // paths that cpu.cpp names there, and that are not compiled here
namespace kvr {
static const KernelTable absent = [] {
  KernelTable table{};
  table.name = "absent";
  return table;
}();
const KernelTable *avx2_kernels() { return &absent; }
const KernelTable *avx2_vnni_kernels() { return &absent; }
const KernelTable *avx512_kernels() { return &absent; }
const KernelTable *amx_kernels() { return &absent; }
const KernelTable *amx_sim_kernels() { return &absent; }
}  // namespace kvr
#endif

namespace {

using namespace kvr;

// Numbers that are the same everywhere: integers from a congruential generator, and quotients by powers of two.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2862933555777941757u + 3037000493u) {}
  uint32_t bits() { return (uint32_t)((state_ = state_ * 6364136223846793005u + 1442695040888963407u) >> 33); }
  float real() { return (float)((int)(bits() & 0xffff) - 0x8000) * 0x1p-15f; }

 private:
  uint64_t state_;
};

std::vector<float> reals(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<float> out(count);
  for (float &value : out) value = random.real();
  return out;
}

void fill(Tensor &t, uint64_t seed) {
  Random random(seed);
  for (int i = 0; i < t.rows(); i++)
    for (int k = 0; k < t.columns(); k++) t.row(i)[k] = random.real();
}

class Hash {
 public:
  void add(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) value_ = (value_ ^ static_cast<const uint8_t *>(data)[i]) * 1099511628211u;
  }
  unsigned long long value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;
};

void report(const std::string &name, const Tensor &t, int rows) {
  Hash hash;
  for (int i = 0; i < rows; i++) hash.add(t.row(i), (size_t)t.columns() * 4);
  std::printf("%s: %016llx, the first %a\n", name.c_str(), hash.value(), (double)t.row(0)[0]);
}

// A tensor type of GGUF: its number, weights and bytes of a block, and where in it fp16 numbers are.
struct Type {
  const char *name;
  int number, weights, bytes;
  std::vector<int> halves;
};

const std::vector<Type> TYPES = {{"F32", 0, 1, 4, {}},           {"F16", 1, 1, 2, {0}},          {"BF16", 30, 1, 2, {}},
                                 {"Q4_0", 2, 32, 18, {0}},       {"Q4_1", 3, 32, 20, {0, 2}},    {"Q5_0", 6, 32, 22, {0}},
                                 {"Q5_1", 7, 32, 24, {0, 2}},    {"Q8_0", 8, 32, 34, {0}},       {"Q4_K", 12, 256, 144, {0, 2}},
                                 {"Q5_K", 13, 256, 176, {0, 2}}, {"Q6_K", 14, 256, 210, {208}}};

// Random blocks; numbers in them are small and finite.
std::vector<uint8_t> tensor_bytes(const Type &type, size_t weights, uint64_t seed) {
  Random random(seed);
  std::vector<uint8_t> out(weights / type.weights * type.bytes);
  for (uint8_t &byte : out) byte = (uint8_t)random.bits();
  for (uint8_t *block = out.data(); block < out.data() + out.size(); block += type.bytes) {
    const float value = random.real();
    if (type.number == 0) std::memcpy(block, &value, 4);
    if (type.number == 30) std::memcpy(block, reinterpret_cast<const uint8_t *>(&value) + 2, 2);
    for (int at : type.halves) {
      const uint32_t bits = random.bits(), exponent = 5 + (bits >> 16 & 3);
      const uint16_t half = (uint16_t)((bits & 0x83ff) | exponent << 10);
      std::memcpy(block + at, &half, 2);
    }
  }
  return out;
}

std::shared_ptr<Matrix> matrix(Kernels &kernels, const Type &type, int rows, int columns, uint64_t seed) {
  const std::vector<uint8_t> bytes = tensor_bytes(type, (size_t)rows * columns, seed);
  const SourceMatrix source{bytes.data(), bytes.size(), type.number, rows, columns, type.name};
  return std::make_shared<Matrix>(std::vector<SourceMatrix>{source}, kernels.threads(), std::make_shared<Arena>());
}

// Every kind of weight, one row and many, every way into a linear.
void linears(Kernels &kernels) {
  constexpr int ROWS = 19, OUTPUTS = 40;
  for (const Type &type : TYPES) {
    const int inputs = type.weights == 256 ? 512 : 288;
    Projection projection({matrix(kernels, type, OUTPUTS, inputs, 1)});
    Workspace space({kernels.threads().size(), ROWS, inputs, 64, 1, 1, 64, 16});
    const std::vector<float> norm = reals(inputs, 2);
    Tensor x(ROWS, 2 * inputs), y(ROWS, projection.outputs());
    fill(x, 3);
    fill(y, 4);
    const struct { const char *name; Normed input; int rows; bool accumulate; } cases[] = {
        {"normed, a row", {Prologue::RMS_NORM, norm.data(), 1e-5f}, 1, false},
        {"plain, added", {Prologue::PLAIN, nullptr, 0}, ROWS, true},
        {"silu", {Prologue::SILU_MUL, nullptr, 0}, 7, false},
        {"gelu", {Prologue::GELU_MUL, nullptr, 0}, 7, false}};
    for (const auto &c : cases) {
      kernels.linear(space, projection, x, c.rows, c.input, y, c.accumulate);
      report(std::string("linear ") + type.name + ", " + c.name, y, c.rows);
    }
  }
}

void embeddings(Kernels &kernels) {
  const std::vector<int32_t> ids = {5, 0, 31, 5}, positions = {0, 1, 2, 3}, sequence(4, 0), table = {0}, length = {4}, last = {3};
  Batch batch({4, 1, 1, 1, 32, 1, 32, 32, ITEM_TOKENS, true});
  batch.load(ids.data(), positions.data(), sequence.data(), 4, table.data(), 1, length.data(), 1, last.data(), 1, 4);
  for (const Type &type : TYPES) {
    Tensor x(4, 256);
    kernels.embed(*matrix(kernels, type, 32, 256, 5), batch, 1.75f, x);
    report(std::string("embedding ") + type.name, x, 4);
  }
}

// Prefill in chunks, then a row alone, over pages in disorder; the second sequence is short.
struct Stored {
  Codec keys, values;
  double clip;
  bool transformed;
};

void attention(Kernels &kernels, const char *name, int head_dim, int window, bool interleaved, bool norms,
               Stored stored = {Codec::BF16, Codec::BF16, 1, false}) {
  constexpr int KV_HEADS = 2, GROUP_SIZE = 3, PAGE = 32, PAGES = 24, POSITIONS = 700, CHUNK = 229, SEQUENCES = 2;
  const int heads = KV_HEADS * GROUP_SIZE, width = (heads + 2 * KV_HEADS) * head_dim;
  std::vector<Plane> planes;
  size_t layer = 0;
  for (int i = 0; i < 2 * KV_HEADS; i++) {
    const bool value = i >= KV_HEADS;
    planes.push_back(plane_at(layer, value ? stored.values : stored.keys, value, head_dim, stored.clip));
    layer += planes.back().tile_bytes;
  }
  Region pool(PAGES * layer);
  Workspace space({kernels.threads().size(), CHUNK, heads * head_dim + 32, heads * head_dim, GROUP_SIZE, heads, head_dim, 16});
  const std::vector<float> constant = reals((size_t)KV_HEADS * head_dim, 21);
  std::vector<float> scale = reals((size_t)KV_HEADS * head_dim, 22), inverse;
  for (float &x : scale) inverse.push_back(1.f / (x = 1.f + x * x));
  const std::vector<float> bias = reals(width, 6), q_norm = reals(head_dim, 7), k_norm = reals(head_dim, 8);
  const std::vector<float> cosines = reals((size_t)POSITIONS * head_dim / 2, 9), sines = reals((size_t)POSITIONS * head_dim / 2, 10);
  const Attention attention{
      {pool.data(), planes.data(), layer, PAGE, KV_HEADS, GROUP_SIZE, head_dim},
      {norms ? bias.data() : nullptr, norms ? q_norm.data() : nullptr, norms ? k_norm.data() : nullptr, 1e-6f},
      {cosines.data(), sines.data(), head_dim, interleaved},
      {stored.transformed ? constant.data() : nullptr, stored.transformed ? scale.data() : nullptr,
       stored.transformed ? inverse.data() : nullptr, stored.transformed, stored.transformed},
      0, window, 0.18f};
  Batch batch({CHUNK, 2, SEQUENCES, PAGES, PAGE, PAGES, 32, POSITIONS, ITEM_TOKENS, true});
  std::vector<int32_t> tables(SEQUENCES * PAGES, 0);
  for (int p = 0; p < 22; p++) tables[p] = (p * 7 + 3) % 22;
  tables[PAGES] = 22;
  Tensor qkv(CHUNK, width), out(CHUNK, heads * head_dim);
  for (int step = 0, begin = 0; step < 4; step++) {
    const int rows = step < 3 ? CHUNK - 1 : 1;  // and one of the second sequence
    std::vector<int32_t> ids(rows + 1, 1), positions, sequence(rows + 1, 0), length = {begin + rows, step + 1}, sampled = {rows};
    for (int i = 0; i < rows; i++) positions.push_back(begin + i);
    positions.push_back(step);
    sequence[rows] = 1;
    batch.load(ids.data(), positions.data(), sequence.data(), rows + 1, tables.data(), PAGES, length.data(), 2, sampled.data(), 1, 4);
    fill(qkv, 11 + step);
    kernels.attend(space, batch, attention, qkv, out);
    report(std::string("attention ") + name + ", step " + std::to_string(step), out, rows + 1);
    begin += rows;
  }
  Hash all;
  all.add(pool.data(), PAGES * layer);
  std::printf("pages of %s: %016llx\n", name, all.value());
}

void norms(Kernels &kernels) {
  const std::vector<int32_t> ids = {1, 2}, positions = {0, 1}, sequence(2, 0), table = {0}, length = {2}, last = {1};
  Batch batch({2, 1, 1, 1, 32, 1, 32, 32, ITEM_TOKENS, true});
  batch.load(ids.data(), positions.data(), sequence.data(), 2, table.data(), 1, length.data(), 1, last.data(), 1, 4);
  const std::vector<float> norm = reals(288, 20);
  Tensor x(2, 288), y(2, 288);
  fill(x, 21);
  fill(y, 22);
  kernels.add_norm(batch, y, {Prologue::RMS_NORM, norm.data(), 1e-6f}, x);
  report("norm added", x, 2);
}

}  // namespace

int main() {
  Kernels kernels("portable", 2);
  linears(kernels);
  embeddings(kernels);
  attention(kernels, "64, all, interleaved", 64, 0, true, false);
  attention(kernels, "80, window 100, halves, norms", 80, 100, false, true);
  attention(kernels, "64, 8 bits", 64, 0, true, false, {Codec::INT8, Codec::INT8, 1, true});
  attention(kernels, "80, 4 bits, window 100", 80, 100, false, true, {Codec::INT4, Codec::INT4, 0.9, true});
  attention(kernels, "128, keys of 8 bits, values of 4", 128, 0, false, false, {Codec::INT8, Codec::INT4, 0.95, false});
  norms(kernels);
}
