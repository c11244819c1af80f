"""MLflow's store, behind the few calls that `sync` needs. Imported late: mlflow costs about two CPU-seconds."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag

for _name in ("mlflow", "alembic"):
    logging.getLogger(_name).setLevel(logging.ERROR)

EXPERIMENT = "r3flow"
_PARAM_LIMIT, _NAME_LIMIT = 6000, 250
_BATCH_METRICS, _BATCH_PARAMS, _BATCH_TAGS = 900, 100, 100


def metric_name(name: str) -> str:
    """A name that MLflow takes: letters, digits, `_ - . : /` and spaces (no `=`)."""
    return re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)[:_NAME_LIMIT]


def _chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while part := list(islice(iterator, size)):
        yield part


class Store:
    """The project's experiment: `MLFLOW_TRACKING_URI` if set, else sqlite in `mlruns/`."""

    def __init__(self, root: Path) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        location = None
        if not uri:
            (root / "mlruns" / "artifacts").mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{(root / 'mlruns' / 'mlflow.db').resolve()}"
            location = (root / "mlruns" / "artifacts").resolve().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT, artifact_location=location)

    def find(self, tag: str, value: str) -> list[Run]:
        """Runs that carry a tag, the oldest first."""
        query = f"tags.`{tag}` = '{value}'"
        return list(self._client.search_runs([self._experiment], query, max_results=1000, order_by=["attributes.start_time ASC"]))

    def create(self, name: str, start: float, tags: Mapping[str, str], parent: str | None = None) -> Run:
        """A new run; `start` in seconds since 1970."""
        own = {**tags, **({"mlflow.parentRunId": parent} if parent else {})}
        return self._client.create_run(self._experiment, start_time=int(start * 1000), tags=own, run_name=name)

    def log(
        self,
        run: Run,
        *,
        metrics: Sequence[tuple[str, float, float, int]] = (),
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Write in batches. `metrics` are (name, value, seconds since 1970, step); tags go last, so that they can say "all is in".

        Parameters that the run has already are left as they are: MLflow lets none change.
        """
        points = [Metric(metric_name(name), value, int(when * 1000), step) for name, value, when, step in metrics if math.isfinite(value)]
        fresh = {name: str(value) for name, value in (params or {}).items() if name not in run.data.params}
        pairs = [Param(name[:_NAME_LIMIT], value) for name, value in fresh.items() if len(value) <= _PARAM_LIMIT]
        run.data.params.update(fresh)
        labels = [RunTag(name[:_NAME_LIMIT], value) for name, value in (tags or {}).items()]
        for part in _chunks(points, _BATCH_METRICS):
            self._client.log_batch(run.info.run_id, metrics=part)
        for part in _chunks(pairs, _BATCH_PARAMS):
            self._client.log_batch(run.info.run_id, params=part)
        for part in _chunks(labels, _BATCH_TAGS):
            self._client.log_batch(run.info.run_id, tags=part)

    def inputs(self, run: Run, hashes: Mapping[str, str]) -> None:
        """Name the data that a run read, by DVC's hashes (a digest of MLflow's holds at most 36 characters)."""
        datasets = [Dataset(path, value[:36], "local", f'{{"uri": "{path}"}}') for path, value in hashes.items() if value]
        if datasets:
            tag = InputTag("mlflow.data.context", "input")
            self._client.log_inputs(run.info.run_id, [DatasetInput(dataset, [tag]) for dataset in datasets])

    def artifact(self, run: Run, path: Path, folder: str | None = None) -> None:
        """Copy a small file to the run's artifacts."""
        self._client.log_artifact(run.info.run_id, str(path), folder)

    def end(self, run: Run, status: str, when: float) -> None:
        """FINISHED, FAILED or KILLED."""
        self._client.set_terminated(run.info.run_id, status, int(when * 1000))
