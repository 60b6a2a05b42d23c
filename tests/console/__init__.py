"""The console, in a real Chromium by clicking."""
