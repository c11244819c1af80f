"""Resume folders, digests and locks."""

import fcntl
import json
import os
import subprocess
import sys

import psutil
import pytest

from r3flow import workdir
from r3flow.errors import BusyError, ConfigError
from r3flow.workdir import Execution, mark_finished, open_work, read_stage, read_stages, run_lock, stage_digest, stage_lock
from tests.toy_project import ROOT, make_toy


@pytest.fixture
def toy(tmp_path, monkeypatch):
    monkeypatch.chdir(make_toy(tmp_path))
    monkeypatch.delenv(workdir.EXECUTION_VARIABLE, raising=False)
    return tmp_path


def test_stages_are_read_as_dvc_reads_them():
    """Against DVC's own resolver: same addresses, dependencies, parameters and outputs."""
    code = (
        "import json; from dvc.repo import Repo; print(json.dumps({s.addressing: ["
        "sorted(d.def_path for d in s.deps if type(d).__name__ == 'Dependency'), sorted(p for d in s.params for p in d.params), "
        "sorted(o.def_path for o in s.outs)] for s in Repo('.').index.stages}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = {name: [sorted(s.deps), sorted(s.params), sorted(s.outs)] for name, s in read_stages(ROOT).items()}
    assert ours == theirs


def test_an_unknown_stage_or_parameter_is_named(toy):
    with pytest.raises(ConfigError, match=r"no stage 'c'; it has: a, b@x, b@y"):
        read_stage("c")
    (toy / "dvc.yaml").write_text((toy / "dvc.yaml").read_text().replace("[seed, report]", "[seed, reprot]"))
    with pytest.raises(ConfigError, match=r"stage 'a' asks for 'reprot'"):
        read_stages()


def test_the_digest_follows_listed_parameters_and_contents_alone(toy):
    before = {name: stage_digest(stage) for name, stage in read_stages().items()}
    params = toy / "params.yaml"
    params.write_text(params.read_text().replace("trajectories: 40", "trajectories: 41"))
    after = {name: stage_digest(stage) for name, stage in read_stages().items()}
    assert [name for name in before if before[name] != after[name]] == ["a"]
    (toy / "input.txt").write_text("two")
    last = {name: stage_digest(stage) for name, stage in read_stages().items()}
    assert [name for name in before if after[name] != last[name]] == ["a", "b@y"]


def test_state_is_found_again_and_what_is_finished_or_old_goes(toy):
    def work_of(text):
        (toy / "input.txt").write_text(text)
        return open_work(read_stage("a"))

    first = work_of("one")
    (first / "checkpoint").write_text("1")
    assert work_of("one") == first and (first / "checkpoint").exists()
    second = work_of("two")
    assert first.exists()  # it may be asked for again: an interrupted run of other parameters
    third = work_of("three")
    assert third.exists() and not first.exists() and second.exists()
    mark_finished(third)
    assert work_of("three") == third  # DVC may have died before it recorded the outputs
    assert work_of("four").exists() and not third.exists()


def test_a_stage_runs_once_at_a_time(toy):
    with stage_lock("a"), stage_lock("b@x"), pytest.raises(BusyError, match="stage 'a' is already running"), stage_lock("a"):
        pass
    with stage_lock("a"):
        pass


def execution(id):
    return Execution.of(psutil.Process(), "make demo", id)


def test_the_folder_is_for_one_execution(toy, monkeypatch):
    monkeypatch.setattr(workdir, "_PATIENCE_S", 0.2)
    with run_lock(execution("one")), run_lock(execution("one")):
        with pytest.raises(BusyError, match=rf"another run works in .* \(make demo, process {os.getpid()}\)"), run_lock(execution("two")):
            pass
    with run_lock(execution("two")):
        pass


def test_the_lock_goes_with_its_holder(toy):
    code = (
        "import os, psutil; from r3flow.workdir import *\n"
        "with run_lock(Execution.of(psutil.Process(), 'x', 'dead')): print('held', flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=toy, env=environment, capture_output=True, text=True)
    assert done.stdout == "held\n" and done.returncode == -9
    with run_lock(execution("two")), open(".work/run.lock") as file, pytest.raises(OSError, match="unavailable"):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_execution_is_alive_as_long_as_its_process_is_the_same():
    me = execution("x")
    assert me.alive() and not Execution("x", "c", me.pid, me.created - 60).alive()
