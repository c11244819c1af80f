"""Flows on a toy DVC project: order, retries, and that no stage outlives its flow. Two runs need Prefect's own server."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from flows.commands import CommandFailedError, StageFailedError, check_params, held, kill_group, run_stage, stages_of
from tests.toy_project import ROOT, call, make_toy, python, runs, toy_environment


@pytest.fixture
def toy(tmp_path, monkeypatch):
    for name, value in toy_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return make_toy(tmp_path)


def wait_for_pids(toy, process=None):
    deadline = time.monotonic() + 900
    while not (toy / "pids.txt").exists():
        assert time.monotonic() < deadline and (process is None or process.poll() is None)
        time.sleep(0.1)
    return list(map(int, (toy / "pids.txt").read_text().split()))


def gone(pids, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]:
            return True
        time.sleep(0.1)
    return False


def test_the_graph_is_dvcs_own_and_in_topological_order():
    needs = stages_of(ROOT)
    assert needs["control"] >= {"sft", "filter", "ppo"} and "ppo" not in needs["evaluate@cold_start"] and needs["prepare"] == set()
    assert needs["report"] >= {f"evaluate@{name}" for name in ("base", "rag", "cold_start", "control", "ppo")}
    done = set()
    for name, before in needs.items():
        assert before <= done
        done.add(name)
    assert needs["escalate"] >= {"synthesize", "index"} and needs["filter"] >= {"synthesize", "escalate"}
    assert len(done) == 14


def test_a_stage_says_whether_it_ran_and_its_lines_are_handed_on(toy):
    lines = []
    with held("flow", toy) as holder:
        assert run_stage("a", holder, lines.append, toy) is True
        assert run_stage("a", holder, lines.append, toy) is False
        with pytest.raises(CommandFailedError, match=r"another run works in .*\(flow, process"), held("flow", toy):
            pass
        second = python(toy, "-m", "flows.pipeline")
        assert second.returncode == 1 and len(second.stderr.splitlines()) == 1 and "another run works in" in second.stderr
    assert "a: 3/3  loss 0.33" in " ".join(lines) and "Running stage 'a':" in lines
    assert not [line for line in lines if "git add" in line or "dvc push" in line or "autostage" in line]
    assert {run["name"].split(" ")[0]: run["status"] for run in runs(toy)} == {"flow": "FINISHED", "a": "FINISHED"}


@pytest.mark.parametrize(
    ("wish", "retryable", "message"), [("down once", True, "endpoint"), ("bad data", False, "corpus.jsonl:3"), ("crash", False, "oops")]
)
def test_the_kind_of_a_failure_reaches_the_flow(toy, wish, retryable, message):
    (toy / "wish-a.txt").write_text(wish)
    with pytest.raises(StageFailedError, match=message) as error, held("flow", toy) as holder:
        run_stage("a", holder, print, toy)
    assert error.value.retryable is retryable
    assert [run["status"] for run in runs(toy)] == ["FAILED", "FAILED"]


def test_bad_params_are_refused_before_anything_starts(toy):
    (toy / "params.yaml").write_text((ROOT / "params.yaml").read_text().replace("report:", "reprot:"))
    with pytest.raises(CommandFailedError, match=r"params.yaml:\d+: unknown key 'reprot'; did you mean 'report'\?"):
        check_params(toy)
    done = python(toy, "-m", "flows.pipeline")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "did you mean 'report'" in done.stderr
    assert not (toy / ".work").exists()


def test_killing_a_group_ends_its_grandchildren(tmp_path):
    sleep = "import time; time.sleep(600)"
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', '{sleep}']).pid, flush=True); {sleep}"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    child = int(process.stdout.readline())
    kill_group(process.pid)
    process.communicate(timeout=10)
    assert gone([process.pid, child], 5)


def test_a_flow_that_is_killed_outright_leaves_no_stage_behind(toy):
    (toy / "wish-a.txt").write_text("sleep")
    code = "from flows.commands import *\nwith held('flow') as holder: run_stage('a', holder, print)"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=toy, env=toy_environment(toy))
    pids = wait_for_pids(toy, process)
    process.kill()
    process.wait()
    assert gone(pids), "a stage outlived its flow"


def test_the_flow_without_a_server_retries_what_can_be_retried(toy):
    (toy / "wish-x.txt").write_text("down once")
    arguments = ("-m", "flows.pipeline", "--parallel", "2", "--retries", "1", "--retry-delay", "0")
    done = python(toy, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("a", "b@x", "b@y"):
        assert f"Task run '{name}' - Finished in state Completed" in done.stderr
    assert "down once" not in done.stderr and "the endpoint does not answer" in done.stderr  # the log of the first try is streamed
    name = re.search(r"Beginning flow run '([\w-]+)'", done.stderr).group(1)
    assert [run["name"].rsplit(" ", 2)[0] for run in runs(toy) if run["parent"] is None] == [f"flow {name}"]
    x = [run["status"] for run in runs(toy) if run["name"] == "b@x"]
    assert x == ["FAILED", "FINISHED"]
    assert "Data and pipelines are up to date" in call(toy, "dvc", "status").stdout


def test_a_cancelled_flow_ends_its_stages(toy):
    (toy / "wish-a.txt").write_text("sleep")
    command = [sys.executable, "-m", "flows.pipeline"]
    process = subprocess.Popen(command, cwd=toy, env=toy_environment(toy), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    pids = wait_for_pids(toy, process)
    pids += [child.pid for child in psutil.Process(process.pid).children(recursive=True) if "hold" not in child.cmdline()]
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0, output[-3000:]
    assert gone(pids, 5), "a stage or Prefect's server outlived the flow"
    deadline = time.monotonic() + 300  # the holder fills MLflow by itself
    while list((toy / ".work/tracking").glob("*/")) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert {run["name"]: run["status"] for run in runs(toy)}["a"] == "KILLED"
