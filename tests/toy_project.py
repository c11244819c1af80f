"""A DVC project of three tiny stages that run through the real `stages._runner`, for tests of everything around a stage's own work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

DVC_YAML = """
stages:
  a:
    cmd: python toy.py a
    params: [seed, report]
    deps: [input.txt]
    outs: [a.txt]
    metrics: [{metrics/a.json: {cache: false}}]
  b:
    foreach:
      x: {model: a.txt}
      y: {model: input.txt}
    do:
      cmd: python toy.py b --system ${key}
      params: [seed]
      deps: ["${item.model}"]
      outs: ["b/${key}.txt"]
      metrics: [{"metrics/evaluate/${key}.json": {cache: false}}]
"""

TOY = """
import os, sys, time
from pathlib import Path
from r3flow.errors import EndpointError, DataError
from r3flow.files import write_json, write_text
from stages._runner import run


def body(stage):
    for done in range(1, 4):
        stage.reporter.metrics({"loss": 1.0 / done}, done)
        stage.reporter.progress(done, 3, f"loss {1.0 / done:.2f}")
    stage.costs({"requests": 7})
    wish = Path(f"wish-{stage.system or 'a'}.txt")
    what = wish.read_text().strip() if wish.exists() else ""
    if what == "down once":
        wish.unlink()
        raise EndpointError("the endpoint does not answer")
    if what == "bad data":
        raise DataError("corpus.jsonl:3: not valid JSON")
    if what == "crash":
        raise ZeroDivisionError("oops")
    if what == "unlisted":
        stage.params.ppo
    if what == "sleep":
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        write_text("pids.txt", f"{os.getpid()} {child.pid}")
        time.sleep(600)
    if stage.system is None:
        write_text("a.txt", f"{stage.params.seed} {Path('input.txt').read_text()}")
        write_json("metrics/a.json", {"count": 3, "nested": {"share": 0.5}, "name": "text", "none": None})
    else:
        write_text(f"b/{stage.system}.txt", str(stage.params.seed))
        write_json(f"metrics/evaluate/{stage.system}.json", {"em": 0.5, "em_ci95": [0.4, 0.6]})


run(sys.argv[1], body, argv=sys.argv[2:])
"""


def make_toy(folder: Path) -> Path:
    """Write the project into `folder`, as a git repository with DVC."""
    folder.mkdir(parents=True, exist_ok=True)
    text, changed = re.subn(r"^seed: \d+ ", "seed: 3 ", (ROOT / "params.yaml").read_text(), flags=re.MULTILINE)
    assert changed == 1
    (folder / "params.yaml").write_text(text)
    shutil.copytree(ROOT / "flows", folder / "flows", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local"))
    (folder / ".gitignore").write_text(".work\nmlruns\n.prefect\n/a.txt\n/b\n")
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "toy.py").write_text(TOY)
    (folder / "input.txt").write_text("one")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "toy"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    return folder


def toy_environment(folder: Path, **extra: str) -> dict[str, str]:
    """The stages and the library come from the repository, the flows from the toy project; no follower unless asked for."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "R3FLOW"))}
    return {**kept, "PATH": path, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "R3FLOW_TRACKING": "off", **extra}


def call(folder: Path, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the toy project."""
    environment = toy_environment(folder, **extra)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)


def python(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in the toy project."""
    return call(folder, sys.executable, *arguments, **extra)


def runs(folder: Path) -> list[dict[str, object]]:
    """All runs of the project's MLflow store, the oldest first: name, status, metrics, params, tags, parent, id."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")
    experiment = client.get_experiment_by_name("r3flow")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"], max_results=1000)
    return [
        {
            "name": run.info.run_name, "status": run.info.status, "metrics": run.data.metrics, "params": run.data.params,
            "tags": run.data.tags, "parent": run.data.tags.get("mlflow.parentRunId"), "id": run.info.run_id,
            "inputs": [item.dataset.name for item in run.inputs.dataset_inputs],
        }
        for run in found
    ]  # fmt: skip
