"""The simulated endpoint: a plain HTTP server, and a process that does not outlive its parent."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from r3flow.errors import ConfigError, DataError
from r3flow.files import write_json
from r3flow.llm.client import Request
from r3flow.llm.endpoint import connect, simulated_identity
from r3flow.llm.judge import Judge, VerdictItem
from r3flow.params import SecondTeacher, Simulated
from r3flow.simulated.mind import Mind
from r3flow.simulated.server import ChatEndpoint
from r3flow.workdir import read_stages
from stages._runner import narrow
from tests.llm_fakes import PARAMS, BadServer, params

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server():
    with BadServer() as running:
        yield running


def host(server) -> tuple[str, int]:
    name, port = server.url.removeprefix("http://").removesuffix("/v1").split(":")
    return name, int(port)


def post(server, body: bytes, path: str = "/v1/chat/completions", method: str = "POST"):
    connection = http.client.HTTPConnection(*host(server), timeout=5)
    connection.request(method, path, body)
    response = connection.getresponse()
    return response.status, json.loads(response.read() or b"{}")


def chat(model: str, prompt: str, **rest) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}], **rest}).encode()


def test_model_and_first_line_say_who_is_asked(server):
    status, body = post(server, chat("simulated-teacher", "The question: What is the code of name1?\n", seed=0))
    assert status == 200 and body["choices"][0]["message"]["content"].startswith("Step 1:") and body["usage"]["prompt_tokens"] > 0
    for task, key in (("relevance", "relevance"), ("answer", "correct")):
        _, body = post(server, chat("simulated-judge", f"Task: {task}\nQuestion: x"))
        assert key in json.loads(body["choices"][0]["message"]["content"])
    assert post(server, chat("simulated-judge", "Task: gossip"))[0] == 404
    assert post(server, chat("gpt", "hello"))[0] == 404
    assert post(server, b"", "/v1/models", "GET")[0] == 404
    server.misbehave = lambda number, body: None
    assert post(server, chat("simulated-teacher", "x of code of y", seed="one"))[0] == 400
    for bad in (b"", b"{", b"[]", b"{}", b'{"model": "teacher", "messages": []}', b'{"model": "teacher", "messages": [{"content": 1}]}'):
        assert post(server, bad)[0] == 400


def test_requests_in_pieces_and_several_in_one(server):
    body = chat("simulated-teacher", "The question: What is the code of name1?\n")
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-LENGTH: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(host(server), timeout=5) as wire:
        for place in range(0, len(request), 7):
            wire.sendall(request[place : place + 7])
        wire.sendall(request + request)
        got = b""
        while got.count(b"HTTP/1.1 200 OK") < 3 or not got.endswith(b"}"):
            got += wire.recv(65536)
    assert server.total == 3


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"x" * 70_000, b"431"),
    ],
)
def test_bad_http_is_refused_and_the_server_lives(server, request_, status):
    with socket.create_connection(host(server), timeout=5) as wire:
        wire.sendall(request_)
        assert status in wire.recv(1000).split(b"\r\n")[0]
    assert post(server, chat("simulated-teacher", "code of name1"))[0] == 200


def test_connect_starts_the_simulated_endpoint_and_ends_it(tmp_path):
    write_json(tmp_path / "world.json", {})
    before = set(psutil.Process().children())
    with connect(PARAMS, "judge", ledger=tmp_path / "l", world=tmp_path / "world.json") as client:
        (child,) = set(psutil.Process().children()) - before
        assert Judge(client).verdict([VerdictItem("Q?", ("Red Rose",), "red rose"), VerdictItem("Q?", ("Red Rose",), "Blue")]) == [
            True,
            False,
        ]
        start = time.monotonic()
    assert not child.is_running() and time.monotonic() - start < 5  # it went by itself
    with connect(PARAMS, "teacher", ledger=tmp_path / "l", world=tmp_path / "world.json") as client:
        assert client.run(client.complete(Request("", "The question: Who?\n"))).text.startswith("Step 1:")


def test_proxy_settings_do_not_reach_loopback(tmp_path, monkeypatch):
    write_json(tmp_path / "world.json", {})
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with connect(PARAMS, "teacher", ledger=tmp_path / "l", world=tmp_path / "world.json") as client:
        assert client.run(client.complete(Request("", "The question: Who?\n"))).paid


def test_the_teachers_identity_is_the_world_the_rates_and_the_seed(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_json(one, {"Who?": 1})
    write_json(two, {"Who?": 2})
    other = params(simulated={"vague_query": 0.5})
    names = [simulated_identity(PARAMS, "teacher", one), simulated_identity(PARAMS, "teacher", two)]
    names += [simulated_identity(other, "teacher", one), simulated_identity(PARAMS.model_copy(update={"seed": 99}), "teacher", one)]
    assert len(set(names)) == 4
    assert simulated_identity(params(teacher={"concurrency": 1}), "teacher", one) == names[0]
    write_json(one, None)
    with pytest.raises(ConfigError, match="endpoint: openai"):
        simulated_identity(PARAMS, "teacher", one)
    with pytest.raises(DataError, match="no such file"):
        simulated_identity(PARAMS, "teacher", tmp_path / "none.json")


def with_second(rates, **changes):
    section = {**PARAMS.teacher.model_dump(), "model": "simulated-second-teacher", "attempts": 1, "simulated": rates, **changes}
    return PARAMS.model_copy(update={"second_teacher": SecondTeacher.model_validate(section)})


def test_the_second_teacher_errs_at_rates_and_with_draws_of_its_own(tmp_path):
    """With the first one's rates too it is another: else it would fail where the first failed."""
    chain = [["Red Rose", "director", "Ann Lee"], ["Ann Lee", "birthplace", "Oslo"]]
    names = [f"Where was the director of Red Rose {number} born?" for number in range(40)]
    write_json(tmp_path / "world.json", {name: {"chains": [chain], "earlier": False, "answer": "Oslo"} for name in names})
    rates = {**PARAMS.simulated.model_dump(), "partial_query": 0.5}
    places = {"ledger": tmp_path / "l", "world": tmp_path / "world.json"}

    def queries(settings, role):
        with connect(settings, role, **places) as client:
            return [client.run(client.complete(Request("", f"The question: {name}\n"))).text for name in names]

    first = queries(params(simulated=rates), "teacher")
    second = queries(with_second(rates), "second_teacher")
    assert 5 < sum(one == other for one, other in zip(first, second, strict=True)) < 35
    perfect = queries(with_second(dict.fromkeys(rates, 0.0)), "second_teacher")
    assert all(text.endswith("The retrieval query: Red Rose director") for text in perfect)
    with pytest.raises(ConfigError, match="second_teacher: is null"), connect(PARAMS, "second_teacher", **places):
        pass


def test_the_teachers_identities_are_apart(tmp_path):
    write_json(tmp_path / "world.json", {})
    rates = PARAMS.simulated.model_dump()
    names = [simulated_identity(with_second(rates), role, tmp_path / "world.json") for role in ("teacher", "second_teacher", "judge")]
    names.append(simulated_identity(with_second({**rates, "fails_four_hops": 0.0}), "second_teacher", tmp_path / "world.json"))
    assert len(set(names)) == 4 and names[0] == simulated_identity(PARAMS, "teacher", tmp_path / "world.json")


@pytest.mark.parametrize("role", ["teacher", "judge"])
def test_a_new_revision_is_another_identity(tmp_path, monkeypatch, role):
    write_json(tmp_path / "world.json", {})
    before = simulated_identity(PARAMS, role, tmp_path / "world.json")
    monkeypatch.setattr("r3flow.llm.endpoint.REVISION", 0)
    assert simulated_identity(PARAMS, role, tmp_path / "world.json") != before


def test_the_judges_identity_is_the_world_alone(tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_json(one, {"Who?": 1})
    write_json(two, {"Who?": 2})
    other = params(simulated={"vague_query": 0.5}).model_copy(update={"seed": 99})
    judge = simulated_identity(PARAMS, "judge", one)
    assert simulated_identity(other, "judge", one) == judge
    assert len({judge, simulated_identity(PARAMS, "judge", two), simulated_identity(PARAMS, "teacher", one)}) == 3


@pytest.mark.parametrize("address", ["filter", "ppo", "evaluate@base"])
def test_a_stage_that_asks_the_judge_alone_lists_no_teachers_errors(tmp_path, address):
    """The judge starts and answers with just the params that `dvc.yaml` lists for the stage; asked to teach, it refuses."""
    write_json(tmp_path / "world.json", {})
    stage = read_stages(ROOT)[address]
    assert not [name for name in stage.params if name.split(".")[0] == "simulated"]
    with connect(narrow(PARAMS, stage), "judge", ledger=tmp_path / "l", world=tmp_path / "world.json") as client:
        assert Judge(client).verdict([VerdictItem("Q?", ("Red Rose",), "red rose")]) == [True]


def test_without_error_rates_it_does_not_teach():
    reply = ChatEndpoint(Mind({}, None, 0))("POST", "/v1/chat/completions", chat("simulated-teacher", "The question: Who?\n"))
    assert reply.status == 404 and b"no such model or task: simulated-teacher" in reply.body


def test_the_judge_answers_the_same_whatever_the_teachers_rates_and_seed():
    plan = {"chains": [[["Red Rose", "director", "Ann Lee"], ["Ann Lee", "birthplace", "Oslo"]]], "earlier": False, "answer": "Oslo"}
    rates = Simulated(partial_query=1.0, vague_query=1.0, needless_search=1.0, early_answer=1.0, fails_four_hops=1.0)
    minds = [Mind({"Where?": plan}, None, 0), Mind({"Where?": plan}, rates, 7)]
    found = "Task: relevance\nQuestion: Where?\nPassages seen before:\nQuery: q\nPassages found:\n- {}: text"
    answer = "Task: answer\nQuestion: Where?\nGold answers:\n- Oslo\nPrediction: {}"
    for mind in minds:
        assert [mind.judge_relevance(found.format(title)) for title in ("Ann Lee", "Oslo")] == ['{"relevance": 1.0}', '{"relevance": 0.0}']
        assert [mind.judge_answer(answer.format(said)) for said in ("oslo", "Rome")] == ['{"correct": true}', '{"correct": false}']


def test_the_simulated_endpoint_does_not_outlive_a_killed_parent(tmp_path):
    write_json(tmp_path / "world.json", {})
    code = (
        "import sys, time; from r3flow.llm.endpoint import connect; from tests.llm_fakes import PARAMS\n"
        "with connect(PARAMS, 'teacher', ledger=sys.argv[1] + '/l', world=sys.argv[1] + '/world.json') as client:\n"
        "    print('ready', flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"ready\n"
    (child,) = psutil.Process(parent.pid).children()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("text", ['{"a": 1}', "[]", '{"a": {"chains": []}}'])
def test_knowledge_that_is_none_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "world.json").write_text(text)
    command = [sys.executable, "-m", "r3flow.simulated.server", "--knowledge", str(tmp_path / "world.json")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "world.json: not what the stage prepare writes" in done.stderr and len(done.stderr.splitlines()) == 1
