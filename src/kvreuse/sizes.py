"""How much memory this process may still take, and sizes in bytes as people write them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from kvreuse.errors import ConfigError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {letter: 1024**power for power, letter in enumerate("kmgt", 1)}

# Per version of the cgroup interface: limit, usage, and the statistic of reclaimable file pages.
_CGROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def parse_size(text: str | int, what: str = "size") -> int:
    """Bytes that ``text`` means: ``2GiB``, ``1.5 GB``, ``512M``, ``1048576``.

    KiB, MiB, GiB, TiB and their first letters alone are powers of 1,024, kB, MB, GB and TB of
    1,000; case does not matter. Raises ConfigError, naming ``what``, for anything else.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if text < 0:
            raise ConfigError(f"{what} must not be negative, got {text}")
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text), re.ASCII)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigError(f"{what} must be a size such as 2GiB, 500MB or 1048576, got {text!r}")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def format_size(nbytes: int, *, si: bool = False) -> str:
    """``nbytes`` in the largest unit that it reaches, to three digits: ``22.5 KiB``.

    Units are binary (1 KiB is 1,024 bytes), or decimal with ``si`` (1 kB is 1,000 bytes).
    """
    step, units = (1000, ("kB", "MB", "GB", "TB")) if si else (1024, ("KiB", "MiB", "GiB", "TiB"))
    size, unit = float(nbytes), "bytes"
    for larger in units:
        if size < step:
            break
        size, unit = size / step, larger
    digits = 0 if size >= 100 or size == int(size) else 1 if size >= 10 else 2
    return f"{size:.{digits}f} {unit}"


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can take without swapping or reaching a cgroup's limit.

    The least of ``MemAvailable`` and, for every memory cgroup (version 1 or 2) around the
    process, its limit less its usage, where file pages not recently used count as free. ``root``
    is the folder under which ``proc`` and the mount points are looked up.
    """
    available = _system_available(root / "proc" / "meminfo")
    for version, folder in _memory_cgroups(root):
        room = _cgroup_room(folder, *_CGROUP_FILES[version])
        if room is not None:
            available = min(available, room)
    return available


def _system_available(meminfo: Path) -> int:
    """``MemAvailable`` in bytes; where the system has no such thing, its physical memory."""
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match:
        return int(match[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_cgroups(root: Path) -> Iterator[tuple[int, Path]]:
    """The version and folder of each memory cgroup that holds this process, innermost first."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in memberships:
        _, controllers, inside = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        for mount in mounts:
            found = _mount_point(mount, version)
            if found is None:
                continue
            mounted, at = found
            top = root / at.lstrip("/")
            yield from ((version, folder) for folder in _folders_up(top, mounted, inside))
            break


def _mount_point(line: str, version: int) -> tuple[str, str] | None:
    """(cgroup mounted, mount point) if this line of mountinfo mounts the memory hierarchy."""
    head, _, tail = line.partition(" - ")
    fields, (kind, _, options) = head.split(), [*tail.split(" ", 2), "", ""][:3]
    if version == 1 and not (kind == "cgroup" and "memory" in options.split(",")):
        return None
    if version == 2 and kind != "cgroup2":
        return None
    mounted, at = (field.replace("\\040", " ") for field in fields[3:5])
    return mounted, at


def _folders_up(top: Path, mounted: str, inside: str) -> Iterator[Path]:
    """The folders from cgroup ``inside`` up to ``top``, where cgroup ``mounted`` is mounted.

    In a container ``inside`` may be the host's name, not below ``mounted``: then ``top`` alone.
    """
    base, path = (name.rstrip("/") + "/" for name in (mounted, inside))
    relative = path.removeprefix(base) if path.startswith(base) else ""
    folder = top if ".." in relative.split("/") else top / relative
    while folder != top:
        yield folder
        folder = folder.parent
    yield top


def _cgroup_room(folder: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    """Bytes left below the limit of one cgroup; None where it sets none."""
    try:
        limit = (folder / limit_file).read_text().strip()
        usage = int((folder / usage_file).read_text())
        stat = (folder / "memory.stat").read_text()
    except OSError:
        return None
    if limit == "max":
        return None
    match = re.search(rf"^{reclaimable} (\d+)$", stat, re.MULTILINE)
    return max(0, int(limit) - usage + (int(match[1]) if match else 0))
