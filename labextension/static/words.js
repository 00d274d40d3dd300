import { bytes, seconds } from "./tree.js";

/** The view's words for a state or a cell, translated. */
export class Words {
  constructor(trans) {
    this.trans = trans;
    this._outcomes = {
      error: trans.__("error"),
      interrupted: trans.__("interrupted"),
      fuel: trans.__("out of fuel"),
      time: trans.__("out of time"),
      memory: trans.__("out of memory"),
      lost: trans.__("sandbox lost"),
    };
  }

  place(row) {
    if (row.cell) return `[${row.cell}]`;
    return row.label ? this.trans.__("earlier") : this.trans.__("start");
  }

  label(row) {
    return row.label || (row.cell ? this.trans.__("(empty cell)") : "");
  }

  outcome(row) {
    return this._outcomes[row.outcome] ?? "";
  }

  facts(row) {
    const facts = [row.isHere ? this.trans.__("here") : "", this.outcome(row)];
    if (row.isUndone) facts.push(this.trans.__("undone"));
    if (row.sent) facts.push(this.trans.__("sent requests, can’t be unsent"));
    if (row.isLost) facts.push(this.trans.__("left no state"));
    if (typeof row.seconds === "number") facts.push(seconds(row.seconds));
    if (typeof row.bytes === "number") facts.push(bytes(row.bytes));
    return facts.filter(Boolean);
  }

  /** The whole row for a screen reader. */
  spoken(row) {
    const parts = [`${this.place(row)} ${this.label(row)}`, ...this.facts(row)];
    for (const name of row.names ?? []) parts.push(this.trans.__("checkpoint %1", name));
    return parts.join(", ");
  }

  here(tree) {
    const state = tree.states.find((one) => one.id === tree.here);
    if (!state || (!state.cell && !state.label)) return this.trans.__("Variables are as at the start");
    return this.trans.__("Variables are as after %1", this.place(state));
  }

  /** Says whether the states would outlive the sandbox. */
  saved(tree) {
    if (tree.saved === null) return this.trans.__("not saved");
    return tree.saved ? this.trans.__("saved") : this.trans.__("saving…");
  }

  /** Says with how many variables a session goes on, and of what time. */
  variables({ variables, is_partial }, time) {
    const [count, date] = [variables.length, time.toLocaleString()];
    if (is_partial) return this.trans.__("More than %1 variables, of %2.", count, date);
    return this.trans._n("%1 variable, of %2.", "%1 variables, of %2.", count, date);
  }

  /** The outcome of a travel, by the kernel's reply. */
  travelled(reply) {
    const said = [];
    const say = (text, paths) => paths.length && said.push(`${text}: ${paths.join(", ")}.`);
    say(this.trans.__("Files brought back"), reply.files_back);
    say(this.trans.__("Files removed"), reply.files_removed);
    say(this.trans.__("Files that could not be brought back"), Object.keys(reply.files_missed));
    say(this.trans.__("Files stay as they are"), reply.files_left ?? []);
    return said.join(" ");
  }
}
