import { lib } from "./shared.js";

const TARGET = "wasm_kernel.timeline";

/** The timeline of one notebook: a comm to its kernel, which the kernel's front end answers. */
export class Link {
  constructor(panel) {
    this.panel = panel;
    this.changed = new lib.signaling.Signal(this);
    this.tree = null; // the last one that the kernel sent; null if there is no timeline
    this.isTold = false; // true once the page has said that the session goes on
    this.said = ""; // the outcome of the last travel, until another cell runs
    this._comm = null;
    this._waiting = new Map();
    this._requests = 0;
    this._session = ""; // the session in the headers of its messages: each process of a kernel has its own
    const context = panel.sessionContext;
    context.kernelChanged.connect(() => this._renew());
    context.iopubMessage.connect((_, { header }) => this._heardFrom(header.session));
    context.statusChanged.connect((_, status) => this._statusChanged(status));
    panel.disposed.connect(() => this._drop());
    this._renew();
  }

  /** True if a cell runs; a request of the user would wait for its end. */
  get isBusy() {
    return this._kernel?.status === "busy" && this._waiting.size === 0;
  }

  get _kernel() {
    return this.panel.sessionContext.session?.kernel;
  }

  _statusChanged(status) {
    if (["restarting", "autorestarting", "terminating", "dead"].includes(status)) this._drop();
    else if (status === "idle" && this._comm === null) this._renew();
    this.changed.emit();
  }

  /** Finds a kernel that another page has restarted. */
  _heardFrom(session) {
    const isOther = this._session && session !== this._session;
    this._session = session;
    if (isOther) void this._renew();
  }

  async _renew() {
    this._drop();
    const kernel = this._kernel;
    if (!kernel?.handleComms) return;
    const turn = (this._turn = {});
    const info = await kernel.info.catch(() => null);
    if (turn !== this._turn || kernel.isDisposed || info?.implementation !== "wasm-kernel") return;
    const comm = (this._comm = kernel.createComm(TARGET));
    comm.onMsg = (message) => this._heard(message.content.data);
    comm.onClose = () => comm === this._comm && this._drop();
    comm.open();
  }

  _drop() {
    this._turn = null;
    const comm = this._comm;
    this._comm = null;
    this.isTold = false;
    this.tree = null;
    for (const { reject } of this._waiting.values()) reject(new Error("The kernel has ended."));
    this._waiting.clear();
    if (comm && !comm.isDisposed) comm.dispose();
    this.changed.emit();
  }

  say(text) {
    this.said = text;
    this.changed.emit();
  }

  _heard(data) {
    const waiting = this._waiting.get(data.id);
    if (data.event === "tree") {
      if (data.states.length !== this.tree?.states.length) this.said = "";
      this.tree = data;
    } else if (waiting) {
      this._waiting.delete(data.id);
      if (typeof data.error === "string") waiting.reject(new Error(data.error));
      else waiting.resolve(data);
    }
    this.changed.emit();
  }

  /** Returns the kernel's reply to a request; rejects with its reason. */
  ask(request, fields = {}) {
    if (!this._comm) return Promise.reject(new Error("This notebook's kernel has no timeline."));
    const id = ++this._requests;
    return new Promise((resolve, reject) => {
      this._waiting.set(id, { resolve, reject });
      this._comm.send({ request, id, ...fields });
      this.changed.emit();
    });
  }
}
