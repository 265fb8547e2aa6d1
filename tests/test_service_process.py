"""`diffusionner serve` as a process: killed workers, shutdown under load."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from corpus_files import EXCERPT
from services import until

from diffusionner import formats
from diffusionner.corpus import Sentence
from diffusionner.export import export
from models import lively_model


@pytest.fixture(scope="module")
def model(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model, because ONNX Runtime starts in a second."""
    folder = tmp_path_factory.mktemp("served") / "lively"
    ner = lively_model(encoder_folder)
    words = [s.words for s in formats.read(EXCERPT)][:8]
    found = ner.predict_sentences([Sentence(one) for one in words])
    export(ner, folder, [Sentence(*one) for one in zip(words, found, strict=True)])
    return folder


class Served:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        until(lambda: process.poll() is not None or "running on" in self.text, 60)
        found = re.search(r"running on (http://[\d.:]+)", self.text)
        assert found, self.text
        self.url = found[1]
        until(lambda: httpx.get(f"{self.url}/readyz").is_success, 60)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Served]:
    log = folder.parent / "log"
    command = [sys.executable, "-m", "diffusionner", "serve", "--model", str(folder), "--port", "0"]
    with open(log, "wb") as file:
        process = subprocess.Popen([*command, *arguments], stdout=file, stderr=file)
        try:
            yield Served(process, log)
        finally:
            process.kill()
            process.wait()


class Load:
    """Clients that send requests one after the other until they are stopped or refused."""

    def __init__(self, url: str, clients: int) -> None:
        self.url = url
        self.ending = False
        self.answers: Counter[int | str] = Counter()
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def _run(self, number: int) -> None:
        with httpx.Client(timeout=60) as client:
            while not self.ending:
                body = {"texts": [f"Client {number} met Charles Babbage in London."]}
                try:
                    answer = client.post(f"{self.url}/v1/entities", json=body)
                except httpx.TransportError as error:
                    self.answers[type(error).__name__] += 1
                    return
                assert answer.status_code != 200 or answer.json()["results"][0]["entities"]
                self.answers[answer.status_code] += 1

    def end(self) -> None:
        self.ending = True
        for thread in self.threads:
            thread.join()


def test_no_accepted_request_is_lost(model):
    with served(model) as service:
        load = Load(service.url, 12)
        until(lambda: load.answers[200] > 40)
        (worker,) = service.workers()
        worker.kill()
        until(lambda: "died" in service.text)
        before = load.answers[200]
        until(lambda: load.answers[200] > before + 40, 60)
        assert set(load.answers) == {200}
        (other,) = service.workers()
        assert other.pid != worker.pid
        assert "diffusionner_worker_restarts_total 1.0" in httpx.get(f"{service.url}/metrics").text

        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
        load.end()
        # What was logged as answered arrived; clients met a closed door, nothing else.
        assert set(load.answers) <= {200, "ConnectError", "RemoteProtocolError", "ReadError"}
        assert service.text.count("POST /v1/entities 200") == load.answers[200]
        assert "POST /v1/entities 5" not in service.text
        assert "Babbage" not in service.text
        assert not other.is_running()


def test_killing_the_main_process_ends_the_workers(model):
    with served(model, "--workers", "2") as service:
        workers = service.workers()
        assert len(workers) == 2
        service.process.kill()
        until(lambda: not any(worker.is_running() for worker in workers))


def test_ctrl_c_does_not_wait_for_dropped_requests(model):
    with served(model, "--timeout", "0.05") as service:
        slow = {"texts": ["Ada met Charles Babbage in London. " * 500], "steps": 5}
        answer = httpx.post(f"{service.url}/v1/entities", json=slow, timeout=30)
        assert answer.status_code == 504
        (worker,) = service.workers()
        began = time.monotonic()
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(60) == 0
        assert time.monotonic() - began < 10
        assert not worker.is_running()
        assert "ERROR" not in service.text
        assert "Traceback" not in service.text


def test_unavailable_addresses(refused, tmp_path):
    """Reported before the model, which does not exist, is looked up."""

    def message(*arguments: object) -> str:
        return refused("serve", "--model", tmp_path / "no_such", *arguments)

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port} is in use; choose another with --port" in message("--port", port)
    assert "cannot listen on 192.0.2.1 (" in message("--host", "192.0.2.1")
    assert "--host no.such.host.invalid is not a known address" in message(
        "--host", "no.such.host.invalid"
    )
    for host in ("no.such.host.invalid", "a..b"):
        assert f"--host {host} is not a known address" in message("--host", host)


def test_missing_models_and_keys(refused, tmp_path, model):
    assert "no_such" in refused("serve", "--model", tmp_path / "no_such")
    assert "API keys" in refused("serve", "--model", model, "--api-key-file", tmp_path / "nothing")


def test_a_model_that_no_longer_loads_stops_the_service(provided, tmp_path):
    """Noticed when a dead process is replaced; requests get a 503 with the cause, not a 500."""
    folder = tmp_path / "model"
    shutil.copytree(provided("en"), folder)
    with served(folder) as service, httpx.Client(base_url=service.url, timeout=60) as client:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:999])
        service.workers()[0].kill()
        answer = client.post("/v1/entities", json={"texts": ["Ada.", "Charles met Ada."]})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_loaded")
        with suppress(httpx.TransportError):  # it may have stopped already
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()["error"]["code"]) == (503, "not_loaded")
        assert service.process.wait(60) == 2
        assert "model.safetensors" in service.text and "Traceback" not in service.text


def test_a_model_that_does_not_load_stops_the_service(model, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in model.iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:99] if file.name == "encoder.onnx" else content)
    command = [sys.executable, "-m", "diffusionner", "serve", "--model", str(broken), "--port", "0"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert b"encoder.onnx is not the file that was written with its config.json" in done.stderr
    assert b"Traceback" not in done.stderr
