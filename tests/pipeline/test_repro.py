"""The smallest profile through a real `dvc repro` in a folder of its own: whole, repeatable, and cached as the graph says."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from r3flow.workdir import read_stages
from tests.small_project import dvc
from tests.toy_project import runs

SYSTEMS = {"base", "rag", "cold_start", "control", "ppo"}
KEYS = {"n", "em", "em_ci95", "f1", "acc", "format_valid", "searches", "tokens", "tokens_per_right", "gold_recall", "by_type"}


@pytest.fixture(name="project")
def _project(small_run):
    return small_run


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
        # of the stages, the teacher's errors concern synthesize alone; the judge does not err
        ("partial_query:", "partial_query: 0.99 #", {"synthesize"}, {"prepare", "index", "filter", "ppo", "evaluate@base", "evaluate@rag"}),
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


@pytest.mark.parametrize("edited", ["r3flow/rewards.py", "r3flow/llm/prompts/teacher_r3rag.txt", "r3flow/evaluation/bootstrap.py"])
def test_an_edited_file_makes_stale_exactly_the_stages_that_load_it(project, edited):
    expected = {name for name, stage in read_stages(project).items() if edited in stage.deps}
    path = project / edited
    text = path.read_text()
    try:
        path.write_text(text + "\n")
        status = json.loads(dvc(project, "status", "--json").stdout)
    finally:
        path.write_text(text)
    touched = {name for name, changes in status.items() if any(edited in entry.get("changed deps", {}) for entry in changes)}
    assert touched == expected != set()


def test_tracking_is_no_dependency(project):
    assert not [dep for stage in read_stages(project).values() for dep in stage.deps if dep.startswith("r3flow/tracking")]


def test_a_plain_dvc_repro_has_its_rows_in_mlflow(project):
    subprocess.run([sys.executable, "-m", "r3flow.tracking", "sync"], cwd=project, check=True)
    found = runs(project)
    parent = next(run for run in found if run["parent"] is None)
    evaluated = json.loads((project / "metrics/evaluate.json").read_text())
    assert parent["status"] == "FINISHED" and parent["metrics"]["eval/ppo/em"] == evaluated["ppo"]["em"]
    assert parent["params"]["ppo.clip"] == "0.2" and parent["params"]["seed"] == "1"
    children = {run["tags"]["r3flow.stage"]: run for run in found if run["parent"] == parent["id"]}
    assert set(children) == set(read_stages(project)) and "data/prepared/train.jsonl" in children["ppo"]["inputs"]
    assert list((project / "mlruns/artifacts").glob("*/artifacts/report/index.html"))


def test_the_same_seed_gives_the_same_files(project):
    """PPO run again from nothing: the ledger has the judge's answers, the rest is computed once more."""
    before = results(project)
    for folder in project.glob(".work/ppo*"):
        shutil.rmtree(folder)
    done = dvc(project, "repro", "--force", "--single-item", "ppo")
    assert done.returncode == 0 and "Running stage 'ppo'" in done.stdout
    assert results(project) == before
