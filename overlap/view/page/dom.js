// Makes elements. Texts come from models and programs: they enter as text, never as HTML.

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) made.append(child.nodeType ? child : visible(String(child)));
  }
  return made;
}

export function svg(tag, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Control characters and marks that turn the direction of a text are shown by their numbers.
export function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    c => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

export const number = (value, digits = 3) => value === null || value === undefined ? "–" : String(Number(value.toFixed(digits)));
export const count = value => (value ?? 0).toLocaleString("en");
export const signed = value => value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + value.toFixed(3);
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
export const words = name => (name ?? "").replaceAll("_", " ");
export const idOf = s => `g${s.group}s${s.sample}`;
export const chip = verdict => el("span", { class: `chip ${verdict ?? "none"}` }, verdict ?? "–");
const ORDER = ["AC", "WA", "TLE", "MLE", "OLE", "RE", "CE", "SEC", "none"];
export const inOrder = verdicts => Object.entries(verdicts).sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
export const fact = (name, value) => value === null || value === undefined || value === "" ? null : el("span", {}, name, " ", el("b", {}, value));
export const text = (content, kind = "text") => el("pre", { class: kind }, content);

export async function ask(path, given = {}) {
  const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== "" && value !== undefined && value !== null));
  const answer = await fetch(`/api/${path}${query.size ? "?" + query : ""}`);
  const found = await answer.json().catch(() => ({ error: `answered ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error ?? `answered ${answer.status}`);
  return found;
}
