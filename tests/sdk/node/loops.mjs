// The loop of an agent as it is written with the official SDKs for Node: the same as python_loops.py.

const RESULT = "still running";
const ABOUT = "Tells how far a job is.";
const PARAMETERS = {
  type: "object",
  properties: { job: { type: "string" } },
  required: ["job"],
  additionalProperties: false,
};

const chat = {
  tools: [{ type: "function", function: { name: "poll", description: ABOUT, parameters: PARAMETERS } }],
  history: "messages",
  more: {},
  async ask(client, stream, request, options) {
    const { completions } = client.chat;
    const completion = stream
      ? await completions.stream(request, options).finalChatCompletion()
      : await completions.create(request, options);
    const { content, tool_calls: calls } = completion.choices[0].message;
    const asked = calls.map(({ id, function: { name, arguments: text } }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    const results = calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: RESULT }));
    return {
      asked: asked.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
      added: [{ role: "assistant", content, tool_calls: asked }, ...results],
    };
  },
};

const responses = {
  tools: [{ type: "function", name: "poll", description: ABOUT, parameters: PARAMETERS, strict: false }],
  history: "input",
  more: { store: false },
  async ask(client, stream, request, options) {
    const response = stream
      ? await client.responses.stream(request, options).finalResponse()
      : await client.responses.create(request, options);
    const calls = response.output.filter((item) => item.type === "function_call");
    const asked = calls.map(({ call_id, name, arguments: text }) => ({
      type: "function_call",
      call_id,
      name,
      arguments: text,
    }));
    const results = calls.map(({ call_id }) => ({ type: "function_call_output", call_id, output: RESULT }));
    return {
      asked: calls.map((call) => [call.name, JSON.parse(call.arguments)]),
      added: [...asked, ...results],
    };
  },
};

const messages = {
  tools: [{ name: "poll", description: ABOUT, input_schema: PARAMETERS }],
  history: "messages",
  more: { max_tokens: 64 },
  async ask(client, stream, request, options) {
    const message = stream
      ? await client.messages.stream(request, options).finalMessage()
      : await client.messages.create(request, options);
    const calls = message.content.filter((block) => block.type === "tool_use");
    const asked = calls.map(({ id, name, input }) => ({ type: "tool_use", id, name, input }));
    const results = calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: RESULT }));
    return {
      asked: calls.map(({ name, input }) => [name, input]),
      added: [
        { role: "assistant", content: asked },
        { role: "user", content: results },
      ],
    };
  },
};

const LOOPS = { chat, responses, messages };

// Asks, runs the tools that the answer asks for, and brings the results, again and again; what was
// refused is asked again. Yields the tools that each answer asked for, or its error. The history of
// `command` grows.
export async function* poll(client, command) {
  const loop = LOOPS[command.dialect];
  for (let turn = 0; turn < command.calls; turn += 1) {
    const request = {
      model: command.models[turn % command.models.length],
      tools: loop.tools,
      [loop.history]: command.history,
      ...loop.more,
      ...command.body,
    };
    let answer;
    try {
      const { asked, added } = await loop.ask(client, command.stream, request, { headers: command.headers });
      command.history.push(...added);
      answer = { asked };
    } catch (error) {
      answer = { error };
    }
    yield answer;
  }
}
