"""Looking at a topic without consuming anything of it."""
