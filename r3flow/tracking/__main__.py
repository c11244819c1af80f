"""`python -m r3flow.tracking sync | follow | run -- COMMAND... | hold NAME | free`.

sync    fill MLflow from journals, dvc.lock and metrics files
follow  the same, again and again while an execution goes on (stages start it themselves)
run     run a command as one execution: nothing else may work in this folder meanwhile; sync at its end
hold    the same for a caller that starts several commands: prints the execution's id (or `error: ...`), then waits on its standard input
free    fail with one line if a run works in this folder
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import psutil

from r3flow.errors import DataError, R3FlowError
from r3flow.files import write_text
from r3flow.tracking import journal
from r3flow.workdir import EXECUTION_VARIABLE, Execution, run_lock

_EVERY_S, _GRACE_S = 5.0, 5.0
_REMEDY = "training is not touched; once it is mended, `python -m r3flow.tracking sync` makes up for it"


class Tracker:
    """Keeps one connection to MLflow over several syncs. Never raises for MLflow's sake."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sync: object = None

    def sync(self) -> tuple[bool, str | None]:
        """Returns (whether an execution goes on, what went wrong in one line or None)."""
        home = self._root / journal.HOME
        home.mkdir(parents=True, exist_ok=True)
        try:
            with open(home / "sync.lock", "a", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # also: one process creates the database
                from r3flow.tracking.store import Store
                from r3flow.tracking.sync import Sync

                if not isinstance(self._sync, Sync):
                    self._sync = Sync(self._root, Store(self._root))
                live = self._sync.run()
        except Exception as error:  # noqa: BLE001 - whatever a database, a server or a disk may throw: it must not reach training
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            problem = f"MLflow could not be brought up to date ({reason}); {_REMEDY}"
            write_text(home / "trouble", problem + "\n")
            return True, problem
        (home / "trouble").unlink(missing_ok=True)
        return live, None


def _sync(root: Path) -> int:
    _, problem = Tracker(root).sync()
    if problem:
        print(f"warning: {problem}", file=sys.stderr)
    return 1 if problem else 0


def _state(root: Path) -> tuple[object, ...]:
    """Changes when there is something to carry over."""
    home = root / journal.HOME
    return tuple((str(path), path.stat().st_size, path.stat().st_mtime) for path in sorted(home.glob("*/*")))


def _executions(root: Path) -> list[Execution]:
    return [found for path in (root / journal.HOME).glob("*/execution.json") if (found := journal.read_execution(path))]


def _follow(root: Path) -> int:
    """Sync while an execution is alive and once after. Ends when the folder goes away."""
    home = root / journal.HOME
    with open(home / "follow.lock", "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        os.nice(5)
        tracker, seen = Tracker(root), None
        while home.is_dir():
            alive = any(execution.alive() for execution in _executions(root))
            state = (alive, *_state(root))
            if state != seen:
                seen = state
                _, problem = tracker.sync()
                if problem:
                    print(problem, flush=True)
            if not alive:
                return 0
            time.sleep(_EVERY_S)
    return 0


def _end(root: Path, execution: Execution, status: str) -> None:
    journal.end(execution, status)
    _sync(root)


def _run(root: Path, command: list[str]) -> int:
    """Exit code of `command`, which runs in the foreground with the lock of the folder held by this process."""
    name = os.environ.get("R3FLOW_COMMAND", " ".join(command))
    execution = Execution.of(psutil.Process(), name, uuid.uuid4().hex)
    with run_lock(execution):
        journal.begin(execution)
        process = subprocess.Popen(command, env={**os.environ, EXECUTION_VARIABLE: execution.id})
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command too, and its end is ours
        signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
        code = process.wait()
    _end(root, execution, "FINISHED" if code == 0 else "KILLED" if code < 0 else "FAILED")
    return code if code >= 0 else 128 - code


def _hold(root: Path, name: str) -> int:
    """Lines on standard input: `+GROUP` and `-GROUP` as process groups start and end, at last a status. Without one, groups are killed."""
    execution = Execution.of(psutil.Process(), name, uuid.uuid4().hex)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    groups: set[int] = set()
    status = "KILLED"
    with run_lock(execution):
        journal.begin(execution)
        print(execution.id, flush=True)
        for line in map(str.strip, sys.stdin):
            if line[:1] == "+":
                groups.add(int(line[1:]))
            elif line[:1] == "-":
                groups.discard(int(line[1:]))
            elif line:
                status = line
                break
        else:
            for number in (signal.SIGINT, signal.SIGKILL):
                for group in groups:
                    with suppress(ProcessLookupError):
                        os.killpg(group, number)
                time.sleep(_GRACE_S if groups else 0)
    _end(root, execution, status)
    return 0


def main(arguments: list[str]) -> int:
    root = Path.cwd()
    try:
        if not (root / "dvc.yaml").is_file():
            raise DataError(f"{root}: no dvc.yaml here; run this in the project's folder")
        match arguments:
            case ["sync"]:
                return _sync(root)
            case ["follow"]:
                return _follow(root)
            case ["run", "--", *command] if command:
                return _run(root, command)
            case ["hold", name]:
                return _hold(root, name)
            case ["free"]:
                with run_lock(Execution.of(psutil.Process(), "a look whether the folder is free")):
                    return 0
    except R3FlowError as error:
        # who holds reads standard output, people read standard error
        print(f"error: {error}", file=sys.stdout if arguments[:1] == ["hold"] else sys.stderr)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
