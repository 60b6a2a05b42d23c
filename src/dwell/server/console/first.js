// How the server is asked, and what the first page needs: that is asked for while the code which shows
// it is still on the way. No module, as those wait for the whole document and for each other.

const first = (() => {
  const KEPT = "dwell-token";
  const PART = 50;
  const SOON_MS = 5000;
  const PATIENCE_MS = 300;
  const root = new URL("..", document.baseURI);
  // What was asked before there was a page to show it, by path; for one page, and not for long.
  const begun = new Map();

  const token = {
    get: () => sessionStorage.getItem(KEPT),
    set: (value) => {
      begun.clear();
      return value ? sessionStorage.setItem(KEPT, value) : sessionStorage.removeItem(KEPT);
    },
  };

  /** Return the answer to a request, or that of one like it which was begun before. */
  function send(method, where, body, signal) {
    const answer = method === "GET" && begun.get(where);
    if (answer) {
      begun.delete(where);
      return answer;
    }
    const headers = { accept: where === "v1/watch" ? "text/event-stream" : "application/json" };
    if (token.get()) headers.authorization = `Bearer ${token.get()}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    return fetch(new URL(where, root), {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit", redirect: "error", cache: "no-store", referrerPolicy: "no-referrer",
    });
  }

  function begin(where) {
    const answer = send("GET", where);
    answer.catch(() => {});
    begun.set(where, answer);
    setTimeout(() => begun.delete(where), SOON_MS);
  }

  const query = (parameters) => {
    const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
    return given.length ? `?${new URLSearchParams(given)}` : "";
  };
  const overview = (asked) => `v1/overview${query(asked)}`;
  /** Return what to ask for to see a part of the topics. */
  const part = (get) => ({ match: get("match", ""), sort: get("sort", "name"), offset: Number(get("offset", 0)), limit: PART });

  // To draw a page that holds nothing yet takes as long as to draw one that does.
  const look = document.documentElement.classList;
  const reveal = () => look.remove("new");
  look.add("new");
  setTimeout(reveal, PATIENCE_MS);

  begin("v1/rights");
  if (!location.hash) begin(overview(part((name, otherwise) => otherwise)));
  return Object.freeze({ token, send, query, overview, part, reveal });
})();
