"""Access control without I/O: tokens, patterns of topics, grants, and the decision itself.

Begin with ``rights.py``, which decides whether a *role* may do something. A role is a name, for
example of an application. A client proves its role by a *token*. A *grant* lets a role carry out
*actions* on the topics that a *pattern* covers. Everything that no grant allows is denied.

The broker keeps tokens and grants in memory (``broker/access``) and in the database
(``storage/catalog/tokens.py`` and ``grants.py``). ``broker/access/needs.py`` has the table of all
verbs and commands with the rights that they need.
"""
