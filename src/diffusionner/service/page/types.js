// The box of types: those to look for, or a filter if the labels of the model are fixed.

import { element } from "./drawing.js";
import { COLOURS } from "./lanes.js";

const ABOUT = /:(\s|$)/; // between a type and its description

function tidy(words) {
  return (words.toWellFormed?.() ?? words).trim().replace(/\s+/g, " ");
}

/** Read "dish, symptom: a sign of illness" as [name, description] pairs. Descriptions may have commas. */
export function read(written) {
  const colon = written.search(ABOUT);
  const names = (colon < 0 ? written : written.slice(0, colon)).split(",").map(tidy).filter(Boolean);
  const description = colon < 0 ? "" : tidy(written.slice(colon + 1));
  return names.map((name, i) => [name, i === names.length - 1 ? description : ""]);
}

export class TypeBox {
  constructor(nodes, hues, filtered, changed) {
    Object.assign(this, nodes); // box, adding, input, chips, reset, problem
    this.hues = hues;
    this.filtered = filtered; // called when other types are to be shown
    this.changed = changed; // called with a message when other types are to be looked for
    this.labels = []; // of the model
    this.open = false; // whether the model can be asked for others
    this.asked = null; // descriptions by name; null: the labels of the model
    this.off = new Set(); // fixed labels that are not shown
    this.counts = new Map(); // entities by type
    this.input.addEventListener("keydown", (event) => {
      // Enter in an empty input submits the form.
      if (event.key !== "Enter" || event.isComposing || !this.input.value.trim()) return;
      event.preventDefault();
      this.commit();
    });
    this.input.addEventListener("input", () => {
      if (this.input.value.split(ABOUT)[0].includes(",")) this.commit();
    });
    this.input.addEventListener("paste", (event) => {
      const lines = event.clipboardData.getData("text").trim().split(/[\r\n]+/);
      if (lines.length < 2) return;
      event.preventDefault();
      this.add(lines.flatMap(read));
    });
    this.reset.addEventListener("click", () => this.restore());
  }

  load(model) {
    this.labels = model.labels;
    this.open = model.open_labels;
    this.labels.forEach((label) => this.colour(label));
    this.adding.hidden = !this.open;
    this.box.hidden = false;
    this.draw();
  }

  /** Take the types of a link: those to look for, their descriptions, and fixed ones not to show. */
  choose(names, descriptions, off) {
    this.asked = names.length ? new Map(names.map((name, i) => [name, descriptions[i] ?? ""])) : null;
    this.off = new Set(off);
    this.draw();
  }

  /** Return descriptions by name. */
  types() {
    return (this.open && this.asked) || new Map(this.labels.map((label) => [label, ""]));
  }

  /** Return the labels of a request; undefined: those of the model. */
  request() {
    return this.open && this.asked ? Object.fromEntries(this.asked) : undefined;
  }

  shows(label) {
    return this.open || !this.off.has(label);
  }

  /** Add what is written in the input. */
  commit() {
    const added = read(this.input.value);
    this.input.value = "";
    this.add(added);
  }

  /** Add [name, description] pairs, or describe types that are there. */
  add(pairs) {
    const types = this.types();
    const added = pairs.filter(([name, description]) => description || !types.has(name));
    for (const [name, description] of added) types.set(name, description);
    if (added.length) {
      this.change(types, `Added ${added.map(([name]) => name).join(", ")}.`);
      this.chips.scrollTop = this.chips.scrollHeight;
    } else if (pairs.length) {
      this.fail(`“${pairs[0][0]}” is already in the list.`);
    }
  }

  remove(name) {
    const types = this.types();
    const place = [...types.keys()].indexOf(name);
    types.delete(name);
    this.change(types, `Removed ${name}.`);
    const buttons = this.chips.querySelectorAll("button");
    (buttons[Math.min(place, buttons.length - 1)] ?? this.input).focus();
  }

  restore() {
    this.off.clear();
    if (this.open) {
      this.input.value = "";
      this.change(null, "Back to the types of the model.");
    } else {
      this.draw();
      this.filtered();
    }
  }

  change(types, message) {
    this.asked = types;
    this.fail("");
    this.draw();
    this.changed(message);
  }

  /** Show why these types cannot be looked for. */
  fail(message) {
    this.problem.textContent = message;
    this.problem.hidden = !message;
    this.input.setAttribute("aria-invalid", String(Boolean(message)));
  }

  /** Show how many entities there are of each type. */
  count(entities) {
    this.counts.clear();
    for (const { label } of entities) {
      this.counts.set(label, (this.counts.get(label) ?? 0) + 1);
      this.colour(label);
    }
    for (const chip of this.chips.children) this.number(chip);
  }

  number(chip) {
    const count = this.counts.get(chip.dataset.label);
    chip.querySelector(".count").textContent = count ? ` (${count})` : "";
  }

  /** Give a new type the colour that the fewest others have. It keeps it, even if it is removed. */
  colour(label) {
    if (this.hues.has(label)) return;
    const used = new Array(COLOURS).fill(0);
    for (const other of this.types().keys()) {
      if (this.hues.has(other)) used[this.hues.get(other)] += 1;
    }
    this.hues.set(label, used.indexOf(Math.min(...used)));
  }

  draw() {
    const chips = [...this.types()].map(([name, description]) => {
      this.colour(name);
      const chip = element("li", `c${this.hues.get(name)}`);
      chip.dataset.label = name;
      if (this.open) this.fillOpen(chip, name, description);
      else this.fillFixed(chip, name);
      this.number(chip);
      return chip;
    });
    this.chips.replaceChildren(...chips);
  }

  fillOpen(chip, name, description) {
    const remove = element("button", "", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${name}`);
    remove.addEventListener("click", () => this.remove(name));
    chip.title = description;
    chip.append(element("bdi", "name", name), element("span", "count"));
    if (description) chip.append(element("bdi", "about", description));
    chip.append(remove);
  }

  fillFixed(chip, name) {
    const box = element("input");
    box.type = "checkbox";
    box.checked = this.shows(name);
    box.addEventListener("change", () => {
      if (box.checked) this.off.delete(name);
      else this.off.add(name);
      this.filtered();
    });
    const choice = element("label");
    choice.append(box, element("bdi", "name", name), element("span", "count"));
    chip.append(choice);
  }
}
