"""The command lines that flows call, and the processes behind them: each stage is a process group that never outlives its flow.

The *holder* (`python -m r3flow.tracking hold`) keeps other runs out of the folder and fills MLflow at the end. It is told of each group,
and kills what is left when the flow goes away without a word, a `kill -9` included.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from flows import ROOT

_GRACE_S = 5.0
_ADVICE = ("To track the changes with git, run:", "git add ", "To enable auto staging, run:", "dvc config core.autostage", "Use `dvc push`")
"""How DVC's lines begin that advise who sits at a terminal; after every stage they would be most of a task's log."""


class CommandFailedError(Exception):
    """A command ended badly; the message is its one line for people."""


class StageFailedError(CommandFailedError):
    """A stage ended badly. `retryable` is its own word for whether trying again can help."""

    def __init__(self, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


def environment(**extra: str) -> dict[str, str]:
    """For every command: this interpreter's folder comes first on the path, so that `python` and `dvc` are this environment's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **extra}


def said(command: list[str], root: Path = ROOT) -> str:
    """What a short command prints. Raises CommandFailedError with its last line if it fails."""
    done = subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        raise CommandFailedError((errors or lines or [f"{command[0]} failed with exit code {done.returncode}"])[-1])
    return done.stdout


def check_params(root: Path = ROOT) -> None:
    """Raises CommandFailedError with the one line of a bad `params.yaml`, before anything starts."""
    said([sys.executable, "-m", "r3flow.params"], root)


def check_free(root: Path = ROOT) -> None:
    """Raises CommandFailedError with one line if another run works in the folder."""
    said([sys.executable, "-m", "r3flow.tracking", "free"], root)


def stages_of(root: Path = ROOT) -> dict[str, set[str]]:
    """Each stage and the stages it needs, in topological order, as DVC sees them."""
    needs: dict[str, set[str]] = {}
    for line in said(["dvc", "dag", "--dot"], root).splitlines():
        names = re.findall(r'"([^"]+)"', line)
        if names:
            needs.setdefault(names[-1], set()).update(names[:-1])
            needs.setdefault(names[0], set())
    order: dict[str, set[str]] = {}
    while len(order) < len(needs):  # DVC has refused cycles
        order.update({name: needs[name] for name in needs if name not in order and needs[name] <= order.keys()})
    return order


def kill_group(group: int, leader: subprocess.Popen[Any] | None = None) -> None:
    """Interrupt a process group, so that DVC and the stage can tidy up; then terminate, then kill what is left.

    `leader` is the caller's own child that leads the group: a group lives on until its dead are waited for.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_S
        try:
            os.killpg(group, number)
            while time.monotonic() < deadline:
                if leader is not None:
                    leader.poll()
                os.killpg(group, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return
        except PermissionError:  # macOS says so of a group of zombies
            return


class Holder:
    """One execution: the folder's lock, the parent run, and the process groups at work."""

    def __init__(self, id: str, pipe: IO[str]) -> None:
        self.id = id
        self._pipe = pipe
        self._groups: set[int] = set()
        self._guard = threading.Lock()
        self.stopped = False

    def tell(self, line: str) -> None:
        with self._guard, suppress(BrokenPipeError):
            self._pipe.write(line + "\n")
            self._pipe.flush()

    def add(self, group: int) -> None:
        self._groups.add(group)
        self.tell(f"+{group}")

    def drop(self, group: int) -> None:
        self._groups.discard(group)
        self.tell(f"-{group}")

    def kill_all(self) -> None:
        """End every stage that still runs, and let none start."""
        self.stopped = True
        for group in list(self._groups):
            kill_group(group)


@contextmanager
def held(name: str, root: Path = ROOT) -> Iterator[Holder]:
    """Hold the folder as execution `name`. Raises CommandFailedError if another run holds it. A failure kills the stages at work."""
    command = [sys.executable, "-m", "r3flow.tracking", "hold", name]
    process = subprocess.Popen(
        command, cwd=root, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    first = process.stdout.readline().strip()
    if not first or first.startswith("error:"):
        process.wait()
        raise CommandFailedError(first or "the run could not be registered; see the message above")
    holder = Holder(first, process.stdin)
    status = "KILLED"
    try:
        yield holder
        status = "FINISHED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        holder.kill_all()
        holder.tell(status)
        with suppress(BrokenPipeError):
            process.stdin.close()
        if status != "KILLED":  # who is being killed has no time: the holder goes on by itself
            process.wait()


def run_stage(address: str, holder: Holder, say: Callable[[str], None], root: Path = ROOT) -> bool:
    """Bring one stage up to date; its lines, but for DVC's advice, go to `say`. Returns whether it ran (False: up to date or restored).

    Raises StageFailedError.
    """
    if holder.stopped:
        raise StageFailedError(f"stage '{address}' was not started: the run is being stopped", False)
    failure = root / ".work" / address / "failure.json"
    failure.unlink(missing_ok=True)
    process = subprocess.Popen(
        ["dvc", "--wait-for-lock", "repro", "--single-item", address],
        cwd=root,
        env=environment(R3FLOW_PARENT_RUN=holder.id),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    holder.add(process.pid)
    ran, last = False, ""
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                last = line.strip()
                if not last.startswith(_ADVICE):
                    say(line.rstrip())
                ran = ran or line.startswith(f"Running stage '{address}'")
        code = process.wait()
    finally:
        kill_group(process.pid)  # nothing of a stage outlives it
        holder.drop(process.pid)
    if code:
        raise _failure(address, failure, last)
    return ran


def _failure(address: str, path: Path, last: str) -> StageFailedError:
    """What the stage left behind about its failure; `dvc repro` itself says nothing but 255."""
    try:
        left: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return StageFailedError(f"stage '{address}' failed: {last}", False)
    return StageFailedError(f"stage '{address}' failed ({left.get('kind')}): {left.get('message')}", left.get("retryable") is True)
