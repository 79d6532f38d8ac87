// A list of any length: only the rows in sight are made.

const AROUND = 6;

class List {
  constructor(box, { onOpen }) {
    this.box = box; this.onOpen = onOpen; this.space = el("div", { class: "space" });
    this.items = []; this.at = -1; this.rows = new Map();
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw(true)).observe(box);
  }

  // ``kind``: row(data) -> element, key(data) -> text, heads.
  show(kind, items, { keep = false } = {}) {
    const top = keep ? this.box.scrollTop : 0;
    this.kind = kind; this.items = items;
    if (!keep) this.at = -1;
    this.box.replaceChildren(kind.heads(), this.space);
    this.draw(true);
    this.box.scrollTop = top;
    this.draw();
  }

  get height() { return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 34; }

  draw(anew = false) {
    if (!this.kind) return;
    const height = this.height, first = Math.max(0, Math.floor(this.box.scrollTop / height) - AROUND);
    const last = Math.min(this.items.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / height) + AROUND);
    if (anew) this.space.style.height = `${this.items.length * height}px`;
    for (const [index, made] of this.rows) if (anew || index < first || index >= last) { made.remove(); this.rows.delete(index); }
    for (let index = first; index < last; index++) {
      if (!this.rows.has(index)) this.rows.set(index, this.make(index, height));
      this.rows.get(index).classList.toggle("at", index === this.at);
    }
  }

  make(index, height) {
    const data = this.items[index], made = this.kind.row(data);
    made.style.top = `${index * height}px`;
    made.setAttribute("role", "option");
    made.addEventListener("click", event => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.select(index);
      this.onOpen(data);
    });
    this.space.append(made);
    return made;
  }

  select(index) {
    this.at = Math.max(0, Math.min(this.items.length - 1, index));
    const top = this.at * this.height, sight = this.box.clientHeight - (this.box.querySelector(".heads")?.offsetHeight ?? 0);
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + this.height > this.box.scrollTop + sight) this.box.scrollTop = top + this.height - sight;
    this.draw();
    return this.items[this.at];
  }

  // Marks the row that is open.
  mark(place) {
    this.at = this.items.findIndex(data => this.kind.key(data) === place);
    this.draw();
  }
}
