"""`make bench`: what DVC, Prefect and MLflow cost together, beside the bare stages: `python -m benchmarks.orchestration`.

The smallest profile (`params/test.yaml`) in two copies of this folder's files, one after the other on this machine, in CPU seconds:

bare      each stage as `python -m stages.NAME`, one after another; no DVC, no Prefect, no MLflow
flow      `python -m flows.pipeline`: Prefect with its temporary server, a `dvc repro` a stage, and the follower that fills MLflow

A stage is a process of its own on both sides, so that the start of its interpreter and its imports count on both, and so does the small
journal that a stage writes for MLflow. The start of everything else counts as orchestration. CPU seconds are those of all processes that a
side started, also of those that detach themselves: this process becomes the parent of orphans (Linux alone can do that; elsewhere the
follower is missing, and a line says so). The difference does not grow with the work, so the smallest profile is the one that shows it.
Needs nothing that `make demo` leaves.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from flows.commands import stages_of
from tests.small_project import make_small

TARGET_S = 90.0
_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_END_S = 300.0


class SideFailedError(Exception):
    """A command of one side failed; the last lines of what it printed."""


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU, of all processes, and of wall time."""

    cpu: float
    wall: float


def adopt_orphans() -> bool:
    """Become the parent of every descendant that loses its own, so that its CPU time is counted. Returns whether the system can."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def wait_for_orphans() -> None:
    """Until no adopted child is left. Raises SideFailedError if one does not end."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.1)
        except ChildProcessError:
            return
    raise SideFailedError(f"a process that the run left behind did not end within {_END_S:.0f} s")


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """Without what an outer run or a server has set: nothing but the copy's own code and servers takes part."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "R3FLOW"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "true", "DO_NOT_TRACK": "true", **extra}


def project(folder: Path) -> None:
    """This folder's files, as they are now, with the smallest profile, compiled beforehand: neither side pays for the other."""
    make_small(folder)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "r3flow", "stages", "flows"], cwd=folder, check=True)


def cost_of(folder: Path, commands: list[list[str]], **extra: str) -> Cost:
    """Run commands one after another and wait for all that they leave behind. Raises SideFailedError."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=folder, env=environment(folder, **extra), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SideFailedError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu, time.perf_counter() - wall)


def bare_command(address: str) -> list[str]:
    """`evaluate@ppo` -> the stage's module and arguments, as in `dvc.yaml`."""
    name, _, system = address.partition("@")
    return [f"stages.{name}", *(["--system", system] if system else [])]


def row(title: str, bare: Cost, flow: Cost) -> None:
    """One printed comparison."""
    print(f"{title:32}{flow.cpu:10.1f}{bare.cpu:10.1f}{flow.cpu - bare.cpu:12.1f}{flow.wall:12.0f}{bare.wall:10.0f}", flush=True)


def main() -> int:
    """Print the table; returns 1 if the target is missed."""
    whole = adopt_orphans()
    with tempfile.TemporaryDirectory() as home:
        one, other = Path(home) / "bare", Path(home) / "flow"
        project(one)
        project(other)
        stages = list(stages_of(one))
        print(f"params/test.yaml, {len(stages)} stages, each a process of its own on both sides; one thread")
        print(f"{'':32}{'flow':>10}{'bare':>10}{'difference':>12}{'flow':>12}{'bare':>10}")
        print(f"{'':32}{'CPU s':>10}{'CPU s':>10}{'CPU s':>12}{'wall s':>12}{'wall s':>10}", flush=True)
        threads = {"OMP_NUM_THREADS": "1", "R3FLOW_THREADS": "1"}
        bare = cost_of(one, [bare_command(address) for address in stages], R3FLOW_TRACKING="off", **threads)
        flow = cost_of(other, [["flows.pipeline"]], **threads)
        row("whole graph", bare, flow)
        row("nothing to do", Cost(0.0, 0.0), cost_of(other, [["flows.pipeline"]], **threads))
    difference = flow.cpu - bare.cpu
    if not whole:
        print("  without the follower that fills MLflow: this system does not let a process adopt orphans")
    met = difference <= TARGET_S
    print(f"  orchestration of the whole graph: {difference:.1f} CPU s (at most {TARGET_S:g}: {'met' if met else 'MISSED'})")
    return 0 if met else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SideFailedError as error:
        sys.exit(f"error: {error}")
