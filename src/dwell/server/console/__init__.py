"""The console: pages that a browser shows of a server, as files; they ask the HTTP API."""
