"""What every stage does around its work, through the real entry point: `python toy.py a`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest

from r3flow.errors import DataError
from r3flow.evaluation.curves import read_columns
from r3flow.files import read_json, read_lines, write_json
from r3flow.params import load
from r3flow.workdir import Stage
from stages._runner import narrow
from tests.toy_project import ROOT, make_toy, python, toy_environment


@pytest.fixture
def toy(tmp_path):
    return make_toy(tmp_path)


def failure(toy, address="a"):
    return json.loads((toy / ".work" / address / "failure.json").read_text())


def events(toy, address="a"):
    return [json.loads(line) for path in (toy / ".work/tracking").glob(f"*/{address}.*.jsonl") for line in path.read_text().splitlines()]


def test_a_good_run_leaves_outputs_and_a_journal(toy):
    done = python(toy, "toy.py", "a")
    assert done.returncode == 0, done.stderr
    assert (toy / "a.txt").read_text() == "3 one" and not (toy / ".work/a/failure.json").exists()
    kinds = [event["event"] for event in events(toy)]
    assert kinds == ["start", "metrics", "metrics", "metrics", "costs", "end"]
    assert events(toy)[-1]["status"] == "FINISHED" and events(toy)[-1]["results"]["metrics/a.json"]["count"] == 3
    assert events(toy)[0]["params"] == {"seed": 3, "report": {"trajectories": 40}}
    assert "a: 3/3  loss 0.33" in done.stderr


def test_a_file_where_an_outputs_folder_must_be_is_said_before_the_work(toy):
    shutil.rmtree(toy / "metrics", ignore_errors=True)
    (toy / "metrics").write_text("not a folder")
    done = python(toy, "toy.py", "a")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "error: metrics: is a file, but metrics/a.json needs a folder there; move it away and run again"
    assert failure(toy)["kind"] == "data" and not (toy / "a.txt").exists() and (toy / "metrics").read_text() == "not a folder"


@pytest.mark.parametrize("read", [read_json, lambda path: list(read_lines(path)), read_columns])
def test_what_cannot_be_read_is_one_line(tmp_path, read):
    (tmp_path / "metrics").write_text("not a folder")
    (tmp_path / "a.json").mkdir()
    for name, why in (("metrics/a.json", "Not a directory"), ("a.json", "Is a directory")):
        with pytest.raises(DataError, match=f"{name}: cannot be read: {why}$"):
            read(tmp_path / name)
    with pytest.raises(DataError, match=r"metrics: is a file, but .*metrics/deep/a.json needs a folder there"):
        write_json(tmp_path / "metrics" / "deep" / "a.json", {})


@pytest.mark.parametrize(
    ("wish", "kind", "retryable", "message"),
    [
        ("down once", "endpoint", True, "the endpoint does not answer"),
        ("bad data", "data", False, "corpus.jsonl:3: not valid JSON"),
        ("unlisted", "config", False, "reads params section 'ppo', which dvc.yaml does not list"),
        ("crash", "crash", False, "ZeroDivisionError: oops"),
    ],
)
def test_a_failure_is_one_line_and_leaves_its_kind(toy, wish, kind, retryable, message):
    (toy / "wish-a.txt").write_text(wish)
    done = python(toy, "toy.py", "a")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: ") and message in done.stderr.splitlines()[-1]
    assert ("Traceback" in done.stderr) == (kind == "crash")
    left = failure(toy)
    assert (left["stage"], left["kind"], left["retryable"]) == ("a", kind, retryable) and message in left["message"]
    assert not (toy / "a.txt").exists() and events(toy)[-1]["status"] == "FAILED"
    (toy / "wish-a.txt").unlink(missing_ok=True)
    assert python(toy, "toy.py", "a").returncode == 0 and not (toy / ".work/a/failure.json").exists()


def test_bad_params_are_refused_before_anything_is_touched(toy):
    (toy / "params.yaml").write_text((ROOT / "params.yaml").read_text().replace("report:", "reprot:"))
    (toy / "a.txt").write_text("old")
    done = python(toy, "toy.py", "a")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "did you mean 'report'?" in done.stderr
    assert failure(toy)["kind"] == "config" and (toy / "a.txt").read_text() == "old" and not (toy / ".work/run.lock").exists()


@pytest.mark.parametrize("wish", ["0", "two", ""])
def test_a_bad_number_of_threads_is_refused(toy, wish):
    done = python(toy, "toy.py", "a", R3FLOW_THREADS=wish)
    assert done.returncode == 1 and "R3FLOW_THREADS: expected a whole number from 1" in done.stderr


def start_sleeper(toy):
    (toy / "wish-a.txt").write_text("sleep")
    process = subprocess.Popen(
        [sys.executable, "toy.py", "a"], cwd=toy, env=toy_environment(toy), stderr=subprocess.PIPE, text=True,
        # a suite that runs in the background hands on an ignored SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - the suite has no threads here
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (toy / "pids.txt").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    return process


def test_a_second_run_at_once_is_refused_in_one_line(toy):
    process = start_sleeper(toy)
    try:
        for address, arguments in (("a", ["a"]), ("b@x", ["b", "--system", "x"])):
            done = python(toy, "toy.py", *arguments)
            assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
            assert f"another run works in {toy} (by hand, process {process.pid})" in done.stderr
            assert failure(toy, address)["retryable"] is True
    finally:
        for pid in map(int, (toy / "pids.txt").read_text().split()):
            psutil.Process(pid).kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stage_that_is_stopped_says_so(toy, number):
    process = start_sleeper(toy)
    child = int((toy / "pids.txt").read_text().split()[1])
    os.kill(process.pid, number)
    process.wait(timeout=30)
    psutil.Process(child).kill()
    process.communicate()
    assert process.returncode != 0 and failure(toy)["kind"] == "interrupted" and events(toy)[-1]["status"] == "KILLED"


def test_narrowed_params_hold_the_listed_sections_alone():
    stage = Stage("x", (), {"seed": 6, "ppo.clip": 0.2}, ())
    params = narrow(load(ROOT / "params.yaml"), stage)
    assert params.seed == load(ROOT / "params.yaml").seed and params.ppo.gamma == 1.0
    with pytest.raises(Exception, match="section 'sft'"):
        _ = params.sft
    with pytest.raises(AttributeError):
        _ = params.nonsense


@pytest.mark.parametrize(("given", "expected"), [(None, "3000"), ("77", "77")])
def test_waiting_threads_are_told_to_sleep_before_torch_can_load(given: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | (
        {"GOMP_SPINCOUNT": given} if given else {}
    )
    code = "import stages, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "False"]
