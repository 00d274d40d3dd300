const MARK = "jp-wasmTimeline-mark";

/** Marks the cells whose effects memory does not have; the notebook's text is not changed. */
export function mark(link, trans) {
  const gone = new Set(link.tree?.gone ?? []);
  for (const cell of link.panel.content.widgets) {
    const found = cell.node.querySelector(`:scope > .${MARK}`);
    const isGone = gone.has(cell.model.id);
    if (isGone && !found) {
      const note = document.createElement("div");
      note.className = MARK;
      note.setAttribute("role", "note");
      note.textContent = trans.__(
        "Undone: the variables are as if this cell had not run.",
      );
      cell.node.append(note);
    } else if (!isGone) {
      found?.remove();
    }
  }
}
