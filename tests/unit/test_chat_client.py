"""The client against a real local server that misbehaves on command."""

import asyncio
import json
import socket
import threading
import time

import pytest

from r3flow.errors import BudgetError, ConfigError, EndpointError, EndpointRefusedError
from r3flow.llm.client import Request
from r3flow.llm.endpoint import connect
from r3flow.llm.replies import UnusableError, Usage, read_completion
from r3flow.params import Price, base_url_host
from r3flow.simulated.http import Reply
from r3flow.simulated.server import completion
from tests.llm_fakes import BadServer, client, failing, params

PRICE = Price(cached_input=1.0, input=2.0, output=10.0)


def ask(i: int = 0, **rest) -> Request:
    return Request("You help.", f"The question: What is the code of name{i}?\n", **rest)


async def all_of(made, count: int):
    return await asyncio.gather(*[made.complete(ask(i)) for i in range(count)], return_exceptions=True)


def first(replies: list[Reply]):
    """Send these, then behave."""
    return lambda number, body: replies[number] if number < len(replies) else None


def test_an_answer_is_asked_once_and_then_comes_from_the_ledger(tmp_path):
    with BadServer() as server:
        with client(server.url, tmp_path) as made:
            one = made.run(made.complete(ask()))
            assert one.text.startswith("Step 1:") and one.paid and not one.cut and one.usage.prompt > 0
            again = made.run(made.complete(ask()))
            assert (again.text, again.usage, again.paid) == (one.text, one.usage, False)
        with client(server.url, tmp_path) as made:
            assert not made.run(made.complete(ask())).paid
            assert made.run(made.complete(ask(seed=1))).paid
            assert made.run(made.complete(ask(temperature=0.5))).paid
        assert server.total == 3


def test_equal_requests_at_once_are_sent_once(tmp_path):
    with BadServer() as server, client(server.url, tmp_path) as made:

        async def both():
            return await asyncio.gather(made.complete(ask()), made.complete(ask()), made.complete(ask()))

        replies = made.run(both())
        assert server.total == 1
        assert [reply.paid for reply in replies] == [True, False, False]


def test_equal_requests_at_once_share_a_failure(tmp_path):
    with BadServer(lambda number, body: Reply(500, b"")) as server, client(server.url, tmp_path, max_retries=1) as made:

        async def both():
            return await asyncio.gather(made.complete(ask()), made.complete(ask()), return_exceptions=True)

        assert [type(error) for error in made.run(both())] == [EndpointError, EndpointError]
        assert server.total == 2


@pytest.mark.parametrize(
    "bad",
    [
        Reply.json({"error": {"message": "slow down"}}, 429),
        Reply.json({"error": {"message": "oops"}}, 500),
        Reply(503, b"<html>"),
        Reply(200, b"<html>not json</html>"),
        Reply(200, b'{"choices": [{"mess'),
        Reply(200, b"\xff\xfe{}"),
        Reply(200, b"[" * 100_000),
        Reply.json(["no", "object"]),
        Reply.json({"choices": []}),
        Reply.json({"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}),
        Reply.json({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}),
        Reply.json({"choices": [{"message": {"content": "x"}, "finish_reason": "insufficient_system_resource"}]}),
        Reply.json({"choices": [{"message": {"content": "half of it"}, "finish_reason": "stop"}]}, cut=True),
        Reply(200, b"too late", delay_s=1.0),
    ],
    ids=lambda reply: f"{reply.status}-{reply.body[:24]!r}",
)
def test_what_may_pass_is_tried_again_and_what_stays_is_an_error(tmp_path, bad):
    with BadServer(first([bad, bad])) as server, client(server.url, tmp_path, max_retries=2, timeout_s=0.4) as made:
        assert made.run(made.complete(ask())).text.startswith("Step 1:")
        assert server.total == 3
        assert (made.counts.sent, made.counts.retries, made.counts.answered) == (3, 2, 1)
    with BadServer(lambda number, body: bad) as server, client(server.url, tmp_path, max_retries=1, timeout_s=0.4) as made:
        with pytest.raises(EndpointError, match="2 times") as caught:
            made.run(made.complete(ask(1)))
        assert "\n" not in str(caught.value) and caught.value.retryable
        assert server.total == 2
        assert made.run(made.complete(ask(0))).paid is False


def test_nobody_listens(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with client(url, tmp_path, max_retries=2) as made, pytest.raises(EndpointError, match="can not be reached"):
        made.run(made.complete(ask()))


def test_a_connection_that_breaks_is_not_called_unreachable_or_slow(tmp_path):
    def drop():
        connection, _ = listening.accept()
        connection.recv(1 << 16)
        connection.close()

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=drop)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with client(url, tmp_path, max_retries=0) as made, pytest.raises(EndpointError, match="broke off the connection"):
            made.run(made.complete(ask()))
        thread.join()


def test_a_server_that_says_nothing_is_called_slow(tmp_path):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with client(url, tmp_path, max_retries=0, timeout_s=0.4) as made, pytest.raises(EndpointError, match=r"no answer within 0\.4 s"):
            made.run(made.complete(ask()))


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 422, 307])
def test_a_refusal_is_final_at_once_and_stops_the_others(tmp_path, status):
    refusal = Reply.json({"error": {"message": "bad key sk-very-secret"}}, status, headers={"Location": "http://127.0.0.1:1/"})
    with BadServer(lambda number, body: refusal) as server, client(server.url, tmp_path, api_key="sk-very-secret", concurrency=4) as made:
        errors = made.run(all_of(made, 40))
        assert all(type(error) is EndpointRefusedError for error in errors)
        assert server.total <= 4
        message = str(errors[0])
        assert str(status) in message and "\n" not in message and "sk-very-secret" not in message and not errors[0].retryable
    assert (tmp_path / "ledger.jsonl").read_bytes() == b""


def test_retry_after_holds_everything_back(tmp_path):
    wait = Reply.json({"error": {"message": "slow down"}}, 429, headers={"Retry-After": "0.5"})
    with BadServer(first([wait])) as server, client(server.url, tmp_path) as made:
        made.run(made.complete(ask(0)))
        assert server.total == 2
        start = time.monotonic()
        server.misbehave = lambda number, body: wait if number == 2 else None
        made.run(all_of(made, 12))
        assert 0.4 < time.monotonic() - start < 3


def test_empty_lines_before_the_body_are_no_silence_but_the_whole_time_is_bounded(tmp_path):
    body = completion("m", "fine", prompt_tokens=1, completion_tokens=1)
    patient = Reply.json(body, delay_s=0.2, blank_lines=5)
    with BadServer(first([patient])) as server, client(server.url, tmp_path, timeout_s=3.0, max_retries=0) as made:
        assert made.run(made.complete(ask())).text == "fine"
    endless = Reply.json(body, delay_s=0.2, blank_lines=500)
    with BadServer(first([endless])) as server, client(server.url, tmp_path, timeout_s=0.7, max_retries=0) as made:
        start = time.monotonic()
        with pytest.raises(EndpointError, match=r"no answer within 0\.7 s"):
            made.run(made.complete(ask(1)))
        assert time.monotonic() - start < 2


def test_no_more_than_concurrency_requests_are_on_the_wire(tmp_path):
    slow = Reply.json(completion("m", "fine", prompt_tokens=1, completion_tokens=1), delay_s=0.02)
    flying = 0
    most = 0
    with BadServer(lambda number, body: slow) as server, client(server.url, tmp_path, concurrency=5) as made:
        send = made._send

        async def counted(payload):
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            try:
                return await send(payload)
            finally:
                flying -= 1

        made._send = counted
        made.run(all_of(made, 40))
    assert most == 5


def test_a_third_of_the_requests_fail_and_every_answer_comes(tmp_path):
    with BadServer(failing(0.3)) as server, client(server.url, tmp_path, max_retries=12) as made:
        replies = made.run(all_of(made, 60))
        assert all(reply.text.startswith("Step 1:") for reply in replies)
        assert sum(server.answered.values()) == 60


def test_the_budget_counts_what_the_ledger_holds_and_stops_resumably(tmp_path):
    cost = Usage(prompt=1000, completion=100).cost_usd(PRICE)
    assert cost == pytest.approx(0.003)
    paid = Reply.json(completion("m", "fine", prompt_tokens=1000, completion_tokens=100))
    settings = {"budget_usd": 10.5 * cost, "price_usd_per_million": PRICE, "concurrency": 1}
    with BadServer(lambda number, body: paid) as server:
        with client(server.url, tmp_path, **settings) as made:
            replies = made.run(all_of(made, 30))
            assert sum(isinstance(reply, BudgetError) for reply in replies) == 19
            assert server.total == 11
            assert made.counts.usd == pytest.approx(11 * cost)
        with client(server.url, tmp_path, **settings) as made:
            assert made.run(made.complete(ask(0))).text == "fine"
            with pytest.raises(BudgetError, match="budget_usd"):
                made.run(made.complete(ask(99)))
        with client(server.url, tmp_path, **{**settings, "budget_usd": 20 * cost}) as made:
            assert made.run(made.complete(ask(99))).text == "fine"
        assert server.total == 12


def test_a_budget_without_reported_usage_is_refused(tmp_path):
    bare = Reply.json({"choices": [{"message": {"content": "x"}}]})
    with BadServer(lambda number, body: bare) as server, client(server.url, tmp_path, budget_usd=1.0, price_usd_per_million=PRICE) as made:
        made.run(made.complete(ask(0)))
        with pytest.raises(BudgetError, match="no token usage"):
            made.run(made.complete(ask(1)))


def test_no_key_gets_into_the_ledger_and_none_into_the_identity(tmp_path):
    with BadServer() as server, client(server.url, tmp_path, api_key="sk-very-secret") as made:
        made.run(made.complete(ask()))
        text = (tmp_path / "ledger.jsonl").read_text()
        assert "secret" not in text and "127.0.0.1" not in text and server.url.split(":")[2].split("/")[0] not in text


def test_extra_body_wins_and_null_removes(tmp_path):
    extra = {"seed": None, "max_tokens": None, "max_completion_tokens": 9, "thinking": {"type": "disabled"}}
    with BadServer() as server, client(server.url, tmp_path, extra_body=extra) as made:
        made.run(made.complete(ask(seed=3, stop=("\nEnd",))))
        body = json.loads(next(iter(server.seen)))
        assert "seed" not in body and "max_tokens" not in body
        assert body["max_completion_tokens"] == 9 and body["thinking"] == {"type": "disabled"} and body["stop"] == ["\nEnd"]
        made.run(made.complete(ask(seed=4, stop=("\nEnd",))))
        assert server.total == 2  # another attempt is another request, also where the endpoint takes no seed


def test_usage_is_read_as_openai_and_as_deepseek_word_it():
    def usage(value):
        return read_completion(b'\n\n {"choices": [{"message": {"content": "x"}}], "usage": %s}' % value).usage

    assert usage(b'{"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 5}') == Usage(9, 5, 2)
    assert usage(b'{"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}') == Usage(9, 4, 2)
    assert usage(b'{"prompt_tokens": -1, "completion_tokens": "many", "prompt_tokens_details": null}') == Usage()
    assert usage(b"null") == Usage()
    assert Usage(1_000_000, 400_000, 100_000).cost_usd(PRICE) == pytest.approx(0.4 + 1.2 + 1.0)


def test_an_answer_cut_at_the_token_limit_says_so():
    cut = read_completion(b'{"choices": [{"message": {"content": null}, "finish_reason": "length"}]}')
    assert (cut.text, cut.cut) == ("", True)
    with pytest.raises(UnusableError, match=r"no choices \(model overloaded\)"):
        read_completion(b'{"error": {"message": "model overloaded"}}')
    assert read_completion(b'{"choices": [{"message": {"content": "a\\ud800b"}}]}').text == "a?b"


@pytest.mark.parametrize(
    "url", ["ftp://x", "api.deepseek.com", "http://", "https://u:p@host", "https://host/?key=1", "http://host:99999", " https://h"]
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="base_url"):
        base_url_host(url)


def test_a_real_endpoint_needs_its_key_and_a_budget_its_price(monkeypatch):
    real = {"endpoint": "openai", "base_url": "https://api.example.test", "api_key_env": "SOME_API_KEY"}
    monkeypatch.delenv("SOME_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="SOME_API_KEY"), connect(params(teacher=real), "teacher"):
        pass
    monkeypatch.setenv("SOME_API_KEY", "two words")
    with pytest.raises(ConfigError) as caught, connect(params(teacher=real), "teacher"):
        pass
    assert "two words" not in str(caught.value)
    with pytest.raises(ConfigError, match="price"), connect(params(judge={**real, "budget_usd": 1.0}), "judge"):
        pass


def test_a_real_endpoint_gets_the_key_of_its_variable(monkeypatch, tmp_path):
    with BadServer() as server:
        monkeypatch.setenv("SOME_API_KEY", " sk-1\n")
        real = {"endpoint": "openai", "base_url": server.url, "api_key_env": "SOME_API_KEY"}
        with connect(params(teacher=real), "teacher", ledger=tmp_path / "l") as made:
            assert made.run(made.complete(ask())).paid
            assert made.identity == "127.0.0.1" and made._openai.api_key == "sk-1"
