// Plays sockets with the SDK for Node: the same as python_websocket.py.

import { ResponsesWS } from "openai/resources/responses/ws";
import { ResponsesWS as ResponsesWS6 } from "openai-6/resources/responses/ws";

const SOCKETS = { openai: ResponsesWS, "openai-6": ResponsesWS6 };

const ENDS = [
  "response.completed",
  "response.failed",
  "response.incomplete",
  "response.steer.failed",
];
const LAST = "$last";

// The same by POST, to compare with.
async function post(client, rounds, tell) {
  for (const { type, ...request } of rounds.flat()) {
    for await (const event of await client.responses.create({ ...request, stream: true })) tell({ frame: event });
    tell({ round: true });
  }
}

async function talk(client, { rounds, sdk, default_headers: headers }, tell, leaving) {
  // What it takes for the SDK to reconnect at all.
  const reconnect = {
    maxRetries: 2,
    initialDelay: 10,
    onReconnecting({ closeCode }) {
      tell({ reconnecting: closeCode });
    },
  };
  // The older one leaves out those of the client, and its caller has to say them again.
  const socket = new SOCKETS[sdk](client, { reconnect, ...(sdk === "openai-6" ? { headers } : {}) });
  leaving.addEventListener("abort", () => socket.close());
  const records = socket.stream();
  let last = null;
  for (const events of rounds) {
    for (const event of events) {
      const previous = event.previous_response_id === LAST ? { previous_response_id: last } : {};
      socket.send({ ...event, ...previous });
    }
    let openEnds = events.length;
    while (openEnds > 0) {
      const { value: record, done } = await records.next();
      if (done || record.type === "close") {
        tell({ closed: record?.code });
        return;
      }
      if (record.type === "error") {
        tell({ error: handed(record.error) });
        if (record.error.error) openEnds -= 1;
      } else if (record.type === "message") {
        tell({ frame: record.message });
        if (record.message.type === "response.completed") last = record.message.response.id;
        if (ENDS.includes(record.message.type)) openEnds -= 1;
      }
    }
    tell({ round: true });
  }
  socket.close();
}

// An error that the SDK emits: its `error` is the event, if the gateway sent one.
const handed = (error) => ({
  kind: error.constructor.name,
  message: error.message,
  status: error.error?.status ?? null,
  code: error.error?.error.code ?? null,
  type: error.error?.error.type ?? null,
  headers: error.error?.error.headers ?? null,
  error: error.error ?? null,
});

export const websocket = (client, command, tell, leaving) =>
  command.over_http ? post(client, command.rounds, tell) : talk(client, command, tell, leaving);
