"""Histories: what clients of brokers saw, and the rules that it must keep.

The simulation and the stress test record the same history and check it in the same way. Begin with
``history.py``, which has the facts. ``recording.py`` has the calls of clients, which note them.
``checker.py`` applies all rules:

====================  ==============================================================
``storing.py``        stored once, delivered and acknowledged in the end
``timing.py``         never early, cancels and reschedules take effect
``changes.py``        the answers to cancels and reschedules fit one order of them
``repeats.py``        only messages in flight are repeated, never acknowledged ones
``dead_letters.py``   one dead letter for each message that died, none vanishes
``order.py``          the order by key, and the order of the log
``ends.py``           brokers end only for the reasons that faults explain
====================  ==============================================================

``reads.py`` has rules about answers to requests that read, which are checked as they come.

An application with a database of its own has further rules (``transactions.py``): ``effects.py``
about messages that are acknowledged in its transactions, and ``table_rows.py`` about rows of a
message table.

Some facts are optional, because only the simulation knows them: when a message was sent, by which
process, and when its connection ended. A rule is stricter where they are known. The times of
troubles are known in the stress test only. A number in a violation is that of an invariant in
docs/architecture.md.
"""
