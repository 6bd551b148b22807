"""What goes by way of the inbox: letters, and what writes them: jobs, schedules, groups."""
