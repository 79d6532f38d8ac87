// A program of the npm package ai: `node ai_agent.mjs PACKAGES HOW`, HOW plain or stream. The tool doubles a number.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const [packages, how] = process.argv.slice(2);
const require = createRequire(`${packages}/`);
const { generateText, streamText, stepCountIs, tool, jsonSchema } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");

const provider = createOpenAICompatible({
  name: "policy",
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: process.env.OPENAI_API_KEY,
});
const schema = { type: "object", properties: { number: { type: "integer" } }, required: ["number"] };
const asked = {
  model: provider("policy"),
  prompt: readFileSync("prompt.txt", "utf8"),
  tools: { twice: tool({ inputSchema: jsonSchema(schema), execute: async ({ number }) => String(2 * number) }) },
  stopWhen: stepCountIs(6),
};
const made = how === "stream" ? streamText(asked) : await generateText(asked);
if (how === "stream") for await (const _ of made.textStream);
const steps = (await made.steps).map((step) => [
  step.text,
  step.toolCalls.map((call) => [call.toolName, call.input]),
  step.finishReason,
]);
writeFileSync("answer.txt", JSON.stringify(steps));
