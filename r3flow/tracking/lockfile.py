"""`dvc.lock`: which inputs, code and parameters made which outputs. Nothing else reads that file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from r3flow.errors import DataError
from r3flow.files import digest
from r3flow.workdir import read_stages


@dataclass(frozen=True)
class LockedStage:
    """One entry. Hashes are DVC's: 32 hex digits of MD5, a folder's ends in `.dir`."""

    address: str
    params: Mapping[str, Any]
    inputs: Mapping[str, str]
    code: Mapping[str, str]
    outputs: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Equal for equal work: what went in and what came out."""
        return digest([self.address, dict(self.params), dict(self.inputs), dict(self.code), dict(self.outputs)])


def _is_code(path: str) -> bool:
    return path.startswith(("r3flow/", "stages/"))


def _hashes(entries: list[dict[str, Any]]) -> dict[str, str]:
    return {entry["path"]: str(entry.get("md5", "")) for entry in entries}


def read_lock(root: Path) -> dict[str, LockedStage]:
    """Every entry by its address; none if the file is not there yet. Raises DataError for a file that is no lock."""
    path = root / "dvc.lock"
    try:
        table = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("stages", {})
        stages = {}
        for address, entry in table.items():
            deps = _hashes(entry.get("deps", []))
            stages[address] = LockedStage(
                address,
                {name: value for values in entry.get("params", {}).values() for name, value in values.items()},
                {name: value for name, value in deps.items() if not _is_code(name)},
                {name: value for name, value in deps.items() if _is_code(name)},
                _hashes(entry.get("outs", [])),
            )
        return stages
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a lock file of DVC ({type(error).__name__}); after a merge: remove it and run dvc repro") from None


def lock_digest(lock: Mapping[str, LockedStage]) -> str:
    """One digest of the whole state."""
    return digest({address: stage.digest for address, stage in lock.items()})


def md5(path: Path) -> str | None:
    """DVC's hash of a file; None for a folder or a missing file."""
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else None


def snapshot(root: Path) -> dict[str, Any]:
    """What an execution starts from, as JSON: each stage's parameters and dependencies, and the hashes of files that no stage makes.

    Taken at its start, so that what is edited while it runs is not held against its results.
    """
    stages = read_stages(root)
    made = {out for stage in stages.values() for out in stage.outs}
    files = {dep for stage in stages.values() for dep in stage.deps} - made
    return {
        "stages": {name: {"params": dict(stage.params), "deps": list(stage.deps)} for name, stage in stages.items()},
        "files": {path: md5(root / path) for path in sorted(files)},
    }


def up_to_date(
    root: Path, lock: Mapping[str, LockedStage], start: Mapping[str, Any], ran: AbstractSet[str] = frozenset()
) -> dict[str, LockedStage]:
    """The entries that hold for an execution: those of stages that `ran` in it, and those with the parameters, inputs and code of its
    start whose makers hold too and whose outputs are there.

    Folders outside DVC (a base model) are taken as unchanged; DVC itself checks them when it runs.
    """
    made = {path: (address, value) for address, stage in lock.items() for path, value in stage.outputs.items()}
    good = {name: lock[name] for name in ran if name in lock}
    waiting = {name: stage for name, stage in start["stages"].items() if name in lock and name not in good}

    def holds(stage: Mapping[str, Any], entry: LockedStage) -> bool:
        if stage["params"] != dict(entry.params) or set(stage["deps"]) != {*entry.inputs, *entry.code}:
            return False
        for path, value in {**entry.inputs, **entry.code}.items():
            if path in made:
                maker, now = made[path]
                if now != value or maker not in good:
                    return False
            elif not value.endswith(".dir") and start["files"].get(path) != value:
                return False
        return all((root / path).exists() for path in entry.outputs)

    while ready := [name for name, stage in waiting.items() if holds(stage, lock[name])]:  # their order need not be the graph's
        for name in ready:
            good[name] = lock[name]
            del waiting[name]
    return {name: good[name] for name in lock if name in good}
