"""What the figures were taken on, without naming it."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path
from typing import Any


def facts(directory: Path) -> dict[str, Any]:
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "filesystem": _filesystem(directory),
    }


def _filesystem(directory: Path) -> str:
    """The type of the file system a directory is on, from the longest mount point above it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    except OSError:
        return "unknown"
    path = directory.resolve()
    above = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(above)[1] if above else "unknown"
