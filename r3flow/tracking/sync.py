"""From journals, `dvc.lock` and metrics files to MLflow's rows. Everything here may be repeated: a second call changes nothing.

One parent run an execution, one child a stage. A stage that ran is filled from its journal, live. When the execution has ended,
its parent gets the parameters and final metrics of every stage that is up to date; a stage that DVC skipped or restored gets a child
that says `cached` and names the run that made it. Outputs that no journal tells of (`dvc pull`, a deleted store) get rows from
`dvc.lock` and the metrics files alone.

Runs are found by tags: `r3flow.execution` (parent), `r3flow.journal` (child), `r3flow.work` (digest of what a stage read and wrote),
`r3flow.state` (digest of the whole `dvc.lock`), `r3flow.cached`, `r3flow.made_by`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Run

from r3flow.files import read_json
from r3flow.tracking.journal import HOME
from r3flow.tracking.lockfile import LockedStage, lock_digest, md5, read_lock, snapshot, up_to_date
from r3flow.tracking.store import Store
from r3flow.workdir import Execution

Events = list[dict[str, Any]]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and lists of numbers -> `a/b/0`-like names (dots for parameters: see `flat_params`)."""
    if isinstance(value, Mapping):
        parts = (flatten(item, f"{prefix}/{key}" if prefix else str(key)) for key, item in value.items())
        return {name: leaf for part in parts for name, leaf in part.items()}
    if isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
        ends = ("low", "high") if len(value) == 2 else tuple(map(str, range(len(value))))
        return {f"{prefix}/{end}": item for end, item in zip(ends, value, strict=True)}
    return {prefix: value}


def flat_params(values: Mapping[str, Any]) -> dict[str, Any]:
    """`{"sft": {"epochs": 2}, "teacher.model": "m"}` -> `{"sft.epochs": 2, "teacher.model": "m"}`."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping) and value
        result.update({f"{name}.{rest}": leaf for rest, leaf in flat_params(value).items()} if nested else {name: value})
    return result


def flat_results(results: Mapping[str, Any]) -> dict[str, float]:
    """Metrics files by path -> stable names: `metrics/evaluate/ppo.json` {"em": ...} and `metrics/evaluate.json` -> `eval/ppo/em`."""
    flat: dict[str, float] = {}
    for path, values in results.items():
        stem = path.removeprefix("metrics/").removesuffix(".json")
        stem = "eval" + stem.removeprefix("evaluate") if stem.split("/")[0] == "evaluate" else stem
        numbers = flatten(values, stem)
        flat |= {name: float(value) for name, value in numbers.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    return flat


def _commit(root: Path) -> str | None:
    """The git commit of the working tree, with `-dirty` if it was edited."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None


def _events(path: Path, offset: int) -> tuple[Events, int]:
    """Whole lines from byte `offset` on, and where the next ones begin. A line that a kill tore is left out for good."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    events = []
    for line in whole.splitlines():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return events, offset + len(whole)


class Sync:
    """One pass over a project's folder."""

    def __init__(self, root: Path, store: Store) -> None:
        self._root, self._store = root, store

    def run(self) -> bool:
        """Bring MLflow up to date. Returns whether an execution is still going on."""
        live = False
        lock = read_lock(self._root)
        folders = sorted((self._root / HOME).glob("*/execution.json"), key=lambda path: path.stat().st_mtime)
        for place, path in enumerate(folders):
            record = read_json(path)
            execution = Execution(record["id"], record["command"], record["pid"], record["created"])
            parent = self._parent(execution.id, execution.command, execution.created)
            ended = "ended" in record or not execution.alive()
            children = [self._child(parent, journal, ended) for journal in sorted(path.parent.glob("*.jsonl"))]
            if not ended:
                live = True
                continue
            # of several that ended since the last sync, the lock tells of the last alone
            self._close(parent, children, lock if place == len(folders) - 1 else {}, record)
            shutil.rmtree(path.parent)
        if lock and not live and not self._store.find("r3flow.state", lock_digest(lock)):
            start = snapshot(self._root)
            # the lock of a fresh clone tells of another machine's run: nothing of it is here
            if up_to_date(self._root, lock, start):
                parent = self._parent(f"lock-{lock_digest(lock)}", "dvc.lock", (self._root / "dvc.lock").stat().st_mtime)
                self._close(parent, [], lock, {"start": start})
        return live

    def _parent(self, id: str, command: str, start: float) -> Run:
        """The parent run of an execution, made at the first call."""
        if found := self._store.find("r3flow.execution", id):
            return found[0]
        commit = _commit(self._root)
        tags = {"r3flow.execution": id, **({"mlflow.source.git.commit": commit} if commit else {})}
        return self._store.create(f"{command} {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(start))}", start, tags)

    def _child(self, parent: Run, path: Path, ended: bool) -> tuple[str, Run, Events]:
        """Carry what is new in a stage's journal over. Returns the stage's address, its run and all its events."""
        address, key = path.name.rsplit(".", 2)[0], f"{path.parent.name}/{path.stem}"
        everything, size = _events(path, 0)
        start = everything[0]["time"] if everything else path.stat().st_mtime
        found = self._store.find("r3flow.journal", key)
        tags = {"r3flow.journal": key, "r3flow.stage": address}
        run = found[0] if found else self._store.create(address, start, tags, parent.info.run_id)
        fresh, _ = _events(path, int(run.data.tags.get("r3flow.offset", 0)))
        metrics: list[tuple[str, float, float, int]] = []
        params: dict[str, Any] = {}
        for event in fresh:
            if event["event"] == "metrics":
                metrics += [(name, value, event["time"], event["step"]) for name, value in event["values"].items()]
            elif event["event"] == "costs":
                metrics += [(f"cost/{name.removeprefix('cost/')}", value, event["time"], 0) for name, value in event["values"].items()]
            elif event["event"] == "start":
                params = flat_params(event["params"])
            elif event["event"] == "end":
                metrics += [(name, value, event["time"], 0) for name, value in flat_results(event["results"]).items()]
                metrics.append(("cost/wall_s", event["time"] - start, event["time"], 0))
        if fresh:
            self._store.log(run, metrics=metrics, params=params, tags={"r3flow.offset": str(size)})
            self._store.log(parent, params=params)
        if run.info.status == "RUNNING" and everything:
            last = everything[-1]
            if last["event"] == "end" or ended:
                self._store.end(run, last.get("status", "KILLED"), last["time"])
        return address, run, everything

    def _close(
        self, parent: Run, children: list[tuple[str, Run, Events]], lock: Mapping[str, LockedStage], record: Mapping[str, Any]
    ) -> None:
        """Complete the parent of an execution that has ended."""
        own = {address: (run, events) for address, run, events in children}  # of several tries the last
        ran = {address for address, (_, events) in own.items() if address in lock and _made(lock[address], events)}
        good = up_to_date(self._root, lock, record["start"], ran)
        for address in sorted(ran):
            self._store.log(own[address][0], tags=_hash_tags(lock[address]))
            self._store.inputs(own[address][0], lock[address].inputs)
        for address, entry in good.items():
            if address not in own:
                self._cached(parent, entry)
        now = record.get("ended") or max((events[-1]["time"] for _, events in own.values() if events), default=time.time())
        results = flat_results(self._results(good))
        for _, events in own.values():
            results |= flat_results(events[-1].get("results", {}) if events else {})
        params = {name: value for entry in good.values() for name, value in flat_params(entry.params).items()}
        tags = {"r3flow.up_to_date": " ".join(good), **({"r3flow.state": lock_digest(lock)} if lock else {})}
        # breakdowns stay with the stages: they would be three in four of the metrics that a comparison of executions shows
        whole = [(name, value, now, 0) for name, value in results.items() if "/by_" not in name]
        self._store.log(parent, metrics=whole, params=params, tags=tags)
        for path, folder in (("params.yaml", None), ("dvc.lock", None), ("report/index.html", "report")):
            if good and (self._root / path).is_file() and (folder is None or "report" in good):
                self._store.artifact(parent, self._root / path, folder)
        statuses = [(events[-1].get("status", "KILLED") if events else "KILLED") for _, events in own.values()]
        bad = [status for status in (record.get("status", "FINISHED"), *statuses) if status != "FINISHED"]
        self._store.end(parent, bad[0] if bad else "FINISHED", now)

    def _cached(self, parent: Run, entry: LockedStage) -> None:
        """A child for a stage that did not run, linked to the run that did; made once."""
        key = f"{parent.info.run_id}/{entry.address}"
        found = self._store.find("r3flow.journal", key)
        if found and found[0].info.status == "FINISHED":
            return
        makers = [run for run in self._store.find("r3flow.work", entry.digest) if run.data.tags.get("r3flow.cached") != "true"]
        maker = makers[-1].info.run_id if makers else "unknown"
        now = time.time()
        tags = {"r3flow.journal": key, "r3flow.stage": entry.address, "r3flow.cached": "true", "r3flow.made_by": maker}
        run = found[0] if found else self._store.create(f"{entry.address} (cached)", now, tags, parent.info.run_id)
        results = [(name, value, now, 0) for name, value in flat_results(self._results({entry.address: entry})).items()]
        self._store.log(run, metrics=results, params=flat_params(entry.params), tags=_hash_tags(entry))
        self._store.end(run, "FINISHED", now)

    def _results(self, good: Mapping[str, LockedStage]) -> dict[str, Any]:
        """The metrics files of the stages that are up to date, as far as they are what those stages wrote."""
        found = {}
        for entry in good.values():
            for path, value in entry.outputs.items():
                if path.startswith("metrics/") and md5(self._root / path) == value:
                    found[path] = read_json(self._root / path)
        return found


def _made(entry: LockedStage, events: Events) -> bool:
    """Whether the lock's entry is of this very stage run: it ended well, with these parameters and these metrics files."""
    if not events or events[-1].get("status") != "FINISHED":
        return False
    hashes = events[-1].get("hashes", {})
    return events[0].get("params") == dict(entry.params) and all(entry.outputs.get(path) == value for path, value in hashes.items())


def _hash_tags(entry: LockedStage) -> dict[str, str]:
    """DVC's hashes as tags."""
    code = {"dvc.code": LockedStage("", {}, {}, entry.code, {}).digest}
    inputs = {f"dvc.in.{path}": value for path, value in entry.inputs.items()}
    return {"r3flow.work": entry.digest, **code, **inputs, **{f"dvc.out.{path}": value for path, value in entry.outputs.items()}}
