"""The probe finds every path that the processor has, as the system reports the processor."""

from __future__ import annotations

import re
from pathlib import Path

from kvreuse.ops import native

AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
AMX = {"amx_tile", "amx_int8", "amx_bf16"}
NEEDS = {
    "portable": set[str](),
    "avx2": AVX2,
    "avx2-vnni": AVX2 | {"avx_vnni"},
    "avx512": AVX512,
    "amx-sim": AVX512,
    "amx": AVX512 | AMX,
}


def test_the_paths_are_those_that_the_processors_flags_promise() -> None:
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    have = set(flags[1].split()) if flags else set()
    expected = {name for name, needs in NEEDS.items() if needs <= have}
    assert set(native.available_isas()) == expected


def test_a_path_is_available_or_says_what_is_missing() -> None:
    for path in native.cpu_report():
        assert path.supported == (path.missing == "")
