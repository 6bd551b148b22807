"""The journal: what each group commit did, as changes to the state of the last checkpoint."""
