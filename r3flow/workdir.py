"""Where a stage keeps its resumable state, and who may work in the project's folder.

`.work/<stage>/<digest>/` survives DVC, which deletes a stage's outputs before it starts. The digest is over the stage's parameters
and dependencies exactly as `dvc.yaml` lists them, so state is picked up again only by a run that would give the same result.

Two kinds of lock, both `flock`s that the kernel drops when their holder dies. One a stage, exclusive. One for the folder
(`.work/run.lock`), shared by the stages of one execution and closed to every other execution.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from r3flow.errors import BusyError, ConfigError
from r3flow.files import digest, file_digest, write_text

WORK = Path(".work")
EXECUTION_VARIABLE = "R3FLOW_PARENT_RUN"
"""Names the execution (the parent run in MLflow) that a stage belongs to. Never MLFLOW_RUN_ID, which MLflow itself would obey."""

_SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh"}
_PATIENCE_S = 2.0


@dataclass(frozen=True)
class Stage:
    """A stage of `dvc.yaml`, its templates filled in. `params` maps dotted names of `params.yaml` to their values."""

    address: str
    deps: tuple[str, ...]
    params: Mapping[str, Any]
    outs: tuple[str, ...]


@dataclass(frozen=True)
class Execution:
    """One run of the pipeline, or of a part of it. `pid` and `created` name its main process beyond doubt."""

    id: str
    command: str
    pid: int
    created: float

    @classmethod
    def of(cls, process: psutil.Process, command: str, id: str | None = None) -> Execution:
        created = process.create_time()
        return cls(id or digest([str(Path.cwd()), process.pid, created]), command, process.pid, created)

    @classmethod
    def current(cls) -> Execution:
        """Who this stage works for: the execution that the environment names, else the `dvc` process, else this very process."""
        me = psutil.Process()
        if named := os.environ.get(EXECUTION_VARIABLE):
            return cls.of(me, "stage", named)
        if os.environ.get("DVC_STAGE"):
            for parent in me.parents():
                if parent.name() not in _SHELLS:
                    return cls.of(parent, "dvc repro")
        return cls.of(me, "by hand")

    def alive(self) -> bool:
        """Whether its main process still runs."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) < 1.0
        except psutil.NoSuchProcess:
            return False


def lookup(values: Mapping[str, Any], dotted: str) -> Any:
    """The value of `a.b.c`. Raises KeyError with the whole name."""
    value: Any = values
    for key in dotted.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise KeyError(dotted)
        value = value[key]
    return value


def _filled(template: Any, scope: Mapping[str, Any]) -> str:
    """`${a.b}` replaced from `scope`, as DVC does."""
    return re.sub(r"\$\{\s*([^}]+?)\s*\}", lambda match: str(lookup(scope, match.group(1))), str(template))


def _filled_item(item: Any, scope: Mapping[str, Any]) -> Any:
    """The same in the values of a `foreach` entry."""
    return {key: _filled(value, scope) for key, value in item.items()} if isinstance(item, Mapping) else _filled(item, scope)


def _names(entries: list[Any]) -> list[Any]:
    """`[a, {b: {...}}]` -> `[a, b]`: an entry of outs with options is a mapping of one key."""
    return [next(iter(entry)) if isinstance(entry, Mapping) else entry for entry in entries]


def read_stages(root: str | Path = ".") -> dict[str, Stage]:
    """Every stage of `root`/dvc.yaml by its address (`evaluate@ppo`), in the file's order.

    Reads only what this project uses of DVC's syntax: `foreach` over a mapping, and `${...}` from the item and `params.yaml`.
    Raises ConfigError.
    """
    try:
        values = yaml.safe_load((Path(root) / "params.yaml").read_text(encoding="utf-8"))
        table = yaml.safe_load((Path(root) / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    except FileNotFoundError as error:
        raise ConfigError(f"{error.filename}: no such file; run this in the project's folder") from None
    stages: dict[str, Stage] = {}
    for name, entry in table.items():
        if "foreach" in entry:
            items = [
                (f"{name}@{key}", entry["do"], {**values, "key": key, "item": _filled_item(item, values)})
                for key, item in entry["foreach"].items()
            ]
        else:
            items = [(name, entry, values)]
        for address, body, scope in items:
            try:
                stages[address] = Stage(
                    address,
                    tuple(_filled(dep, scope) for dep in body.get("deps", [])),
                    {param: lookup(values, param) for param in body.get("params", [])},
                    tuple(_filled(out, scope) for key in ("outs", "metrics", "plots") for out in _names(body.get(key, []))),
                )
            except KeyError as error:
                raise ConfigError(f"dvc.yaml: stage '{address}' asks for {error}, which params.yaml does not have") from None
    return stages


def read_stage(address: str) -> Stage:
    """One stage. Raises ConfigError for a name that `dvc.yaml` does not have."""
    stages = read_stages()
    if address not in stages:
        raise ConfigError(f"dvc.yaml has no stage '{address}'; it has: {', '.join(stages)}")
    return stages[address]


def stage_digest(stage: Stage) -> str:
    """Digest of parameters and contents of dependencies; a missing file counts as such (the stage itself will name it)."""
    deps = {dep: file_digest(dep) if Path(dep).exists() else None for dep in stage.deps}
    return digest({"stage": stage.address, "params": dict(stage.params), "deps": deps})


def open_work(stage: Stage) -> Path:
    """The folder for this run's resumable state, created. Call it with the stage's lock held.

    Of other digests' folders the one that was finished goes, and all but the newest of the unfinished.
    """
    home = WORK / stage.address
    work = home / stage_digest(stage)
    work.mkdir(parents=True, exist_ok=True)
    finished = home / "finished"
    done = finished.read_text(encoding="utf-8").strip() if finished.exists() else ""
    others = sorted((path for path in home.iterdir() if path.is_dir() and path != work), key=lambda path: path.stat().st_mtime)
    for path in others:
        if path.name == done or path != others[-1]:
            shutil.rmtree(path)
    return work


def mark_finished(work: Path) -> None:
    """The stage ended well: its state is of use only until DVC has recorded the outputs."""
    write_text(work.parent / "finished", work.name + "\n")


@contextmanager
def stage_lock(address: str) -> Iterator[None]:
    """Only one process may run a stage. Raises BusyError."""
    path = WORK / address / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(f"stage '{address}' is already running in {Path.cwd()}; wait for it or stop it") from None
        yield


def _acquire(file: Any, mine: Execution) -> dict[str, Any] | None:
    """Try once to take the folder's lock. Returns None if taken, else what its holder says of itself."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        try:
            holder: dict[str, Any] = json.loads(file.read() or "{}")
        except json.JSONDecodeError:
            holder = {}
        if holder.get("id") != mine.id:
            return holder
    else:
        file.seek(0)
        file.truncate()
        json.dump(asdict(mine), file)
        file.flush()
    try:
        # going from exclusive to shared is not atomic: another may slip in, and then this attempt has failed
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return {}
    return None


@contextmanager
def run_lock(mine: Execution) -> Iterator[None]:
    """Keep other executions out of this folder; processes of the same execution share it. Raises BusyError."""
    WORK.mkdir(exist_ok=True)
    path = WORK / "run.lock"
    path.touch()
    deadline = time.monotonic() + _PATIENCE_S
    with open(path, "r+", encoding="utf-8") as file:
        while (holder := _acquire(file, mine)) is not None:
            if time.monotonic() > deadline:
                who = f" ({holder['command']}, process {holder['pid']})" if "pid" in holder else ""
                raise BusyError(f"another run works in {Path.cwd()}{who}; wait for it or stop it")
            time.sleep(0.05)
        yield
