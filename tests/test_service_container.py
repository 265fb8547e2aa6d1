"""The Dockerfile, as far as it can be checked without Docker."""

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


def test_it_runs_without_root_and_has_a_health_check():
    last = max(i for i, (name, _) in enumerate(STEPS) if name == "FROM")
    final = [name for name, _ in STEPS[last:]]
    assert "USER" in final and final.index("USER") < final.index("ENTRYPOINT")
    assert arguments("USER") == ["10001"]
    command = json.loads(arguments("HEALTHCHECK")[0].partition("CMD")[2])
    compile(command[2], "health check", "exec")
    assert "/readyz" in command[2]


def test_it_starts_the_service(cli):
    entry = json.loads(arguments("ENTRYPOINT")[0])
    assert entry[:2] == ["diffusionner", "serve"]
    shown = cli("serve", "--help").out
    assert all(option in shown for option in entry if option.startswith("--"))


def test_copied_files_exist_and_are_not_ignored():
    allowed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    defaults = dict(line.split("=") for line in arguments("ARG"))
    for line in arguments("COPY"):
        if line.startswith("--from"):
            continue
        for source in shlex.split(line)[:-1]:
            path = re.sub(r"\$\{(\w+)\}", lambda name: defaults[name[1]], source)
            assert f"!{path.partition('/')[0]}" in allowed
            if path.startswith("models/") and not (ROOT / path).exists():
                continue  # an sdist has no weights
            assert (ROOT / path).exists()


def test_installed_packages_are_pinned():
    pinned = (ROOT / "requirements.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    (installing,) = [line for line in arguments("RUN") if "onnxruntime" in line]
    names = set(re.findall(r"(?<=\s)[a-z][\w-]+(?=[\s;]|$)", installing.lower()))
    packages = names - {"if", "then", "else", "fi", "install", "python"}
    packages = {name for name in packages if not name.startswith("-")} - {"venv"}
    assert {"fastapi", "torch", "onnxruntime", "uvicorn"} <= packages
    for name in packages:
        assert f"\n{name}==" in pinned, name
