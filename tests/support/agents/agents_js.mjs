// A program of the npm package @openai/agents: `node agents_js.mjs PACKAGES`. The tool doubles a number.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.argv[2]}/`);
const { Agent, run, tool, setOpenAIAPI, setTracingDisabled } = await import(pathToFileURL(require.resolve("@openai/agents")));
const { z } = await import(pathToFileURL(require.resolve("zod")));

setTracingDisabled(true);
setOpenAIAPI("chat_completions");
const twice = tool({
  name: "twice",
  description: "Double a number.",
  parameters: z.object({ number: z.number() }),
  execute: async ({ number }) => String(2 * number),
});
const agent = new Agent({ name: "agent", model: "policy", tools: [twice] });
writeFileSync("answer.txt", (await run(agent, readFileSync("prompt.txt", "utf8"))).finalOutput);
