// The HTTP API of the server. The token is kept for this tab only, and goes in a header that no other
// site can make a browser send: there is no cookie.

export const { token, query } = first;

/** A request that was refused, or a server that cannot be reached (status 0). */
export class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Return a path of the API; parts are escaped. */
export const path = (strings, ...parts) => String.raw({ raw: strings }, ...parts.map((part) => encodeURIComponent(part)));

async function send(method, where, body, signal) {
  let answer;
  try {
    answer = await first.send(method, where, body, signal);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "The server cannot be reached.");
  }
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Problem(answer.status, String(told.detail ?? `The server answered ${answer.status}.`));
  }
  return answer;
}

/** Ask, and return what the answer holds. */
export async function ask(method, where, body, signal) {
  return (await send(method, where, body, signal)).json();
}

/** Hand over each event of a stream, until it ends or is given up. */
export async function watch(body, signal, onevent) {
  const answer = await send("POST", "v1/watch", body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const found = /^event: (.*)\ndata: (.*)$/s.exec(event);
      if (found) onevent(found[1], JSON.parse(found[2]));
      else onevent("here", null);
    }
  }
}
