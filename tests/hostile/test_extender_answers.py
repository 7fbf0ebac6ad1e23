"""Extenders that answer without end, nest too deeply or send garbage: always an error of that extender."""

from __future__ import annotations

import gzip
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import Raw

from other_extender import Raw as RawAnswer
from other_extender import other_extender
from stowplan.api.extender import MetaPod, MetaVictims
from stowplan.api.pod import Pod
from stowplan.client.extenders import Extender, ExtenderError, extenders_of
from stowplan.config.duration import Duration
from stowplan.config.types import ExtenderConfig

MIB = 1 << 20
LIMIT = 4 * MIB
SLACK = 8 * MIB
"""What the sockets on both sides, and the reading ahead, may hold beyond the limit."""
POD = Raw(b'{"metadata":{"name":"p"}}')
BOUND = Pod.decode({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": []}})
VERBS = ("filter", "prioritize", "preempt", "bind")


def call(asked: Extender, verb: str):
    if verb == "filter":
        return asked.filter(POD, ["n1"], lambda name: POD)
    if verb == "prioritize":
        return asked.prioritize(POD, ["n1"], lambda name: POD)
    if verb == "preempt":
        return asked.preempt(POD, {"n1": MetaVictims(pods=[MetaPod(uid="a")])}, lambda uid: POD)
    return asked.bind(BOUND, "n1")


async def failure(url: str, verb: str = "filter", *, seconds: float = 20, limit: int = LIMIT) -> str:
    config = ExtenderConfig(
        url_prefix=url,
        filter_verb="filter",
        prioritize_verb="prioritize",
        preempt_verb="preempt",
        bind_verb="bind",
        node_cache_capable=True,
        http_timeout=Duration(seconds),
    )
    (asked,) = extenders_of([config], limit)
    try:
        with pytest.raises(ExtenderError) as raised:
            await call(asked, verb)
    finally:
        await asked.close()
    return str(raised.value)


class Endless:
    """Sends what it is given to whoever connects, until they go away; `sent` counts the bytes."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self.sent, self._parts = 0, parts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with self._listener:
            connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(20)
            connection.recv(65536)
            try:
                for part in self._parts:
                    connection.sendall(part)
                    self.sent += len(part)
            except OSError:
                pass  # the other side has had enough


@contextmanager
def endless(*first: bytes, then: bytes) -> Iterator[Endless]:
    server = Endless(itertools.chain(first, itertools.repeat(then)))
    server.thread.start()
    yield server
    server.thread.join(30)
    assert not server.thread.is_alive()


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
KIB = b" " * 1024


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        pytest.param(
            OK + b"Content-Length: 99999999999\r\n\r\n", KIB, "answer is larger than 4194304", id="length"
        ),
        pytest.param(OK + CHUNKED, b"400\r\n" + KIB + b"\r\n", "answer is larger than 4194304", id="chunks"),
        pytest.param(OK + CHUNKED, b"2\r\n[[\r\n" * 100, "answer is larger than 4194304", id="tiny chunks"),
        pytest.param(
            OK + CHUNKED + b"1;x=", b"y" * 1024, "answer is larger than 4194304", id="a chunk's extension"
        ),
        pytest.param(
            OK + CHUNKED + b"0\r\n", b"X: y\r\n" * 100, "answer is larger than 4194304", id="trailers"
        ),
        pytest.param(OK + b"\r\n", KIB, "answer is larger than 4194304", id="until the connection ends"),
        pytest.param(
            b"HTTP/1.1 500 No\r\n" + CHUNKED,
            b"400\r\n" + KIB + b"\r\n",
            "answer is larger than 4194304",
            id="an error's body",
        ),
        pytest.param(OK, b"X-%d: y\r\n" * 100, "head of the answer is larger than 1048576", id="headers"),
        pytest.param(
            OK + b"X: ", b"y" * 1024, "head of the answer is larger than 1048576", id="one long header"
        ),
        pytest.param(
            b"HTTP/1.1 200 ", b"O" * 1024, "head of the answer is larger than 1048576", id="the status line"
        ),
    ],
)
async def test_an_answer_without_end_is_not_read_to_it(first, then, text):
    with endless(first, then=then) as server:
        assert text in await failure(server.url)
    assert server.sent < LIMIT + SLACK


async def test_informational_answers_without_end_are_no_answer():
    with endless(then=b"HTTP/1.1 102 Processing\r\n\r\n" * 20) as server:
        assert await failure(server.url, seconds=2)
    assert server.sent < LIMIT + SLACK


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_the_limit_is_the_size_of_the_body(extra, is_chunked):
    body = b'{"NodeNames":["n1"]}'.ljust(LIMIT + extra)
    size = b"Content-Length: %d\r\n\r\n" % len(body)
    sent = CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if is_chunked else size + body
    config = ExtenderConfig(url_prefix="", filter_verb="filter", node_cache_capable=True)
    server = Endless(iter([OK + sent]))
    server.thread.start()
    (asked,) = extenders_of([ExtenderConfig(**{**_fields(config), "url_prefix": server.url})], LIMIT)
    try:
        if extra:
            with pytest.raises(ExtenderError, match="raise --extender-max-response-bytes"):
                await call(asked, "filter")
        else:
            assert (await call(asked, "filter"))[0] == ["n1"]
    finally:
        await asked.close()
        server.thread.join()


def _fields(config: ExtenderConfig) -> dict:
    return {name: getattr(config, name) for name in config.__struct_fields__}


async def test_a_compressed_answer_is_not_unpacked():
    bomb = gzip.compress(b" " * (64 * MIB))
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    server = Endless(iter([OK + head + bomb]))
    server.thread.start()
    assert "cannot decode the response" in await failure(server.url)
    server.thread.join()


DEEP = 100_000
GARBAGE = {
    "deep lists": b"[" * DEEP,
    "deep lists, whole": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep within a known field": b'{"NodeNames":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep within an unknown field": b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep within nodes": b'{"Nodes":{"items":[{"metadata":{"name":"n1"},"x":'
    + b"[" * DEEP
    + b"]" * DEEP
    + b"}]}}",
    "deep within scores": b'[{"Host":"n1","Score":1,"x":' + b"[" * DEEP + b"]" * DEEP + b"}]",
    "deep within victims": b'{"NodeNameToMetaVictims":{"n1":' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "NaN": b'[{"Host":"n1","Score":NaN}]',
    "infinity": b'[{"Host":"n1","Score":1e999}]',
    "a score beyond int64": b'[{"Host":"n1","Score":9223372036854775808}]',
    "an integer of 100,000 digits": b'[{"Host":"n1","Score":' + b"9" * 100_000 + b"}]",
    "a number as a string": b'[{"Host":"n1","Score":"1"}]',
    "broken UTF-8 in a name": b'{"NodeNames":["\xff\xfe"],"Error":7}',
    "broken UTF-8 in a key": b'{"\xc3\x28":1, "Error":[]}',
    "UTF-16": "{}".encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "NUL": b"\0" * 100,
    "nothing": b"",
    "another type": b"7",
    "a string": b'"n1"',
    "wrong types everywhere": b'{"NodeNames":{"n1":1},"Nodes":[1],"FailedNodes":["x"],"Error":{}}',
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_is_the_extenders_error(verb, name):
    """Or, where the verb's answer has no such field, nothing at all; never anything else."""
    with other_extender(**{verb: lambda body: RawAnswer(200, GARBAGE[name])}) as other:
        config = ExtenderConfig(
            url_prefix=other.url, node_cache_capable=True, weight=1, **{f"{verb}_verb": verb}
        )
        (asked,) = extenders_of([config])
        said = ""
        try:
            await call(asked, verb)
        except ExtenderError as error:
            said = str(error)
        finally:
            await asked.close()
        assert not said or other.url in said
        assert len(said) < 2000


@pytest.mark.parametrize(
    "error", [pytest.param("x" * MIB, id="long"), pytest.param("\\ud800 and \\udfff", id="half characters")]
)
async def test_texts_can_be_shown_whatever_they_are(error):
    answer = b'{"Error":"%s"}' % error.encode()
    with other_extender(filter=lambda body: RawAnswer(200, answer)) as other:
        text = await failure(other.url)
    assert len(text.encode()) < 2000


async def test_scores_that_add_up_beyond_int64_wrap_as_in_go():
    largest = 2**63 - 1
    scores = [{"Host": "n1", "Score": largest}, {"Host": "n1", "Score": 1}]
    with other_extender(prioritize=lambda body: scores) as other:
        (asked,) = extenders_of([ExtenderConfig(url_prefix=other.url, prioritize_verb="prioritize")])
        assert await call(asked, "prioritize") == {"n1": -(2**63)}
        await asked.close()
