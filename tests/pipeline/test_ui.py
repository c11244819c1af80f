"""`make ui` on a toy project: three servers on loopback, the pipeline as a deployment, and an end that leaves nothing behind."""

import json
import signal
import socket
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.toy_project import make_toy, toy_environment


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def api(port, path, body=None):
    """The JSON that Prefect answers to a GET, or to a POST of `body`. Asked again while it is too busy (503), as its own client does."""
    data = None if body is None else json.dumps(body).encode()
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(Request(f"http://127.0.0.1:{port}/api/{path}", data, {"Content-Type": "application/json"})) as answer:
                return json.load(answer)
        except HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def run_deployment(port, parameters, timeout_s=180):
    """Start a run as the page's button does, wait for its end; (its state, its log lines, its tasks' names)."""
    deployment = api(port, "deployments/name/r3flow/pipeline")["id"]
    run = api(port, f"deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"]
    deadline = time.monotonic() + timeout_s
    while (state := api(port, f"flow_runs/{run}")["state"])["type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        assert time.monotonic() < deadline, state
        time.sleep(0.5)
    mine = {"flow_run_id": {"any_": [run]}}
    lines = [entry["message"] for entry in api(port, "logs/filter", {"logs": mine, "limit": 200})]
    tasks = [entry["name"] for entry in api(port, "task_runs/filter", {"task_runs": mine})]
    return state, lines, tasks


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGHUP])  # Ctrl-C, and a terminal that is closed
def test_both_pages_and_the_deployment_are_there_until_interrupted(tmp_path, end):
    toy = make_toy(tmp_path)
    prefect, mlflow = free_port(), free_port()
    environment = toy_environment(toy, PREFECT_PORT=str(prefect), MLFLOW_PORT=str(mlflow))
    process = subprocess.Popen([sys.executable, "-m", "flows.ui"], cwd=toy, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        said = ""
        while "Ctrl-C" not in said:
            line = process.stdout.readline()
            assert line, f"it ended early: {said}"
            said += line
        assert f"http://127.0.0.1:{prefect}" in said
        assert f"http://127.0.0.1:{mlflow}/#/experiments/1?workflowType=machine_learning" in said  # else it opens on traces
        with urlopen(f"http://127.0.0.1:{prefect}/ui-settings") as answer:
            assert json.load(answer)["api_url"] == f"http://127.0.0.1:{prefect}/api"  # else the page calls port 4200
        fields = api(prefect, "deployments/name/r3flow/pipeline")["parameter_openapi_schema"]["properties"]
        assert all(field["description"] and field["minimum"] == 0 for field in fields.values()) and len(fields) == 2
        with urlopen(f"http://127.0.0.1:{mlflow}/") as answer:
            assert b"<html" in answer.read()
        if end == signal.SIGINT:
            state, lines, tasks = run_deployment(prefect, {"retries": 1})
            assert state["type"] == "COMPLETED", (state, lines)
            assert sorted(tasks) == ["a", "b@x", "b@y"] and (toy / "b/x.txt").is_file()
            assert any(line.startswith("Execution ") for line in lines)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3
    finally:
        process.send_signal(end)
    assert process.wait(120) == 0
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [child for child in children if child.is_running()]


@pytest.mark.parametrize(("value", "message"), [("eighty", "'eighty' is not a port"), ("taken", "is in use; choose another")])
def test_a_bad_port_is_refused_in_one_line(tmp_path, value, message):
    toy = make_toy(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1]) if value == "taken" else value
        environment = toy_environment(toy, PREFECT_PORT=port)
        done = subprocess.run([sys.executable, "-m", "flows.ui"], cwd=toy, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and message in done.stderr and len(done.stderr.splitlines()) == 1
