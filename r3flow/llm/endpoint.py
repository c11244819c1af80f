"""Opening the endpoint that `params` name for a role: a real one with its key, or the simulated one, which is started here."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import r3flow
from r3flow.errors import ConfigError, EndpointError
from r3flow.files import digest, file_digest, read_json
from r3flow.llm.client import ChatClient
from r3flow.llm.ledger import DEFAULT, Ledger
from r3flow.params import Endpoint, Params, Simulated, base_url_host
from r3flow.simulated.mind import REVISION

WORLD = "data/world.json"
START_S = 60.0
Role = Literal["teacher", "second_teacher", "judge"]


@contextmanager
def connect(params: Params, role: Role, *, ledger: str | Path = DEFAULT, world: str | Path = WORLD) -> Iterator[ChatClient]:
    """Yield the client of `role`. Raises ConfigError for a missing key or world, EndpointError if the simulated one does not start."""
    endpoint: Endpoint | None = getattr(params, role)
    if endpoint is None:
        raise ConfigError(f"{role}: is null, so nobody can be asked; describe an endpoint there")
    price = endpoint.price_usd_per_million
    if endpoint.budget_usd is not None and not (price.cached_input or price.input or price.output):
        raise ConfigError(f"{role}.budget_usd needs {role}.price_usd_per_million: at a price of 0 it is never reached")
    if endpoint.endpoint == "openai":
        assert endpoint.base_url is not None  # params check it
        host, key = base_url_host(endpoint.base_url), _api_key(endpoint, role)
        with (
            Ledger(ledger) as book,
            ChatClient(
                endpoint, book, role=role, identity=host, base_url=endpoint.base_url, api_key=key, key_name=endpoint.api_key_env
            ) as client,
        ):
            yield client
        return
    identity = simulated_identity(params, role, world)
    with (
        Ledger(ledger) as book,
        _simulated(params, role, world) as url,
        ChatClient(endpoint, book, role=role, identity=identity, base_url=url, use_proxies=False) as client,
    ):
        yield client


def simulated_identity(params: Params, role: Role, world: str | Path = WORLD) -> str:
    """What the simulated endpoint's answers depend on: its revision, what it knows and, for a teacher, how it errs and its seed.

    The judge does not err: a stage that asks the judge alone needs neither `simulated` nor `seed`. Raises ConfigError without a world.
    """
    if read_json(world) is None:
        raise ConfigError(f"{world}: holds no generated world, and the simulated endpoint knows nothing else; set endpoint: openai")
    errors = _errors(params, role)
    return f"simulated-{digest([REVISION, file_digest(world), *([] if errors is None else [errors[0].model_dump(), errors[1]])])}"


def _errors(params: Params, role: Role) -> tuple[Simulated, int | str] | None:
    """The error rates and the seed of a simulated teacher, None for the judge. The second one's draws are none of the first's."""
    if role == "teacher":
        return params.simulated, params.seed
    if role == "second_teacher":
        assert params.second_teacher is not None and params.second_teacher.simulated is not None  # params check it
        return params.second_teacher.simulated, f"{params.seed}/second"
    return None


def _api_key(endpoint: Endpoint, role: str) -> str:
    """The key from the environment; none if `api_key_env` is empty (a local server)."""
    if not endpoint.api_key_env:
        return ""
    key = os.environ.get(endpoint.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"{role}: the variable {endpoint.api_key_env} holds no key: export it, or set {role}.api_key_env: '' for a server without keys"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{role}: the key in {endpoint.api_key_env} holds characters that no key has: export it again")
    return key


@contextmanager
def _simulated(params: Params, role: Role, world: str | Path) -> Iterator[str]:
    """Run the simulated endpoint as a process of its own and yield its base URL. It ends with the block, or with this process."""
    root = str(Path(r3flow.__file__).parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "r3flow.simulated.server", "--knowledge", str(world)]
    if (errors := _errors(params, role)) is not None:
        command += ["--rates", json.dumps(errors[0].model_dump()), "--seed", str(errors[1])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path})
    assert process.stdin is not None and process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        url = process.stdout.readline().decode().strip() if ready else ""
        if not url:
            raise EndpointError(
                f"the simulated endpoint did not start within {START_S:g} s (exit code {process.poll()}); its message stands above"
            )
        yield url
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
