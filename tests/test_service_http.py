"""Hostile and broken HTTP: what the service answers over a raw socket."""

from __future__ import annotations

import json
import logging
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import h11
import pytest
from services import Client, Held, read_all, request_bytes, running, until

from diffusionner import DiffusionNER
from diffusionner.errors import SettingsError
from diffusionner.service import http_protocol, server
from diffusionner.service.api_errors import HEADERS
from diffusionner.service.hosts import AllowedHosts
from diffusionner.service.limits import Limits
from diffusionner.service.worker import Predictor
from models import lively_model

BODY = b'{"texts": ["Ada."]}'
CHUNKED = b"13\r\n" + BODY + b"\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


@pytest.fixture(scope="module")
def client(ner: DiffusionNER) -> Iterator[Client]:
    with running(Predictor(ner), Limits(receive=2)) as client:
        yield client


def get(path: str = "/healthz", host: str | None = "localhost", version: str = "1.1") -> bytes:
    """Return the bytes of a GET request, after which the connection is closed."""
    lines = [f"GET {path} HTTP/{version}", *([] if host is None else [f"Host: {host}"])]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def ask(client: Client, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, read until the connection is closed; return status, headers and body."""
    with client.connect() as connection:
        connection.sendall(request)
        return parse(read_all(connection))


def parse(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    start, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = start.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body), "more than one response"
    return int(status.split()[1]), headers, body


def error(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Check that an answer is the documented error; return its status and code."""
    status, headers, body = answer
    assert headers["content-type"] == "application/json"
    assert {name: headers[name] for name in HEADERS} == {k: v.lower() for k, v in HEADERS.items()}
    assert len(body) < 500
    (found,) = json.loads(body).values()
    assert set(found) == {"code", "message"}
    return status, found["code"]


POST = "POST /v1/entities HTTP/1.1"
JSON = ("Host: localhost", "Content-Type: application/json")
UNPARSABLE = {
    "garbage": (b"\xde\xad\xbe\xef\r\n\r\n", 400, "bad_request"),
    "binary": (bytes(range(256)) * 8, 400, "bad_request"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 512, 400, "bad_request"),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400, "bad_request"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version"),
    "SSH": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400, "bad_request"),
    "no request line": (b"\r\n\r\n", 400, "bad_request"),
    "header name": (head("GET / HTTP/1.1", "Host: localhost", "a b: c"), 400, "bad_request"),
    "header without name": (head("GET / HTTP/1.1", "Host: localhost", ": c"), 400, "bad_request"),
    "NUL in a header": (head("GET / HTTP/1.1", "Host: localhost", "a: \0"), 400, "bad_request"),
    "space in the path": (head("GET / / HTTP/1.1", "Host: localhost"), 400, "bad_request"),
    "chunk size": (head(POST, *JSON, "Transfer-Encoding: chunked") + b"zz\r\n", 400, "bad_request"),
    "chunk end": (
        head(POST, *JSON, "Transfer-Encoding: chunked") + b"2\r\n{}}}\r\n0\r\n\r\n",
        400,
        "bad_request",
    ),
    "gzip": (head(POST, *JSON, "Transfer-Encoding: gzip") + BODY, 501, "not_supported"),
    "long head": (
        head("GET / HTTP/1.1", "Host: localhost", "x: " + "y" * 40_000),
        431,
        "head_too_large",
    ),
    "endless head": (b"GET /" + b"y" * 3_000_000, 431, "head_too_large"),
    "many headers": (
        head("GET / HTTP/1.1", "Host: localhost", *["a: b"] * 20_000),
        431,
        "head_too_large",
    ),
    "tiny chunks": (
        head(POST, *JSON, "Transfer-Encoding: chunked") + b"1\r\n \r\n" * 20_000,
        413,
        "body_too_large",
    ),
    "long method": (
        head("A" * 20_000 + " /healthz HTTP/1.1", "Host: localhost", "Connection: close"),
        405,
        "method_not_allowed",
    ),
    "absolute target": (get("http://localhost/healthz"), 400, "bad_request"),
    "CONNECT": (head("CONNECT localhost:80 HTTP/1.1", "Host: localhost"), 400, "bad_request"),
}


@pytest.mark.parametrize("name", UNPARSABLE)
def test_unparsable_requests_get_a_json_error(client, name):
    request, status, code = UNPARSABLE[name]
    assert error(ask(client, request)) == (status, code)
    assert client.get("/healthz").status_code == 200


LENGTH = f"Content-Length: {len(BODY)}"
SMUGGLED = {
    "length and encoding": ([LENGTH, "Transfer-Encoding: chunked"], CHUNKED),
    "encoding and length": (["Transfer-Encoding: chunked", LENGTH], CHUNKED),
    "equal lengths": ([LENGTH, LENGTH], BODY),
    "equal lengths in one": ([f"{LENGTH}, {len(BODY)}"], BODY),
    "different lengths": ([LENGTH, "content-length: 3"], BODY),
    "signed length": ([f"Content-Length: +{len(BODY)}"], BODY),
    "folded length": ([f"Content-Length:\r\n {len(BODY)}"], BODY),
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_ambiguous_lengths_are_refused(client, name):
    headers, body = SMUGGLED[name]
    assert error(ask(client, request_bytes(body, *headers))) == (400, "bad_request")


def test_a_length_with_many_spaces_is_refused_at_once():
    """The time to read a head may not grow with the square of its size."""
    connection = http_protocol.StrictConnection(h11.SERVER, http_protocol.HEAD_BYTES)
    length = f"Content-Length: 5,{30_000 * ' '}5"
    connection.receive_data(head("POST /v1/entities HTTP/1.1", "Host: localhost", length))
    started = time.process_time()
    with pytest.raises(http_protocol.Refusal):
        connection.next_event()
    assert time.process_time() - started < 0.5


def test_chunked_bodies_need_http_1_1(client):
    request = request_bytes(CHUNKED, "Transfer-Encoding: chunked", "Connection: close")
    assert ask(client, request)[0] == 200
    assert error(ask(client, request.replace(b"HTTP/1.1", b"HTTP/1.0"))) == (400, "bad_request")


@pytest.mark.parametrize("start", [b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nHost: loc"])
def test_half_a_head(client, start):
    """Cut off by the client, or never finished."""
    with client.connect() as connection:
        connection.sendall(start)
        connection.shutdown(socket.SHUT_WR)
        assert error(parse(read_all(connection))) == (400, "bad_request")
    with client.connect() as connection:
        connection.sendall(start)
        assert error(parse(read_all(connection))) == (408, "too_slow")


def test_an_error_after_a_good_request_on_one_connection(client):
    with client.connect() as connection:
        connection.sendall(get().replace(b"close", b"keep-alive") + b"\0garbage\r\n\r\n")
        good, _, rest = read_all(connection).partition(b'{"status":"ok"}')
        assert good.startswith(b"HTTP/1.1 200 ")
        assert error(parse(rest)) == (400, "bad_request")


# --- Host header ---------------------------------------------------------------------------------

GOOD_HOSTS = ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"]
BAD_HOSTS = [
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
    "192.168.0.1", "0.0.0.0", "x", "localhost.", "localhost@evil.example", "localhost:8000:1",
    "localhost:", "localhost:x", "localhost, evil.example", "[::1", "[::2]", "http://localhost",
    "localhost/x", "lo\xa0calhost", "", "a" * 20_000, "localhost" + "\t" * 400 + "x",
]  # fmt: skip


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/v1/models", "/readyz", "/nothing"])
def test_only_local_names_on_loopback(client, path):
    for host in GOOD_HOSTS:
        assert ask(client, get(path, host))[0] == (404 if path == "/nothing" else 200)
    for host in BAD_HOSTS:
        assert error(ask(client, get(path, host))) == (421, "wrong_host"), host[:40]


def test_missing_and_doubled_hosts(client):
    assert error(ask(client, get(host=None))) == (400, "bad_request")
    assert error(ask(client, get(host=None, version="1.0"))) == (421, "wrong_host")
    assert error(ask(client, get(host="localhost\r\nHost: localhost"))) == (400, "bad_request")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (get(host="localhost\r\nHost: localhost"), "give one Host header"),
        (get(host=None), "give a Host header"),
        (request_bytes(BODY, "Content-Length: x"), "give one Content-Length, with one number"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "this is not a valid HTTP/1.1 request"),
        (UNPARSABLE["TLS"][0], "this port speaks HTTP, not HTTPS"),
    ],
    ids=["two hosts", "no host", "length", "SSH", "TLS"],
)
def test_the_message_names_the_fault(client, request_, expected):
    assert json.loads(ask(client, request_)[2])["error"]["message"] == expected


def allows(hosts: AllowedHosts, *names: str) -> list[bool]:
    return [hosts.allow([name.encode()]) for name in names]


def test_hosts_on_other_addresses():
    """IP addresses and names without a dot cannot belong to a website."""
    for address in ("0.0.0.0", "::", "192.168.0.1", "ner.example.org"):
        hosts = AllowedHosts(address)
        assert all(allows(hosts, *GOOD_HOSTS, "10.1.2.3:8000", "[fe80::1]:80", "ner", "ner:8000"))
        assert not any(allows(hosts, "evil.example", "10.1.2.3.evil.example", "1.2.3", "a b", ""))
        assert not hosts.allow([])
    assert all(allows(AllowedHosts("ner.example.org"), "ner.example.org", "NER.example.org:80"))
    assert allows(AllowedHosts("127.0.0.2"), "127.0.0.2", "127.0.0.3") == [True, False]
    assert allows(AllowedHosts("::1"), "[::1]:80", "[::2]") == [True, False]


def test_allowed_hosts():
    hosts = AllowedHosts("127.0.0.1", ["ner.Example.org", "other"])
    assert all(allows(hosts, "localhost", "NER.example.org:443", "other"))
    assert not any(allows(hosts, "example.org", "x.ner.example.org", "10.0.0.1"))
    everything = AllowedHosts("127.0.0.1", ["*"])
    assert all(allows(everything, "evil.example")) and everything.allow([])
    for wrong in ("https://ner.example.org", "ner.example.org:80", "a b", "", "*.example.org"):
        with pytest.raises(SettingsError, match="is not a host name"):
            AllowedHosts("127.0.0.1", [wrong])


def test_allowed_host_of_a_service(ner):
    with running(Predictor(ner), hosts=AllowedHosts("127.0.0.1", ["ner.example"])) as client:
        assert ask(client, get(host="ner.example:80"))[0] == 200
        assert error(ask(client, get(host="evil.example"))) == (421, "wrong_host")


@pytest.mark.parametrize("path", ["/page", "/healthz/", "/v1/models/", "//evil.example/"])
def test_nothing_redirects(client, path):
    status, headers, _ = answer = ask(client, get(path))
    assert error(answer) == (404, "not_found") and "location" not in headers and status == 404


@pytest.mark.parametrize(
    "path", ["/page/page.js", "/page/drawing.css", "/page/nothing", "/page/../app.py", "/v1/models"]
)
def test_the_headers_of_the_page_are_those_of_every_response(client, path):
    expected = {name: client.get("/").headers[name] for name in HEADERS}
    assert "script-src 'self'" in expected["content-security-policy"]
    headers = ask(client, get(path))[1]
    assert {name: headers[name] for name in HEADERS} == expected


# --- Connections ---------------------------------------------------------------------------------


def test_idle_connections_do_not_keep_clients_out(ner):
    """1,100 connections: silent, in the middle of a head, of a body that nobody reads, or used."""
    unread = head("POST /nothing HTTP/1.1", "Host: localhost", "Content-Length: 1000") + b"x"
    with running(Predictor(ner), Limits(receive=60)) as client, ExitStack() as stack:
        idle = []
        for number in range(1100):
            connection = stack.enter_context(client.connect())
            connection.sendall((b"", b"GET / HT", unread)[number % 3])
            idle.append(connection)
            if number % 100 == 99:
                assert client.get("/healthz").status_code == 200
                assert ask(client, get())[0] == 200
        assert client.entities("Ada.").status_code == 200
        # The oldest were closed, with an error if they had not been answered before.
        assert error(parse(read_all(idle[0]))) == (503, "too_many_connections")
        assert error(parse(read_all(idle[1]))) == (503, "too_many_connections")
        idle[-2].settimeout(0.05)
        with pytest.raises(TimeoutError):
            idle[-2].recv(1)


def test_busy_connections_are_not_closed(ner, monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 5)
    held = Held(ner)
    with running(held) as client, ExitStack() as stack:
        busy = [stack.enter_context(client.connect()) for _ in range(5)]
        for connection in busy:
            connection.sendall(request_bytes(BODY, "Connection: close"))
        until(lambda: sum(map(len, held.given)) + client.metric("queue_requests") == 5)
        answer = ask(client, get())
        assert error(answer) == (503, "too_many_connections")
        assert answer[1]["retry-after"] == "1"
        held.go.set()
        assert [parse(read_all(connection))[0] for connection in busy] == [200] * 5
        assert ask(client, get())[0] == 200


def test_a_client_that_does_not_read_is_cut_off(ner, monkeypatch):
    monkeypatch.setattr(http_protocol, "STALL_SECONDS", 0.2)
    with running(Predictor(ner)) as client, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect(client.address)
        connection.sendall(get("/page/page.js").replace(b"close", b"keep-alive") * 3000)
        time.sleep(1.5)
        assert read_all(connection).count(b"HTTP/1.1 200 ") < 3000


def test_a_reset_while_refused(client, caplog):
    """Errors of the connection are no errors of the service."""
    for request in (b"\0", UNPARSABLE["tiny chunks"][0], get()):
        with client.connect() as connection:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(request)
    assert client.get("/healthz").status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_the_log_has_little_of_what_clients_send(client, caplog):
    caplog.set_level(logging.DEBUG)
    for request, _, _ in UNPARSABLE.values():
        ask(client, request)
    ask(client, get("/" + "secret" * 1000 + "%0a%0dsecret", "secret"))
    ask(client, head("SECRETSECRETSECRETSECRET / HTTP/1.1", "Host: localhost", "Connection: close"))
    ours = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    assert max(len(record.getMessage()) for record in ours) < 200
    logged = "\n".join(record.getMessage() for record in ours)
    assert "refused 431 head_too_large" in logged and "SECRETSECRETSECR / 405" in logged
    assert "secret" not in logged and "SECRETSECRETSECRE " not in logged and "yyy" not in logged
    assert not any(record.levelno >= logging.ERROR for record in ours)


# --- Labels --------------------------------------------------------------------------------------


def test_labels_are_a_set(ner):
    held = Held(ner)
    with running(held) as client, ExitStack() as stack:
        connections = [stack.enter_context(client.connect()) for _ in range(4)]
        lists = [["PER", "GPE"], ["PER", "GPE"], ["GPE", "PER", "GPE"], ["GPE", "PER", "PER"]]
        for number, (connection, labels) in enumerate(zip(connections, lists, strict=True)):
            body = json.dumps({"texts": ["Ada met Charles in London."], "labels": labels}).encode()
            connection.sendall(request_bytes(body, "Connection: close"))
            until(lambda n=number: held.given and client.metric("queue_requests") == n)
        held.go.set()
        answers = [parse(read_all(connection)) for connection in connections]
        assert [status for status, _, _ in answers] == [200] * 4
        assert len({body for _, _, body in answers}) == 1
        assert [len(batch) for batch in held.given] == [1, 3]


def test_labels_are_bounded(client):
    for labels in (["PER"] * 1001, ["x" * 301], ["x" * 100_000] * 10):
        answer = client.entities("Ada.", labels=labels)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
        assert len(answer.content) < 500
    assert client.entities("Ada.", labels=["PER"] * 1000).status_code == 200
    unknown = client.entities("Ada.", labels=["x" * 300])
    assert unknown.json()["error"]["code"] == "unknown_label"
