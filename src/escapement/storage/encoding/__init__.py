"""Values as bytes: what rows of the database and the journal hold."""
