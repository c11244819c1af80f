"""`make ui`: a Prefect server, the pipeline as its deployment, and an MLflow server, all on loopback. Ctrl-C ends all three.

PREFECT_PORT (4200) and MLFLOW_PORT (5000) choose the ports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn
from urllib.error import URLError
from urllib.request import urlopen

from flows import ROOT
from flows.commands import environment, kill_group

HOST = "127.0.0.1"
_START_S = 600.0
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a kill, and the end of the terminal."""
LOGS = ROOT / ".work" / "ui"


class UIError(Exception):
    """A server could not be started; one line for people."""


def port_of(variable: str, default: int) -> int:
    """A free port, from the environment or the default. Raises UIError."""
    text = os.environ.get(variable, str(default))
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise UIError(f"{variable}: {text!r} is not a port")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, int(text)))
        except OSError:
            raise UIError(f"port {text} is in use; choose another: make ui {variable}=...") from None
    return int(text)


def start(stack: ExitStack, name: str, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own, which ends with `stack`; its output goes to `.work/ui/<name>.log`."""
    LOGS.mkdir(parents=True, exist_ok=True)
    with open(LOGS / f"{name}.log", "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    stack.callback(kill_group, process.pid, process)
    return process


def wait_for(name: str, url: str, process: subprocess.Popen[bytes]) -> None:
    """Until `url` answers. Raises UIError if the process ends or time runs out."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise UIError(f"{name} ended with exit code {process.returncode}; see {_log(name)}")
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise UIError(f"{name} did not answer within {_START_S:.0f} s; see {_log(name)}")


def runs_page(mlflow_url: str) -> str:
    """MLflow's table of runs. Its front page, and the experiment's without this mode, show traces and prompts, of which there are none."""
    with urlopen(f"{mlflow_url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=r3flow", timeout=60) as answer:
        id = json.load(answer)["experiment"]["experiment_id"]
    return f"{mlflow_url}/#/experiments/{id}?workflowType=machine_learning"


def _log(name: str) -> Path:
    return (LOGS / f"{name}.log").relative_to(ROOT)


def _stop(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Exit code 0 after Ctrl-C."""
    for number in _ENDS:
        signal.signal(number, _stop)
    with ExitStack() as stack:
        try:
            prefect_port, mlflow_port = port_of("PREFECT_PORT", 4200), port_of("MLFLOW_PORT", 5000)
            print("Starting Prefect and MLflow (half a minute) ...", flush=True)
            # the database is made, and brought up to date, before a server opens it
            subprocess.run([sys.executable, "-m", "r3flow.tracking", "sync"], cwd=ROOT, env=environment(), check=False)
            prefect_url, mlflow_url = f"http://{HOST}:{prefect_port}", f"http://{HOST}:{mlflow_port}"
            # without its own port in this variable, Prefect's page calls port 4200
            env = environment(
                PREFECT_API_URL=f"{prefect_url}/api",
                PREFECT_SERVER_API_PORT=str(prefect_port),
                PREFECT_SERVER_API_HOST=HOST,
                MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false",  # seven processes that nothing here uses
            )
            server = ["prefect", "server", "start", "--host", HOST, "--port", str(prefect_port)]
            prefect = start(stack, "prefect", server, env)
            store = ["--backend-store-uri", "sqlite:///mlruns/mlflow.db", "--artifacts-destination", "mlruns/artifacts"]
            mlflow = start(stack, "mlflow", ["mlflow", "server", "--host", HOST, "--port", str(mlflow_port), "--workers", "1", *store], env)
            wait_for("prefect", f"{prefect_url}/api/health", prefect)
            deployment = start(stack, "deployment", [sys.executable, "-m", "flows.serve"], env)
            wait_for("mlflow", f"{mlflow_url}/health", mlflow)
            try:
                page = runs_page(mlflow_url)
            except (OSError, KeyError, ValueError):  # its database could not be made; the line above says why
                page = mlflow_url
            wait_for("deployment", f"{prefect_url}/api/deployments/name/r3flow/pipeline", deployment)
            print(f"Prefect  {prefect_url}   (deployment r3flow/pipeline: run it, schedule it)")
            print(f"MLflow   {page}   (select runs to compare them)\nCtrl-C ends both.", flush=True)
            while all(process.poll() is None for process in (prefect, mlflow, deployment)):
                time.sleep(0.5)
            raise UIError(f"a server ended; see {LOGS.relative_to(ROOT)}/")
        except UIError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
            with suppress(OSError):  # the terminal may be gone
                print("\nStopping ...", flush=True)
            return 0


if __name__ == "__main__":
    sys.exit(main())
