"""The commands of the app, a module each."""
