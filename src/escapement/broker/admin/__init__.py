"""The administrative verbs, by noun. To add a verb, enter its function in its noun's VERBS."""

from escapement.broker.admin.admin import Admin

__all__ = ["Admin"]
