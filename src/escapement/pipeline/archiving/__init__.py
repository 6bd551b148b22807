"""How messages become verified files of an archive."""
