"""What every stage does around its own work: check params, lock, resume folder, progress, tracking, and a clean end. A stage's module is

    from stages._runner import StageRun, run

    def body(stage: StageRun) -> None: ...

    if __name__ == "__main__":
        run("prepare", body)

and imports what its work needs.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from r3flow.errors import ConfigError, R3FlowError
from r3flow.files import check_folder_of, read_json, write_json
from r3flow.params import Params, load
from r3flow.progress import Reporter
from r3flow.tracking import journal
from r3flow.workdir import WORK, Execution, Stage, mark_finished, open_work, read_stage, run_lock, stage_lock
from stages._terminal import Terminal

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of `mallopt` in glibc's malloc.h."""


@dataclass(frozen=True)
class StageRun:
    """What a stage's body gets."""

    params: Params
    """Holds only the sections that `dvc.yaml` lists for the stage: reading another one is an error, since DVC would not know of it."""
    work: Path
    """Resumable state; empty on a first run, kept when the stage was killed."""
    reporter: Reporter
    system: str | None
    """The entry of `evaluate`, None elsewhere."""
    _journal: journal.Journal

    def costs(self, values: Mapping[str, float]) -> None:
        """Times, retries, cache hits, money: they go to MLflow, never into a metrics file."""
        self._journal.write("costs", values={name: float(value) for name, value in values.items()})


class _Unlisted(Params):
    """Params whose unlisted sections are absent."""

    def __getattr__(self, name: str) -> object:
        if name in Params.model_fields:
            raise ConfigError(f"this stage reads params section '{name}', which dvc.yaml does not list for it: add it there")
        raise AttributeError(name)


def narrow(params: Params, stage: Stage) -> Params:
    """Only the sections of which the stage lists at least one key."""
    listed = {name.split(".")[0] for name in stage.params}
    return _Unlisted.model_construct(**{name: getattr(params, name) for name in Params.model_fields if name in listed})


def _failed(address: str, kind: str, retryable: bool, message: str) -> None:
    """Leave what the scheduler needs to know; `dvc repro` turns every exit code into 255."""
    write_json(WORK / address / "failure.json", {"stage": address, "kind": kind, "retryable": retryable, "message": message})


def _use_threads() -> None:
    """`R3FLOW_THREADS` sets the number of torch's threads, whether torch is loaded yet or not."""
    wish = os.environ.get("R3FLOW_THREADS")
    if wish is None:
        return
    if not wish.isdigit() or int(wish) < 1:
        raise ConfigError(f"R3FLOW_THREADS: expected a whole number from 1, got {wish!r}")
    os.environ["OMP_NUM_THREADS"] = wish
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(wish))


def _results(stage: Stage) -> dict[str, dict[str, object]]:
    """The stage's metrics files as they are now, and DVC's hashes of them."""
    paths = [out for out in stage.outs if out.startswith("metrics/") and Path(out).is_file()]
    hashes = {path: hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).hexdigest() for path in paths}
    return {"results": {path: read_json(path) for path in paths}, "hashes": hashes}


def _keep_memory() -> None:
    """Let the C library keep what tensors give back. glibc returns large blocks to Linux at once, and to fetch them again page by page
    costs a training step on a CPU 4% of its time (docs/LOG.md). Other C libraries have no such call and are left alone.
    """
    if sys.platform != "linux":
        return
    try:
        tune = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    tune(_MMAP_THRESHOLD, 32 << 20)  # the most that glibc takes
    tune(_TRIM_THRESHOLD, 2**31 - 1)


def _execute(name: str, address: str, system: str | None, body: Callable[[StageRun], None]) -> None:
    params = load()
    _use_threads()
    _keep_memory()
    stage = read_stage(address)
    for out in stage.outs:
        check_folder_of(out)  # before hours of work that could not be written down
    execution = Execution.current()
    with run_lock(execution), stage_lock(address):
        work = open_work(stage)
        log = journal.Journal(execution, address)
        log.write("start", params=dict(stage.params), digest=work.name)
        journal.start_follower()
        terminal = Terminal(address, log.metrics)
        status = "FAILED"
        try:
            body(StageRun(narrow(params, stage), work, terminal, system, log))
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):
            status = "KILLED"
            raise
        finally:
            terminal.close()
            log.write("end", status=status, **_results(stage) if status == "FINISHED" else {"results": {}})
        mark_finished(work)
        (WORK / address / "failure.json").unlink(missing_ok=True)
        if problem := journal.trouble():
            print(f"warning: {problem}", file=sys.stderr)


def _terminated(signum: int, frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


def run(stage: str, body: Callable[[StageRun], None], *, argv: Sequence[str] | None = None) -> None:
    """Run `body` as DVC's stage `stage` (`stage@system` with `--system`). Exits 1 with one line `error: ...` on a named error.

    Whatever ends a stage badly leaves `.work/<stage>/failure.json`: {stage, kind, retryable, message}.
    """
    parser = argparse.ArgumentParser(prog=f"python -m stages.{stage}")
    parser.add_argument("--system", help="which entry of the stage, e.g. ppo of evaluate@ppo")
    system = parser.parse_args(argv).system
    address = f"{stage}@{system}" if system else stage
    with suppress(ValueError):  # not in the main thread, as in tests
        signal.signal(signal.SIGTERM, _terminated)  # so that `finally` blocks end servers that the stage started
    try:
        _execute(stage, address, system, body)
    except R3FlowError as error:
        _failed(address, error.kind, error.retryable, str(error))
        sys.exit(f"error: {error}")
    except (KeyboardInterrupt, SystemExit):
        _failed(address, "interrupted", False, "stopped from outside")
        raise
    except Exception as error:  # noqa: BLE001 - a crash too must leave its kind for the scheduler
        traceback.print_exc()
        _failed(address, "crash", False, f"{type(error).__name__}: {error}")
        sys.exit(f"error: stage '{address}' crashed: {type(error).__name__}: {error}")
