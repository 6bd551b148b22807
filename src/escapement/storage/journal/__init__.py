"""The journal: what each group commit did, and what that adds to the last checkpoint."""
