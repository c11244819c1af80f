"""The smallest profile through a real `dvc repro` in a folder of its own: whole, repeatable, and cached as the graph says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEMS = {"base", "rag", "cold_start", "control", "ppo"}
KEYS = {"n", "em", "em_ci95", "f1", "acc", "format_valid", "searches", "tokens", "tokens_per_right", "gold_recall", "by_type"}


def dvc(folder, *arguments):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repro") / "project"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        # what a run of the demo leaves beside the code is no part of it
        if not name.startswith(("metrics/", "plots/", "dvc.lock")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    shutil.copy2(ROOT / "params/test.yaml", folder / "params.yaml")
    for command in (["init", "-q"], ["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "t"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    done = dvc(folder, "repro")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def results(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted((folder / "metrics").rglob("*.json"))}


def test_every_system_has_its_results_and_the_report_is_one_page(project):
    evaluated = json.loads((project / "metrics/evaluate.json").read_text())
    assert set(evaluated) == SYSTEMS
    assert all(set(row) >= KEYS and row["n"] == evaluated["base"]["n"] > 0 for row in evaluated.values())
    page = (project / "report/index.html").read_text()
    assert "<table" in page and not re.search(r"(src|href)=[\"']https?:", page)
    assert (project / "models/ppo/model.safetensors").exists() and not list(project.glob("models/*/*.bin"))


def test_metrics_hold_no_times_and_no_costs(project):
    for name, content in results(project).items():
        assert not re.search(rb'"[^"]*(second|wall|cpu|usd|retr(y|ies)|cache)[^"]*":', content), name


def test_a_second_run_has_nothing_to_do(project):
    before = results(project)
    done = dvc(project, "repro")
    assert done.returncode == 0 and "Running stage" not in done.stdout and results(project) == before


@pytest.mark.parametrize(
    ("old", "new", "runs", "stays"),
    [
        ("preset: demo", "preset: paper", {"ppo"}, {"prepare", "index", "synthesize", "filter", "sft"}),
        ("partial_query:", "partial_query: 0.99 #", {"synthesize"}, {"prepare", "index"}),
    ],
)
def test_a_changed_param_makes_stale_what_reads_it(project, old, new, runs, stays):
    path = project / "params.yaml"
    text = path.read_text()
    assert old in text
    try:
        path.write_text(text.replace(old, new, 1))
        stale = set(json.loads(dvc(project, "status", "--json").stdout))
    finally:
        path.write_text(text)
    assert runs <= stale and not stays & stale


def test_the_same_seed_gives_the_same_files(project):
    """PPO run again from nothing: the ledger has the judge's answers, the rest is computed once more."""
    before = results(project)
    for folder in project.glob(".work/ppo*"):
        shutil.rmtree(folder)
    done = dvc(project, "repro", "--force", "--single-item", "ppo")
    assert done.returncode == 0 and "Running stage 'ppo'" in done.stdout
    assert results(project) == before
