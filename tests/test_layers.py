"""Packages import only packages below them, and there are no import cycles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import diffusionner

ROOT = Path(diffusionner.__file__).parent
# From the bottom up. Names on one line do not import each other.
LAYERS = (
    ("errors", "threads"),
    ("files", "methods", "layout"),
    ("corpus", "text", "label_set"),
    ("setting_values", "word_limits"),
    ("settings",),
    ("diffusion", "formats", "refinement"),
    ("batching",),
    ("model",),
    ("storage",),
    ("inference",),
    ("data",),
    ("evaluation",),
    ("training", "drawing", "export", "integrations", "annotation"),
    ("service",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Facades: methods that delegate to packages above them when they are called.
FACADES = {
    ("inference.pipeline", "training"),  # DiffusionNER.fine_tune
    ("inference.pipeline", "integrations"),  # push_to_hub, predict_entities
    ("corpus", "drawing"),  # Entities.to_html, Entities.to_svg
}


def modules() -> list[str]:
    found = (path.relative_to(ROOT).with_suffix("") for path in ROOT.rglob("*.py"))
    return sorted(".".join(path.parts) for path in found if path.name != "__main__")


def tree_of(module: str) -> ast.Module:
    return ast.parse((ROOT / Path(*module.split("."))).with_suffix(".py").read_text())


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield the imported modules of this package, without its own name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith("diffusionner."):
                yield name.removeprefix("diffusionner.")


@pytest.mark.parametrize("module", [m for m in modules() if m != "__init__"])
def test_layers(module: str) -> None:
    own = module.partition(".")[0]
    for name in imported(ast.walk(tree_of(module))):
        package = name.partition(".")[0]
        if package == own or package not in LEVEL or (module, package) in FACADES:
            continue
        assert LEVEL[package] < LEVEL[own], f"{module} imports {name}, which is not below it"


def test_every_package_has_a_layer() -> None:
    assert {module.partition(".")[0] for module in modules()} - {"__init__"} == set(LEVEL)


def test_there_are_no_import_cycles() -> None:
    """Imports inside functions count too: they must not hide a cycle."""
    known = set(modules())

    def targets(module: str) -> set[str]:
        found = set()
        for name in imported(ast.walk(tree_of(module))):
            parent = name.rpartition(".")[0]
            for candidate in (name, f"{name}.__init__", parent, f"{parent}.__init__"):
                if candidate in known:
                    found.add(candidate)
                    break
        return {
            target
            for target in found - {module}
            if (module, target.partition(".")[0]) not in FACADES
        }

    edges = {module: targets(module) for module in known - {"__init__"}}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in sorted(edges.get(module, ())):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())


def test_gpu_code_is_not_imported_on_a_cpu() -> None:
    """Only functions that use a GPU import the GPU package."""
    for module in modules():
        if module.startswith("inference.gpu") or module == "training.graphs":
            continue
        top = (node for node in tree_of(module).body)
        assert not any(name.startswith("inference.gpu") for name in imported(top)), module
