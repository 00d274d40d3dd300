// Uses a server by E2B's own client of npm; prints what it says.
import { Sandbox } from "@e2b/code-interpreter";

async function refused(call) {
  try {
    await call();
  } catch (problem) {
    console.log(problem.constructor.name);
  }
}

const sandbox = await Sandbox.create({ timeoutMs: 300000, metadata: { run: "2" } });
const lines = [];
const ran = await sandbox.runCode("print('out')\n{'a': 1}", { onStdout: (m) => lines.push(m.line) });
console.log(JSON.stringify([lines, ran.text]));
console.log((await sandbox.runCode("1 / 0")).error.name);
console.log((await sandbox.runCode("const q = 6; q * 7", { language: "javascript" })).text);
console.log((await sandbox.files.write("/home/user/a/b.txt", "text")).path);
console.log(await sandbox.files.read("a/b.txt"), await sandbox.files.exists("none"));
console.log((await sandbox.files.list(".", { depth: 2 })).map((each) => each.path).join());
console.log(await sandbox.files.makeDir("n"), (await sandbox.files.rename("a", "n/a")).path);
await sandbox.files.remove("n");
await refused(() => sandbox.files.read("none"));
console.log((await sandbox.commands.run("ls | wc -l")).stdout.trim());
await refused(() => sandbox.commands.run("exit 3"));
await refused(() => Sandbox.create("an-image"));
await refused(() => sandbox.runCode("while True: pass", { timeoutMs: 1500 }));
const context = await sandbox.createCodeContext();
console.log((await sandbox.runCode("5", { context })).text);
await sandbox.removeCodeContext(context);
console.log(await sandbox.pause(), (await (await Sandbox.connect(sandbox.sandboxId)).runCode("6")).text);
console.log(await sandbox.isRunning(), (await sandbox.getInfo()).metadata.run);
console.log(await sandbox.kill(), await sandbox.isRunning());
await refused(() => sandbox.runCode("1"));
