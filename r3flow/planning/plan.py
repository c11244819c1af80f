"""`r3flow plan`: everything that a params file asks for as one dictionary, and that as text.

The dictionary holds plain JSON values only; bytes and tokens are whole numbers, money is US dollars, and what is not known is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from r3flow import params as settings
from r3flow.params import Params
from r3flow.planning import machine, memory, work
from r3flow.planning.machine import Machine
from r3flow.planning.memory import Device, Sizes
from r3flow.planning.shapes import ENCODERS, local_folder, shape_of
from r3flow.workdir import read_stages

HASHED_TFIDF = "hashed-tfidf"
"""That of `retrieval.encoders`, which would load numpy and scipy. A test compares them."""
CHECKPOINTS = 3
"""Of each training stage on disk at most: two are kept, and one is being written."""


def make(
    params: Params, path: str, folder: str | Path = ".", *, here: Machine | None = None, parameters: float | None = None,
    device: Device | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The plan of `params`, which were read from `path`, for a project in `folder` on the machine `here` (default: this one).

    `parameters` replaces the policy's number of parameters, and then its shape is not known. `device` None: the GPU if there is one or if
    the RAM would not do, else the CPU. Raises ConfigError without a dvc.yaml, DataError for a model's broken config.json.
    """
    root = Path(folder)
    here = here or machine.look(root)
    shape, source = shape_of(params.policy.base, root)
    sizes = None
    if parameters is not None:
        sizes, source = Sizes(round(parameters), None), "--parameters"
    elif shape is not None:
        sizes = Sizes(shape.parameters, shape)
    encoder, dimension = _encoder(params)
    if params.prepare.source == "world":
        world = params.prepare.world
        counted: dict[str, int | None] = {
            "corpus": world.passages, "train": world.train_questions, "dev": world.dev_questions, "test": world.test_questions,
        }  # fmt: skip
    else:
        counted = machine.counted(params.prepare.files, root)
    index = None if counted["corpus"] is None or dimension is None else memory.FLOAT * counted["corpus"] * dimension
    if device is None:
        small = sizes is not None and memory.peak(memory.phases(params, sizes, "cpu", encoder)).bytes + (index or 0) <= here.ram
        device = "gpu" if here.gpus or not small else "cpu"
    plan: dict[str, Any] = {
        "params": path,
        "stages": list(dict.fromkeys(address.split("@")[0] for address in read_stages(root))),
        "models": _models(params, sizes, source, root, encoder),
        "data": _data(params, counted, root),
        "updates": work.updates(params, counted),
        "rollouts": {
            "trajectories": work.trajectories(params),
            "tokens_each": work.trajectory_tokens(params),
            "tokens": work.generated(params, counted),
        },
        "calls": {
            "teacher": _calls(params, "teacher", work.teacher_calls(params, counted)),
            **_second(params, counted),
            "judge": _calls(params, "judge", work.judge_calls(params, counted)),
            "assumptions": work.assumptions(),
        },
        "memory": _memory(params, sizes, device, encoder, index),
        "machine": {
            "gpus": [{"name": gpu.name, "bytes": gpu.bytes} for gpu in here.gpus], "ram_bytes": here.ram, "free_disk_bytes": here.disk,
        },
    }  # fmt: skip
    plan["notes"] = list(_notes(params, plan))
    plan["missing"] = list(_missing(params, plan, root, shape.positions if shape else None))
    return plan


def _encoder(params: Params) -> tuple[int | None, int | None]:
    """(parameters, dimension) of the dense index's encoder; (0, dimension) for one without a model, None where not known."""
    if params.index.encoder == HASHED_TFIDF:
        return 0, params.index.dimension
    return ENCODERS.get(params.index.encoder, (None, None))


def _models(params: Params, sizes: Sizes | None, source: str, root: Path, encoder: int | None) -> dict[str, Any]:
    count = None if sizes is None else sizes.parameters
    policy, ppo = params.policy.base, params.ppo
    models: dict[str, Any] = {
        "policy": {"name": policy, "parameters": count, "from": source, "here": local_folder(policy, root) is not None},
        "reference": None if ppo.kl == "none" else {"name": "the cold start, frozen", "parameters": count},
        "critic": None,
        "encoder": {
            "name": params.index.encoder, "parameters": encoder,
            "here": params.index.encoder == HASHED_TFIDF or local_folder(params.index.encoder, root) is not None,
        },
    }  # fmt: skip
    if ppo.algorithm == "ppo":
        name = "a head on the policy's trunk" if ppo.critic == "head" else "a copy of the cold start's trunk with a head"
        models["critic"] = {"name": name, "parameters": None if sizes is None else memory.critic_parameters(params, sizes)}
    second = [] if params.second_teacher is None else [("second_teacher", True)]
    for role, needed in (("teacher", True), *second, ("judge", params.judge_needed)):
        endpoint = getattr(params, role)
        where = "simulated, started here" if endpoint.endpoint == "simulated" else endpoint.base_url
        models[role] = {"name": endpoint.model, "at": where} if needed else None
    return models


def _data(params: Params, counted: Mapping[str, int | None], root: Path) -> list[dict[str, Any]]:
    files = params.prepare.files.model_dump()
    if params.prepare.source == "world":
        return [{"what": key, "path": None, "there": True, "records": counted[key]} for key in files]
    return [{"what": key, "path": name, "there": (root / name).is_file(), "records": counted[key]} for key, name in files.items()]


def _calls(params: Params, role: str, calls: Sequence[work.Calls]) -> dict[str, Any]:
    endpoint = getattr(params, role)
    rows = [
        {
            "purpose": item.purpose, "calls": item.calls, "input_tokens_each": item.input_tokens, "output_tokens_each": item.output_tokens,
            "usd": round(item.usd(endpoint), 2),
        }
        for item in calls
    ]  # fmt: skip
    return {"purposes": rows, "calls": sum(item.calls for item in calls), "usd": round(sum(item.usd(endpoint) for item in calls), 2)}


def _second(params: Params, counted: Mapping[str, int | None]) -> dict[str, Any]:
    """The second teacher's entry among the calls, if there is one."""
    if params.second_teacher is None:
        return {}
    return {"second_teacher": _calls(params, "second_teacher", work.second_teacher_calls(params, counted))}


def _memory(params: Params, sizes: Sizes | None, device: Device, encoder: int | None, index: int | None) -> dict[str, Any]:
    """Bytes on the device, phase by phase, and what RAM and disk must hold beside; null where the policy's size is not known."""
    result: dict[str, Any] = {"device": device, "phases": [], "peak": None, "ram_bytes": None, "disk_bytes": None, "index_bytes": index}
    if sizes is None:
        return result
    found = memory.phases(params, sizes, device, encoder)
    result["phases"] = [
        {"name": phase.name, "bytes": phase.bytes, "known": phase.known, "parts": {part.name: part.bytes for part in phase.parts}}
        for phase in found
    ]
    top = memory.peak(found)
    result["peak"] = {"name": top.name, "bytes": top.bytes, "known": all(phase.known for phase in found)}
    # a model is read into RAM before it goes to the device
    result["ram_bytes"] = (top.bytes if device == "cpu" else memory.FLOAT * sizes.parameters) + (index or 0)
    result["disk_bytes"] = disk(sizes.parameters, memory.critic_parameters(params, sizes) or 0)
    return result


def disk(parameters: int, critic: int) -> int:
    """Bytes that training may put on disk: three policies and a critic, once more in DVC's cache, and checkpoints of three trainings
    (weights and two moments, `CHECKPOINTS` at a time).
    """
    outputs = memory.FLOAT * (3 * parameters + critic)
    return 2 * outputs + 3 * memory.FLOAT * CHECKPOINTS * (3 * parameters + critic)


def _notes(params: Params, plan: Mapping[str, Any]) -> Iterator[str]:
    """What a reader should know and nothing is wrong with."""
    for role in _roles(plan):
        endpoint, most = getattr(params, role), plan["calls"][role]["usd"]
        if plan["models"][role] and endpoint.endpoint == "openai":
            yield f"{role}.base_url: {endpoint.base_url} was not asked whether it answers (a plan uses no network)"
        if endpoint.budget_usd is not None and most > endpoint.budget_usd:
            yield f"{role}.budget_usd: {endpoint.budget_usd:g} is below the upper bound {most:,.2f}; the stage stops cleanly there"
    if params.retrieval.kind == "remote":
        yield f"retrieval.url: {params.retrieval.url} was not asked whether it answers (a plan uses no network)"
    for item in plan["data"]:
        if item["there"] and item["records"] is None:
            yield f"prepare.files.{item['what']}: '{item['path']}' is too large to be counted here"


def _missing(params: Params, plan: Mapping[str, Any], root: Path, positions: int | None) -> Iterator[str]:
    """One line for each thing that stands in the way on this machine: key, what is wrong, what to do."""
    for key, what in settings.missing(params, root):
        yield f"{key}: {what}" + ("; see README, 'Your own corpus and questions'" if key.startswith("prepare.files.") else "")
    models, context = plan["models"], params.protocol.max_context_tokens
    for key, model in (("policy.base", models["policy"]), ("index.encoder", models["encoder"])):
        if not model["here"]:
            yield f"{key}: '{model['name']}' is not on this machine; it is fetched from Hugging Face's hub at first, or name a folder"
    if models["policy"]["parameters"] is None:
        yield f"policy.base: number of parameters unknown, for {models['policy']['from']}; give --parameters 8e9"
    if positions is not None and context > positions:
        yield f"protocol.max_context_tokens: {context} is more than the policy's {positions} positions; lower it"
    if params.index.encoder != HASHED_TFIDF and not machine.installed("sentence_transformers"):
        yield f"index.encoder: '{params.index.encoder}' needs sentence-transformers; pip install 'r3flow[serve]'"
    for role in _roles(plan):
        endpoint = getattr(params, role)
        if models[role] and endpoint.endpoint == "openai" and endpoint.api_key_env and not machine.has_key(endpoint.api_key_env):
            yield f"{role}.api_key_env: the variable {endpoint.api_key_env} is not set; export it"
    yield from _too_small(plan)


def _too_small(plan: Mapping[str, Any]) -> Iterator[str]:
    """Where the machine's memory or disk is less than what is needed."""
    needed, here = plan["memory"], plan["machine"]
    if needed["peak"] is None:
        return
    most = f"up to {size(needed['peak']['bytes'])} in '{needed['peak']['name']}'"
    if needed["device"] == "gpu":
        largest = max((gpu["bytes"] for gpu in here["gpus"]), default=0)
        if not largest:
            yield f"GPU: nvidia-smi lists none, wanted {most}; use another machine or a smaller policy.base"
        elif needed["peak"]["bytes"] > largest:
            yield f"GPU: {size(largest)} on the largest, wanted {most}; lower what is largest there (training is not shared out over GPUs)"
    for name, want, have in (
        ("RAM", needed["ram_bytes"], here["ram_bytes"]), ("disk", needed["disk_bytes"], here["free_disk_bytes"]),
    ):  # fmt: skip
        if want > have:
            yield f"{name}: {size(have)}{' free' if name == 'disk' else ''}, wanted up to {size(want)}; use another machine or make room"


def _roles(plan: Mapping[str, Any]) -> list[str]:
    """Whose calls are counted."""
    return [role for role in plan["calls"] if role != "assumptions"]


def size(count: int) -> str:
    """Bytes for readers."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count / 1024:,.1f} KiB"


def _number(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"


def render(plan: Mapping[str, Any]) -> str:
    """The plan as text for a terminal."""
    return "\n".join(_lines(plan))


def _lines(plan: Mapping[str, Any]) -> Iterator[str]:
    yield f"Plan of {plan['params']}"
    yield f"\nStages: {' > '.join(plan['stages'])}"
    yield "\nModels"
    for role, model in plan["models"].items():
        if model is None:
            yield f"  {role:<10} none"
            continue
        known = "" if "parameters" not in model else f", {_number(model['parameters'])} parameters"
        rest = "".join(f" ({key}: {model[key]})" for key in ("from", "at") if model.get(key))
        yield f"  {role:<10} {model['name']}{known if model.get('parameters') != 0 else ''}{rest}"
    yield "\nData"
    for item in plan["data"]:
        state = "generated" if item["path"] is None else "there" if item["there"] else "MISSING"
        yield f"  {item['what']:<10} {item['path'] or 'demo world'}: {state}, {_number(item['records'])} records"
    yield "\nTraining"
    for stage, count in plan["updates"].items():
        yield f"  {stage:<10} {'at most ' if stage == 'sft' else ''}{count:,} optimizer updates"
    yield "  control    as many tokens as ppo will have trained on"
    rollouts = plan["rollouts"]
    yield f"\nTokens that the policy writes: upper bounds, {rollouts['tokens_each']:,} a trajectory"
    yield f"  rollouts       {rollouts['tokens']['rollouts']:,} in {rollouts['trajectories']:,} trajectories"
    yield f"  dev evaluation {rollouts['tokens']['dev_evaluation']:,}"
    yield f"  evaluate       {rollouts['tokens']['evaluate']:,}"
    yield "\nCalls: upper bounds"
    roles = _roles(plan)
    width = max(map(len, roles))
    for role in roles:
        calls = plan["calls"][role]
        for item in calls["purposes"]:
            each = f"{item['input_tokens_each']:,} + {item['output_tokens_each']:,} tokens each"
            yield f"  {role:<{width}}  {item['purpose']:<19} {item['calls']:>13,} calls, {each}, {item['usd']:,.2f} USD"
        yield f"  {role:<{width}}  {'in all':<19} {calls['calls']:>13,} calls, {calls['usd']:,.2f} USD"
    yield "  Assumed: " + ";\n    ".join(plan["calls"]["assumptions"]) + "."
    yield from _memory_lines(plan["memory"])
    here = plan["machine"]
    gpus = ", ".join(f"{gpu['name']} ({size(gpu['bytes'])})" for gpu in here["gpus"]) or "no GPU"
    yield f"\nThis machine: {gpus}; {size(here['ram_bytes'])} RAM; {size(here['free_disk_bytes'])} disk free"
    for note in plan["notes"]:
        yield f"  note: {note}"
    yield "\nMissing" if plan["missing"] else "\nEverything is here."
    for line in plan["missing"]:
        yield f"  {line}"


def _memory_lines(needed: Mapping[str, Any]) -> Iterator[str]:
    if needed["peak"] is None:
        yield "\nMemory: unknown, as the policy's number of parameters is"
        return
    yield f"\nMemory on the {needed['device'].upper()}: upper bounds, float32, one process on one device (docs/PROFILES.md)"
    for phase in needed["phases"]:
        mark = "" if phase["known"] else " and what is not known"
        yield f"  {phase['name']:<26} {size(phase['bytes']):>11}{mark}"
        yield "    " + ", ".join(f"{name} {'unknown' if count is None else size(count)}" for name, count in phase["parts"].items())
    yield f"  RAM {size(needed['ram_bytes'])}, disk {size(needed['disk_bytes'])}"
