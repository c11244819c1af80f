"""The smallest profile as a project of its own: a copy of the repository's files with `params/test.yaml` as its `params.yaml`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def dvc(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this environment's DVC in `folder`, one thread a stage."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False)


def make_small(folder: Path) -> Path:
    """Write the project into `folder`, as a git repository. Nothing has run in it yet."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        # what a run of the demo leaves beside the code is no part of it
        if not name.startswith(("metrics/", "plots/", "dvc.lock")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    shutil.copy2(ROOT / "params/test.yaml", folder / "params.yaml")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder
