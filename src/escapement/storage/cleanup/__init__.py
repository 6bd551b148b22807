"""Rows and disk space that nothing needs any more, freed in bounded steps."""
