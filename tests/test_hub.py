"""push_to_hub, and from_pretrained of the upload, with a local hub over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hubs
import pytest
from huggingface_hub import constants

from diffusionner import DiffusionNER
from diffusionner.errors import WriteError
from diffusionner.storage import registry
from models import assert_same, lively_model

TEXT = "Ada Lovelace met Charles Babbage in London."
NAME = "someone/tiny-ner"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[hubs.Hub]:
    with hubs.running() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            hub.address + template[template.index("/{repo_id}") :],
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield hub


@pytest.fixture
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


def test_upload_and_download(hub, ner):
    address = ner.push_to_hub(NAME, token="secret", private=True, message="First")
    assert address == f"{hub.address}/{NAME}/commit/{hubs.SHA}"
    assert hub.private == {NAME: True} and hub.messages == ["First"]
    assert hub.tokens == {"Bearer secret"}
    assert {"config.json", "model.safetensors", "README.md"} <= set(hub.repos[NAME])
    back = DiffusionNER.from_pretrained(NAME)
    assert_same([back(TEXT)], [ner(TEXT)])
    assert back.labels == ner.labels and back(TEXT)


def test_precision(hub, ner):
    ner.push_to_hub(NAME, token="t")
    large = len(hub.repos[NAME]["model.safetensors"])
    ner.push_to_hub(NAME, token="t", precision="int8")
    assert len(hub.repos[NAME]["model.safetensors"]) < large / 2
    assert DiffusionNER.from_pretrained(NAME)(TEXT)


def test_generated_card(hub, ner, tmp_path):
    ner.push_to_hub(NAME, token="t")
    card = tmp_path / "README.md"
    card.write_bytes(hub.repos[NAME]["README.md"])
    front = registry.front_matter(card)
    assert front["library_name"] == "diffusionner"
    assert front["pipeline_tag"] == "token-classification"
    text = card.read_text(encoding="utf-8")
    assert f'from_pretrained("{NAME}")' in text and "`FAC`, `GPE`, `PER`" in text


def test_existing_card_is_kept(hub, ner, tmp_path):
    ner.save_pretrained(tmp_path / "model")
    (tmp_path / "model/README.md").write_text("---\nlicense: mit\n---\n# Mine é\n", "utf-8")
    DiffusionNER.from_pretrained(tmp_path / "model").push_to_hub(NAME, token="t")
    assert hub.repos[NAME]["README.md"].decode() == "---\nlicense: mit\n---\n# Mine é\n"


def test_exported_models_are_uploaded_unchanged(hub, ner, tmp_path):
    """Other files in the folder are not uploaded."""
    folder = tmp_path / "exported"
    ner.save_pretrained(folder)
    (folder / "encoder.onnx").write_bytes(b"graph")
    (folder / "log.bin").write_bytes(b"")
    ner.folder = folder
    ner.push_to_hub(NAME, token="t")
    assert hub.repos[NAME]["encoder.onnx"] == b"graph" and "log.bin" not in hub.repos[NAME]


def test_upload_errors(hub, ner, monkeypatch):
    monkeypatch.setattr(hubs.Hub, "create", lambda *_: 1 / 0)  # which closes the connection
    with pytest.raises(
        WriteError, match="could not be uploaded to the hub as 'someone/tiny-ner': "
    ):
        ner.push_to_hub(NAME, token="t")
    with pytest.raises(WriteError, match="Check the name, the network and your token"):
        ner.push_to_hub("a/b/c", token="t")
