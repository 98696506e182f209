#include "cpu.h"

#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvr {
namespace {

#if defined(__x86_64__)

struct Need {
  const char *name;
  bool here;
};

std::string missing(const std::vector<Need> &needs) {
  std::string out;
  for (const Need &need : needs)
    if (!need.here) out += (out.empty() ? "" : ", ") + std::string(need.name);
  return out;
}

struct Registers {
  unsigned a, b, c, d;
};

Registers cpuid(unsigned leaf, unsigned sub) {
  Registers r{};
  if (leaf <= __get_cpuid_max(leaf & 0x80000000u, nullptr)) __cpuid_count(leaf, sub, r.a, r.b, r.c, r.d);
  return r;
}

bool bit(unsigned word, int i) { return word >> i & 1; }

// The register states that the operating system saves (XCR0); 0 where it cannot be asked.
uint64_t saved_states() {
  if (!bit(cpuid(1, 0).c, 27)) return 0;
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

// Linux hands out the tile registers on request, once a process, before their first use.
bool tile_permission() {
#if defined(__linux__)
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return false;
#endif
}

std::vector<Path> probe() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
  const uint64_t saved = saved_states();
  const bool os256 = (saved & 0x6) == 0x6, os512 = (saved & 0xe6) == 0xe6, os_tiles = (saved & 0x60000) == 0x60000;
  const std::vector<Need> avx2 = {{"avx2", bit(seven.b, 5)}, {"fma", bit(one.c, 12)}, {"f16c", bit(one.c, 29)},
                                  {"256-bit registers saved by the system", os256}};
  std::vector<Need> vnni = avx2, avx512 = avx2;
  vnni.push_back({"avx-vnni", bit(cpuid(7, 1).a, 4)});
  const std::vector<Need> wide = {
      {"avx512f", bit(seven.b, 16)},  {"avx512bw", bit(seven.b, 30)}, {"avx512dq", bit(seven.b, 17)},
      {"avx512vl", bit(seven.b, 31)}, {"avx512vnni", bit(seven.c, 11)},
      {"512-bit registers saved by the system", os512}};
  avx512.insert(avx512.end(), wide.begin(), wide.end());
  std::vector<Need> amx = avx512;
  const bool tiles = bit(seven.d, 24) && os_tiles;
  amx.push_back({"amx-tile", bit(seven.d, 24)});
  amx.push_back({"amx-int8", bit(seven.d, 25)});
  amx.push_back({"amx-bf16", bit(seven.d, 22)});
  amx.push_back({"tile registers saved by the system", os_tiles});
  amx.push_back({"the system's permission to use tiles", tiles && tile_permission()});
  std::vector<Path> out;
  auto add = [&](const KernelTable *table, const std::vector<Need> &needs, bool automatic) {
    const std::string lacks = missing(needs);
    out.push_back({table->name, table, lacks.empty(), automatic, lacks});
  };
  add(amx_kernels(), amx, true);
  add(avx512_kernels(), avx512, true);
  add(avx2_vnni_kernels(), vnni, true);
  add(avx2_kernels(), avx2, true);
  add(amx_sim_kernels(), avx512, false);
  add(portable_kernels(), {}, true);
  return out;
}

#else

std::vector<Path> probe() { return {{"portable", portable_kernels(), true, true, ""}}; }

#endif

}  // namespace

const std::vector<Path> &paths() {
  static const std::vector<Path> all = probe();
  return all;
}

const Path &choose_path(const std::string &name) {
  std::string here;
  for (const Path &path : paths()) {
    if (name.empty() ? path.supported && path.automatic : name == path.name) {
      if (path.supported) return path;
      throw std::invalid_argument("the instruction-set path '" + name + "' needs what this machine lacks: " + path.missing);
    }
    if (path.supported) here += (here.empty() ? "" : ", ") + std::string(path.name);
  }
  throw std::invalid_argument("no instruction-set path is called '" + name + "'; this machine has " + here);
}

std::string cpu_name() {
#if defined(__x86_64__)
  if (__get_cpuid_max(0x80000000u, nullptr) >= 0x80000004u) {
    char name[49] = {};
    for (unsigned i = 0; i < 3; i++) {
      const Registers r = cpuid(0x80000002u + i, 0);
      const unsigned words[4] = {r.a, r.b, r.c, r.d};
      __builtin_memcpy(name + 16 * i, words, 16);
    }
    std::string s(name);
    s.erase(0, s.find_first_not_of(' '));
    s.erase(s.find_last_not_of(' ') + 1);
    return s;
  }
#endif
  return "unknown";
}

}  // namespace kvr
