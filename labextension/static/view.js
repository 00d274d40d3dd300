import { lib } from "./shared.js";
import { bytes, difference, filesOf, rows, seconds } from "./tree.js";
import { Words } from "./words.js";

const { createElement: h, useEffect, useLayoutEffect, useRef, useState } = lib.React;
const NAME = "jp-wasmTimeline";
const ASK_MILLISECONDS = 150;
const VARIABLES_MOST = 50; // variables that are drawn

/** The content of the timeline's panel: the tree, the chosen state, and the meters. */
export class TimelineBody extends lib.ui.ReactWidget {
  constructor(actions, trans) {
    super();
    this.addClass(NAME);
    this._actions = actions;
    this._trans = trans;
    this._words = new Words(trans);
  }

  /** Takes the keyboard to the chosen state. */
  focusState() {
    this.node.querySelector("[role=treeitem][aria-selected=true]")?.focus();
  }

  render() {
    const link = this._actions.link;
    const trans = this._trans;
    if (!link?.tree)
      return h(
        "p",
        { className: `${NAME}-empty` },
        trans.__("Open a notebook whose kernel runs in a sandbox to see its timeline."),
      );
    const { tree } = link;
    return h(Timeline, {
      key: link.panel.id,
      body: this,
      tree,
      said: link.said,
      isBusy: link.isBusy,
      actions: this._actions,
      words: this._words,
      trans,
    });
  }
}

function Timeline({ body, tree, said, isBusy, actions, words, trans }) {
  const all = rows(tree);
  const [chosen, choose] = useState(null); // a row's key; null follows the current state
  const [compared, compare] = useState(null); // the state to compare others with
  const at = all.find((row) => row.key === chosen) ?? all.find((row) => row.isHere);
  const base = tree.states.find((state) => state.id === compared);
  const hadFocus = body.node.contains(document.activeElement);
  useLayoutEffect(() => {
    // the pressed button is gone: the keyboard goes on at the state
    if (hadFocus && !body.node.contains(document.activeElement)) body.focusState();
  });
  return h(
    lib.React.Fragment,
    null,
    h("div", { className: `${NAME}-here`, role: "status" }, words.here(tree)),
    said && h("p", { className: `${NAME}-said`, role: "status" }, said),
    h(States, {
      all,
      at,
      follows: chosen === null,
      choose: (key) => choose(key),
      words,
      label: trans.__("States of the session"),
    }),
    base && at && !at.isLost
      ? h(Comparison, { tree, base, at, isBusy, actions, words, trans, end: () => compare(null) })
      : at &&
          h(Details, {
            at,
            isBusy,
            isChosen: chosen !== null,
            actions,
            words,
            trans,
            tree,
            compare,
            choose,
            body,
          }),
    h(Meters, { tree, trans }),
  );
}

function States({ all, at, follows, choose, words, label }) {
  const list = useRef(null);
  const here = all.find((row) => row.isHere)?.key;
  useEffect(() => {
    const node = list.current?.querySelector("[aria-current=true]");
    node?.scrollIntoView({ block: "nearest" });
    if (follows && list.current?.contains(document.activeElement)) node?.focus();
  }, [here, all.length]);
  const move = (event) => {
    const index = all.indexOf(at);
    const last = all.length - 1;
    const steps = { ArrowUp: index - 1, ArrowDown: index + 1, Home: 0, End: last };
    if (event.key === "Enter") {
      list.current.parentElement.querySelector(`.${NAME}-actions button`)?.focus();
    } else if (event.key in steps) {
      const next = Math.min(last, Math.max(0, steps[event.key]));
      choose(all[next].key);
      list.current.children[next]?.focus();
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  };
  return h(
    "ul",
    { className: `${NAME}-states`, role: "tree", "aria-label": label, ref: list, onKeyDown: move },
    all.map((row) => h(Row, { key: row.key, row, words, isChosen: row === at, choose })),
  );
}

const Row = lib.React.memo(DrawnRow, (before, after) =>
  before.isChosen === after.isChosen && same(before.row, after.row),
);

function same(one, other) {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}

function DrawnRow({ row, words, isChosen, choose }) {
  const kind = row.isLost ? "lost" : row.isUndone ? "undone" : "kept";
  const { circleEmptyIcon, circleIcon, stopIcon } = lib.ui;
  const Icon = row.isLost ? stopIcon : row.isUndone ? circleEmptyIcon : circleIcon;
  const facts = words.facts(row);
  return h(
    "li",
    {
      className: `${NAME}-state`,
      role: "treeitem",
      tabIndex: isChosen ? 0 : -1,
      "aria-level": row.depth + 1,
      "aria-selected": isChosen,
      "aria-current": row.isHere || undefined,
      "aria-label": words.spoken(row),
      "data-kind": kind,
      "data-outcome": row.outcome || undefined,
      style: { paddingInlineStart: `${8 + 14 * Math.min(row.depth, 8)}px` },
      onClick: () => choose(row.key),
    },
    h(Icon.react, { tag: "span", className: `${NAME}-dot` }),
    h("span", { className: `${NAME}-place` }, words.place(row)),
    h("code", { className: `${NAME}-label` }, words.label(row)),
    h("span", { className: `${NAME}-facts` }, facts.join(" · ")),
    row.names?.length
      ? h(
          "span",
          { className: `${NAME}-names` },
          row.names.map((name) => h("span", { key: name, className: `${NAME}-name` }, name)),
        )
      : null,
  );
}

/** The variables that differ between two states; asks for them once, while no cell runs. */
function Changes({ state, since, titles, isBusy, actions, trans }) {
  const [known, setKnown] = useState({});
  const key = `${since} ${state}`;
  const found = known[key];
  useEffect(() => {
    if (found || isBusy) return undefined;
    let isWanted = true;
    const note = (answer) => isWanted && setKnown((before) => ({ ...before, [key]: answer }));
    const ask = () =>
      actions.changes(state, since).then(note, (problem) => note({ problem: problem.message }));
    const timer = setTimeout(ask, ASK_MILLISECONDS); // the arrow keys pass over many states
    return () => {
      isWanted = false;
      clearTimeout(timer);
    };
  }, [key, Boolean(found), isBusy]);
  if (!found) return h("p", { role: "status" }, trans.__("Looking at the variables…"));
  if (found.problem) return h("p", null, found.problem);
  if (!found.variables.length) return h("p", null, trans.__("No variable changed."));
  const more = found.variables.length - VARIABLES_MOST;
  return h(
    lib.React.Fragment,
    null,
    h(
      "table",
      { className: `${NAME}-variables` },
      h(
        "thead",
        null,
        h(
          "tr",
          null,
          [trans.__("Variable"), ...titles].map((title) =>
            h("th", { key: title, scope: "col" }, title),
          ),
        ),
      ),
      h(
        "tbody",
        null,
        found.variables.slice(0, VARIABLES_MOST).map(({ name, before, after }) =>
          h(
            "tr",
            { key: name },
            h("th", { scope: "row" }, h("code", null, name)),
            [before, after].map((value, column) => h("td", { key: column }, shown(value))),
          ),
        ),
      ),
    ),
    more > 0 && h("p", null, trans.__("and %1 more", more)),
    found.is_partial &&
      h("p", null, trans.__("There are many variables: only the newest were looked at.")),
  );
}

function shown(value) {
  if (!value) return "–";
  return h(
    lib.React.Fragment,
    null,
    h("code", null, value.text || value.type),
    h("small", null, `${value.text ? `${value.type}, ` : ""}${bytes(value.size)}`),
  );
}

function Details({ at, isBusy, isChosen, actions, words, trans, tree, compare, choose, body }) {
  const changed = Object.entries(at.files ?? {});
  const titles = {
    created: trans.__("Files made"),
    modified: trans.__("Files changed"),
    deleted: trans.__("Files deleted"),
  };
  const go = async (files) => {
    choose(null);
    await actions.go(at.id, files);
    body.focusState(); // the pressed button is disabled, and loses the focus
  };
  return h(
    "section",
    { className: `${NAME}-details`, "aria-label": trans.__("The chosen state") },
    h("h3", null, `${words.place(at)} `, h("code", null, words.label(at))),
    h("p", { className: `${NAME}-facts` }, [...words.facts(at), when(at)].filter(Boolean).join(" · ")),
    changed.map(([kind, paths]) =>
      h("p", { key: kind }, `${titles[kind]}: `, codes(paths)),
    ),
    !at.isLost && isChosen
      ? h(Changes, {
          state: at.id,
          since: at.parent,
          titles: [trans.__("Before"), trans.__("After")],
          isBusy,
          actions,
          trans,
        })
      : null,
    at.isLost
      ? h("p", null, trans.__("This cell was stopped. The variables stayed as before it."))
      : h(
          "div",
          { className: `${NAME}-actions` },
          !isChosen && button(trans.__("What changed?"), () => choose(at.key), false),
          button(trans.__("Go back to here"), () => go(false), isBusy || at.isHere),
          button(trans.__("Go back, with files"), () => go(true), isBusy),
          button(trans.__("Compare with…"), () => compare(at.id), tree.states.length < 2),
          at.isHere && button(trans.__("Name checkpoint…"), () => actions.checkpoint(), isBusy),
          (at.names ?? []).map((name) =>
            button(trans.__("Delete checkpoint %1", name), () => actions.forget(name), isBusy),
          ),
        ),
  );
}

function Comparison({ tree, base, at, isBusy, actions, words, trans, end }) {
  const { first, second } = difference(tree, base.id, at.id);
  const part = (state, only) =>
    h(
      "div",
      { className: `${NAME}-side` },
      h("h4", null, trans.__("Only after %1", words.place(state))),
      only.length
        ? h(
            "ul",
            null,
            only.map((one) =>
              h("li", { key: one.id }, `${words.place(one)} `, h("code", null, words.label(one))),
            ),
          )
        : h("p", null, trans.__("No cell")),
      filesOf(only).length
        ? h("p", null, `${trans.__("Files")}: `, codes(filesOf(only)))
        : null,
    );
  const title =
    base.id === at.id
      ? trans.__("Choose the state to compare with %1", words.place(base))
      : trans.__("%1 compared with %2", words.place(base), words.place(at));
  return h(
    "section",
    { className: `${NAME}-details`, "aria-label": trans.__("Comparison") },
    h("h3", null, title),
    base.id === at.id
      ? null
      : h(
          lib.React.Fragment,
          null,
          h(Changes, {
            state: at.id,
            since: base.id,
            titles: [words.place(base), words.place(at)],
            isBusy,
            actions,
            trans,
          }),
          part(base, first),
          part(at, second),
        ),
    h("div", { className: `${NAME}-actions` }, button(trans.__("End comparison"), end, false)),
  );
}

function Meters({ tree, trans }) {
  const disk = tree.states.reduce((sum, state) => sum + state.bytes, 0);
  const facts = [
    [trans.__("Memory"), trans.__("%1 of %2", bytes(tree.memory_bytes), bytes(tree.memory_limit))],
    [trans.__("States on disk"), bytes(disk)],
  ];
  if (typeof tree.seconds === "number") facts.push([trans.__("Last cell"), seconds(tree.seconds)]);
  if (typeof tree.fuel === "number") {
    const fuel = tree.fuel.toLocaleString();
    const limit = tree.fuel_limit?.toLocaleString();
    facts.push([trans.__("Fuel"), limit ? trans.__("%1 of %2", fuel, limit) : fuel]);
  }
  const meters = facts.map(([name, value]) =>
    h("div", { key: name }, h("dt", null, name), h("dd", null, value)),
  );
  return h(
    "section",
    { "aria-label": trans.__("What the session uses") },
    h("dl", { className: `${NAME}-meters` }, meters),
  );
}

/** Texts such as paths, each an element of its own, so that none is taken for two. */
function codes(texts) {
  return texts.map((text, at) => [at ? ", " : "", h("code", { key: text }, text)]);
}

function button(text, act, isOff) {
  return h(
    lib.ui.Button,
    {
      key: text,
      type: "button",
      small: true,
      disabled: Boolean(isOff),
      onClick: act,
    },
    text,
  );
}

function when(row) {
  if (!row.time) return "";
  const time = new Date(row.time * 1000);
  const isToday = time.toDateString() === new Date().toDateString();
  return isToday ? time.toLocaleTimeString() : time.toLocaleString();
}
