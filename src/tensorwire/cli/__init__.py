"""The commands: a module a command, thin (parse, call, show)."""
