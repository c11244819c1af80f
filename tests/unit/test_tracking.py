"""From journals, dvc.lock and metrics files to MLflow, on a toy project; and what happens when MLflow cannot."""

import hashlib
import json
import sys
import time

import pytest
import yaml

from r3flow.errors import DataError
from r3flow.tracking.lockfile import md5, read_lock, snapshot, up_to_date
from tests.toy_project import call, make_toy, python, runs


def hashed(text):
    return hashlib.md5(text.encode()).hexdigest()


def fake_lock(toy):
    """A toy project as `dvc repro` leaves it, without DVC."""
    files = {
        "a.txt": "1 one", "b/x.txt": "1", "b/y.txt": "1", "metrics/a.json": '{"count": 3, "nested": {"share": 0.5}, "name": "text"}',
        "metrics/evaluate/x.json": '{"em": 0.5, "em_ci95": [0.4, 0.6], "by_type": {"comparison": {"em": 0.75}}}',
        "metrics/evaluate/y.json": '{"em": 0.25, "em_ci95": [0.2, 0.3]}',
    }  # fmt: skip
    for name, text in files.items():
        (toy / name).parent.mkdir(parents=True, exist_ok=True)
        (toy / name).write_text(text)

    def entry(params, deps, outs):
        return {
            "cmd": "c",
            "deps": [{"path": path, "hash": "md5", "md5": md5(toy / path)} for path in deps],
            "params": {"params.yaml": params},
            "outs": [{"path": path, "hash": "md5", "md5": md5(toy / path)} for path in outs],
        }

    stages = {
        "a": entry({"seed": 3, "report": {"trajectories": 40}}, ["input.txt"], ["a.txt", "metrics/a.json"]),
        "b@x": entry({"seed": 3}, ["a.txt"], ["b/x.txt", "metrics/evaluate/x.json"]),
        "b@y": entry({"seed": 3}, ["input.txt"], ["b/y.txt", "metrics/evaluate/y.json"]),
    }
    (toy / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    return toy


@pytest.fixture(scope="module")
def synced(tmp_path_factory):
    """A fake lock synced twice: (folder, runs after the first, runs after the second)."""
    toy = fake_lock(make_toy(tmp_path_factory.mktemp("synced")))
    assert python(toy, "-m", "r3flow.tracking", "sync").returncode == 0
    first = runs(toy)
    assert python(toy, "-m", "r3flow.tracking", "sync").returncode == 0
    return toy, first, runs(toy)


def test_a_lock_and_metrics_files_alone_make_the_rows(synced):
    _, found, _ = synced
    parents = [run for run in found if run["parent"] is None]
    assert len(parents) == 1 and parents[0]["status"] == "FINISHED"
    assert parents[0]["metrics"] == {
        "a/count": 3.0, "a/nested/share": 0.5, "eval/x/em": 0.5, "eval/x/em_ci95/low": 0.4, "eval/x/em_ci95/high": 0.6,
        "eval/y/em": 0.25, "eval/y/em_ci95/low": 0.2, "eval/y/em_ci95/high": 0.3,
    }  # fmt: skip
    assert parents[0]["params"] == {"seed": "3", "report.trajectories": "40"} and parents[0]["tags"]["mlflow.source.git.commit"]
    children = {run["tags"]["r3flow.stage"]: run for run in found if run["parent"] == parents[0]["id"]}
    assert set(children) == {"a", "b@x", "b@y"}
    x = children["b@x"]
    assert x["tags"]["dvc.in.a.txt"] == hashed("1 one") and x["tags"]["dvc.out.b/x.txt"] == hashed("1") and x["metrics"]["eval/x/em"] == 0.5
    assert x["metrics"]["eval/x/by_type/comparison/em"] == 0.75  # breakdowns are the stage's alone


def test_a_second_sync_changes_nothing(synced):
    _, first, second = synced
    assert first == second


def test_what_is_no_longer_up_to_date_is_not_claimed(tmp_path):
    toy = fake_lock(make_toy(tmp_path))
    lock, start = read_lock(toy), snapshot(toy)
    assert list(up_to_date(toy, lock, start)) == ["a", "b@x", "b@y"]
    (toy / "input.txt").write_text("edited")
    assert list(up_to_date(toy, lock, snapshot(toy))) == []  # b@x too: what it stands on would be made anew
    assert list(up_to_date(toy, lock, snapshot(toy), ran={"a"})) == ["a", "b@x"]
    (toy / "input.txt").write_text("one")
    (toy / "params.yaml").write_text((toy / "params.yaml").read_text().replace("trajectories: 40", "trajectories: 41"))
    assert list(up_to_date(toy, lock, snapshot(toy))) == ["b@y"]
    assert list(up_to_date(toy, lock, start)) == ["a", "b@x", "b@y"]  # an edit while an execution runs is none of its business


def test_the_lock_of_a_fresh_clone_makes_no_row(tmp_path):
    made = make_toy(tmp_path / "made")
    assert call(made, "dvc", "repro", "-q").returncode == 0
    clone = make_toy(tmp_path / "clone")
    (clone / "dvc.lock").write_text((made / "dvc.lock").read_text())
    assert python(clone, "-m", "r3flow.tracking", "sync").returncode == 0
    assert runs(clone) == []
    assert call(clone, "dvc", "repro", "-q").returncode == 0
    python(clone, "-m", "r3flow.tracking", "sync")
    assert [run["name"].rsplit(" ", 2)[0] for run in runs(clone) if run["parent"] is None] == ["dvc repro"]


def test_an_edit_after_a_run_takes_nothing_from_its_row(tmp_path):
    toy = make_toy(tmp_path)
    assert call(toy, "dvc", "repro", "-q").returncode == 0
    (toy / "params.yaml").write_text((toy / "params.yaml").read_text().replace("seed: 3 ", "seed: 2 "))
    assert python(toy, "-m", "r3flow.tracking", "sync").returncode == 0
    parent = next(run for run in runs(toy) if run["parent"] is None)
    assert parent["metrics"]["a/count"] == 3 and parent["metrics"]["eval/x/em"] == 0.5 and parent["params"]["seed"] == "3"


@pytest.mark.parametrize("text", ["stages: [", "<<<<<<< HEAD\n", "stages: {a: {deps: [1]}}", "- a"])
def test_a_broken_lock_is_named(tmp_path, text):
    (tmp_path / "dvc.lock").write_text(text)
    with pytest.raises(DataError, match=r"dvc.lock: not a lock file"):
        read_lock(tmp_path)


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Plain `dvc repro`, synced; a changed parameter, run as `make demo` does, with b@y cached; then a failure."""
    toy = make_toy(tmp_path_factory.mktemp("history"))
    steps = {}
    steps["first"] = call(toy, "dvc", "repro", "-q")
    python(toy, "-m", "r3flow.tracking", "sync")
    (toy / "params.yaml").write_text((toy / "params.yaml").read_text().replace("trajectories: 40", "trajectories: 41"))
    (toy / "input.txt").write_text("one")
    steps["second"] = python(toy, "-m", "r3flow.tracking", "run", "--", "dvc", "repro", "-q", R3FLOW_COMMAND="make demo")
    (toy / "params.yaml").write_text((toy / "params.yaml").read_text().replace("trajectories: 41", "trajectories: 42"))
    (toy / "wish-a.txt").write_text("bad data")
    steps["third"] = python(toy, "-m", "r3flow.tracking", "run", "--", "dvc", "repro", "-q")
    return toy, steps, runs(toy)


def test_an_execution_has_one_parent_and_a_child_a_stage(history):
    _, steps, found = history
    assert steps["first"].returncode == 0 and steps["second"].returncode == 0, steps["second"].stderr
    parents = [run for run in found if run["parent"] is None]
    assert [run["name"].rsplit(" ", 2)[0] for run in parents] == ["dvc repro", "make demo", "dvc repro -q"]
    assert [run["status"] for run in parents] == ["FINISHED", "FINISHED", "FAILED"]
    ran = [run for run in found if run["parent"] == parents[0]["id"]]
    assert [run["name"] for run in ran] == ["a", "b@x", "b@y"] and all(run["status"] == "FINISHED" for run in ran)
    a = ran[0]
    assert a["metrics"]["loss"] == pytest.approx(1 / 3) and a["metrics"]["cost/requests"] == 7 and a["metrics"]["cost/wall_s"] >= 0
    assert a["params"] == {"seed": "3", "report.trajectories": "40"} and a["inputs"] == ["input.txt"]
    assert a["tags"]["dvc.out.a.txt"] == hashed("3 one")


def test_a_stage_that_was_skipped_is_linked_to_the_run_that_made_it(history):
    _, _, found = history
    parents = [run for run in found if run["parent"] is None]
    children = {run["tags"]["r3flow.stage"]: run for run in found if run["parent"] == parents[1]["id"]}
    assert "r3flow.cached" not in children["a"]["tags"] and children["a"]["params"]["report.trajectories"] == "41"
    maker = next(run for run in found if run["parent"] == parents[0]["id"] and run["name"] == "b@y")
    assert children["b@y"]["tags"]["r3flow.cached"] == "true" and children["b@y"]["tags"]["r3flow.made_by"] == maker["id"]
    assert parents[1]["metrics"]["eval/y/em"] == 0.5 and parents[1]["metrics"]["a/count"] == 3


def test_a_failed_execution_claims_no_result_of_what_is_out_of_date(history):
    _, steps, found = history
    assert steps["third"].returncode != 0
    parents = [run for run in found if run["parent"] is None]
    assert set(parents[2]["metrics"]) == {"eval/y/em", "eval/y/em_ci95/low", "eval/y/em_ci95/high"}
    assert [run["status"] for run in found if run["parent"] == parents[2]["id"] and run["name"] == "a"] == ["FAILED"]


def test_journals_are_gone_once_they_are_carried_over(history):
    toy, _, _ = history
    assert not list((toy / ".work/tracking").glob("*/"))


def test_a_broken_store_costs_one_warning_and_the_next_sync_makes_up_for_it(tmp_path):
    toy = make_toy(tmp_path)
    (toy / "mlruns").mkdir()
    (toy / "mlruns/mlflow.db").write_text("this is no database")
    done = python(toy, "-m", "r3flow.tracking", "run", "--", sys.executable, "toy.py", "a")
    assert done.returncode == 0 and (toy / "a.txt").exists()
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
    assert len(warnings) == 1 and "MLflow could not be brought up to date" in warnings[0] and "Traceback" not in done.stderr
    assert python(toy, "-m", "r3flow.tracking", "sync").returncode == 1
    (toy / "mlruns/mlflow.db").unlink()
    assert python(toy, "-m", "r3flow.tracking", "sync").returncode == 0
    assert [run["metrics"]["a/count"] for run in runs(toy) if run["name"] == "a"] == [3.0]


def test_a_torn_journal_and_a_killed_stage_are_told_as_they_are(tmp_path):
    toy = make_toy(tmp_path)
    folder = toy / ".work/tracking/dead"
    folder.mkdir(parents=True)
    record = {"id": "dead", "command": "dvc repro", "pid": 2**22 + 1, "created": 1.0, "start": {"stages": {}, "files": {}}}
    (folder / "execution.json").write_text(json.dumps(record))
    lines = [
        {"event": "start", "time": 10.0, "params": {"seed": 1}, "digest": "d"},
        {"event": "metrics", "time": 11.0, "step": 1, "values": {"reward=x": 0.5}},
    ]
    (folder / "a.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "met')
    assert python(toy, "-m", "r3flow.tracking", "sync").returncode == 0
    child = next(run for run in runs(toy) if run["name"] == "a")
    assert child["status"] == "KILLED" and child["metrics"] == {"reward_x": 0.5}


def test_the_follower_carries_curves_over_while_a_stage_runs(tmp_path):
    toy = make_toy(tmp_path)
    done = python(toy, "toy.py", "a", R3FLOW_TRACKING="live")
    assert done.returncode == 0
    deadline = time.monotonic() + 120
    while list((toy / ".work/tracking").glob("*/")) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert [run["name"] for run in runs(toy) if run["parent"]] == ["a"]


def test_sync_outside_a_project_says_so(tmp_path):
    done = python(tmp_path, "-m", "r3flow.tracking", "sync")
    assert done.returncode == 1 and "no dvc.yaml here" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "it left something in a folder that is not its own"
