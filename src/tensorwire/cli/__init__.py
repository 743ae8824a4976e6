"""One module per command. Each parses options, calls the package and shows the result."""
