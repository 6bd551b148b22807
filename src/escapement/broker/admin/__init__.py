"""The administrative verbs, by noun; a new verb is a function entered in its noun's VERBS."""

from escapement.broker.admin.admin import Admin

__all__ = ["Admin"]
