// The Python face of the kernels. Calls that compute release the interpreter lock, and check sizes before.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string.h>

#include <stdexcept>

#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using PoolBytes = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

// The pages of a pool as the kernels see them; keeps the pool's array alive.
struct KVView {
  PoolBytes pool;
  kvr::KVGeometry geometry;
  int layers;
  std::vector<kvr::Plane> planes;

  KVView(PoolBytes bytes, int page_size, int layers_, int kv_heads, int group_size, int head_dim, std::optional<Ints> codecs,
         std::optional<Floats> clips)
      : pool(bytes), layers(layers_) {
    if (page_size <= 0 || page_size % kvr::TILE_TOKENS || head_dim <= 0 || head_dim % 16 || head_dim > 256 || kv_heads <= 0 ||
        group_size <= 0 || layers <= 0)
      throw std::invalid_argument("page_size must be a multiple of 32, head_dim a multiple of 16 up to 256");
    const size_t count = (size_t)layers * 2 * kv_heads;
    if ((codecs && codecs->size() != count) || (clips && clips->size() != count))
      throw std::invalid_argument("there must be a codec and a clip for the keys and the values of every head and layer");
    size_t page = 0;
    for (size_t i = 0; i < count; i++) {
      const int codec = codecs ? codecs->data()[i] : 0;
      const double clip = clips ? clips->data()[i] : 1.0;
      if (codec < 0 || codec > 2 || !(clip > 0 && clip <= 1)) throw std::invalid_argument("a codec is 0 to 2, a clip above 0 and at most 1");
      planes.push_back(kvr::plane_at(page, (kvr::Codec)codec, i / kv_heads % 2, head_dim, clip));
      page += page_size / kvr::TILE_TOKENS * planes.back().tile_bytes;
    }
    if (pool.shape(1) != page) throw std::invalid_argument("a page of the pool has another size than its geometry gives");
    geometry = {pool.data(), planes.data(), page, page_size, kv_heads, group_size, head_dim};
  }

  // Copies the tiles of a page that hold its first `rows` tokens, in every plane.
  void copy_rows(int source, int destination, int rows) {
    const int num_pages = (int)pool.shape(0);
    if (source < 0 || source >= num_pages || destination < 0 || destination >= num_pages || rows < 0 || rows > geometry.page_size)
      throw std::invalid_argument("a copy of rows names a page that the pool does not have, or more rows than a page has");
    const size_t tiles = (rows + kvr::TILE_TOKENS - 1) / kvr::TILE_TOKENS;
    const uint8_t *from = geometry.pool + source * geometry.page_bytes;
    uint8_t *to = geometry.pool + destination * geometry.page_bytes;
    for (const kvr::Plane &plane : planes) memmove(to + plane.offset, from + plane.offset, tiles * plane.tile_bytes);
  }
};

struct RotaryTable {
  FloatTable cosines, sines;
  kvr::Rotary rotary;
  RotaryTable(FloatTable c, FloatTable s, bool interleaved) : cosines(c), sines(s) {
    if (c.shape(0) != s.shape(0) || c.shape(1) != s.shape(1) || c.shape(1) == 0) throw std::invalid_argument("the rotary tables must have one shape");
    rotary = {c.data(), s.data(), (int)c.shape(1) * 2, interleaved};
  }
};

// What a linear does to its input first, with the norm's weights where it has some.
struct Input {
  Floats norm;
  kvr::Normed normed;
  size_t width;
};

// A program, and the batch that its attention is checked against.
struct PyProgram {
  kvr::Batch &batch;
  kvr::Program program;
  PyProgram(kvr::Kernels &kernels, kvr::Workspace &space, kvr::Batch &b) : batch(b), program(kernels, space, b) {}
};

// The attention of one layer; holds on to the arrays that it reads.
struct LayerAttention {
  kvr::Attention attention;
  int positions, num_pages;  // that its tables and its pool have
  std::vector<Floats> arrays;
  std::vector<float> inverse;  // of the keys' scale

  LayerAttention(const KVView &kv, const RotaryTable &rope, int layer, float query_scale, int window, std::optional<Floats> bias,
                 std::optional<Floats> q_norm, std::optional<Floats> k_norm, float eps, std::optional<Floats> key_constant,
                 std::optional<Floats> key_scale, bool hadamard_keys, bool hadamard_values) {
    const kvr::KVGeometry &g = kv.geometry;
    if (layer < 0 || layer >= kv.layers) throw std::invalid_argument("there is no such layer");
    if (window < 0) throw std::invalid_argument("a window must be at least 1, or 0 for none");
    if (rope.rotary.dims > g.head_dim) throw std::invalid_argument("the rotary tables are wider than a head");
    const size_t width = (size_t)g.kv_heads * (g.group_size + 2) * g.head_dim;
    auto take = [&](const std::optional<Floats> &array, size_t size, const char *message) -> const float * {
      if (!array) return nullptr;
      if (array->size() != size) throw std::invalid_argument(message);
      arrays.push_back(*array);
      return array->data();
    };
    const kvr::HeadInputs heads = {take(bias, width, "a bias must be as wide as queries, keys and values"),
                                   take(q_norm, g.head_dim, "a head's norm must be as wide as the head"),
                                   take(k_norm, g.head_dim, "a head's norm must be as wide as the head"), eps};
    kvr::Transform transform = {take(key_constant, (size_t)g.kv_heads * g.head_dim, "a constant of keys must be as wide as the keys"),
                                take(key_scale, (size_t)g.kv_heads * g.head_dim, "a scale of keys must be as wide as the keys"), nullptr,
                                hadamard_keys, hadamard_values};
    if (transform.scale) {
      for (size_t i = 0; i < key_scale->size(); i++) inverse.push_back(1.f / key_scale->data()[i]);
      transform.inverse = inverse.data();
    }
    positions = (int)rope.cosines.shape(0);
    num_pages = (int)kv.pool.shape(0);
    attention = {g, heads, rope.rotary, transform, layer, window, query_scale};
  }
};

void check_attend(const kvr::Batch &batch, const LayerAttention &layer) {
  if (layer.positions < batch.limits().positions) throw std::invalid_argument("the rotary tables do not cover the positions");
  if (batch.limits().page_size != layer.attention.kv.page_size || batch.limits().num_pages > layer.num_pages)
    throw std::invalid_argument("the batch was made for another pool");
}

void check_norm(const Input &input, const kvr::Projection &projection) {
  if (input.width && input.width != (size_t)projection.inputs())
    throw std::invalid_argument("a norm has another width than the linear behind it");
}

kvr::SourceMatrix source_matrix(const nb::tuple &t) {
  const Bytes bytes = nb::cast<Bytes>(t[0]);
  std::string name = t.size() > 4 ? nb::cast<std::string>(t[4]) : "a tensor";
  return {bytes.data(), bytes.size(), nb::cast<int>(t[1]), nb::cast<int>(t[2]), nb::cast<int>(t[3]), std::move(name)};
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> tensor_view(kvr::Tensor &t, int rows) {
  if (rows < 0 || rows > t.rows()) throw std::invalid_argument("a tensor has fewer rows than are read");
  const int64_t strides[2] = {(int64_t)t.stride(), 1};
  const size_t shape[2] = {(size_t)rows, (size_t)t.columns()};
  return nb::ndarray<nb::numpy, float, nb::ndim<2>>(t.row(0), 2, shape, nb::handle(), strides);
}

nb::object python_int(kvr::PlannedBytes bytes) {
  return nb::int_((uint64_t)(bytes >> 64)) << nb::int_(64) | nb::int_((uint64_t)bytes);
}

void positive(std::initializer_list<int64_t> limits) {
  for (const int64_t limit : limits)
    if (limit < 1) throw std::invalid_argument("a batch's limits must be positive");
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels of kvreuse: see native/ for what they compute, kvreuse.ops for how they are called.";
  m.def("paths", [] {
    nb::list out;
    for (const kvr::Path &path : kvr::paths()) out.append(nb::make_tuple(path.name, path.supported, path.automatic, path.missing));
    return out;
  }, "Instruction-set paths, best first: (name, supported, automatic, what is missing).");
  m.def("cpu_name", &kvr::cpu_name);
  m.def("packed_bytes", [](int type, int64_t rows, int64_t columns) { return python_int(kvr::packed_bytes(type, rows, columns)); },
        "type"_a, "rows"_a, "columns"_a, "Bytes of a packed matrix, `Matrix.nbytes`, by its GGUF type and shape.");

  nb::class_<kvr::Tensor>(m, "Tensor")
      .def(nb::init<int, int>(), "rows"_a, "columns"_a)
      .def_static("bytes", [](int64_t rows, int64_t columns) { return python_int(kvr::Tensor::bytes(rows, columns)); }, "rows"_a, "columns"_a,
                  "Bytes that a tensor takes, before it is made.")
      .def_prop_ro("nbytes", &kvr::Tensor::nbytes)
      .def_prop_ro("rows", &kvr::Tensor::rows)
      .def_prop_ro("columns", &kvr::Tensor::columns)
      .def("numpy", [](kvr::Tensor &t) { return tensor_view(t, t.rows()); }, nb::rv_policy::reference_internal,
           "A float32[rows, columns] view; it lives as long as the tensor.")
      .def("read", &tensor_view, "rows"_a, nb::rv_policy::reference_internal, "The same of the first rows.")
      .def("write", [](kvr::Tensor &t, FloatTable rows) {
        if ((int)rows.shape(0) > t.rows() || (int)rows.shape(1) != t.columns()) throw std::invalid_argument("the rows do not fit the tensor");
        for (int i = 0; i < (int)rows.shape(0); i++) memcpy(t.row(i), rows.data() + (size_t)i * t.columns(), t.columns() * sizeof(float));
      }, "rows"_a, "Sets the first rows to float32[n, columns].");

  nb::class_<kvr::Arena>(m, "Arena").def(nb::init<>());

  nb::class_<kvr::Matrix>(m, "Matrix")
      .def_prop_ro("rows", &kvr::Matrix::rows)
      .def_prop_ro("columns", [](const kvr::Matrix &w) { return w.weights().inputs; })
      .def_prop_ro("nbytes", &kvr::Matrix::bytes)
      .def_prop_ro("kind", [](const kvr::Matrix &w) { return kvr::kind_name(w.weights().kind); })
      .def_prop_ro("error", &kvr::Matrix::error, "Largest change of a weight, relative to the largest weight of its group of 32.");

  nb::class_<kvr::Projection>(m, "Projection")
      .def(nb::init<std::vector<std::shared_ptr<kvr::Matrix>>>(), "parts"_a)
      .def_prop_ro("inputs", &kvr::Projection::inputs)
      .def_prop_ro("outputs", &kvr::Projection::outputs)
      .def_prop_ro("parts", &kvr::Projection::parts);

  nb::class_<Input>(m, "Input")
      .def_static("plain", [] { return Input{{}, {kvr::Prologue::PLAIN, nullptr, 0}, 0}; })
      .def_static("silu_mul", [] { return Input{{}, {kvr::Prologue::SILU_MUL, nullptr, 0}, 0}; })
      .def_static("gelu_mul", [] { return Input{{}, {kvr::Prologue::GELU_MUL, nullptr, 0}, 0}; })
      .def_static("rms_norm", [](Floats norm, float eps) {
        return Input{norm, {kvr::Prologue::RMS_NORM, norm.data(), eps}, norm.size()};
      }, "norm"_a, "eps"_a);

  nb::class_<RotaryTable>(m, "Rotary")
      .def(nb::init<FloatTable, FloatTable, bool>(), "cosines"_a, "sines"_a, "interleaved"_a);

  nb::class_<KVView>(m, "KVView")
      .def(nb::init<PoolBytes, int, int, int, int, int, std::optional<Ints>, std::optional<Floats>>(), "pool"_a, "page_size"_a, "layers"_a,
           "kv_heads"_a, "group_size"_a, "head_dim"_a, "codecs"_a = nb::none(), "clips"_a = nb::none(),
           "`codecs`: 0 bf16, 1 eight bits, 2 four bits, for [layer][keys, values][head]; `clips`: the share of a row's range that is kept.")
      .def("copy_rows", &KVView::copy_rows, "source"_a, "destination"_a, "rows"_a, Unlocked(),
           "Copies the tiles of 32 tokens that hold the first `rows` tokens of a page to another page, in all layers.");

  nb::class_<LayerAttention>(m, "Attention")
      .def(nb::init<const KVView &, const RotaryTable &, int, float, int, std::optional<Floats>, std::optional<Floats>, std::optional<Floats>, float,
                    std::optional<Floats>, std::optional<Floats>, bool, bool>(),
           "kv"_a, "rotary"_a, "layer"_a, "query_scale"_a, "window"_a = 0, "bias"_a = nb::none(), "q_norm"_a = nb::none(),
           "k_norm"_a = nb::none(), "eps"_a = 0.f, "key_constant"_a = nb::none(), "key_scale"_a = nb::none(), "hadamard_keys"_a = false,
           "hadamard_values"_a = false, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());

  nb::class_<kvr::Batch>(m, "Batch")
      .def("__init__", [](kvr::Batch *self, int rows, int samples, int sequences, int table_pages, int page_size, int num_pages, int vocabulary, int positions,
                          int group_size, bool grouped) {
        positive({rows, samples, sequences, table_pages, page_size, num_pages, vocabulary, positions, group_size});
        if (page_size % kvr::TILE_TOKENS) throw std::invalid_argument("page_size must be a multiple of 32");
        new (self) kvr::Batch({rows, samples, sequences, table_pages, page_size, num_pages, vocabulary, positions, group_size, grouped});
      }, "rows"_a, "samples"_a, "sequences"_a, "table_pages"_a, "page_size"_a, "num_pages"_a, "vocabulary"_a, "positions"_a,
         "group_size"_a = 1, "grouped"_a = true)
      .def_static("bytes", [](int64_t rows, int64_t samples, int64_t sequences, int64_t table_pages, int64_t positions) {
        positive({rows, samples, sequences, table_pages, positions});
        return python_int(kvr::Batch::bytes({rows, samples, sequences, table_pages, kvr::TILE_TOKENS, 1, 1, positions, 1, true}));
      }, "rows"_a, "samples"_a, "sequences"_a, "table_pages"_a, "positions"_a, "Bytes that a batch takes, before it is made.")
      .def_prop_ro("nbytes", &kvr::Batch::nbytes)
      .def("load", [](kvr::Batch &b, Ints ids, Ints positions, Ints row_seq, IntTable tables, Ints kv_len, Ints sample_rows, int units_wanted) {
        if (positions.size() != ids.size() || row_seq.size() != ids.size() || kv_len.size() != tables.shape(0))
          throw std::invalid_argument("the arrays of a batch disagree in length");
        b.load(ids.data(), positions.data(), row_seq.data(), (int)ids.size(), tables.data(), (int)tables.shape(1), kv_len.data(),
               (int)kv_len.size(), sample_rows.data(), (int)sample_rows.size(), units_wanted);
      }, "ids"_a, "positions"_a, "row_seq"_a, "tables"_a, "kv_len"_a, "sample_rows"_a, "units_wanted"_a)
      .def_prop_ro("items", [](const kvr::Batch &b) { return b.plan().items().size(); })
      .def_prop_ro("splits", [](const kvr::Batch &b) { return b.plan().splits().size(); })
      .def_prop_ro("max_partials", [](const kvr::Batch &b) { return b.plan().max_partials(); }, "Partial results that a workspace must have room for.")
      .def("tiles_read", &kvr::Batch::tiles_read, "window"_a = 0,
           "Tiles of 32 keys, and as many of values, that attention reads for one KV head of a layer with this window (0: none).");

  nb::class_<kvr::Workspace>(m, "Workspace")
      .def("__init__", [](kvr::Workspace *self, int threads, int max_rows, int max_inputs, int query_width, int group_size, int heads, int head_dim,
                          size_t max_partials) {
        new (self) kvr::Workspace({threads, max_rows, max_inputs, query_width, group_size, heads, head_dim, max_partials});
      }, "threads"_a, "max_rows"_a, "max_inputs"_a, "query_width"_a, "group_size"_a, "heads"_a, "head_dim"_a, "max_partials"_a)
      .def_static("bytes", [](int threads, int64_t max_rows, int64_t max_inputs, int64_t query_width, int64_t group_size, int64_t heads,
                              int64_t head_dim, int64_t sequences, int64_t positions) {
        const kvr::PlannedBytes partials = kvr::AttendPlan::max_partials({max_rows, sequences, positions, kvr::TILE_TOKENS, 1, true});
        return python_int(kvr::Workspace::bytes({threads, max_rows, max_inputs, query_width, group_size, heads, head_dim, partials}));
      }, "threads"_a, "max_rows"_a, "max_inputs"_a, "query_width"_a, "group_size"_a, "heads"_a, "head_dim"_a, "sequences"_a, "positions"_a,
         "Bytes that a workspace takes, before it is made, with the partial results of a batch of so many sequences and positions.")
      .def_prop_ro("nbytes", &kvr::Workspace::nbytes);

  nb::class_<kvr::Kernels>(m, "Kernels")
      .def(nb::init<const std::string &, int>(), "isa"_a, "threads"_a)
      .def_prop_ro("isa", [](const kvr::Kernels &k) { return k.path().name; })
      .def_prop_ro("threads", [](kvr::Kernels &k) { return k.threads().size(); })
      .def("pack", [](kvr::Kernels &k, const nb::sequence &tensors, std::shared_ptr<kvr::Arena> arena) {
        std::vector<kvr::SourceMatrix> sources;
        for (nb::handle t : tensors) sources.push_back(source_matrix(nb::cast<nb::tuple>(t)));
        nb::gil_scoped_release unlocked;
        return std::make_shared<kvr::Matrix>(sources, k.threads(), std::move(arena));
      }, "tensors"_a, "arena"_a, "Stacks (bytes, GGUF type, rows, columns[, name for messages]) tensors into one packed matrix.")
      .def("embed", &kvr::Kernels::embed, "table"_a, "batch"_a, "scale"_a, "x"_a, Unlocked())
      .def("linear", [](kvr::Kernels &k, kvr::Workspace &space, const kvr::Projection &projection, const kvr::Tensor &x, int rows,
                        const Input &input, kvr::Tensor &y, bool accumulate) {
        check_norm(input, projection);
        k.linear(space, projection, x, rows, input.normed, y, accumulate);
      }, "workspace"_a, "projection"_a, "x"_a, "rows"_a, "input"_a, "y"_a, "accumulate"_a, Unlocked())
      .def("attend", [](kvr::Kernels &k, kvr::Workspace &space, const kvr::Batch &batch, const LayerAttention &layer, const kvr::Tensor &qkv,
                        kvr::Tensor &out) {
        check_attend(batch, layer);
        k.attend(space, batch, layer.attention, qkv, out);
      }, "workspace"_a, "batch"_a, "layer"_a, "qkv"_a, "out"_a, Unlocked())
      .def("read_bandwidth", &kvr::Kernels::read_bandwidth, "bytes"_a, "repeats"_a, Unlocked())
      .def("int8_peak", &kvr::Kernels::int8_peak, Unlocked())
      .def("float_peak", &kvr::Kernels::float_peak, Unlocked())
      .def("fork_join_seconds", &kvr::Kernels::fork_join_seconds, Unlocked());

  // keep_alive: a program holds on to everything that it was given.
  nb::class_<PyProgram>(m, "Program")
      .def(nb::init<kvr::Kernels &, kvr::Workspace &, kvr::Batch &>(), "kernels"_a, "workspace"_a, "batch"_a, nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("embed", [](PyProgram &p, const kvr::Matrix &table, float scale, kvr::Tensor &x) { p.program.embed(table, scale, x); },
           "table"_a, "scale"_a, "x"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 4>())
      .def("linear", [](PyProgram &p, const std::string &name, const kvr::Projection &projection, const kvr::Tensor &x, const Input &input,
                        kvr::Tensor &y, bool accumulate, bool sampled) {
        check_norm(input, projection);
        p.program.linear(name, projection, x, input.normed, y, accumulate, sampled);
      }, "name"_a, "projection"_a, "x"_a, "input"_a, "y"_a, "accumulate"_a = false, "sampled"_a = false, nb::keep_alive<1, 3>(),
         nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>())
      .def("attend", [](PyProgram &p, const LayerAttention &layer, const kvr::Tensor &qkv, kvr::Tensor &out) {
        check_attend(p.batch, layer);
        p.program.attend(layer.attention, qkv, out);
      }, "layer"_a, "qkv"_a, "out"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("add_norm", [](PyProgram &p, const kvr::Tensor &y, const Input &norm, kvr::Tensor &x) {
        if (norm.width != (size_t)x.columns()) throw std::invalid_argument("a norm has another width than its rows");
        p.program.add_norm(y, norm.normed, x);
      }, "y"_a, "norm"_a, "x"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("gather", [](PyProgram &p, const kvr::Tensor &x, kvr::Tensor &y) { p.program.gather(x, y); }, "x"_a, "y"_a,
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("run", [](PyProgram &p) { p.program.run(); }, Unlocked())
      .def_prop_ro("page_bytes_read", [](const PyProgram &p) { return p.program.page_bytes_read(); },
                   "Bytes of keys and values read so far, each once for every attention item that needs it.")
      .def("seconds", [](const PyProgram &p) { return p.program.seconds(); }, "(name, seconds spent so far) of every operation.");
}
