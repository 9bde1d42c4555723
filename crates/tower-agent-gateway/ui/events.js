// Reads GET /events for as long as the page is open.
//
// `EventSource` sends no token, so that this is a fetch whose body is read piece by piece. After a
// break it asks for the events behind the last one that it saw.

import { send } from "./api.js";

// The gateway sends a comment every 15 s: a stream without one for so long is dead.
const SILENT = 40_000;

const FIRST_WAIT = 500;
const LONGEST_WAIT = 5000;

// Calls `on.event(name, data)` for each event, `on.connected()`, and `on.broken(error)`.
// Returns what ends it.
export function follow(on) {
  let last = null;
  let wait = FIRST_WAIT;
  let ended = false;
  let request = null;

  async function once() {
    request = new AbortController();
    let watch;
    const alive = () => {
      clearTimeout(watch);
      watch = setTimeout(() => request.abort(), SILENT);
    };
    try {
      alive();
      const headers = last === null ? {} : { "last-event-id": last };
      const answer = await send("GET", "events?replicas=all", { headers, signal: request.signal });
      on.connected();
      wait = FIRST_WAIT;
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        alive();
        const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
        rest = blocks.pop();
        blocks.forEach(read);
      }
    } finally {
      clearTimeout(watch);
    }
  }

  function read(block) {
    let name = "message";
    const data = [];
    for (const line of block.split("\n")) {
      const at = line.indexOf(":");
      if (at < 1) continue; // a comment
      const field = line.slice(0, at);
      const value = line.slice(at + 1).replace(/^ /, "");
      if (field === "event") name = value;
      else if (field === "data") data.push(value);
      else if (field === "id") last = value;
    }
    if (data.length) on.event(name, JSON.parse(data.join("\n")));
  }

  (async () => {
    while (!ended) {
      let error = null;
      try {
        await once();
      } catch (broken) {
        error = broken;
      }
      if (ended) return;
      on.broken(error);
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, LONGEST_WAIT);
    }
  })();

  return {
    end() {
      ended = true;
      request?.abort();
    },
  };
}
