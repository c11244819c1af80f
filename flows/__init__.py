"""WHEN stages run. Flows know stages by name and reach everything else over a process boundary: `dvc` and `python -m ...`.

Prefect reads its settings when it is first imported, so they are set here, before any flow's module imports it.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

for _name, _value in {
    "PREFECT_HOME": str(ROOT / ".prefect"),  # its state stays in the project
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600",  # the default of 20 s is too short for a cold start
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "true",
    "DVC_NO_ANALYTICS": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}.items():
    os.environ.setdefault(_name, _value)
