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

const all = { crypto, events, fs, "fs/promises": promises, path, process, url, util };
for (const [name, module] of Object.entries(all)) offer(`node:${name}`, module);
