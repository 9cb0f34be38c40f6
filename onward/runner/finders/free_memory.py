"""The memory that this machine, or this container, still has."""

from __future__ import annotations

from pathlib import Path

_MACHINE = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")  # of version 2, as a container sees its own
_OLD_GROUP = Path("/sys/fs/cgroup/memory")


def available_memory(
    machine: Path = _MACHINE, group: Path = _GROUP, old_group: Path = _OLD_GROUP
) -> int | None:
    """Bytes that processes may still allocate; None where the system does not say.

    A container may have less than the machine: the files of its control group say so.
    """
    limits = [
        _kilobytes(machine, "MemAvailable"),
        _left(group / "memory.max", group / "memory.current"),
        _left(old_group / "memory.limit_in_bytes", old_group / "memory.usage_in_bytes"),
    ]
    return min((each for each in limits if each is not None), default=None)


def _kilobytes(file: Path, name: str) -> int | None:
    for line in _read(file).splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None


def _left(limit: Path, used: Path) -> int | None:
    """What a control group may still use; None without a limit ("max")."""
    most, now = _read(limit).strip(), _read(used).strip()
    return max(int(most) - int(now), 0) if most.isdigit() and now.isdigit() else None


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
