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


def test_base_images_have_digests():
    bases = dict(line.split("=", 1) for line in arguments("ARG") if "@" in line)
    images = [line.split()[0] for line in arguments("FROM")]
    assert len(images) == 2
    for image in images:
        base = bases[image.strip("${}")]
        assert re.fullmatch(r"[\w./:-]+@sha256:[0-9a-f]{64}", base), base


def test_only_files_with_listed_hashes_are_installed():
    installing, own = [line for line in arguments("RUN") if "pip install" in line]
    assert re.search(r'install="[^"]+ --no-deps --require-hashes"', installing)
    assert installing.count("pip install") == 1 and installing.count("$install") == 3
    # Every file that is installed from is copied, and nothing is installed by name.
    for step in re.findall(r"\$install ([^&;]+)", installing):
        assert re.fullmatch(r"(--find-links \S+ )?-r requirements-[\w-]+\.txt", step.strip()), step
        assert step.split()[-1] in " ".join(arguments("COPY"))
    assert own.split()[-4:] == ["--no-cache-dir", "--no-deps", "--no-build-isolation", "."]
