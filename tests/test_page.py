"""The web page in Chromium, used by mouse and by keyboard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from services import Client, running

from diffusionner.corpus import Entity
from diffusionner.drawing.lanes import assign
from diffusionner.service.job import Document
from diffusionner.service.limits import Limits
from diffusionner.service.middleware import ApiKeys
from diffusionner.service.worker import Predictor
from models import LABELS, lively_model, open_model

playwright = pytest.importorskip("playwright.sync_api", reason="install the extra 'dev'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip("no Chromium: install Debian's package 'chromium'", allow_module_level=True)

QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
TEXT = "Ada Lovelace met 👩‍🚀 Charles Babbage in London.\nHe had a machine there."
ADD = "Add a type, in your own words"
DINNER = "Ada had a fever after the curry with turmeric."
SERVED = [
    Entity(0, 3, "person", 0.9, "Ada"),
    Entity(10, 15, "symptom", 0.8, "fever"),
    Entity(26, 45, "dish", 0.7, "curry with turmeric"),
    Entity(37, 45, "spice", 0.6, "turmeric"),
]

BARS = """() => [...document.querySelectorAll("#drawn em")].map((said) => {
  let piece = said.closest("span");
  const lane = [...piece.children].indexOf(said.parentNode);
  let text = piece.firstChild.textContent;
  while (!piece.children[lane].classList.contains("e")) {
    do piece = piece.nextSibling; while (piece.tagName === "BR");
    text += piece.firstChild.textContent;
  }
  return [said.textContent, lane - 1, text.trim()];
})"""
MOVED = """() => {
  const at = (boxes, edge, x) => boxes.findIndex((box) => Math.abs(box[edge] - x) < 1);
  const boxes = (chosen) =>
    [...document.querySelectorAll(chosen)].map((node) => node.getBoundingClientRect());
  const words = boxes("#words span");
  return boxes("#bars i").map(
    (bar) => [at(words, "left", bar.left), at(words, "right", bar.right)]);
}"""
REMOVE = """(labels) => labels.forEach((label) =>
  document.querySelector(`#chips [aria-label="Remove ${label}"]`).click())"""
NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, section")]
  .filter((node) => !node.closest("[hidden]"))
  .filter((node) => !(node.labels?.[0]?.textContent || node.ariaLabel || node.textContent).trim())
  .map((node) => node.outerHTML)"""


class Scripted(Predictor):
    """Finds scripted entities in known texts, else those of the model.

    In DINNER, entities of the labels asked for are found.
    """

    scripts: dict[str, list[Entity]]


@pytest.fixture(scope="module")
def predictor(encoder_folder: Path) -> Iterator[Scripted]:
    predictor = Scripted(lively_model(encoder_folder))
    predictor.scripts = {}
    found_by_model = Document.entities

    def entities(self: Document, found: Any, labels: Any) -> list[dict[str, Any]]:
        if self.text == DINNER:
            return [e.to_dict() for e in SERVED if e.label in labels]
        if self.text in predictor.scripts and len(self.chosen) == len(self.sentences):
            return [e.to_dict() for e in predictor.scripts[self.text]]
        return found_by_model(self, found, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Document, "entities", entities)
        yield predictor


@pytest.fixture(scope="module")
def client(predictor: Scripted) -> Iterator[Client]:
    with running(predictor) as client:
        yield client


@pytest.fixture(scope="module")
def open_client(predictor: Scripted, encoder_folder: Path) -> Iterator[Client]:
    """A service whose model has open labels, by default "person" and "place"."""
    with running(Predictor(open_model(encoder_folder))) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


class Visit:
    """An open page with its requests and console messages."""

    def __init__(self, browser: Any, client: Client, fragment: str = "", **options: Any) -> None:
        self.context = browser.new_context(
            permissions=["clipboard-read", "clipboard-write"], reduced_motion="reduce", **options
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.asked: list[Any] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append("a dialog opened"))
        self.url = f"{client.base_url}/"
        self.page.goto(self.url + fragment)

    def find(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.get_by_role("button", name="Find entities").click()
        self.page.wait_for_selector("#status:has-text('entit')")

    def labels(self) -> list[str]:
        return self.page.locator("#drawn em").all_inner_texts()

    def bars(self) -> list[tuple[str, int, str]]:
        """Return the label of each bar, its lane, and the text above it."""
        return [tuple(bar) for bar in self.page.evaluate(BARS)]

    def chips(self) -> list[str]:
        return self.page.locator("#chips .name").all_inner_texts()

    def colours(self) -> dict[str, str]:
        """Return the class of each chip."""
        chips = self.page.locator("#chips li").all()
        return {chip.get_attribute("data-label"): chip.get_attribute("class") for chip in chips}

    def add(self, types: str) -> None:
        self.page.get_by_label(ADD).fill(types)
        self.page.get_by_label(ADD).press("Enter")

    def remove(self, label: str) -> None:
        self.page.get_by_role("button", name=f"Remove {label}", exact=True).click()

    def wait_for_types(self, *labels: str) -> None:
        """Wait until exactly the entities of these types are drawn."""
        shown = "[...document.querySelectorAll('#drawn em')].map((e) => e.textContent.slice(0, -5))"
        self.page.wait_for_function(
            f"labels => `${{{shown}.sort()}}` === labels", arg=",".join(sorted(labels))
        )

    def sent_labels(self, path: str = "v1/entities") -> list[Any]:
        """Return the labels of each request."""
        sent = [r.post_data_json for r in self.asked if r.url == self.url + path]
        return [body.get("labels") for body in sent]


@pytest.fixture
def visit(browser, client) -> Iterator[Visit]:
    """An open page; checks that nothing is logged and no other host is contacted."""
    visit = Visit(browser, client)
    yield visit
    assert visit.said == []
    assert {request.url.startswith(visit.url) for request in visit.asked} == {True}
    visit.context.close()


def script(predictor: Scripted, text: str, *found: tuple[int, int, str, float]) -> str:
    predictor.scripts[text] = [
        Entity(s, e, label, score, text[s:e]) for s, e, label, score in found
    ]
    return text


@pytest.fixture
def nested(predictor: Scripted) -> str:
    """Nested entities after a character of two UTF-16 units."""
    text = "𝔘 the Bank of England in London, England"
    found = [
        (6, 21, "FAC", 0.91), (14, 21, "GPE", 0.62), (25, 40, "GPE", 0.83), (25, 31, "PER", 0.34),
        (33, 40, "GPE", 0.55), (2, 21, "FAC", 0.46),
    ]  # fmt: skip
    return script(predictor, text, *found)


def test_entities_equal_those_of_the_service(visit, client):
    visit.find(TEXT)
    found = client.entities(TEXT).json()["results"][0]["entities"]
    assert sorted(visit.labels()) == sorted(f"{e['label']} {e['score']:.2f}" for e in found)
    text = visit.page.evaluate("document.getElementById('drawn').textContent")
    for label in visit.labels():
        text = text.replace(label, "", 1)
    assert text == TEXT.replace("\n", " ")
    assert visit.page.inner_text("#model") == "tiny"


def test_nested_entities_in_lanes(visit, nested, predictor):
    visit.find(nested)
    entities = predictor.scripts[nested]
    lanes = assign([(e.start, e.end) for e in entities])
    assert max(lanes) == 2
    expected = [
        (f"{e.label} {e.score:.2f}", lane, e.text) for e, lane in zip(entities, lanes, strict=True)
    ]
    assert sorted(visit.bars()) == sorted(expected)


def test_discontinuous_entities(visit, predictor):
    """After a character of two UTF-16 units, a bar under each fragment and a line between."""
    text = "𝔘 Muscle pain and stiffness."
    entities = [
        Entity(2, 27, "PER", 0.8, "Muscle … stiffness", gaps=((8, 18),)),
        Entity(2, 13, "GPE", 0.9, "Muscle pain"),
    ]
    predictor.scripts[text] = entities
    visit.find(text)
    assert sorted(visit.labels()) == ["GPE 0.90", "PER 0.80"]
    drawn = visit.page.evaluate(
        """() => [...document.querySelectorAll("#drawn > span")].map((piece) => [
          piece.firstChild.textContent,
          (piece.children[2]?.className ?? "").replace(/^c\\d ?/, "")])"""
    )
    assert drawn == [
        ["𝔘 ", ""], ["Muscle", "s e"], [" ", "g"], ["pain", "g"], [" ", "g"], ["and ", "g"],
        ["stiffness", "s e"], [".", ""],
    ]  # fmt: skip
    visit.page.get_by_text("As a list").click()
    rows = visit.page.locator("#rows tr").all_inner_texts()
    assert rows[0] == "PER\tMuscle … stiffness\t0.80"
    visit.page.get_by_role("button", name="Copy JSON").click()
    visit.page.wait_for_selector("#status:has-text('copied')")
    copied = json.loads(visit.page.evaluate("navigator.clipboard.readText()"))
    assert copied["entities"] == [entity.to_dict() for entity in entities]


def test_filters(visit, nested):
    visit.find(nested)
    assert len(visit.labels()) == 6
    visit.page.get_by_label("GPE (3)").uncheck()
    assert sorted(visit.labels()) == ["FAC 0.46", "FAC 0.91", "PER 0.34"]
    visit.page.get_by_label("Minimum score").fill("0.5")
    assert visit.labels() == ["FAC 0.91"]
    assert visit.page.inner_text("#status") == "1 entity shown"
    visit.page.get_by_text("As a list").click()
    assert visit.page.locator("#rows tr").all_inner_texts() == ["FAC\tBank of England\t0.91"]


def test_copies_and_links(visit, nested, predictor, browser, client):
    visit.find(nested)
    visit.page.get_by_label("PER (1)").uncheck()
    visit.page.get_by_role("button", name="Copy JSON").click()
    visit.page.wait_for_selector("#status:has-text('copied')")
    copied = json.loads(visit.page.evaluate("navigator.clipboard.readText()"))
    assert copied["text"] == nested
    expected = [e.to_dict() for e in predictor.scripts[nested] if e.label != "PER"]
    assert copied["entities"] == expected
    visit.page.get_by_label("Minimum score").fill("0.6")
    visit.page.get_by_role("button", name="Copy link").click()
    visit.page.wait_for_selector("#status:has-text('Link copied')")
    link = visit.page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(visit.url + "#text=")
    other = Visit(browser, client, link.removeprefix(visit.url))
    other.page.wait_for_selector("#drawn em")
    assert sorted(other.labels()) == ["FAC 0.91", "GPE 0.62", "GPE 0.83"]
    assert all("Bank" not in request.url.partition("#")[0] for request in other.asked)
    other.context.close()


def test_text_is_never_html(visit, predictor):
    text = "<script>alert(1)</script><img src=x onerror=alert(2)> & &amp; \0 \u202e"
    script(predictor, text, (0, 8, "<b>bold</b>", 0.5), (25, 52, "GPE", 0.7))
    visit.find(text)
    assert visit.page.locator("#drawn script, #drawn img, em b, #types b").count() == 0
    assert "<b>bold</b> 0.50" in visit.labels()
    assert visit.page.locator("#drawn b").first.inner_text() == "<script>"


def test_five_thousand_entities(visit, predictor):
    words = [f"word{i}" for i in range(5000)]
    starts = [0]
    for word in words:
        starts.append(starts[-1] + len(word) + 1)
    found = [
        (s, s + len(w), LABELS[i % 3], 0.9)
        for i, (s, w) in enumerate(zip(starts, words, strict=False))
    ]
    visit.find(script(predictor, " ".join(words), *found))
    assert visit.page.locator("#drawn em").count() == 5000
    assert visit.page.inner_text("#status").startswith("5000 entities in")


def test_watching_the_denoising(visit):
    page = visit.page
    visit.find(TEXT)
    page.get_by_label("Steps").fill("3")
    page.get_by_role("button", name="Denoise").click()
    page.wait_for_selector("#stage:not([hidden])")
    # It plays by itself; a pause, and the keyboard takes over.
    page.get_by_role("button", name="Pause").click()
    assert page.get_by_role("button", name="Play").is_visible()
    slider = page.get_by_role("slider", name="Step", exact=True)
    slider.press("Home")
    asked = [request for request in visit.asked if request.url.endswith("/v1/steps")]
    answer = asked[0].response().json()
    assert "step 1 of 3" in slider.get_attribute("aria-valuetext")
    assert page.locator("#bars i").count() == len(answer["steps"][0]["spans"])
    assert bars(page) == spans_at(answer, 0)
    slider.press("ArrowRight")
    assert bars(page) == spans_at(answer, 1)
    slider.press("End")
    assert bars(page) == spans_at(answer, 3)
    assert "end:" in page.inner_text("#step-shown")
    assert answer["entities"][0]["text"] in page.inner_text("#told")
    # Played from the end, it begins again and stops at the end.
    page.get_by_role("button", name="Play").click()
    page.wait_for_selector("#step-shown:has-text('step 2 of 3')")
    page.wait_for_selector("#step-shown:has-text('end:')")
    assert page.get_by_role("button", name="Play").is_visible()
    page.get_by_role("combobox", name="Sentence").select_option("1")
    page.wait_for_selector("#words:has-text('machine')")
    assert page.inner_text("#words").split()[:2] == ["He", "had"]


def bars(page: Any) -> list[list[int]]:
    """Return the first and last word above each bar."""
    return sorted(page.evaluate(MOVED))


def spans_at(answer: dict[str, Any], step: int) -> list[list[int]]:
    """Return the spans of a step in the response of the service."""
    starts = {word[0]: i for i, word in enumerate(answer["words"])}
    ends = {word[1]: i for i, word in enumerate(answer["words"])}
    steps = answer["steps"]
    if step == len(steps):
        return sorted([starts[s["to_start"]], ends[s["to_end"]]] for s in steps[-1]["spans"])
    return sorted([starts[s["start"]], ends[s["end"]]] for s in steps[step]["spans"])


def test_by_keyboard_alone(visit):
    page = visit.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("Ada met Charles.")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#drawn em")
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.type"))
        if reached[-1] == "watch":
            page.keyboard.press("Enter")
            page.wait_for_selector("#stage:not([hidden])")
    wanted = {
        "find",
        "overlap",
        "checkbox",
        "min-score",
        "copy-json",
        "watch",
        "play",
        "step",
        "stage",
    }
    assert wanted <= set(reached)


def test_every_control_has_an_accessible_name(visit):
    visit.find(TEXT)
    visit.page.get_by_role("button", name="Denoise").click()
    visit.page.wait_for_selector("#stage:not([hidden])")
    nameless = visit.page.evaluate(NAMELESS)
    assert nameless == []
    assert visit.page.get_by_role("textbox", name="Text").count() == 1
    assert visit.page.get_by_role("status").count() >= 1
    # Lanes are for the eye; the list says the same.
    hidden = visit.page.locator("#drawn i[class]:not([aria-hidden])").count()
    assert hidden == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser, client, scheme):
    visit = Visit(browser, client, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    visit.find(f"{TEXT} {'x' * 300}")
    visit.page.get_by_role("button", name="Denoise").click()
    visit.page.wait_for_selector("#stage:not([hidden])")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    colour = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 27)"}[scheme]
    visit.context.close()


def test_content_security_policy(client):
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy
    page = client.get("/").text
    assert "style=" not in page and "onclick" not in page and "<style" not in page


def test_errors_are_shown_and_a_key_is_requested(browser, predictor):
    keys = ApiKeys(["secret"])
    with running(predictor, Limits(characters=50), keys) as client:
        visit = Visit(browser, client)
        visit.page.wait_for_selector("#problem:has-text('needs a key')")
        visit.page.get_by_label("API key").fill("secret")
        visit.find("Ada met Charles.")
        assert visit.labels()
        visit.page.fill("#text", "x" * 60)
        visit.page.get_by_role("button", name="Find entities").click()
        visit.page.wait_for_selector("#problem:has-text('at most 50')")
        visit.context.close()


# --- Types ---------------------------------------------------------------------------------------


@pytest.fixture
def dinner(browser, open_client) -> Iterator[Visit]:
    """A page of a model with open labels that shows the entities of DINNER."""
    visit = Visit(browser, open_client)
    visit.find(DINNER)
    yield visit
    assert {request.url.startswith(visit.url) for request in visit.asked} == {True}
    visit.context.close()


@pytest.mark.parametrize(
    ("written", "types"),
    [
        ("dish", [["dish", ""]]),
        (" dish ,, hot  spice,", [["dish", ""], ["hot spice", ""]]),
        ("symptom: a sign, such as: fever", [["symptom", "a sign, such as: fever"]]),
        ("dish, symptom: a sign", [["dish", ""], ["symptom", "a sign"]]),
        ("symptom:", [["symptom", ""]]),
        ("biolink:Gene", [["biolink:Gene", ""]]),
        (" , ", []),
        (": a sign", []),
    ],
)
def test_types_as_they_are_written(visit, written, types):
    module = "async (written) => (await import('/page/types.js')).read(written)"
    assert visit.page.evaluate(module, written) == types


def test_types_in_the_words_of_the_user(dinner):
    assert dinner.chips() == ["person", "place"]
    assert dinner.labels() == ["person 0.90"]
    dinner.page.get_by_label(ADD).press_sequentially("dish,")
    dinner.wait_for_types("person", "dish")
    dinner.add("symptom: a sign of illness, such as a fever")
    dinner.wait_for_types("person", "dish", "symptom")
    assert dinner.chips() == ["person", "place", "dish", "symptom"]
    symptom = dinner.page.locator("#chips li", has_text="symptom")
    assert symptom.get_attribute("title") == "a sign of illness, such as a fever"
    assert symptom.locator(".count").inner_text().strip() == "(1)"
    dinner.remove("person")
    dinner.wait_for_types("dish", "symptom")
    dinner.page.get_by_role("button", name="Reset").click()
    dinner.wait_for_types("person")
    assert dinner.chips() == ["person", "place"]
    described = {"dish": "", "symptom": "a sign of illness, such as a fever"}
    assert dinner.sent_labels() == [
        None,
        {"person": "", "place": "", "dish": ""},
        {"person": "", "place": "", **described},
        {"place": "", **described},
        None,
    ]
    assert dinner.said == []


def test_a_type_that_is_there_can_be_described(dinner):
    dinner.add("person")
    assert "already in the list" in dinner.page.inner_text("#types-problem")
    dinner.add("person: a human being")
    dinner.page.wait_for_selector("#types-problem", state="hidden")
    assert dinner.chips() == ["person", "place"]
    assert dinner.page.locator("#chips li").first.get_attribute("title") == "a human being"


def test_quick_changes_are_one_request(dinner):
    dinner.page.evaluate(REMOVE, ["person", "place"])
    dinner.add("dish")
    dinner.wait_for_types("dish")
    dinner.page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.setData("text/plain", "spice: for taste\\r\\n\\nsymptom, place\\n");
          const paste = new ClipboardEvent("paste", { clipboardData: data });
          for (let i = 0; i < 3; i += 1) document.querySelector("#new-type").dispatchEvent(paste);
        }"""
    )
    dinner.wait_for_types("dish", "spice", "symptom")
    sent = dinner.sent_labels()
    assert sent[-1] == {"dish": "", "spice": "for taste", "symptom": "", "place": ""}
    assert [labels for labels in sent if labels and "spice" in labels] == sent[-1:]


def test_words_in_the_input_are_added_on_find(dinner):
    dinner.page.get_by_label(ADD).fill("dish")
    dinner.page.get_by_role("button", name="Find entities").click()
    dinner.wait_for_types("person", "dish")
    assert len(dinner.sent_labels()) == 2


def test_colours_stay(dinner):
    dinner.add("dish, spice, symptom")
    before = dinner.colours()
    assert len(set(before.values())) == 5
    dinner.remove("dish")
    dinner.remove("person")
    dinner.add("illness")
    after = dinner.colours()
    assert (
        after.items() >= {label: before[label] for label in ("place", "spice", "symptom")}.items()
    )
    assert len(set(after.values())) == 4
    dinner.add("dish")
    assert dinner.colours()["dish"] == before["dish"]
    dinner.wait_for_types("dish", "spice", "symptom")
    bar = dinner.page.locator("#drawn i.s", has_text="spice")
    assert before["spice"] in bar.get_attribute("class").split()


def test_errors_of_types_are_shown_at_their_box(dinner):
    dinner.add("dish")
    dinner.wait_for_types("person", "dish")
    problem = dinner.page.locator("#types-problem")
    for add, remove, message in [
        ("Dish", "Dish", "'dish' and 'Dish' are the same label"),
        (f"long: {'word ' * 80}", "long", "the label 'long' is too long"),
    ]:
        dinner.add(add)
        problem.filter(has_text=message).wait_for()
        assert dinner.page.get_by_label(ADD).get_attribute("aria-invalid") == "true"
        assert dinner.page.locator("#problem").is_hidden()
        # The last result stays, and so do its steps and its link.
        assert dinner.labels() == ["person 0.90", "dish 0.70"]
        dinner.remove(remove)
        dinner.page.wait_for_selector("#status:has-text('2 entities in')")
        assert problem.is_hidden()
        assert dinner.page.get_by_label(ADD).get_attribute("aria-invalid") == "false"
    dinner.page.evaluate(REMOVE, ["person", "place", "dish"])
    problem.filter(has_text="there are no labels").wait_for()
    assert dinner.labels() == ["person 0.90", "dish 0.70"]
    dinner.page.get_by_role("button", name="Denoise").click()
    dinner.page.wait_for_selector("#stage:not([hidden])")
    assert dinner.sent_labels("v1/steps") == [{"person": "", "place": "", "dish": ""}]
    dinner.page.get_by_role("button", name="Reset").click()
    dinner.wait_for_types("person")
    assert problem.is_hidden()


def test_types_by_keyboard(dinner):
    page = dinner.page
    page.get_by_label(ADD).focus()
    page.keyboard.type("dish,symptom: a sign, of illness")
    page.keyboard.press("Enter")
    dinner.wait_for_types("person", "dish", "symptom")
    page.keyboard.press("Tab")
    for expected in ("Remove place", "Remove dish", "Remove symptom", ADD):
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.ariaLabel") == expected
    # Without words, Enter runs.
    page.keyboard.type("spice,")
    dinner.wait_for_types("spice")
    before = len(dinner.sent_labels())
    with page.expect_response("**/v1/entities"):
        page.keyboard.press("Enter")
    assert dinner.sent_labels()[before:] == [{"spice": ""}]
    assert page.evaluate(NAMELESS) == []


def test_a_link_keeps_the_types(dinner, browser, open_client):
    dinner.add("dish, symptom: a sign, of illness")
    dinner.remove("person")
    dinner.wait_for_types("dish", "symptom")
    dinner.page.get_by_role("button", name="Copy link").click()
    dinner.page.wait_for_selector("#status:has-text('Link copied')")
    link = dinner.page.evaluate("navigator.clipboard.readText()")
    other = Visit(browser, open_client, link.removeprefix(dinner.url))
    other.wait_for_types("dish", "symptom")
    assert other.sent_labels() == [{"place": "", "dish": "", "symptom": "a sign, of illness"}]
    # Names may hold commas and colons; a link without types has those of the model.
    other.page.evaluate(f"location.hash = 'text={DINNER}&type=a,%20b:%20c&type=dish'")
    other.wait_for_types("dish")
    assert other.sent_labels()[1:] == [{"a, b: c": "", "dish": ""}]
    other.page.evaluate(f"location.hash = 'text={DINNER}'")
    other.wait_for_types("person")
    assert other.chips() == ["person", "place"]
    other.context.close()


def test_types_are_never_html(dinner):
    name, about = "<img src=x onerror=alert(1)>", "<script>alert(2)</script>"
    dinner.add(f"{name}: {about}")
    dinner.add("__proto__")
    dinner.page.wait_for_selector("#status:has-text('1 entity in')")
    assert dinner.chips()[2:] == [name, "__proto__"]
    assert dinner.page.locator("#types img, #types script").count() == 0
    assert dinner.sent_labels()[-1] == {"person": "", "place": "", name: about, "__proto__": ""}
    assert dinner.said == []


def test_long_types_on_a_phone(browser, open_client):
    visit = Visit(browser, open_client, viewport={"width": 360, "height": 740})
    visit.find(DINNER)
    visit.add(f"{'x' * 150}: {'y' * 100}")
    visit.add(f"dish: {'something to eat ' * 10}")
    visit.add(", ".join(f"kind {i}" for i in range(40)))
    visit.wait_for_types("person", "dish")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert visit.page.evaluate("document.querySelector('#types').offsetHeight") <= 740
    # The types that were added last are in sight.
    assert visit.page.evaluate(
        """() => {
          const bottom = (node) => node.getBoundingClientRect().bottom;
          const chips = document.querySelector("#chips");
          return chips.scrollTop > 0 && bottom(chips.lastChild) <= bottom(chips);
        }"""
    )
    visit.context.close()


def test_fixed_types_are_switched_off_and_on(visit, nested, browser, client):
    page = visit.page
    assert page.get_by_label(ADD).is_hidden()
    page.get_by_label("GPE").uncheck()
    visit.find(nested)
    assert sorted(visit.labels()) == ["FAC 0.46", "FAC 0.91", "PER 0.34"]
    page.get_by_label("FAC (2)").uncheck()
    page.get_by_role("button", name="Copy link").click()
    page.wait_for_selector("#status:has-text('Link copied')")
    link = page.evaluate("navigator.clipboard.readText()")
    page.get_by_role("button", name="Reset").click()
    assert len(visit.labels()) == 6
    assert visit.sent_labels() == [None]
    other = Visit(browser, client, link.removeprefix(visit.url))
    other.page.wait_for_selector("#drawn em")
    assert other.labels() == ["PER 0.34"]
    assert not other.page.get_by_label("GPE (3)").is_checked()
    other.context.close()
