"""Values as the texts of pages. Pure."""
