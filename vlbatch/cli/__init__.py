"""The command line: options → Config → a call of the library. Only here is printed or exited."""
