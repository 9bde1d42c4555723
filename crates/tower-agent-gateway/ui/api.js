// Requests to the operator's routes. Paths are relative to the page, so that the gateway may stand
// below a prefix of a proxy.

const KEPT_AS = "tower-agent-token";

// The token lives as long as the tab: it is in no URL, no cookie, and on no disk.
let token = sessionStorage.getItem(KEPT_AS) ?? "";

export function setToken(given) {
  token = given;
  if (given) sessionStorage.setItem(KEPT_AS, given);
  else sessionStorage.removeItem(KEPT_AS);
}

export const hasToken = () => token !== "";

// How long an answer may take: to a read, and to an action, which may be carried out all the same.
const READ_LIMIT = 10_000;
const ACT_LIMIT = 30_000;

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Sends a request, and throws unless the answer is a success.
export async function send(method, path, { body, headers, signal } = {}) {
  const all = { ...headers };
  if (token) all.authorization = `Bearer ${token}`;
  if (body !== undefined) all["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: all,
      body: body === undefined ? undefined : JSON.stringify(body),
      // A gateway that hangs is not one that has nothing to say.
      signal: signal ?? AbortSignal.timeout(method === "GET" ? READ_LIMIT : ACT_LIMIT),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The gateway cannot be reached.");
  }
  if (answer.ok) return answer;
  throw new Refusal(answer.status, messageOf(await answer.text()));
}

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim();
  }
}

export const get = async (path) => (await send("GET", path)).json();
export const post = async (path, body) => (await send("POST", path, { body })).json();
export const put = async (path) => (await send("PUT", path)).json();
export const remove = async (path) => (await send("DELETE", path)).json();

// A path with names in it that others chose, each as one segment.
export function path(parts, ...names) {
  return String.raw({ raw: parts }, ...names.map(segment));
}

function segment(name) {
  // URLs give these two a meaning of their own, however they are written.
  if (name === "." || name === "..") {
    throw new Refusal(0, `A browser cannot address "${name}"; use the command line.`);
  }
  return encodeURIComponent(name);
}
