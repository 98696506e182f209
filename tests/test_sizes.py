"""Sizes as people write them, and available memory under cgroups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreuse.errors import ConfigError
from kvreuse.sizes import available_memory, format_size, parse_size

GIB = 1 << 30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1048576", 1 << 20),
        (12345, 12345),
        ("2GiB", 2 * GIB),
        ("2 gib", 2 * GIB),
        ("1.5GB", 1_500_000_000),
        ("512M", 512 << 20),
        ("512MB", 512_000_000),
        ("3k", 3072),
        ("3kB", 3000),
        (" 1TiB ", 1 << 40),
        ("7b", 7),
    ],
)
def test_sizes_are_read(text: str | int, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 XB", "1e9", "2GiB!", "0x10", "nan", "1.GB"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory must be a size such as 2GiB"):
        parse_size(text, "--kv-cache-memory")


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not be negative, got -5"):
        parse_size(-5)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (23040, "22.5 KiB"),
        (737280, "720 KiB"),
        (1536 << 10, "1.50 MiB"),
        (2 * GIB, "2 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_sizes_are_written(nbytes: int, text: str) -> None:
    assert format_size(nbytes) == text


@given(st.integers(0, 1 << 45))
def test_a_written_size_reads_back_to_three_digits(nbytes: int) -> None:
    text = format_size(nbytes).replace("bytes", "")
    assert parse_size(text) == pytest.approx(nbytes, rel=0.006)


class Machine:
    """A root folder with the files that say how much memory there is."""

    def __init__(self, root: Path, available: int) -> None:
        self.root = root
        self.write("proc/meminfo", f"MemTotal: 99 kB\nMemAvailable:   {available // 1024} kB\n")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def belongs_to(self, line: str, mountinfo: str) -> None:
        self.write("proc/self/cgroup", f"5:cpu:/x\n{line}\n")
        self.write("proc/self/mountinfo", f"20 1 0:1 / / rw - ext4 /dev/vda rw\n{mountinfo}\n")

    def v2(self, folder: str, limit: str, usage: int, inactive: int = 0) -> None:
        self.write(f"sys/fs/cgroup{folder}/memory.max", f"{limit}\n")
        self.write(f"sys/fs/cgroup{folder}/memory.current", f"{usage}\n")
        self.write(f"sys/fs/cgroup{folder}/memory.stat", f"anon 1\ninactive_file {inactive}\n")

    def v1(self, folder: str, limit: int, usage: int, inactive: int = 0) -> None:
        base = f"sys/fs/cgroup/memory{folder}"
        self.write(f"{base}/memory.limit_in_bytes", f"{limit}\n")
        self.write(f"{base}/memory.usage_in_bytes", f"{usage}\n")
        self.write(f"{base}/memory.stat", f"inactive_file 7\ntotal_inactive_file {inactive}\n")


V2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """8 GiB available, no cgroup."""
    return Machine(tmp_path, 8 * GIB)


def test_without_cgroups_the_system_counts(machine: Machine) -> None:
    assert available_memory(machine.root) == 8 * GIB


def test_without_proc_the_physical_memory_counts(tmp_path: Path) -> None:
    assert available_memory(tmp_path) > 64 << 20


def test_this_machine_has_memory() -> None:
    assert 64 << 20 < available_memory() < 1 << 50


def test_v2_limit_less_usage_but_for_idle_file_pages(machine: Machine) -> None:
    machine.belongs_to("0::/app", V2_MOUNT)
    machine.v2("/app", str(4 * GIB), 3 * GIB, inactive=GIB // 2)
    assert available_memory(machine.root) == 4 * GIB - 3 * GIB + GIB // 2


def test_a_mount_without_a_source_is_passed_over(machine: Machine) -> None:
    """As ``mount -t tmpfs "" /mnt`` makes one; or a line of another form."""
    machine.belongs_to("0::/app", f"40 23 0:50 / /mnt rw - tmpfs  rw\n41 1 0:1 / /\n{V2_MOUNT}")
    machine.v2("/app", str(4 * GIB), 3 * GIB)
    assert available_memory(machine.root) == GIB


def test_v2_the_narrowest_of_all_levels_counts(machine: Machine) -> None:
    machine.belongs_to("0::/pod/app/worker", V2_MOUNT)
    machine.v2("/pod", str(2 * GIB), GIB)
    machine.v2("/pod/app", str(3 * GIB), GIB)
    machine.v2("/pod/app/worker", "max", GIB)
    assert available_memory(machine.root) == GIB


def test_v2_without_limits_the_system_counts(machine: Machine) -> None:
    machine.belongs_to("0::/app", V2_MOUNT)
    machine.v2("/app", "max", GIB)
    assert available_memory(machine.root) == 8 * GIB


def test_v2_inside_a_container_that_sees_its_own_root(machine: Machine) -> None:
    machine.belongs_to("0::/", V2_MOUNT)
    machine.v2("", str(GIB), GIB // 4)
    assert available_memory(machine.root) == 3 * GIB // 4


@pytest.mark.parametrize("inside", ["/docker/abc", "/host/name", "/../sibling"])
def test_v2_inside_a_container_that_sees_a_name_of_the_host(machine: Machine, inside: str) -> None:
    mounted = "31 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    machine.belongs_to(f"0::{inside}", mounted)
    machine.v2("", str(GIB), GIB // 4)
    assert available_memory(machine.root) == 3 * GIB // 4


def test_v1_counts_beside_an_empty_v2(machine: Machine) -> None:
    machine.belongs_to("4:memory:/job\n0::/", f"{V1_MOUNT}\n{V2_MOUNT}")
    machine.v1("/job", 2 * GIB, GIB, inactive=4096)
    machine.v1("", 0x7FFFFFFFFFFFF000, 3 * GIB)
    assert available_memory(machine.root) == GIB + 4096


def test_a_usage_above_the_limit_leaves_nothing(machine: Machine) -> None:
    machine.belongs_to("0::/app", V2_MOUNT)
    machine.v2("/app", str(GIB), 2 * GIB)
    assert available_memory(machine.root) == 0
