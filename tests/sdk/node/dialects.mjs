// How the SDKs for Node ask in each dialect, and what they show of the answer: the same as python_sdks.py.

const chat = {
  create: (client, request, options) => client.chat.completions.create(request, options),
  read: (answer) => [answer.choices[0].message.content, [answer.usage.prompt_tokens, answer.usage.completion_tokens]],
  see(chunk, tell) {
    for (const choice of chunk.choices ?? []) {
      if (choice.delta.content) tell({ delta: choice.delta.content });
    }
    if (chunk.usage) tell({ usage: [chunk.usage.prompt_tokens, chunk.usage.completion_tokens] });
  },
  accumulate: (client, request, options) =>
    client.chat.completions
      .stream({ ...request, stream_options: { include_usage: true } }, options)
      .finalChatCompletion(),
};

const responses = {
  create: (client, request, options) => client.responses.create(request, options),
  read: (answer) => [answer.output_text, [answer.usage.input_tokens, answer.usage.output_tokens]],
  see(event, tell) {
    tell({ event: event.type });
    if (event.type === "response.output_text.delta") tell({ delta: event.delta });
    if (event.type === "response.completed") {
      tell({ usage: [event.response.usage.input_tokens, event.response.usage.output_tokens] });
    }
  },
  accumulate: (client, request, options) => client.responses.stream(request, options).finalResponse(),
};

const messages = {
  create: (client, request, options) => client.messages.create(request, options),
  read: (answer) => [answer.content[0].text, [answer.usage.input_tokens, answer.usage.output_tokens]],
  see(event, tell) {
    tell({ event: event.type });
    if (event.type === "message_start") this.input = event.message.usage.input_tokens;
    if (event.type === "content_block_delta") tell({ delta: event.delta.text });
    if (event.type === "message_delta") tell({ usage: [this.input, event.usage.output_tokens] });
  },
  accumulate: (client, request, options) => client.messages.stream(request, options).finalMessage(),
};

// One of its own for each call, since reading a stream keeps what it has seen.
export const dialect = (name) => Object.create({ chat, responses, messages }[name]);
