// The scenarios through the TypeScript SDK's client: `client.mjs KIND stdio COMMAND...` or `KIND http URL`,
// where KIND is `sdk` (1.x) or `client` (2.x).
import assert from "node:assert";

const [kind, transportName, ...rest] = process.argv.slice(2);
const home = kind === "sdk" ? "@modelcontextprotocol/sdk/client" : "@modelcontextprotocol/client";
let Client, StdioClientTransport, StreamableHTTPClientTransport;
if (kind === "sdk") {
  ({ Client } = await import(`${home}/index.js`));
  ({ StdioClientTransport } = await import(`${home}/stdio.js`));
  ({ StreamableHTTPClientTransport } = await import(`${home}/streamableHttp.js`));
} else {
  ({ Client, StreamableHTTPClientTransport } = await import(home));
  ({ StdioClientTransport } = await import(`${home}/stdio`));
}
const transport =
  transportName === "stdio"
    ? new StdioClientTransport({ command: rest[0], args: rest.slice(1), env: process.env })
    : new StreamableHTTPClientTransport(new URL(rest[0]));
const client = new Client({ name: "proof", version: "1" }, {});
await client.connect(transport);
assert((await client.listTools()).tools.some((tool) => tool.name === "execute_code"));
let session;
async function call(name, args = {}, options = {}) {
  const given = session ? { session, ...args } : args;
  const parameters = { name, arguments: given };
  const result = await (kind === "sdk"
    ? client.callTool(parameters, undefined, options)
    : client.callTool(parameters, options));
  const text = result.content.filter((each) => each.type === "text").map((each) => each.text).join("\n");
  session ??= /This is session="([\w-]+)"/.exec(text)?.[1];
  return { ...result, text };
}
await call("execute_code", { code: "x = 6" });
assert.match((await call("execute_code", { code: "x * 7" })).text, /\n42\n/);
const figure = await call("execute_code", { code: "import matplotlib.pyplot as plt; _ = plt.plot([1, 2])" });
const image = figure.content.find((each) => each.type === "image");
const link = figure.content.find((each) => each.type === "resource_link");
assert.equal((await client.readResource({ uri: link.uri })).contents[0].blob, image.data);
const heard = [];
await call("execute_code", { code: "import time\nprint('half way', flush=True)\ntime.sleep(2.5)" },
  { onprogress: (progress) => heard.push(progress.message) });
assert(heard.some((each) => each.includes("half way")), String(heard));
const aborting = new AbortController();
setTimeout(() => aborting.abort("enough"), 1500);
await assert.rejects(call("execute_code", { code: "x = 7\ntime.sleep(100)" }, { signal: aborting.signal }));
assert.match((await call("execute_code", { code: "x" })).text, /\n[67]\n/);
const failed = await call("execute_code", { code: "1 / 0" });
assert(failed.isError && failed.text.includes("ZeroDivisionError"));
await client.close();
console.log("all well");
