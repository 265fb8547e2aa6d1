// Layout: entities into lanes, text into pieces. Same algorithm as drawing/lanes.py.

export const COLOURS = 8;

/** Convert code point offsets to offsets of a JavaScript string (UTF-16); all have fragments. */
export function inUnits(text, entities) {
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return entities.map((e) => {
    const fragments = (e.fragments ?? [[e.start, e.end]]).map((ends) => ends.map((at) => units[at]));
    return { ...e, start: units[e.start], end: units[e.end], fragments };
  });
}

/** Return the first index in a sorted list of [start, end] not before the given one. */
function place(taken, start, end) {
  let low = 0;
  let high = taken.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const [s, e] = taken[middle];
    if (s < start || (s === start && e < end)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Return the lane of each span: shorter spans first, each in the first lane with room. */
export function assign(spans) {
  const lanes = [];
  const chosen = new Array(spans.length).fill(0);
  const order = spans.map((_, i) => i).sort((a, b) => {
    const [one, other] = [spans[a], spans[b]];
    return one.end - one.start - (other.end - other.start) || one.start - other.start || a - b;
  });
  for (const index of order) {
    const { start, end } = spans[index];
    let lane = lanes.findIndex((taken) => {
      const after = place(taken, start, end);
      const before = after === taken.length || taken[after][0] >= end;
      return before && (after === 0 || taken[after - 1][1] <= start);
    });
    if (lane < 0) lane = lanes.push([]) - 1;
    lanes[lane].splice(place(lanes[lane], start, end), 0, [start, end]);
    chosen[index] = lane;
  }
  return chosen;
}

/** Return [start, end] of words with their trailing spaces, split at fragment boundaries. */
export function pieces(text, entities) {
  const cuts = [...new Set(entities.flatMap((e) => e.fragments.flat()))].sort((a, b) => a - b);
  const found = [];
  let next = 0;
  for (const match of text.matchAll(/\S+\s*|\s+/gu)) {
    let start = match.index;
    const end = start + match[0].length;
    while (next < cuts.length && cuts[next] <= start) next += 1;
    while (next < cuts.length && cuts[next] < end) {
      found.push([start, cuts[next]]);
      start = cuts[next];
      next += 1;
    }
    found.push([start, end]);
  }
  return found;
}
