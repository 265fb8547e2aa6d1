"""The Dockerfile, as far as it can be checked where there is no Docker."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8")).splitlines()
STEPS = [line.split(None, 1) for line in LINES if line.strip() and not line.startswith("#")]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in STEPS if name == instruction]


def test_it_does_not_run_as_root_and_says_how_it_is():
    last = max(i for i, (name, _) in enumerate(STEPS) if name == "FROM")
    final = [name for name, _ in STEPS[last:]]
    assert "USER" in final and final.index("USER") < final.index("ENTRYPOINT")
    assert arguments("USER") == ["10001"]
    command = json.loads(arguments("HEALTHCHECK")[0].partition("CMD")[2])
    compile(command[2], "health check", "exec")
    assert "/readyz" in command[2]


def test_it_starts_what_there_is(cli):
    entry = json.loads(arguments("ENTRYPOINT")[0])
    assert entry[:2] == ["diffusionner", "serve"]
    told = cli("serve", "--help").out
    assert all(option in told for option in entry if option.startswith("--"))


def test_what_it_copies_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in arguments("COPY"):
        if line.startswith(("--from", "$")):
            continue
        for source in shlex.split(line)[:-1]:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignored


def test_what_it_installs_is_pinned():
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    (installing,) = [line for line in arguments("RUN") if "onnxruntime" in line]
    names = set(re.findall(r"(?<=\s)[a-z][\w-]+(?=[\s;]|$)", installing.lower()))
    packages = names - {"if", "then", "else", "fi", "install", "python"}
    packages = {name for name in packages if not name.startswith("-")} - {"venv"}
    assert {"fastapi", "torch", "onnxruntime", "uvicorn"} <= packages
    for name in packages:
        assert f"\n{name}==" in pinned, name
