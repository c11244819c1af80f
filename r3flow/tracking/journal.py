"""What stages tell about themselves while they run: one append-only file a stage run, read by `sync`.

A stage never talks to MLflow. It appends a line to `.work/tracking/<execution>/<stage>.<n>.jsonl`; a follower process carries the lines
over. So a slow, locked or broken store cannot hold up or break training, MLflow is imported once an execution and not once a
stage, and nothing is lost: what the follower missed, the next sync finds.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from r3flow.errors import DataError
from r3flow.files import read_json, write_json
from r3flow.tracking.lockfile import snapshot
from r3flow.workdir import WORK, Execution

HOME = WORK / "tracking"
TRACKING_VARIABLE = "R3FLOW_TRACKING"
"""`off` keeps the follower from being started; the journals are written all the same."""


class Journal:
    """The journal of one stage run. Its methods never raise: one warning, then silence."""

    def __init__(self, execution: Execution, address: str) -> None:
        self._broken = False
        self._path: Path | None = None
        try:
            folder = HOME / execution.id
            if not (folder / "execution.json").exists():
                begin(execution)
            self._path = folder / f"{address}.{len(list(folder.glob(f'{address}.*.jsonl'))) + 1}.jsonl"
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        self._broken = True
        print(f"warning: the run's journal cannot be written ({error}); MLflow will miss it, training goes on", file=sys.stderr)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the time of now (seconds since 1970)."""
        if self._broken or self._path is None:
            return
        line = json.dumps({"event": event, "time": round(time.time(), 3), **fields}, default=str)
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            self._warn(error)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Values of update `step`, for the live curves."""
        self.write("metrics", step=step, values=dict(values))


def begin(execution: Execution) -> None:
    """Make an execution known before any of its stages runs; it counts even if every stage turns out to be up to date."""
    folder = HOME / execution.id
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "execution.json", {**asdict(execution), "start": snapshot(Path.cwd())})


def end(execution: Execution, status: str) -> None:
    """Say that an execution has ended, and how: FINISHED, FAILED or KILLED."""
    path = HOME / execution.id / "execution.json"
    if path.exists():  # or `.work` was removed meanwhile, and there is nothing to tell
        write_json(path, {**read_json(path), "ended": time.time(), "status": status})


def read_execution(path: Path) -> Execution | None:
    """The execution of an `execution.json`; None if it went away or has been ended."""
    try:
        record = read_json(path)
    except DataError:
        return None
    return None if "ended" in record else Execution(record["id"], record["command"], record["pid"], record["created"])


def start_follower() -> None:
    """Start the process that carries journals to MLflow, unless one is at work. It ends by itself. Never raises."""
    if os.environ.get(TRACKING_VARIABLE) == "off":
        return
    try:
        HOME.mkdir(parents=True, exist_ok=True)
        with open(HOME / "follow.lock", "a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(HOME / "follow.log", "a", encoding="utf-8") as log:
            # a session of its own, and no inherited pipe: who reads the stage's output must see its end when the stage ends
            subprocess.Popen(
                [sys.executable, "-m", "r3flow.tracking", "follow"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError:
        return  # another follower holds the lock, or none can be started: sync will do its work later


def trouble() -> str | None:
    """What the last sync could not do, None if all was well."""
    path = HOME / "trouble"
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
