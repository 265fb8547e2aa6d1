// Draw entities as coloured bars under their text. Text becomes text nodes, never HTML.

import { assign, pieces } from "./lanes.js";

export function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function segment(entity, start, end, hue) {
  const bar = element("i", `c${hue}`);
  bar.setAttribute("aria-hidden", "true");
  const [left, right] = entity.fragments.find((fragment) => start < fragment[1]);
  if (start < left) bar.classList.add("g"); // gap
  if (start === left) bar.classList.add("s");
  if (start === entity.start) {
    const said = `${entity.label} ${entity.score.toFixed(2)}`;
    // Labels are small: one not much longer than its fragment is placed over it. Before a gap,
    // there is no room for more.
    const most = (right - left) * (right === entity.end ? 1.25 : 1);
    const fits = end < right && said.length <= most;
    bar.append(element("em", fits ? "over" : "beside", said));
  }
  if (end === right) bar.classList.add("e");
  return bar;
}

/** Draw into a node. entities: as of inUnits; hues: colour number by label. */
export function draw(node, text, entities, hues) {
  const lanes = assign(entities);
  const coming = entities.map((_, i) => i).sort((a, b) => entities[a].start - entities[b].start);
  const drawn = document.createDocumentFragment();
  let open = []; // entities that contain the piece
  let next = 0;
  for (const [start, end] of pieces(text, entities)) {
    open = open.filter((i) => entities[i].end > start);
    while (next < coming.length && entities[coming[next]].start <= start) open.push(coming[next++]);
    const piece = element("span");
    const content = text.slice(start, end);
    piece.append(element("b", "", content.replaceAll("\n", " ")));
    const here = new Map(open.map((i) => [lanes[i], entities[i]]));
    for (let lane = 0; lane <= Math.max(-1, ...here.keys()); lane += 1) {
      const entity = here.get(lane);
      piece.append(entity ? segment(entity, start, end, hues.get(entity.label)) : element("i"));
    }
    drawn.append(piece);
    const lines = Math.min(content.split("\n").length - 1, 2);
    for (let line = 0; line < lines; line += 1) drawn.append(element("br"));
  }
  node.replaceChildren(drawn);
}
