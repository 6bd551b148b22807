"""The administrative operations (*verbs*), in a module for each noun.

Begin with ``admin.py``: the class ``Admin`` runs verbs. To add a verb, write its function and enter
it in ``VERBS`` of its module.
"""

from escapement.broker.admin.admin import Admin

__all__ = ["Admin"]
