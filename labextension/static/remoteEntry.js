// The container by which JupyterLab loads this extension: what a bundler would write, by hand.
(() => {
  let scope;
  globalThis._JUPYTERLAB ??= {};
  globalThis._JUPYTERLAB["wasm-kernel"] = {
    init(shared) {
      scope = shared;
    },
    async get() {
      const { load } = await import("./shared.js");
      await load(scope); // the modules below use it as they are evaluated
      const { default: plugin } = await import("./plugin.js");
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
