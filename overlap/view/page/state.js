// What is shown stands in the address, behind "#": a link opens the same view elsewhere, and Back goes back.

const NAMES = ["tab", "q", "split", "step", "problem", "verdict", "only", "sort", "open", "by"];

export function state() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = Object.fromEntries(NAMES.map(name => [name, given.get(name) ?? ""]));
  found.tab ||= "samples";
  return found;
}

export function link(changes) {
  const next = { ...state(), ...changes };
  const query = new URLSearchParams(Object.entries(next).filter(([name, value]) => value && !(name === "tab" && value === "samples")));
  return "#" + query;
}

// ``replace``: without a step that Back would return to, for what changes with each key.
export function go(changes, replace = false) {
  const to = link(changes);
  if (to === (location.hash || "#")) return;
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = to;
}

export const placeOf = s => `s.${s.step}.${s.group}.${s.sample}`;
export const groupOf = g => `g.${g.step}.${g.group}`;
export const problemOf = name => `p.${name}`;
