// Animation of the denoising steps: spans as bars that move under the words of a sentence.

import { element } from "./drawing.js";

const ROW = 7; // pixels
const PAUSE = 900; // milliseconds between steps

export class Stage {
  constructor(nodes, hues) {
    Object.assign(this, nodes); // stage, controls, words, bars, play, slider, shown, told
    this.hues = hues;
    this.timer = null;
    this.slider.addEventListener("input", () => {
      this.stop();
      this.show(Number(this.slider.value));
    });
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.start()));
    new ResizeObserver(() => this.sentence && this.show(this.step)).observe(this.words);
  }

  clear() {
    this.stop();
    this.sentence = null;
    this.stage.hidden = this.controls.hidden = true;
    this.told.textContent = "";
  }

  /** sentence: with string offsets; entities: as of inUnits. */
  load(text, sentence, entities) {
    this.stop();
    this.sentence = sentence;
    this.entities = entities;
    const last = sentence.steps.at(-1).spans;
    const whole = entities.filter((e) => e.fragments.length === 1); // others come from no span
    this.found = new Set(whole.map((e) => `${e.start} ${e.end} ${e.label}`));
    // Rows in the order of the final spans.
    this.order = last.map((_, i) => i).sort(
      (a, b) => last[a].to_start - last[b].to_start || last[b].to_end - last[a].to_end || a - b,
    );
    this.words.replaceChildren(
      ...sentence.words.map(([start, end]) => element("span", "", text.slice(start, end))),
    );
    this.word = new Map(); // word index by first and by last character
    sentence.words.forEach(([start, end], i) => this.word.set(`s${start}`, i).set(`e${end}`, i));
    this.bars.replaceChildren(...last.map(() => element("i")));
    this.bars.style.height = `${last.length * ROW}px`;
    this.slider.max = String(sentence.steps.length);
    this.stage.hidden = this.controls.hidden = false;
    this.show(0);
  }

  start() {
    if (this.step >= this.sentence.steps.length) this.show(0);
    this.play.textContent = "Pause";
    this.play.setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => {
      this.show(this.step + 1);
      if (this.step >= this.sentence.steps.length) this.stop();
    }, PAUSE);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
    this.play.setAttribute("aria-pressed", "false");
  }

  /** Show a step: 0 is the noise, the last one is the result. */
  show(step) {
    const { steps } = this.sentence;
    const done = step === steps.length;
    const { spans, timestep } = steps[done ? step - 1 : step];
    this.step = step;
    this.slider.value = String(step);
    const boxes = [...this.words.children].map((word) => word.getBoundingClientRect());
    const origin = this.bars.getBoundingClientRect().left;
    let entities = 0;
    this.order.forEach((index, row) => {
      const span = spans[index];
      const [from, to] = done ? [span.to_start, span.to_end] : [span.start, span.end];
      const left = boxes[this.word.get(`s${from}`)].left;
      const right = boxes[this.word.get(`e${to}`)].right;
      const bar = this.bars.children[row];
      const kept = !done || this.found.has(`${from} ${to} ${span.label}`);
      if (span.label !== null && kept) entities += 1;
      bar.className = span.label === null ? "none" : `c${this.hues.get(span.label)}`;
      if (!kept) bar.classList.add("dropped");
      bar.style.top = `${row * ROW}px`;
      bar.style.left = `${left - origin}px`;
      bar.style.width = `${right - left}px`;
    });
    const said = done
      ? `end: ${entities} of ${spans.length} spans form ${this.found.size} entities`
      : `step ${step + 1} of ${steps.length}, t = ${timestep}: ${entities} of ${spans.length} look like entities`;
    this.shown.textContent = said;
    this.slider.setAttribute("aria-valuetext", said);
    this.told.textContent = done
      ? this.entities.map((e) => `${e.label}: ${e.text} (${e.score.toFixed(2)})`).join(", ")
      : "";
  }
}
