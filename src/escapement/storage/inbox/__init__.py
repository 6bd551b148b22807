"""The inbox and the tables of its writers: bulk jobs, schedules and group completions."""
