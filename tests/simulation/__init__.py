"""A simulation: brokers, clients and storage in one process, on a virtual clock, with faults.

Begin with ``run.py``, which puts a run together. ``world.py`` has the brokers and the parts that
they share: ``database.py``, ``disk.py`` and ``network.py`` are real SQLite, real files and streams
in memory behind faults. ``host.py`` is one broker process, which can be killed and paused.
``operator.py`` drains nodes and moves bundles. Clients (``operations.py``, ``consuming.py``) record
their calls and deliveries, and the rules of ``histories`` compare that with the invariants.
``features/`` has the clients of further features, and ``checks/`` what these must keep.
``application.py`` is an application with a database on a real server, which some runs have.
``exact/`` is another workload: one broker, which is compared with an exact model after each step.
``memory.py`` compares brokers with their bounds, and ``inspection.py`` looks at the database and
the disks at the end. ``planted.py`` has bugs that the simulation must find.

All random choices come from one seed. A run with the same seed repeats exactly.
"""
