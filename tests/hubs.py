"""A local Hugging Face hub: the part of its API that models need."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

SHA = "0123456789abcdef0123456789abcdef01234567"


def tag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@dataclass
class Hub:
    address: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)  # "METHOD path"

    def create(self, request: dict) -> dict:
        name = f"{request['organization']}/{request['name']}"
        self.repos.setdefault(name, {})
        self.private[name] = request.get("visibility") == "private" or bool(request.get("private"))
        return {"url": f"{self.address}/{name}", "name": name, "id": name}

    def preupload(self, request: dict) -> dict:
        modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
        return {"files": [{"path": file["path"], **modes} for file in request["files"]]}

    def commit(self, name: str, lines: list[dict]) -> dict:
        for line in lines:
            if line["key"] == "header":
                self.messages.append(line["value"]["summary"])
            else:
                assert line["key"] == "file" and line["value"]["encoding"] == "base64"
                content = base64.b64decode(line["value"]["content"])
                self.repos[name][line["value"]["path"]] = content
        return {"commitUrl": f"{self.address}/{name}/commit/{SHA}", "commitOid": SHA}

    def tree(self, name: str) -> list[dict]:
        files = self.repos[name].items()
        return [
            {"type": "file", "path": file, "size": len(content), "oid": tag(content)}
            for file, content in files
        ]

    def info(self, name: str) -> dict:
        files = [{"rfilename": file} for file in self.repos[name]]
        return {"id": name, "sha": SHA, "siblings": files, "private": self.private[name]}


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_POST(self) -> None:
            hub.asked.append(f"POST {self.path}")
            hub.tokens.add(self.headers.get("Authorization"))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/api/repos/create":
                self.json(hub.create(json.loads(body)))
            elif self.path == "/api/validate-yaml":
                assert json.loads(body)["content"].startswith("---\n")
                self.json({"warnings": [], "errors": []})
            elif self.path.endswith("/preupload/main"):
                self.json(hub.preupload(json.loads(body)))
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", self.path):
                self.json(hub.commit(found[1], [json.loads(line) for line in body.splitlines()]))
            else:
                self.json({"error": f"no {self.path}"}, 404)

        def do_GET(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            info = re.fullmatch(r"/api/models/([^/]+/[^/?]+)(/revision/[^/?]+)?(\?.*)?", self.path)
            tree = re.fullmatch(r"/api/models/([^/]+/[^/?]+)/tree/[^/?]+(\?.*)?", self.path)
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
            if info and info[1] in hub.repos:
                self.json(hub.info(info[1]))
            elif tree and tree[1] in hub.repos:
                self.json(hub.tree(tree[1]))
            elif file and file[2] in hub.repos.get(file[1], {}):
                content = hub.repos[file[1]][file[2]]
                self.answer(200, content, ETag=f'"{tag(content)}"', X_Repo_Commit=SHA)
            else:
                self.json({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

        def json(self, value: object, status: int = 200, **headers: str) -> None:
            content = json.dumps(value).encode()
            self.answer(status, content, Content_Type="application/json", **headers)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
