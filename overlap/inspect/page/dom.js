// Makes elements. Texts come from models and programs: they enter as text, never as HTML.

const $ = id => document.getElementById(id);

function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  return add(made, children);
}

function add(made, children) {
  for (const child of [children].flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) made.append(child.nodeType ? child : visible(String(child)));
  }
  return made;
}

function svg(tag, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  return add(made, children);
}

// Control characters and marks that turn the direction of a text are shown by their numbers.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    c => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

const known = value => value !== null && value !== undefined && value !== "";
const number = (value, digits = 3) => known(value) ? String(Number(value.toFixed(digits))) : "–";
const brief = value => Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3) ? value.toExponential(1) : String(+value.toPrecision(3));
const count = value => (value ?? 0).toLocaleString("en");
const percent = value => `${(100 * value).toFixed(0)}%`;
const signed = value => known(value) ? (value > 0 ? "+" : "") + value.toFixed(3) : "–";
const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
const words = name => (name ?? "").replaceAll("_", " ");
const capital = text => text.slice(0, 1).toUpperCase() + text.slice(1);
const sum = values => values.reduce((total, value) => total + value, 0);
const colour = at => `var(--c${at % 8})`;

const idOf = s => `g${s.group}s${s.sample}`;
const chip = verdict => el("span", { class: `chip ${verdict ?? "none"}` }, verdict ?? "–");
const ORDER = ["AC", "WA", "TLE", "MLE", "OLE", "RE", "CE", "SEC", "none"];
const inOrder = verdicts => Object.entries(verdicts).sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
const fact = (name, value) => known(value) ? el("span", {}, name, " ", el("b", {}, value)) : null;
const pre = (content, kind = "text") => el("pre", { class: kind }, content);
const soft = (...content) => el("p", { class: "soft" }, ...content);

// A table that scrolls by itself where it is too wide. Columns of ``right`` hold numbers; a cell is a text or an element.
function table(heading, rows, right = []) {
  const cell = (tag, at, content) => content instanceof HTMLTableCellElement ? content : el(tag, { class: right.includes(heading[at]) ? "n" : null }, content);
  return el("div", { class: "scroll" }, el("table", {}, heading.some(Boolean) ? el("tr", {}, heading.map((name, at) => cell("th", at, name))) : null,
    rows.map(row => row instanceof HTMLTableRowElement ? row : el("tr", {}, row.map((content, at) => cell("td", at, content))))));
}

// A part that is made when it is opened.
function folded(summary, make, open = false) {
  const made = el("details", { class: "part" }, el("summary", {}, summary));
  made.addEventListener("toggle", () => { if (made.open && made.children.length === 1) add(made, [make()]); });
  made.open = open;
  return made;
}
