// Plays calls with the official SDKs for Node, as program.py asks for them: a command a line on
// stdin, and on stdout a line for whatever an SDK shows of it, until `over`.

import { createInterface } from "node:readline";
import Anthropic, { AnthropicError } from "@anthropic-ai/sdk";
import OpenAI, { OpenAIError } from "openai";
import OpenAI6, { OpenAIError as OpenAI6Error } from "openai-6";

import { dialect } from "./dialects.mjs";
import { poll } from "./loops.mjs";
import { websocket } from "./websocket.mjs";

const SDKS = {
  anthropic: { Client: Anthropic, SdkError: AnthropicError, root: "" },
  openai: { Client: OpenAI, SdkError: OpenAIError, root: "/v1" },
  "openai-6": { Client: OpenAI6, SdkError: OpenAI6Error, root: "/v1" },
};

// What `fetch` itself throws, and lets through mid-stream.
const FETCH_FAILED = ["terminated", "fetch failed"];

const OPERATIONS = {
  async ask(client, command, tell) {
    const speak = dialect(command.dialect);
    tell({ value: speak.read(await speak.create(client, command.request, command.options)) });
  },
  async stream(client, command, tell, leaving) {
    const speak = dialect(command.dialect);
    const call = speak.create(client, command.request, command.options);
    const { data: stream, response } = await call.withResponse();
    leaving.addEventListener("abort", () => stream.controller.abort());
    tell({ head: Object.fromEntries(response.headers) });
    for await (const event of stream) speak.see(event, tell);
  },
  async accumulate(client, command, tell) {
    const speak = dialect(command.dialect);
    tell({ value: speak.read(await speak.accumulate(client, command.request, command.options)) });
  },
  async models(client, command, tell) {
    const { data } = await client.models.list();
    tell({ value: data.map((model) => [model.object, model.id]) });
  },
  async embeddings(client, command, tell) {
    const answer = await client.embeddings.create(command.request);
    tell({ value: [answer.data.map((item) => item.embedding), answer.usage.total_tokens] });
  },
  async count_tokens(client, command, tell) {
    tell({ value: (await client.messages.countTokens(command.request)).input_tokens });
  },
  async poll(client, command, tell, leaving, sent) {
    let before = 0;
    for await (const { asked, error } of poll(client, command)) {
      if (leaving.aborted) return;
      if (error && !isForCallers(error, command)) throw error;
      tell({ ...(error ? { refused: describe(error) } : { asked }), requests: sent() - before });
      before = sent();
    }
    tell({ history: command.history });
  },
  websocket,
};

const leaving = new Map();

async function play(command) {
  const tell = (message) => process.stdout.write(`${JSON.stringify({ id: command.id, ...message })}\n`);
  const { Client, root } = SDKS[command.sdk];
  const leave = new AbortController();
  leaving.set(command.id, leave);
  let sent = 0;
  const client = new Client({
    baseURL: command.url + root,
    apiKey: command.key ?? "sk-test",
    timeout: command.timeout * 1000,
    maxRetries: command.max_retries ?? undefined,
    defaultHeaders: command.default_headers ?? undefined,
    // Called for each request on the wire, so also for each retry.
    fetch(...request) {
      tell({ sent: (sent += 1) });
      return fetch(...request);
    },
  });
  try {
    await OPERATIONS[command.operation](client, command, tell, leave.signal, () => sent);
  } catch (error) {
    tell(isForCallers(error, command) ? { raised: describe(error) } : { broken: String(error.stack) });
  }
  leaving.delete(command.id);
  tell({ over: true });
}

// What is neither an SDK's own nor listed here is a mistake of this program's.
const isForCallers = (error, command) =>
  error instanceof SDKS[command.sdk].SdkError ||
  error instanceof SyntaxError ||
  (error instanceof TypeError && FETCH_FAILED.includes(error.message));

const describe = (error) => ({
  kind: error.constructor.name,
  message: error.message,
  status: error.status ?? null,
  code: error.code ?? null,
  type: error.type ?? null,
  headers: error.headers ? Object.fromEntries(error.headers) : null,
  error: error.error ?? null,
});

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.leave) leaving.get(command.leave)?.abort();
  else play(command);
}
