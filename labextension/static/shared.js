/** JupyterLab's own modules, which the page shares with its extensions. */

const NAMES = {
  React: "react",
  application: "@jupyterlab/application",
  apputils: "@jupyterlab/apputils",
  coreutils: "@jupyterlab/coreutils",
  notebook: "@jupyterlab/notebook",
  signaling: "@lumino/signaling",
  statusbar: "@jupyterlab/statusbar",
  translation: "@jupyterlab/translation",
  ui: "@jupyterlab/ui-components",
};

/** The modules by the keys of `NAMES`; one that a page does not have is undefined. */
export const lib = {};

/** Fills `lib` from the share scope of the page. */
export async function load(scope) {
  await Promise.all(
    Object.entries(NAMES).map(async ([key, name]) => {
      const versions = Object.entries(scope[name] ?? {}).sort(([a], [b]) =>
        a.localeCompare(b, undefined, { numeric: true }),
      );
      const [, found] = versions.find(([, one]) => one.loaded) ?? versions.at(-1) ?? [];
      if (found) lib[key] = (await found.get())();
    }),
  );
}
