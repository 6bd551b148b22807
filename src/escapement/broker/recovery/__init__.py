"""From what is stored to what lives: the whole broker at a start, a topic when it is first used."""
