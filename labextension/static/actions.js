import { lib } from "./shared.js";
import { Words } from "./words.js";

const { Dialog, InputDialog, Notification, showErrorMessage } = lib.apputils;
const { PathExt } = lib.coreutils;

/** The actions of a user on the session of the current notebook. */
export class Actions {
  constructor(app, trans, panel) {
    this.link = null; // the link of the current notebook
    this._panel = panel;
    this._app = app;
    this._trans = trans;
    this._words = new Words(trans);
  }

  get isReady() {
    return Boolean(this.link?.tree) && !this.link.isBusy;
  }

  go(state, files) {
    return this._travel("go", { state, files });
  }

  undo() {
    return this._travel("undo");
  }

  redo() {
    return this._travel("redo");
  }

  /** Travels, and says the outcome: in the panel, whose buttons a notice would cover, or in a notice. */
  async _travel(request, fields) {
    const { link } = this;
    const reply = await this._ask(request, fields, link);
    const said = reply && this._words.travelled(reply);
    if (this._panel.isVisible) link.say(said);
    else if (said) Notification.info(said, { autoClose: 8000 });
  }

  /** Says that a notebook's session goes on with its variables, and offers to begin anew. */
  async tellResumed(link) {
    const { resumed, here, states } = link.tree;
    const found = await link.ask("changes", { state: here, since: 0 }).catch(() => null);
    const time = states.find((state) => state.id === here)?.time;
    const said = found && this._words.variables(found, new Date(time * 1000));
    const label = this._trans.__("Begin anew");
    const caption = this._trans.__("Restart without variables; a checkpoint keeps these");
    link.say(resumed); // in the panel, as a notice is cut after 140 characters
    const notice = Notification.info([said, resumed].filter(Boolean).join(" "), {
      autoClose: false,
      actions: [
        { label: this._trans.__("Continue"), displayType: "accent", callback: () => {} },
        { label, caption, callback: () => void this._beginAnew(link) },
      ],
    });
    const end = () => {
      if (link.tree) return;
      Notification.dismiss(notice); // another page has begun anew, or the notebook is closed
      link.changed.disconnect(end);
    };
    link.changed.connect(end);
  }

  async _beginAnew(link) {
    const time = new Date().toISOString().slice(0, 19).replace("T", " ").replaceAll(":", ".");
    if (await this._ask("checkpoint", { name: `before ${time}` }, link))
      await link.panel.sessionContext.restartKernel();
  }

  async checkpoint() {
    const asked = await InputDialog.getText({
      title: this._trans.__("Save Checkpoint"),
      label: this._trans.__("A name for the variables as they are now"),
      okLabel: this._trans.__("Save"),
    });
    if (asked.button.accept && asked.value) await this._ask("checkpoint", { name: asked.value });
  }

  /** Returns the variables that differ between two states; rejects with the reason. */
  changes(state, since) {
    return this.link.ask("changes", { state, since });
  }

  forget(name) {
    return this._ask("forget", { name });
  }

  async restore() {
    const { tree } = this.link;
    const names = tree.states.flatMap((state) => state.names.map((name) => [name, state.id]));
    if (!names.length) {
      const hint = this._trans.__("This session has no named checkpoint yet.");
      await showErrorMessage(this._trans.__("Restore Checkpoint"), hint, [Dialog.okButton()]);
      return;
    }
    const asked = await InputDialog.getItem({
      title: this._trans.__("Restore Checkpoint"),
      label: this._trans.__("Bring the variables back as they were at"),
      items: names.map(([name]) => name),
      okLabel: this._trans.__("Restore"),
    });
    const found = names.find(([name]) => name === asked.value);
    if (asked.button.accept && found) await this.go(found[1], false);
  }

  /** Opens a copy of the notebook beside this one, whose kernel is a fork of this one. */
  async fork() {
    const { link } = this;
    const { contents } = this._app.serviceManager;
    const { context } = link.panel;
    const own = contents.localPath(context.path);
    const folder = PathExt.dirname(own);
    const stem = PathExt.basename(own, PathExt.extname(own));
    let path;
    for (let number = 1; ; number += 1) {
      path = PathExt.join(folder, `${stem}-fork-${number}.ipynb`);
      const found = await contents.get(path, { content: false }).catch(() => null);
      if (found === null) break;
    }
    const content = context.model.toJSON();
    await contents.save(path, { type: "notebook", format: "json", content });
    if (await this._ask("fork", { notebook: PathExt.basename(path) }, link)) {
      const options = { mode: "split-right", ref: link.panel.id };
      await this._app.commands.execute("docmanager:open", { path, options });
    } else {
      await contents.delete(path);
    }
  }

  /** Returns the kernel's reply, or shows its reason and returns null. */
  async _ask(request, fields, link = this.link) {
    try {
      return await link.ask(request, fields);
    } catch (problem) {
      await showErrorMessage(this._trans.__("Timeline"), problem.message, [Dialog.okButton()]);
      return null;
    }
  }
}
