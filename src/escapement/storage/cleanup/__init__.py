"""Deletion of rows that nothing needs any more, and return of disk space, in small steps."""
