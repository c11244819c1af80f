"""HOW: the library. It knows nothing of DVC's stages or Prefect.

Libraries read these settings when they are first imported, so they are set before any module of this package imports one: nothing
tells anybody about a run, and bars of loading weights do not break up the stages' own progress.
"""

import os

for _name, _value in {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(_name, _value)
