// The built-in modules for `require`; `import` finds them itself.

import crypto from "node:crypto";
import events from "node:events";
import fs from "node:fs";
import promises from "node:fs/promises";
import path from "node:path";
import process from "node:process";
import url from "node:url";
import util from "node:util";
import { offer } from "wasm-kernel:require";

offer("node:crypto", crypto);
offer("node:events", events);
offer("node:fs", fs);
offer("node:fs/promises", promises);
offer("node:path", path);
offer("node:process", process);
offer("node:url", url);
offer("node:util", util);
