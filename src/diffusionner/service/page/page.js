// The page: sends requests to the service and shows the results.

import { Stage } from "./denoising.js";
import { draw, element } from "./drawing.js";
import { inUnits } from "./lanes.js";
import { TypeBox } from "./types.js";

const $ = (id) => document.getElementById(id);
const MAX_LINK = 30000; // characters that all browsers accept
const PAUSE = 400; // milliseconds after a change of the types
const UNLIKELY = 0.05; // minimum score when unlikely entities are included
const hues = new Map();
let result = null; // { text, labels, entities (code point offsets), units (string offsets) }
let running = null;
let denoises = true; // false for methods without diffusion
let modelLoaded = null; // resolves when the labels and their colours are known
let waiting = null; // timer of a search for other types

const stage = new Stage(
  {
    stage: $("stage"), controls: $("stage-controls"), words: $("words"), bars: $("bars"),
    play: $("play"), slider: $("step"), shown: $("step-shown"), told: $("told"),
  },
  hues,
);
const types = new TypeBox(
  {
    box: $("types"), adding: $("adding"), input: $("new-type"), chips: $("chips"),
    reset: $("reset"), problem: $("types-problem"),
  },
  hues,
  show,
  (message) => {
    $("status").textContent = message;
    clearTimeout(waiting);
    waiting = setTimeout(() => $("text").value.trim() && find(), PAUSE);
  },
);

class ServiceError extends Error {}

async function send(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  const request = body ? { method: "POST", body: JSON.stringify(body), headers, signal } : { headers };
  const response = await fetch(path, request);
  if (response.status === 401) $("locked").hidden = false;
  if (!response.ok) {
    const { error } = await response.json().catch(() => ({ error: { message: response.statusText } }));
    throw new ServiceError(error.message);
  }
  return response.json();
}

function report(message) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
}

/** Run one action at a time; a new one aborts the previous one. */
async function run(status, work) {
  running?.abort();
  const mine = (running = new AbortController());
  report("");
  $("status").textContent = status;
  try {
    await work(mine.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    $("status").textContent = "";
    if (!(error instanceof ServiceError)) report(`The service did not respond: ${error.message}`);
    else if (error.message.startsWith("labels")) types.fail(error.message.replace("labels: ", ""));
    else report(error.message);
  }
}

function options() {
  const chosen = {};
  if ($("overlap").value) chosen.overlap = $("overlap").value;
  if ($("unlikely").checked) chosen.threshold = UNLIKELY;
  return chosen;
}

async function find() {
  clearTimeout(waiting);
  const text = $("text").value.toWellFormed?.() ?? $("text").value;
  if (!text.trim()) {
    $("status").textContent = "Enter some text first.";
    return;
  }
  await run("Predicting …", async (signal) => {
    const started = performance.now();
    await modelLoaded;
    const labels = types.request();
    const answer = await send("v1/entities", { texts: [text], labels, ...options() }, signal);
    const [{ entities }] = answer.results;
    result = { text, labels, entities, units: inUnits(text, entities) };
    types.fail("");
    types.count(entities);
    show();
    const seconds = ((performance.now() - started) / 1000).toFixed(2);
    $("status").textContent = `${count(entities.length)} in ${seconds} s`;
    $("found").hidden = false;
    $("denoising").hidden = !denoises;
    clearSteps();
  });
}

function count(number) {
  return number === 1 ? "1 entity" : `${number} entities`;
}

/** Return the entities of the selected types with at least the minimum score. */
function selected(entities) {
  const minimum = Number($("min-score").value);
  return entities.filter((e) => types.shows(e.label) && e.score >= minimum);
}

function show() {
  $("min-score-shown").textContent = Number($("min-score").value).toFixed(2);
  if (!result) return;
  const shown = selected(result.units);
  draw($("drawn"), result.text, shown, hues);
  $("rows").replaceChildren(
    ...shown.map((entity) => {
      const row = element("tr");
      const cells = [entity.label, entity.text, entity.score.toFixed(2)];
      row.append(...cells.map((cell) => element("td", "", cell)));
      return row;
    }),
  );
  $("status").textContent = `${count(shown.length)} shown`;
}

// --- Denoising ---------------------------------------------------------------------------------

function clearSteps() {
  stage.clear();
  $("sentence").replaceChildren(new Option("first", "0"));
}

async function watch() {
  const { text, labels } = result;
  await run("Denoising …", async (signal) => {
    const sentence = Math.max(0, $("sentence").selectedIndex);
    const body = { text, labels, sentence, steps: Number($("steps").value), ...options() };
    const answer = await send("v1/steps", body, signal);
    const units = [0];
    for (const character of text) units.push(units.at(-1) + character.length);
    $("sentence").replaceChildren(
      ...answer.sentences.map(([start, end], i) => {
        const said = text.slice(units[start], units[end]);
        return new Option(`${i + 1}: ${said.length > 50 ? `${said.slice(0, 50)}…` : said}`, String(i));
      }),
    );
    $("status").textContent = answer.steps.length ? "Press Play or move the slider." : "The text has no words.";
    if (!answer.steps.length) return;
    $("sentence").selectedIndex = sentence;
    stage.load(text, toStringOffsets(answer, units), inUnits(text, answer.entities));
    stage.start();
  });
}

/** Convert code point offsets to string offsets. */
function toStringOffsets({ words, steps }, units) {
  return {
    words: words.map(([start, end]) => [units[start], units[end]]),
    steps: steps.map(({ timestep, spans }) => ({
      timestep,
      spans: spans.map((span) => ({
        ...span,
        start: units[span.start],
        end: units[span.end],
        to_start: units[span.to_start],
        to_end: units[span.to_end],
      })),
    })),
  };
}

// --- Copies and links --------------------------------------------------------------------------

async function copy(content, what) {
  try {
    await navigator.clipboard.writeText(content);
    $("status").textContent = `${what} copied.`;
  } catch {
    report("The browser allows copying only over HTTPS or on localhost.");
  }
}

function copyJson() {
  const { text, entities } = result;
  copy(JSON.stringify({ text, entities: selected(entities) }, null, 1), "JSON");
}

function copyLink() {
  const fragment = new URLSearchParams({ text: result.text });
  if ($("overlap").value) fragment.set("overlap", $("overlap").value);
  if ($("unlikely").checked) fragment.set("unlikely", "1");
  if (Number($("min-score").value)) fragment.set("least", $("min-score").value);
  for (const [name, description] of Object.entries(result.labels ?? {})) {
    fragment.append("type", name);
    fragment.append("about", description);
  }
  for (const label of types.off) fragment.append("hidden", label);
  const link = `${location.href.split("#")[0]}#${fragment}`;
  if (link.length > MAX_LINK) {
    report("The text is too long for a link.");
    return;
  }
  history.replaceState(null, "", link);
  copy(link, "Link");
}

function openLink() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (!fragment.get("text")) return;
  $("text").value = fragment.get("text");
  $("overlap").value = fragment.get("overlap") ?? "";
  $("unlikely").checked = fragment.has("unlikely");
  $("min-score").value = fragment.get("least") ?? "0";
  types.choose(...["type", "about", "hidden"].map((name) => fragment.getAll(name)));
  find();
}

// --- Start -------------------------------------------------------------------------------------

async function loadModel() {
  try {
    const { models } = await send("v1/models");
    $("model").textContent = models[0].name;
    denoises = models[0].steps !== null;
    types.load(models[0]);
  } catch (error) {
    report(error.message);
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  types.commit();
  find();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});
$("key").addEventListener("change", () => {
  modelLoaded = loadModel();
});
$("min-score").addEventListener("input", show);
$("copy-json").addEventListener("click", copyJson);
$("copy-link").addEventListener("click", copyLink);
$("watch").addEventListener("click", watch);
$("sentence").addEventListener("change", watch);
window.addEventListener("hashchange", openLink);
modelLoaded = loadModel();
openLink();
