"""Random lives of a broker, held against a naive model: its parts."""
