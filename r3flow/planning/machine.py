"""What this machine has, without torch and without the network. Values of keys are never read, only whether there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from r3flow.params import Files

COUNTED_BYTES = 64 * 2**20
"""Files up to this size are counted line by line; larger ones would take longer than a plan may."""
_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class GPU:
    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`ram` is the whole of it, `disk` what is free where the project lies, both in bytes."""

    gpus: tuple[GPU, ...]
    ram: int
    disk: int


def look(folder: str | Path = ".") -> Machine:
    """This machine, as seen from the project's folder."""
    return Machine(gpus(), psutil.virtual_memory().total, shutil.disk_usage(folder).free)


def gpus() -> tuple[GPU, ...]:
    """NVIDIA's GPUs by `nvidia-smi`; none where that is missing, fails or does not answer within a second."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = []
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, _, memory = line.rpartition(",")
        if memory.strip().isdigit():
            found.append(GPU(name.strip(), int(memory) * 2**20))
    return tuple(found)


def installed(module: str) -> bool:
    """Whether a package could be imported; it is not imported."""
    return find_spec(module) is not None


def has_key(variable: str) -> bool:
    """Whether an environment variable holds anything."""
    return bool(os.environ.get(variable, "").strip())


def lines(path: Path) -> int | None:
    """Lines that are not blank; None for a file that is not there or is too large to be counted here."""
    if not path.is_file() or path.stat().st_size > COUNTED_BYTES:
        return None
    with open(path, "rb") as file:
        return sum(1 for line in file if line.strip())


def counted(files: Files, folder: Path) -> dict[str, int | None]:
    """Lines of each of the user's files by its key."""
    return {key: lines(folder / name) for key, name in files.model_dump().items()}
