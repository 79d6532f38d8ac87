// A list of any length: the server filters and sorts, and only rows in sight are asked for and made.

import { ask, el } from "./dom.js";

const BLOCK = 100, AROUND = 6, KEPT_BLOCKS = 40;

export class List {
  constructor(box, { onOpen, onCount, onFailed }) {
    this.box = box;
    this.space = el("div");
    this.onOpen = onOpen; this.onCount = onCount; this.onFailed = onFailed;
    this.total = 0; this.at = -1; this.blocks = new Map(); this.rows = new Map(); this.asking = 0;
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw(true)).observe(box);
  }

  // ``kind``: path, given, row(data) -> element, key(data) -> text, heads.
  async show(kind, { keep = false } = {}) {
    this.kind = kind;
    this.asking++;
    const kept = keep ? this.box.scrollTop : 0;
    const found = await this.fetch(keep ? Math.floor(this.firstInSight() / BLOCK) : 0, this.asking);
    if (!found) return;
    this.blocks = new Map([[found.block, found.rows]]);
    this.total = found.total;
    if (!keep) this.at = -1;
    for (const made of this.rows.values()) made.remove();
    this.rows.clear();
    this.box.replaceChildren(...(kind.heads ? [kind.heads()] : []), this.space);
    this.size();
    this.box.scrollTop = kept;
    this.onCount(this.total);
    this.draw();
  }

  async fetch(block, asking) {
    try {
      const found = await ask(this.kind.path, { ...this.kind.given, offset: block * BLOCK, limit: BLOCK });
      return asking === this.asking ? { block, ...found } : null;
    } catch (error) {
      if (asking === this.asking) this.onFailed(error);
      return null;
    }
  }

  get height() { return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 34; }
  get headHeight() { return this.box.querySelector(".heads")?.offsetHeight ?? 0; }
  firstInSight() { return Math.max(0, Math.floor(this.box.scrollTop / this.height)); }

  size() {
    this.space.style.position = "relative";
    this.space.style.height = `${this.total * this.height}px`;
  }

  draw(resized = false) {
    if (!this.kind || !this.space.isConnected) return;
    if (resized) { this.size(); for (const made of this.rows.values()) made.remove(); this.rows.clear(); }
    const height = this.height, first = Math.max(0, this.firstInSight() - AROUND);
    const last = Math.min(this.total, Math.ceil((this.box.scrollTop + this.box.clientHeight) / height) + AROUND);
    for (const [index, made] of this.rows) if (index < first || index >= last) { made.remove(); this.rows.delete(index); }
    for (let index = first; index < last; index++) {
      const block = Math.floor(index / BLOCK), data = this.blocks.get(block)?.[index % BLOCK];
      if (!this.blocks.has(block)) this.load(block);
      const made = this.rows.get(index);
      if (made && (made.data || !data)) { made.classList.toggle("at", index === this.at); continue; }
      made?.remove();
      this.rows.set(index, this.make(index, data, height));
    }
  }

  make(index, data, height) {
    const made = data ? this.kind.row(data) : el("div", { class: "row waiting" }, "…");
    made.data = data;
    made.style.top = `${index * height}px`;
    made.setAttribute("role", "option");
    made.classList.toggle("at", index === this.at);
    made.addEventListener("click", event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.select(index);
      if (data) this.onOpen(data);
    });
    this.space.append(made);
    return made;
  }

  async load(block) {
    this.blocks.set(block, null);
    const found = await this.fetch(block, this.asking);
    if (!found) { this.blocks.delete(block); return; }
    if (this.blocks.size > KEPT_BLOCKS) this.blocks = new Map([...this.blocks].filter(([other]) => Math.abs(other - block) < KEPT_BLOCKS / 2));
    this.blocks.set(block, found.rows);
    this.draw();
  }

  select(index) {
    this.at = Math.max(0, Math.min(this.total - 1, index));
    const top = this.at * this.height, head = this.headHeight, sight = this.box.clientHeight - head;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + this.height > this.box.scrollTop + sight) this.box.scrollTop = top + this.height - sight;
    this.draw();
  }

  // Marks the row that is open, where it is among those that are here.
  mark(key) {
    for (const [block, rows] of this.blocks) {
      const found = (rows ?? []).findIndex(data => this.kind.key(data) === key);
      if (found >= 0) { this.at = block * BLOCK + found; this.draw(); return; }
    }
  }

  get selected() { return this.blocks.get(Math.floor(this.at / BLOCK))?.[this.at % BLOCK]; }

  async move(by) {
    this.select(this.at + by);
    if (this.total && !this.selected) await this.load(Math.floor(this.at / BLOCK));
    return this.selected;
  }
}
