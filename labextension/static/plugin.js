import { Actions } from "./actions.js";
import { Link } from "./link.js";
import { mark } from "./marks.js";
import { lib } from "./shared.js";
import { bytes } from "./tree.js";
import { TimelineBody } from "./view.js";
import { Words } from "./words.js";

const { ICommandPalette, CommandToolbarButton } = lib.apputils;
const { INotebookTracker, NotebookActions } = lib.notebook;
const { ITranslator, nullTranslator } = lib.translation;
const IStatusBar = lib.statusbar?.IStatusBar;

const MAGIC = /^\s*%timeline\s*$/m;

/** Adds the commands; the schema puts them into the Kernel menu and gives them shortcuts. */
function addCommands(app, actions, trans, open) {
  const { ui } = lib;
  const isEnabled = () => actions.isReady;
  const add = (name, label, icon, execute, caption, enabled = isEnabled) =>
    app.commands.addCommand(`wasm-kernel:${name}`, {
      label,
      caption,
      icon,
      execute,
      isEnabled: enabled,
      isVisible: () => name === "open" || Boolean(actions.link?.tree),
      describedBy: { args: { type: "object", properties: {} } },
    });
  const hasRedo = () => actions.isReady && actions.link.tree.redo > 0;
  add("open", trans.__("Show Timeline"), ui.historyIcon, open,
    trans.__("Show the states of this notebook's session"), () => true);
  add("undo", trans.__("Undo Last Cell’s Effects"), ui.undoIcon, () => actions.undo(),
    trans.__("Bring the variables back as before the last cell; files stay"));
  add("redo", trans.__("Redo Cell’s Effects"), ui.redoIcon, () => actions.redo(),
    trans.__("Take back the last undo"), hasRedo);
  add("checkpoint", trans.__("Save Checkpoint…"), ui.saveIcon, () => actions.checkpoint(),
    trans.__("Name the variables as they are now, to come back to them later"));
  add("restore", trans.__("Restore Checkpoint…"), ui.historyIcon, () => actions.restore(),
    trans.__("Bring the variables back as they were at a named checkpoint"));
  add("fork", trans.__("Fork into New Notebook"), ui.copyIcon, () => actions.fork(),
    trans.__("Open a copy of the notebook that goes on with copies of the variables and files"));
}

const COMMANDS = ["undo", "redo", "checkpoint", "restore", "fork", "open"].map(
  (name) => `wasm-kernel:${name}`,
);

/** Keeps one link for each notebook, and tells of the current one. */
function follow(tracker, actions, changed, trans) {
  const links = new Map();
  const add = (panel) => {
    const link = new Link(panel);
    links.set(panel, link);
    const draw = () => {
      if (!panel.isDisposed && panel.model) mark(link, trans);
      if (link.tree?.resumed && !link.isTold) {
        link.isTold = true;
        void actions.tellResumed(link);
      }
      if (link === actions.link) changed();
    };
    link.changed.connect(draw);
    panel.model.cells.changed.connect(draw);
    panel.disposed.connect(() => {
      links.delete(panel);
      choose();
    });
    choose(); // this may be the current notebook already
  };
  const choose = () => {
    actions.link = links.get(tracker.currentWidget) ?? null;
    changed();
  };
  tracker.forEach((panel) => add(panel));
  tracker.widgetAdded.connect((_, panel) => add(panel));
  tracker.currentChanged.connect(choose);
  choose();
}

/** The item in the status bar: where the variables are, and the memory. */
class Status extends lib.ui.ReactWidget {
  constructor(actions, trans) {
    super();
    this._actions = actions;
    this._words = new Words(trans);
    this._trans = trans;
  }

  render() {
    const tree = this._actions.link?.tree;
    if (!tree) return null;
    const facts = [this._words.here(tree), bytes(tree.memory_bytes), this._words.saved(tree)];
    const text = facts.join(" · ");
    const title = this._trans.__("The state of the sandbox's variables, its memory, and the disk");
    return lib.React.createElement(lib.statusbar.TextItem, { source: text, title });
  }
}

function activate(app, tracker, translator, palette, statusBar) {
  const trans = (translator ?? nullTranslator).load("wasm_kernel");
  const panel = new lib.ui.PanelWithToolbar();
  const actions = new Actions(app, trans, panel);
  panel.id = "wasm-kernel-timeline";
  panel.addClass("jp-wasmTimeline-panel");
  panel.title.icon = lib.ui.historyIcon;
  panel.title.caption = trans.__("Timeline");
  panel.node.setAttribute("role", "region");
  panel.node.setAttribute("aria-label", trans.__("Timeline"));
  const body = new TimelineBody(actions, trans);
  addCommands(app, actions, trans, () => {
    app.shell.activateById(panel.id);
    body.focusState();
  });
  for (const id of COMMANDS.slice(0, 5))
    panel.toolbar.addItem(id, new CommandToolbarButton({ commands: app.commands, id, label: "" }));
  panel.addWidget(panel.toolbar);
  panel.addWidget(body);
  app.shell.add(panel, "right", { rank: 900 });
  const status = new Status(actions, trans);
  if (IStatusBar && statusBar)
    statusBar.registerStatusItem("wasm-kernel:timeline", { item: status, align: "left", rank: 30 });
  follow(tracker, actions, () => {
    body.update();
    status.update();
    for (const command of COMMANDS) app.commands.notifyCommandChanged(command);
  }, trans);
  const category = trans.__("Kernel Operations");
  for (const command of COMMANDS) palette?.addItem({ command, category });
  NotebookActions.executed.connect((_, { cell }) => {
    if (cell.model.type === "code" && MAGIC.test(cell.model.sharedModel.getSource()))
      app.shell.activateById(panel.id); // the keyboard stays in the notebook
  });
}

const style = document.createElement("link");
style.rel = "stylesheet";
style.href = new URL("./style.css", import.meta.url).href;
document.head.append(style);

export default {
  id: "wasm-kernel:timeline",
  description: "The timeline of a sandboxed kernel's session.",
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ITranslator, ICommandPalette, ...(IStatusBar ? [IStatusBar] : [])],
  activate,
};
